"""A quantized graph in the form that ONNX Runtime's CPU kernels are fast and exact on.

signed activations -> unsigned -> linear layers as one operator each -> weights that may saturate as unsigned
"""

from __future__ import annotations

from dataclasses import dataclass

import onnx

from deploy.backends.exact_weights import use_exact_weights
from deploy.backends.integer_products import use_integer_products
from deploy.backends.own_zero_points import separate_zero_points
from deploy.backends.unsigned_activations import use_unsigned_activations

SLOWER_FUSIONS = ("SkipLayerNormFusion",)
"""Optimizations of the runtime that its own separate operators beat (1.32: a float32 encoder takes up to 7 % less time without)."""


@dataclass(kw_only=True, slots=True)
class OnnxRuntimeForm:
    """Rewrites one graph while it is loaded."""

    saturates: bool
    """Whether unsigned-by-signed kernels of the processor saturate (:attr:`deploy.machine.MachineFacts.saturates_in_16_bits`)."""
    needs_exact_kernels: bool = True
    """Whether the runtime must be told to avoid them (``session.x64quantprecision``), slower for every weight; known after :meth:`rewrite`."""

    def rewrite(self, model: onnx.ModelProto) -> bool:
        """Bring ``model`` into form, in place; return whether anything changed."""
        changed = use_unsigned_activations(model) + use_integer_products(model)
        if self.saturates:
            weights = use_exact_weights(model)
            changed += weights.changed
            self.needs_exact_kernels = not weights.are_safe
        return changed + separate_zero_points(model) > 0
