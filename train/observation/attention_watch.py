"""What every attention layer does in one forward pass, gathered from the attention sites of any converted model.

Shapes: B batch, T queries, S keys, H heads, G key-value heads (G divides H), d features of a head.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from transformers import PreTrainedModel

from train.attention.attention_sites import SiteName, attention_sites
from train.attention.quiet_attention import MASK_VALUE
from train.families.known_families import layers_of


@dataclass(frozen=True, kw_only=True, slots=True)
class AttentionView:
    """One layer in one forward pass."""

    layer: int
    probabilities: torch.Tensor
    """(B, H, T, S), after softmax and clip; keys of a prefix are left out."""
    visible: torch.Tensor
    """(B, 1, T, S) boolean: query and key are real tokens, and the mask lets the query see the key."""
    value_norm: torch.Tensor
    """(B, H, S) Euclidean norm of each value."""
    real: torch.Tensor
    """(B, T) boolean: tokens that are not padding."""
    input_ids: torch.Tensor | None
    """(B, T); ``None`` where the model reads no token ids."""
    gate: torch.Tensor | None
    """(B, T, H) the gate's sigmoid, without its scale; ``None`` without gates."""


def view_attention(
    model: PreTrainedModel, batch: Mapping[str, torch.Tensor], function: Callable[[AttentionView], None]
) -> None:
    """Run ``model`` once, without gradients, and hand each layer to ``function`` as soon as its probabilities exist.

    Args:
        model: a converted model (vanilla settings included), in evaluation mode.
        batch: keyword inputs of the forward pass, ``attention_mask`` (B, T) among them where there is padding.
        function: called once per layer, first layer first; what it does not keep is freed.
    """
    device = next(model.parameters()).device
    inputs = {name: tensor.to(device) for name, tensor in batch.items()}
    pending: dict[SiteName, torch.Tensor] = {}

    def watch(layer: int, site: SiteName, tensor: torch.Tensor) -> torch.Tensor:
        if site in ("gate_logits", "values", "mask"):
            pending[site] = tensor
        elif site == "probabilities":
            function(_view(layer, tensor, pending, inputs))
            pending.clear()
        return tensor

    with torch.inference_mode(), attention_sites([modules.attention for modules in layers_of(model)], watch):
        model(**inputs)


def _view(
    layer: int,
    probabilities_BHTS: torch.Tensor,
    pending: Mapping[SiteName, torch.Tensor],
    inputs: Mapping[str, torch.Tensor],
) -> AttentionView:
    mask_BT = inputs.get("attention_mask")
    stored = probabilities_BHTS.shape[-1] - pending["values"].shape[2]
    probabilities_BHTS = probabilities_BHTS[..., stored:]
    B, H, T, S = probabilities_BHTS.shape
    assert T == S, "diagnosis runs whole sequences, without a cache"
    real_BT = (
        torch.ones(B, T, dtype=torch.bool, device=probabilities_BHTS.device) if mask_BT is None else mask_BT.bool()
    )
    visible_B1TS = real_BT[:, None, :, None] & real_BT[:, None, None, :]
    if "mask" in pending:
        mask = pending["mask"]
        mask_B1TS = mask[(None,) * (4 - mask.ndim)][:, :1, :, stored:]
        visible_B1TS = visible_B1TS & (mask_B1TS > MASK_VALUE / 2)
    norm_BGS = torch.linalg.vector_norm(pending["values"], dim=-1)
    return AttentionView(
        layer=layer,
        probabilities=probabilities_BHTS,
        visible=visible_B1TS,
        value_norm=norm_BGS.repeat_interleave(H // norm_BGS.shape[1], dim=1),
        real=real_BT,
        input_ids=inputs.get("input_ids"),
        gate=torch.sigmoid(pending["gate_logits"]) if "gate_logits" in pending else None,
    )
