"""What every head does with its attention, over many batches: where it rests, how little it moves there, what its gate lets through.

A head that wants to leave the stream alone puts its probability on tokens whose values are near zero (PAPER section 1). So for
each head:

- the *sink* of a sequence is the key that gets most probability, averaged over its queries;
- ``sink_share`` is the share of probability on it, ``sink_value_norm`` the norm of its value over the mean norm of the
  sequence's values, both averaged over sequences;
- ``delimiter_share`` and ``delimiter_value_norm`` are the same for a given set of token ids, over the queries and keys of all
  sequences;
- ``zero_share`` is the share of (query, visible key) pairs whose probability is exactly 0;
- ``gate_mean`` is the mean of the gate's sigmoid over tokens, without its scale, and ``gate_low_share`` the share of tokens
  below ``LOW_GATE``.

Padding is left out, as query and as key; so are keys that the mask hides. Arithmetic on sums is in float64 and streams: memory
does not grow with the number of batches, and the figures do not depend on how rows are batched.

Shapes: B batch, H heads, T queries, S keys, d features of a head, L layers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import PreTrainedModel

from train.families.known_families import layers_of
from train.observation.attention_watch import AttentionView, view_attention
from train.observation.evaluation_mode import evaluation_mode

LOW_GATE = 0.1
"""A gate below it has closed: its head adds next to nothing."""

_TINY = float(np.finfo(np.float64).tiny)
"""Below every mean norm of values that are not all zero; where they are, their ratio to it is 0."""

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, slots=True)
class AttentionStatistics:
    """Figures of every head, each (L, H); see the module for what they are."""

    sink_share: FloatArray
    sink_value_norm: FloatArray
    zero_share: FloatArray
    delimiter_share: FloatArray | None
    """``None`` where no delimiters were given or none occurred."""
    delimiter_value_norm: FloatArray | None
    gate_mean: FloatArray | None
    """``None`` for a model without gates."""
    gate_low_share: FloatArray | None
    num_sequences: int

    @property
    def idleness(self) -> FloatArray:
        """(L, H) how much of a head's attention rests where little is moved, in [0, 1].

        ``share * (1 - min(1, value_norm))``, for the sink or for the delimiters, whichever is more.
        """
        idle = self.sink_share * (1.0 - np.minimum(1.0, self.sink_value_norm))
        if self.delimiter_share is None or self.delimiter_value_norm is None:
            return idle
        return np.maximum(idle, self.delimiter_share * (1.0 - np.minimum(1.0, self.delimiter_value_norm)))

    def idlest_heads(self, count: int) -> list[tuple[int, int]]:
        """(layer, head) of the heads with most ``idleness``, most first; of equal ones the lower layer and head."""
        order = np.argsort(-self.idleness, axis=None, kind="stable")[:count]
        return [(int(place) // self.sink_share.shape[1], int(place) % self.sink_share.shape[1]) for place in order]

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready values: a list of layers, each a list of heads, or ``None``."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in values.items()} | {
            "idleness": self.idleness.tolist(),
            "low_gate": LOW_GATE,
        }


def measure_attention(
    model: PreTrainedModel,
    batches: Iterable[Mapping[str, torch.Tensor]],
    *,
    delimiters: Iterable[int] = (),
) -> AttentionStatistics:
    """Run ``model`` over ``batches`` and measure its heads.

    Args:
        model: a converted model (vanilla settings included); it runs in evaluation mode and is left in the mode it came in.
        batches: keyword inputs of forward passes, ``attention_mask`` (B, T) among them where there is padding.
        delimiters: token ids to report the attention on, for models that read ``input_ids``.

    Raises:
        ValueError: no batch, or no token that is not padding.
    """
    delimiter_ids = torch.tensor(sorted(set(delimiters)), dtype=torch.int64)
    layers = [_LayerSums() for _ in layers_of(model)]
    with evaluation_mode(model):
        for batch in batches:
            view_attention(model, batch, lambda view: layers[view.layer].add(view, delimiter_ids))
    if not layers[0].num_sequences:
        raise ValueError("no token to measure: the batches are empty or hold padding alone")
    return _statistics(layers)


class _LayerSums:
    """Running sums of one layer, each (H,) in float64."""

    def __init__(self) -> None:
        self._sums: dict[str, FloatArray] = {}
        self.num_sequences = 0

    def __getitem__(self, name: str) -> FloatArray:
        return self._sums[name]

    def __contains__(self, name: str) -> bool:
        return name in self._sums

    def _add(self, name: str, values_H: torch.Tensor) -> None:
        added = values_H.detach().to(torch.float64).cpu().numpy()
        self._sums[name] = self._sums.get(name, np.zeros_like(added)) + added

    def add(self, view: AttentionView, delimiter_ids: torch.Tensor) -> None:
        """Take one batch in."""
        self.num_sequences += int(view.real.any(dim=1).sum())
        real_BT, visible_B1TS, norm_BHS = view.real, view.visible, view.value_norm.double()
        p_BHTS = view.probabilities.double() * visible_B1TS
        num_heads = p_BHTS.shape[1]
        self._add("visible", visible_B1TS.sum().expand(num_heads))
        self._add("zeros", ((view.probabilities == 0) & visible_B1TS).sum(dim=(0, 2, 3)))
        self._add("tokens", real_BT.sum().expand(num_heads))
        self._add_sinks(real_BT, p_BHTS, norm_BHS)
        if view.input_ids is not None and len(delimiter_ids):
            delimiter_BS = torch.isin(view.input_ids, delimiter_ids.to(view.input_ids.device)) & real_BT
            self._add("on_delimiters", (p_BHTS * delimiter_BS[:, None, None, :]).sum(dim=(0, 2, 3)))
            self._add("delimiter_norm", (norm_BHS * delimiter_BS[:, None]).sum(dim=(0, 2)))
            self._add("delimiters", delimiter_BS.sum().expand(num_heads))
            self._add("norm", (norm_BHS * real_BT[:, None]).sum(dim=(0, 2)))
        if view.gate is not None:
            self._add("gate", (view.gate.double() * real_BT[..., None]).sum(dim=(0, 1)))
            self._add("gate_low", ((view.gate < LOW_GATE) & real_BT[..., None]).sum(dim=(0, 1)))

    def _add_sinks(self, real_BT: torch.Tensor, p_BHTS: torch.Tensor, norm_BHS: torch.Tensor) -> None:
        count_B1 = real_BT.sum(dim=1, keepdim=True).clamp(min=1)
        some_B1 = real_BT.any(dim=1, keepdim=True)
        share_BHS = p_BHTS.sum(dim=2) / count_B1[..., None]
        sink_BH1 = share_BHS.argmax(dim=2, keepdim=True)
        mean_BH = (norm_BHS * real_BT[:, None]).sum(dim=2) / count_B1
        ratio_BH = norm_BHS.gather(2, sink_BH1)[..., 0] / mean_BH.clamp(min=_TINY)
        self._add("sink_share", (share_BHS.gather(2, sink_BH1)[..., 0] * some_B1).sum(dim=0))
        self._add("sink_value_norm", (ratio_BH * some_B1).sum(dim=0))


def _statistics(layers: list[_LayerSums]) -> AttentionStatistics:
    def ratio(above: str, below: str) -> FloatArray:
        return np.stack([layer[above] / np.maximum(layer[below], 1.0) for layer in layers])

    has_delimiters = all("delimiters" in layer and layer["delimiters"].min() > 0 for layer in layers)
    has_gates = all("gate" in layer for layer in layers)
    return AttentionStatistics(
        sink_share=np.stack([layer["sink_share"] / layer.num_sequences for layer in layers]),
        sink_value_norm=np.stack([layer["sink_value_norm"] / layer.num_sequences for layer in layers]),
        zero_share=ratio("zeros", "visible"),
        delimiter_share=ratio("on_delimiters", "tokens") if has_delimiters else None,
        delimiter_value_norm=ratio("delimiter_norm", "delimiters") / np.maximum(ratio("norm", "tokens"), _TINY)
        if has_delimiters
        else None,
        gate_mean=ratio("gate", "tokens") if has_gates else None,
        gate_low_share=ratio("gate_low", "tokens") if has_gates else None,
        num_sequences=layers[0].num_sequences,
    )
