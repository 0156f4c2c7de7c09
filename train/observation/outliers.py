"""Outlier metrics of a model's named tensors, as PAPER section 6 (Quantizable Transformers, section 5) defines them.

For one sequence, over all its tokens and features: the infinity norm is ``max|x|`` and the kurtosis ``mean((x -
mu)^4) / std^4`` with the population's std (a Gaussian has 3). Both are averaged over sequences. The same per token,
over its features alone, averaged over tokens. Padding is left out; arithmetic is in float64; nothing is added to a
denominator. Values further than six standard deviations from their sequence's mean are counted per feature, per token
id and per position (patches, for a model that reads images, have positions alone).

Shapes: B batch, T tokens or patches, D features, N = all tokens of a batch that are not padding.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

import numpy as np
import torch
from transformers import PreTrainedModel

from train.families.known_families import TensorKind
from train.observation.evaluation_mode import evaluation_mode
from train.observation.named_tensors import kind_of, named_tensors
from train.observation.outlier_report import OutlierReport, TensorOutliers

SIGMAS = 6.0
"""A value further than this many standard deviations from its sequence's mean is an outlier."""

_CONSTANT_STD = 1e-12
"""Standard deviation relative to the largest value below which float32 values, in float64, are one constant."""


def measure_outliers(
    model: PreTrainedModel,
    batches: Iterable[Mapping[str, torch.Tensor]],
    *,
    kinds: Iterable[TensorKind] | None = None,
) -> OutlierReport:
    """Run ``model`` over ``batches`` and measure its named tensors; memory does not grow with their number.

    Args:
        model: a supported model; it runs in evaluation mode and is left in the mode it came in.
        batches: keyword inputs of forward passes, with ``attention_mask`` (B, T) where there is padding, on either side. A
            sequence that is padding alone is left out.
        kinds: which tensors to measure; ``None``: all that the family has.

    Raises:
        ValueError: no batch, no token that is not padding, a tensor with NaN or infinity, or an unsupported family.
    """
    measures: dict[str, _Measure] = {}
    num_sequences = num_tokens = 0
    device = next(model.parameters()).device
    with evaluation_mode(model), torch.inference_mode(), named_tensors(model, kinds=kinds) as tensors:
        for batch in batches:
            inputs = {name: value.to(device) for name, value in batch.items()}
            model(**inputs)
            keep_BT = torch.empty(0, 0)
            for name, tensor_BTD in tensors.items():
                keep_BT = real_tokens(inputs, tensor_BTD)
                measure = measures.setdefault(name, _Measure(name, tensor_BTD.shape[-1]))
                measure.update(tensor_BTD, keep_BT, inputs.get("input_ids"))
            num_sequences += int(keep_BT.any(dim=1).sum())
            num_tokens += int(keep_BT.sum())
            tensors.clear()
    if num_tokens == 0:
        raise ValueError("no token to measure: the batches are empty or hold padding alone")
    return OutlierReport(
        tensors=tuple(measure.result() for measure in measures.values()),
        num_sequences=num_sequences,
        num_tokens=num_tokens,
    )


def real_tokens(inputs: Mapping[str, torch.Tensor], tensor_BTD: torch.Tensor) -> torch.Tensor:
    """Which tokens of a tensor are not padding, boolean (B, T); all of them where the inputs have no mask."""
    mask_BT = inputs.get("attention_mask")
    if mask_BT is None:
        return torch.ones(tensor_BTD.shape[:2], dtype=torch.bool, device=tensor_BTD.device)
    return mask_BT.bool()


