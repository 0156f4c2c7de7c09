"""What enters the linear layers of a model on real texts: largest values, second moments, a sample of tokens.

Layers that read the same tensor share one entry.

Shapes: B batch, T tokens, I input features, N sampled tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from train.families.known_families import LayerModules, layers_of


class LinearInput:
    """Statistics of one tensor, over real tokens."""

    def __init__(self, *, moments: bool) -> None:
        """Start empty; ``moments``: whether to sum second moments too."""
        self._with_moments = moments
        self._rows: list[torch.Tensor] = []
        self._largest_I: torch.Tensor | None = None
        self._moments_II: torch.Tensor | None = None

    def update(self, x_TI: torch.Tensor, sampled: torch.Tensor) -> None:
        """Take real tokens in; ``sampled`` holds the indices of those to keep."""
        largest_I = x_TI.abs().amax(dim=0)
        self._largest_I = largest_I if self._largest_I is None else torch.maximum(self._largest_I, largest_I)
        self._rows.append(x_TI[sampled].clone())
        if self._with_moments:
            moments_II = x_TI.T @ x_TI
            self._moments_II = moments_II if self._moments_II is None else self._moments_II.add_(moments_II)

    @property
    def largest(self) -> torch.Tensor:
        """(I,) largest magnitude of each feature."""
        assert self._largest_I is not None
        return self._largest_I

    @property
    def sample(self) -> torch.Tensor:
        """(N, I) the sampled tokens."""
        return torch.cat(self._rows)

    @property
    def moments(self) -> torch.Tensor:
        """(I, I) sum over tokens of ``x x'``."""
        assert self._moments_II is not None
        return self._moments_II


@torch.no_grad()
def observe_linear_inputs(
    model: PreTrainedModel,
    batches: Sequence[Mapping[str, torch.Tensor]],
    *,
    samples: int = 512,
    moments: bool = False,
    seed: int = 0,
) -> dict[nn.Linear, LinearInput]:
    """Run the trunk of ``model`` over ``batches``.

    Args:
        model: in evaluation mode, of a supported family.
        batches: keyword inputs of forward passes, on the model's device; padding by ``attention_mask`` is left out.
        samples: tokens to keep, drawn evenly over all batches; the same ones for every tensor.
        moments: whether to sum second moments: I x I numbers per tensor.
        seed: of the sample.

    Returns:
        One entry for every linear layer of every block.

    Raises:
        ValueError: there is no batch with a real token.
    """
    masks = [_real_tokens(batch) for batch in batches]
    total = sum(int(mask.sum()) for mask in masks)
    if not total:
        raise ValueError("no text to observe the model on; expected at least one token")
    generator = torch.Generator().manual_seed(seed)
    kept = torch.zeros(total, dtype=torch.bool)
    kept[torch.randperm(total, generator=generator)[:samples]] = True
    inputs: dict[nn.Linear, LinearInput] = {}
    current: list[torch.Tensor] = []
    with ExitStack() as hooks:
        for layer in layers_of(model):
            for readers in readers_of(layer):
                entry = LinearInput(moments=moments)
                inputs |= dict.fromkeys(readers, entry)
                hooks.callback(readers[0].register_forward_pre_hook(_observer(entry, current)).remove)
        start = 0
        for batch, mask_N in zip(batches, masks, strict=True):
            count = int(mask_N.sum())
            current[:] = [mask_N, kept[start : start + count].nonzero().flatten().to(mask_N.device)]
            start += count
            model.base_model(**batch)
    return inputs


def readers_of(layer: LayerModules) -> tuple[tuple[nn.Linear, ...], ...]:
    """The linear layers of a block, those that read one tensor together."""
    projections = dict.fromkeys((layer.query.linear, layer.key.linear, layer.value.linear))
    return (tuple(projections), (layer.output_projection,), layer.ffn_in, (layer.ffn_out,))


def _real_tokens(batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """(B * T,) boolean."""
    mask_BT = batch.get("attention_mask")
    return (torch.ones_like(batch["input_ids"]) if mask_BT is None else mask_BT).bool().flatten()


def _observer(entry: LinearInput, current: list[torch.Tensor]) -> Any:
    def observe(_module: nn.Module, args: tuple[torch.Tensor, ...]) -> None:
        real_N, sampled = current
        entry.update(args[0].flatten(0, -2)[real_N].float(), sampled)

    return observe
