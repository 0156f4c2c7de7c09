"""Named calibration sets: where they come from and the code that makes them."""
