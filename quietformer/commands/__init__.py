"""One file per command: its options, an example, and the lazy import of what does the work."""
