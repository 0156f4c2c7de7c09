"""``quietformer gpu-check``: what a machine with an NVIDIA GPU makes of engines, as one report."""
