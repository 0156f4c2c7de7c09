"""What chosen heads do on one sequence, in full: probabilities, norms of values, their product, and every gate.

The product of a probability and the norm of its value is how much a key moves the head's output: where attention rests on
tokens with near-zero values the first matrix is full and the product is empty (PAPER section 6).

Shapes: H heads, T tokens of the sequence, queries and keys alike, L layers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import PreTrainedModel

from train.families.known_families import layers_of, num_heads_of
from train.observation.attention_watch import AttentionView, view_attention
from train.observation.evaluation_mode import evaluation_mode

FloatArray = NDArray[np.float64]

_DECIMALS = 5
"""Of a probability in JSON."""


@dataclass(frozen=True, kw_only=True, slots=True)
class HeadPicture:
    """One head on one sequence."""

    layer: int
    head: int
    probabilities: FloatArray
    """(T, T) query by key; 0 where the mask hides the key."""
    value_norm: FloatArray
    """(T,) Euclidean norm of each key's value."""

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready values; the product is left to the reader."""
        return {
            "layer": self.layer,
            "head": self.head,
            "probabilities": np.round(self.probabilities, _DECIMALS).tolist(),
            "value_norm": np.round(self.value_norm, _DECIMALS).tolist(),
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class SequencePicture:
    """Chosen heads and all gates on one sequence."""

    heads: tuple[HeadPicture, ...]
    gates: FloatArray | None
    """(L, H, T) the gates' sigmoids, without their scale; ``None`` for a model without gates."""

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready values."""
        gates = None if self.gates is None else np.round(self.gates, _DECIMALS).tolist()
        return {"heads": [head.to_dict() for head in self.heads], "gates": gates}


def picture_sequence(
    model: PreTrainedModel, batch: Mapping[str, torch.Tensor], heads: Sequence[tuple[int, int]]
) -> SequencePicture:
    """Run ``model`` on one sequence and keep what the chosen heads do.

    Args:
        model: a converted model (vanilla settings included); it runs in evaluation mode and is left in the mode it came in.
        batch: keyword inputs of a forward pass of one row without padding.
        heads: (layer, head), in the order in which the pictures are wanted.

    Raises:
        ValueError: the model has no such head.
    """
    check_heads(model, heads)
    wanted: dict[tuple[int, int], HeadPicture] = {}
    gates: list[FloatArray] = []

    def keep(view: AttentionView) -> None:
        shown_HTT = (view.probabilities * view.visible)[0].double().cpu().numpy()
        norm_HT = view.value_norm[0].double().cpu().numpy()
        for layer, head in heads:
            if layer == view.layer:
                wanted[layer, head] = HeadPicture(
                    layer=layer, head=head, probabilities=shown_HTT[head], value_norm=norm_HT[head]
                )
        if view.gate is not None:
            gates.append(view.gate[0].double().cpu().numpy().T)

    with evaluation_mode(model):
        view_attention(model, batch, keep)
    return SequencePicture(heads=tuple(wanted[place] for place in heads), gates=np.stack(gates) if gates else None)


def check_heads(model: PreTrainedModel, heads: Sequence[tuple[int, int]]) -> None:
    """Refuse a head that the model does not have.

    Raises:
        ValueError: naming the first one, and what there is.
    """
    num_layers, num_heads = len(layers_of(model)), num_heads_of(model)
    for layer, head in heads:
        if not (0 <= layer < num_layers and 0 <= head < num_heads):
            raise ValueError(
                f"there is no head {layer}.{head}; the model has layers 0 to {num_layers - 1} "
                f"with heads 0 to {num_heads - 1}"
            )
