"""From a PyTorch checkpoint to a checked ONNX graph."""
