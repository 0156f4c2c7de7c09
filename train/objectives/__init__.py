"""What a training run minimises, and the figures it is judged by."""
