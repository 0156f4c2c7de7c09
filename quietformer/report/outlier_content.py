"""Outlier figures as ``train.observation.outliers.OutlierReport.to_dict()`` writes them, read for tables and drawings.

Only the dictionary is read: a report is rendered where no torch is installed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

FFN_OUTPUT = "ffn_output"

_LABELS = {
    "attention_output": "Attention output",
    "ffn_output": "FFN output",
    "residual_sum.attention": "Residual sum after attention",
    "residual_sum.ffn": "Residual sum after FFN",
    "ln_output.attention": "LayerNorm output after attention",
    "ln_output.ffn": "LayerNorm output after FFN",
    "embedding_sum": "Embedding sum",
    "embedding_ln_output": "Embedding LayerNorm output",
}


def kind_label(kind: str) -> str:
    """A kind of tensor in words."""
    return _LABELS.get(kind, kind.replace("_", " "))


@dataclass(frozen=True, kw_only=True, slots=True)
class TensorView:
    """One named tensor, such as ``layer.3.ffn_output``."""

    name: str
    kind: str
    layer: int | None
    """None for a tensor outside the layers."""
    largest: float
    """``max|x|`` over everything seen."""
    inf_norm: float
    """``max|x|`` per sequence, averaged over sequences."""
    kurtosis: float | None
    """Per sequence, averaged; None where every sequence is constant."""
    largest_by_feature: tuple[float, ...]
    """``max|x|`` of each hidden dimension."""
    outlier_share: float
    """Share of values beyond six standard deviations."""

    @property
    def label(self) -> str:
        """Kind in words."""
        return kind_label(self.kind)


@dataclass(frozen=True, kw_only=True, slots=True)
class OutlierTotals:
    """A model's figures."""

    largest: float
    """Largest single ``|x|`` of any named tensor."""
    largest_ffn: float | None
    """The same over FFN outputs, None where they were not measured."""
    kurtosis: float | None
    """Averaged over tensors."""


def outlier_totals(outliers: Mapping[str, Any]) -> OutlierTotals:
    """A model's figures over all named tensors."""
    summary = outliers["summary"]
    return OutlierTotals(
        largest=summary["all"]["largest"],
        largest_ffn=summary[FFN_OUTPUT]["largest"] if FFN_OUTPUT in summary else None,
        kurtosis=summary["all"]["average_kurtosis"],
    )


def tensor_views(outliers: Mapping[str, Any]) -> tuple[TensorView, ...]:
    """Every named tensor in the model's order."""
    return tuple(
        TensorView(
            name=tensor["name"],
            kind=tensor["kind"],
            layer=int(tensor["name"].split(".")[1]) if tensor["name"].startswith("layer.") else None,
            largest=tensor["largest"],
            inf_norm=tensor["inf_norm"],
            kurtosis=tensor["kurtosis"],
            largest_by_feature=tuple(tensor["largest_by_feature"]),
            outlier_share=tensor["num_outliers"] / tensor["num_values"],
        )
        for tensor in outliers["tensors"]
    )


def by_layer(views: tuple[TensorView, ...]) -> dict[str, tuple[list[int], list[float]]]:
    """Per kind: layers, and the largest value there. Tensors outside the layers are left out."""
    series: dict[str, tuple[list[int], list[float]]] = {}
    for view in views:
        if view.layer is not None:
            layers, values = series.setdefault(view.label, ([], []))
            layers.append(view.layer)
            values.append(view.largest)
    return series
