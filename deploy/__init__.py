"""From an ONNX graph to a measured W8A8 artifact; runs without torch."""
