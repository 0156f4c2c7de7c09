"""PyTorch: attention that can do nothing, conversion, retrofit, outlier metrics."""
