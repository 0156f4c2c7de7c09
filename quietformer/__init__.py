"""The face of the product: command line, recipes, pipeline, report."""
