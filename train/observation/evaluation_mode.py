"""Evaluation mode for the length of a measurement."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn


@contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Put ``model`` into evaluation mode (no dropout), and afterwards into the mode it came in."""
    was_training = model.training
    model.train(mode=False)
    try:
        yield
    finally:
        model.train(mode=was_training)
