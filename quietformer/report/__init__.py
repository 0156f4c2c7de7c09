"""The report of a run: one JSON document, a Markdown summary, one self-contained HTML page."""
