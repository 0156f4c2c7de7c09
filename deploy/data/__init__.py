"""Texts and images as the inputs of a graph."""
