"""Checkpoints on disk: found, read, written, hashed."""
