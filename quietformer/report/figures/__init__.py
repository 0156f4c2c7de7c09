"""Drawings of a report, one file per subject; each returns inline SVG with its description in words."""
