"""Latency and accuracy of artifacts, compared."""
