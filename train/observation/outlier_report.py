"""What an outlier measurement found, per named tensor and summed up; ``train.observation.outliers`` defines the figures."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from train.families.known_families import TensorKind


@dataclass(frozen=True, kw_only=True, slots=True)
class TensorOutliers:
    """Figures of one named tensor."""

    name: str
    kind: TensorKind
    inf_norm: float
    """``max|x|`` of a sequence, averaged over sequences."""
    kurtosis: float
    """Kurtosis of a sequence, averaged over sequences; NaN where every sequence is constant."""
    token_inf_norm: float
    """``max|x|`` of a token, averaged over tokens."""
    token_kurtosis: float
    """Kurtosis of a token, averaged over tokens; NaN where every token is constant."""
    largest: float
    """``max|x|`` over everything seen."""
    num_values: int
    num_outliers: int
    """Values beyond six standard deviations of their sequence."""
    outliers_by_feature: npt.NDArray[np.int64] = field(repr=False)
    """(D,) how many of them lie in each hidden dimension."""
    outliers_by_token: dict[int, int] = field(repr=False)
    """How many of them lie on each token id (those with any), most first; empty where the model reads no token ids."""
    outliers_by_position: npt.NDArray[np.int64] = field(repr=False)
    """(T,) how many of them lie on each position, counted from a sequence's first real token."""
    largest_by_feature: npt.NDArray[np.float64] = field(repr=False)
    """(D,) ``max|x|`` of each hidden dimension over everything seen."""
    largest_by_position: npt.NDArray[np.float64] = field(repr=False)
    """(T,) ``max|x|`` of each position."""

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready values; NaN becomes ``None``."""
        numbers = ("inf_norm", "kurtosis", "token_inf_norm", "token_kurtosis", "largest")
        return {
            "name": self.name,
            "kind": self.kind,
            **{key: None if math.isnan(value := getattr(self, key)) else value for key in numbers},
            "num_values": self.num_values,
            "num_outliers": self.num_outliers,
            "outliers_by_feature": self.outliers_by_feature.tolist(),
            "outliers_by_token": {str(token): count for token, count in self.outliers_by_token.items()},
            "outliers_by_position": self.outliers_by_position.tolist(),
            "largest_by_feature": self.largest_by_feature.tolist(),
            "largest_by_position": self.largest_by_position.tolist(),
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class OutlierSummary:
    """A model's figures over a set of tensors."""

    max_inf_norm: float
    """Largest ``inf_norm`` of any tensor."""
    max_inf_norm_tensor: str
    """The tensor that has it."""
    average_kurtosis: float
    """``kurtosis`` averaged over tensors; tensors without one are left out."""
    largest: float
    """Largest single ``|x|``."""


@dataclass(frozen=True, kw_only=True, slots=True)
class OutlierReport:
    """Figures of every named tensor of a model."""

    tensors: tuple[TensorOutliers, ...]
    num_sequences: int
    num_tokens: int

    def summary(self, kind: TensorKind | None = None) -> OutlierSummary:
        """The model's figures over all tensors, or over those of one kind (PAPER: always say which).

        Raises:
            ValueError: no tensor of that kind was measured.
        """
        chosen = [tensor for tensor in self.tensors if kind in (None, tensor.kind)]
        if not chosen:
            raise ValueError(f"no tensor of kind '{kind}' was measured; there are {', '.join(self.kinds)}")
        kurtoses = [tensor.kurtosis for tensor in chosen if not math.isnan(tensor.kurtosis)]
        worst = max(chosen, key=lambda tensor: tensor.inf_norm)
        return OutlierSummary(
            max_inf_norm=worst.inf_norm,
            max_inf_norm_tensor=worst.name,
            average_kurtosis=math.fsum(kurtoses) / len(kurtoses) if kurtoses else math.nan,
            largest=max(tensor.largest for tensor in chosen),
        )

    @property
    def kinds(self) -> tuple[TensorKind, ...]:
        """Kinds that were measured, each once."""
        return tuple(dict.fromkeys(tensor.kind for tensor in self.tensors))

    @property
    def largest_ffn_output(self) -> float:
        """``max|x|`` over all FFN outputs."""
        return self.summary("ffn_output").largest

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready values: the summary over all tensors and per kind, then each tensor."""
        scopes: list[tuple[str, TensorKind | None]] = [("all", None), *((kind, kind) for kind in self.kinds)]
        return {
            "num_sequences": self.num_sequences,
            "num_tokens": self.num_tokens,
            "summary": {name: _summary_dict(self.summary(kind)) for name, kind in scopes},
            "tensors": [tensor.to_dict() for tensor in self.tensors],
        }


def _summary_dict(summary: OutlierSummary) -> dict[str, Any]:
    kurtosis = None if math.isnan(summary.average_kurtosis) else summary.average_kurtosis
    return {
        "max_inf_norm": summary.max_inf_norm,
        "max_inf_norm_tensor": summary.max_inf_norm_tensor,
        "average_kurtosis": kurtosis,
        "largest": summary.largest,
    }
