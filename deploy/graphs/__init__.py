"""ONNX graphs: read, hashed, written, and the patterns, sites and profiles found in them."""
