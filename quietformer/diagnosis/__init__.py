"""What ``quietformer inspect`` measures on a checkpoint: outliers, attention at rest, gates, and pulls through the softmax."""
