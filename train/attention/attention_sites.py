"""Where simulated quantization and observation meet the inside of attention.

Each attention module of a converted model carries ``quiet_sites``: ``None``, or a function ``(site, tensor) ->
tensor`` that is called at these points and whose result is used instead of the tensor:

=================  ===================  ================================================================
site               shape                the tensor
=================  ===================  ================================================================
``gate_hidden``    (B, T, H * hidden)   hidden layer of an ``mlp`` gate, after its ReLU
``gate_logits``    (B, T, H)            input of the gate's sigmoid
``gate``           (B, T, H)            what multiplies the context: ``scale * sigmoid(logits)``
``values``         (B, H, S, d)         values as the family hands them over (H key-value heads where they are grouped)
``scores``         (B, H, T, S)         ``q k' / sqrt(d)``: after scaling, before the mask; keys of a prefix first
``mask``           to (B, 1, T, S)      what is added to the scores, broadcastable; not seen where every key is attended to
``probabilities``  (B, H, T, S)         after softmax and clip, before dropout
``values_mixed``   (B, T, H, d)         probabilities times values, before the gate (only where there is a gate)
``context``        (B, T, H, d)         what the output projection reads: after the gate
=================  ===================  ================================================================

While a function is set, attention takes its explicit path (MatMul, softmax, MatMul) because the fused kernel never
shows scores or probabilities; results agree with the fused path to float rounding. An identity function therefore
also serves whoever needs the explicit graph. Outputs of the projections are outputs of ordinary Linear modules and
are reached by module hooks (``train.observation.named_tensors``, ``train.families``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal

import torch
from torch import nn

SiteName = Literal[
    "gate_hidden", "gate_logits", "gate", "values", "scores", "mask", "probabilities", "values_mixed", "context"
]
SiteFunction = Callable[[SiteName, torch.Tensor], torch.Tensor]
LayerSiteFunction = Callable[[int, SiteName, torch.Tensor], torch.Tensor]


def at_site(sites: SiteFunction | None, site: SiteName, tensor: torch.Tensor) -> torch.Tensor:
    """Hand ``tensor`` to the site function where one is set."""
    return tensor if sites is None else sites(site, tensor)


@contextmanager
def attention_sites(attentions: list[nn.Module], function: LayerSiteFunction) -> Iterator[None]:
    """Set ``function(layer, site, tensor) -> tensor`` on every attention module for the length of a ``with`` block.

    Args:
        attentions: attention modules of a converted model, first layer first
            (``[layer.attention for layer in train.families.layers_of(model)]``).
        function: gets the layer's index besides site name and tensor; what it returns replaces the tensor.
    """
    earlier = [attention.quiet_sites for attention in attentions]
    try:
        for index, attention in enumerate(attentions):
            attention.quiet_sites = _of_layer(function, index)  # type: ignore[assignment]
        yield
    finally:
        for attention, sites in zip(attentions, earlier, strict=True):
            attention.quiet_sites = sites


def _of_layer(function: LayerSiteFunction, layer: int) -> SiteFunction:
    return lambda site, tensor: function(layer, site, tensor)
