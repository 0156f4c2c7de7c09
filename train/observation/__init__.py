"""What a model does inside: outliers, attention, gates, gradients."""
