"""Statistics of activations, ranges made of them, and the cache that is bound to model and data."""
