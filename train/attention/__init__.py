"""Attention that can do nothing: settings, softmax, gates, the attention function of every family."""
