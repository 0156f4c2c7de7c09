"""Rules of ``lint``: what breaks TensorRT's parser, an integer kernel, or accuracy."""
