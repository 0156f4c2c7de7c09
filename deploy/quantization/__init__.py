"""Q/DQ graphs: made, read back and checked."""
