r"""How strongly the softmax of a layer asks the FFN below it for each hidden dimension: the cause that outliers are said to have.

The story (PAPER section 1): a head that wants to do nothing must widen its softmax input, LayerNorm compresses the range, so the
FFN of the layer before learns to write extreme values into a few dimensions. If it is true, the loss pulls on exactly these
dimensions *through the softmax*. That pull is defined here and measured.

Definition. Let ``x`` (T, D) be ``layer.(l-1).ffn_output`` of one sequence, ``s`` the scores of layer ``l`` (its softmax input, all
heads, before the mask) and ``L`` the loss of the sequence. ``x`` acts on ``L`` through the scores, through the values, through the
gate and through the residual stream. The gradient through the softmax is the first of these alone,

    g = (dL/ds) (ds/dx),        g in (T, D),

with ``dL/ds`` the full gradient at the scores and ``ds/dx`` their derivative by way of layer ``l``'s queries and keys. It equals
the derivative of the loss of a model in which layer ``l`` computes its scores from ``x + e`` and everything else from ``x``, which
is how the test checks it by finite differences. Per hidden dimension ``d`` the figure is the norm over the tokens of a sequence,
root-mean-squared over sequences: ``sqrt(mean_b sum_t g[b, t, d]^2)``; likewise ``total`` for the gradient over all paths.
Padding is left out. The figures do not depend on how rows are batched.

Shapes: B batch, T tokens, D hidden size, H heads, S keys.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import spearmanr
from torch import nn
from transformers import PreTrainedModel

from train.attention.attention_sites import SiteName, attention_sites
from train.families.known_families import layers_of
from train.observation.evaluation_mode import evaluation_mode
from train.observation.outliers import real_tokens

FloatArray = NDArray[np.float64]
LossFunction = Callable[[PreTrainedModel, Mapping[str, torch.Tensor]], torch.Tensor]
"""(model, batch) -> scalar: the losses of the batch's rows, each independent of the other rows, summed up."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SoftmaxGradient:
    """What the softmax of one layer asks of the FFN output below it."""

    layer: int
    """``l``, whose softmax it is; at least 1."""
    tensor: str
    """``layer.(l-1).ffn_output``."""
    through_softmax: FloatArray
    """(D,) gradient norm by the way of the softmax, see the module."""
    total: FloatArray
    """(D,) gradient norm by every way."""
    largest: FloatArray
    """(D,) ``max|x|`` over everything seen."""

    @property
    def rank_correlation(self) -> float | None:
        """Spearman's correlation of ``through_softmax`` with ``largest`` over hidden dimensions; ``None`` where one is constant."""
        if np.ptp(self.through_softmax) == 0 or np.ptp(self.largest) == 0:
            return None
        return float(spearmanr(self.through_softmax, self.largest).statistic)

    @property
    def pull_on_largest(self) -> float | None:
        """``through_softmax`` of the dimension with the largest value, over the median dimension's; ``None`` without a pull."""
        median = float(np.median(self.through_softmax))
        return float(self.through_softmax[self.largest.argmax()]) / median if median > 0 else None

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready values."""
        return {
            "layer": self.layer,
            "tensor": self.tensor,
            "through_softmax": self.through_softmax.tolist(),
            "total": self.total.tolist(),
            "largest": self.largest.tolist(),
            "rank_correlation": self.rank_correlation,
            "pull_on_largest": self.pull_on_largest,
        }


def softmax_gradients(
    model: PreTrainedModel, batches: Iterable[Mapping[str, torch.Tensor]], loss: LossFunction
) -> list[SoftmaxGradient]:
    """Measure every layer but the first, whose softmax has no FFN below it.

    Args:
        model: a converted model (vanilla settings included) whose parameters take gradients; it runs in evaluation mode, is left in
            the mode it came in, and its parameters' ``grad`` are untouched.
        batches: keyword inputs of forward passes, ``attention_mask`` (B, T) among them where there is padding.
        loss: summed over rows; see ``train.observation.diagnostic_losses``.

    Returns:
        One entry per layer from layer 1 on.

    Raises:
        ValueError: a model of one layer, or no token that is not padding.
    """
    layers = layers_of(model)
    if len(layers) < 2:
        raise ValueError("the model has one layer: no softmax stands above an FFN")
    sums = [_Sums() for _ in layers[1:]]
    device = next(model.parameters()).device
    with evaluation_mode(model):
        for batch in batches:
            inputs = {name: tensor.to(device) for name, tensor in batch.items()}
            _add_batch(model, inputs, loss, sums)
    if not sums[0].num_sequences:
        raise ValueError("no token to measure: the batches are empty or hold padding alone")
    return [
        SoftmaxGradient(
            layer=index,
            tensor=f"layer.{index - 1}.ffn_output",
            through_softmax=np.sqrt(entry.through / entry.num_sequences),
            total=np.sqrt(entry.total / entry.num_sequences),
            largest=entry.largest,
        )
        for index, entry in enumerate(sums, start=1)
    ]


class _Sums:
    """Running figures of one layer."""

    def __init__(self) -> None:
        self.num_sequences = 0
        self.through: FloatArray = np.zeros(())
        self.total: FloatArray = np.zeros(())
        self.largest: FloatArray = np.zeros(())


def _add_batch(
    model: PreTrainedModel, inputs: Mapping[str, torch.Tensor], loss: LossFunction, sums: list[_Sums]
) -> None:
    layers = layers_of(model)
    scores: dict[int, torch.Tensor] = {}
    written: dict[int, torch.Tensor] = {}

    def keep_scores(layer: int, site: SiteName, tensor: torch.Tensor) -> torch.Tensor:
        if site == "scores":
            scores[layer] = tensor
        return tensor

    def keep_output(layer: int) -> Callable[[nn.Module, Any, torch.Tensor], None]:
        return lambda _module, _args, output: written.update({layer: output})

    with ExitStack() as hooks:
        hooks.enter_context(torch.enable_grad())
        hooks.enter_context(attention_sites([modules.attention for modules in layers], keep_scores))
        for layer, modules in enumerate(layers):
            hooks.callback(modules.ffn_out.register_forward_hook(keep_output(layer)).remove)
        value = loss(model, inputs)
    below = [written[layer - 1] for layer in range(1, len(layers))]
    above = [scores[layer] for layer in range(1, len(layers))]
    # A clip may cut every path: then nothing is pulled, and the gradient is zero.
    gradients = torch.autograd.grad(value, [*above, *below], retain_graph=True, materialize_grads=True)
    for entry, output, score_BHTS, at_scores, total in zip(
        sums, below, above, gradients[: len(above)], gradients[len(above) :], strict=True
    ):
        (through,) = torch.autograd.grad(score_BHTS, output, at_scores, retain_graph=True, materialize_grads=True)
        # Some families lay the tokens of all rows out as one inside their FFN: (B * T, D).
        x_BTD = output.detach().view(score_BHTS.shape[0], score_BHTS.shape[2], -1)
        real_BT = real_tokens(inputs, x_BTD)
        entry.num_sequences += int(real_BT.any(dim=1).sum())
        entry.through = entry.through + _squares(through.view_as(x_BTD), real_BT)
        entry.total = entry.total + _squares(total.view_as(x_BTD), real_BT)
        if real_BT.any():
            entry.largest = np.maximum(entry.largest, x_BTD[real_BT].abs().amax(dim=0).double().cpu().numpy())


def _squares(gradient_BTD: torch.Tensor, real_BT: torch.Tensor) -> FloatArray:
    values: FloatArray = gradient_BTD[real_BT].double().square().sum(dim=0).cpu().numpy()
    return values
