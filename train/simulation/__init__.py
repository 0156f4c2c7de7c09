"""W8A8 on the PyTorch model."""
