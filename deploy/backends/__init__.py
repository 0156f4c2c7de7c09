"""Runtimes behind one interface: open an artifact, feed it, read its outputs."""
