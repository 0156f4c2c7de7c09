"""One file per stage of a run: what it reads, what it writes, and the call that does the work."""
