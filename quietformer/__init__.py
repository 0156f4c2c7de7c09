"""The face of the product: command line, recipes, pipeline, report."""

__version__ = "0.1.0"
