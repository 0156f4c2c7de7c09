"""Batches of text, tokens and images as functions of (seed, step)."""