class _Measure:
    """Running figures of one tensor."""

    def __init__(self, name: str, num_features: int) -> None:
        self._name = name
        self._inf_norm, self._kurtosis = _Mean(), _Mean()
        self._token_inf_norm, self._token_kurtosis = _Mean(), _Mean()
        self._num_values = 0
        self._outliers_by_feature = np.zeros(num_features, dtype=np.int64)
        self._outliers_by_token: Counter[int] = Counter()
        self._largest_by_feature = np.zeros(num_features, dtype=np.float64)
        self._outliers_by_position = np.zeros(0, dtype=np.int64)
        self._largest_by_position = np.zeros(0, dtype=np.float64)

    def update(self, tensor_BTD: torch.Tensor, keep_BT: torch.Tensor, ids_BT: torch.Tensor | None) -> None:
        values_ND = tensor_BTD[keep_BT].to(torch.float64)
        if values_ND.numel() == 0:
            return
        if not bool(torch.isfinite(values_ND).all()):
            raise ValueError(f"tensor '{self._name}' holds NaN or infinity")
        sequence_N = keep_BT.nonzero()[:, 0]
        outlier_ND = torch.zeros_like(values_ND, dtype=torch.bool)
        for sequence in torch.unique(sequence_N):
            rows = sequence_N == sequence
            values_1n = values_ND[rows].flatten()[None]
            deviation_1n, std_1, kurtosis_1 = spread(values_1n)
            outlier_ND[rows] = (deviation_1n.abs() > SIGMAS * std_1[:, None]).view(-1, values_ND.shape[1])
            self._inf_norm.add(values_1n.abs().amax(dim=1))
            self._kurtosis.add(kurtosis_1)
        largest_ND = values_ND.abs()
        self._token_inf_norm.add(largest_ND.amax(dim=1))
        self._token_kurtosis.add(spread(values_ND)[2])
        self._num_values += values_ND.numel()
        self._outliers_by_feature += outlier_ND.sum(dim=0).cpu().numpy()
        outliers_N = outlier_ND.sum(dim=1)
        if ids_BT is not None:
            for token, count in zip(ids_BT[keep_BT].tolist(), outliers_N.tolist(), strict=True):
                if count:
                    self._outliers_by_token[token] += count
        # Counted from the first real token, so that padding on the left moves nothing.
        position_N = (keep_BT.cumsum(dim=1) - 1)[keep_BT].cpu().numpy()
        self._grow(int(position_N.max()) + 1)
        np.add.at(self._outliers_by_position, position_N, outliers_N.cpu().numpy())
        np.maximum.at(self._largest_by_position, position_N, largest_ND.amax(dim=1).cpu().numpy())
        np.maximum(self._largest_by_feature, largest_ND.amax(dim=0).cpu().numpy(), out=self._largest_by_feature)

    def _grow(self, num_positions: int) -> None:
        more = max(0, num_positions - len(self._largest_by_position))
        self._outliers_by_position = np.pad(self._outliers_by_position, (0, more))
        self._largest_by_position = np.pad(self._largest_by_position, (0, more))

    def result(self) -> TensorOutliers:
        return TensorOutliers(
            name=self._name,
            kind=kind_of(self._name),
            inf_norm=self._inf_norm.value,
            kurtosis=self._kurtosis.value,
            token_inf_norm=self._token_inf_norm.value,
            token_kurtosis=self._token_kurtosis.value,
            largest=float(self._largest_by_feature.max()),
            num_values=self._num_values,
            num_outliers=int(self._outliers_by_feature.sum()),
            outliers_by_feature=self._outliers_by_feature,
            outliers_by_token=dict(self._outliers_by_token.most_common()),
            outliers_by_position=self._outliers_by_position,
            largest_by_feature=self._largest_by_feature,
            largest_by_position=self._largest_by_position,
        )


class _Mean:
    """Mean over everything added; NaN entries do not count."""

    def __init__(self) -> None:
        self._total = 0.0
        self._count = 0

    def add(self, values_N: torch.Tensor) -> None:
        real_N = values_N[~values_N.isnan()]
        self._total += float(real_N.sum())
        self._count += len(real_N)

    @property
    def value(self) -> float:
        return self._total / self._count if self._count else float("nan")


def spread(values_ND: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Deviations from the mean, standard deviation and kurtosis of each row.

    Args:
        values_ND: float64.

    Returns:
        Deviations (N, D), the population's standard deviation (N,), and ``mean((x - mu)^4) / std^4`` (N,), which is 3
        for a Gaussian and NaN for a constant row.
    """
    deviation_ND = values_ND - values_ND.mean(dim=1, keepdim=True)
    square_ND = deviation_ND.square()
    variance_N = square_ND.mean(dim=1)
    std_N = variance_N.sqrt()
    constant_N = std_N <= _CONSTANT_STD * values_ND.abs().amax(dim=1)
    kurtosis_N = square_ND.square_().mean(dim=1) / variance_N.square()
    return deviation_ND, std_N, torch.where(constant_N, torch.nan, kurtosis_N)
