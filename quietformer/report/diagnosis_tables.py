"""The tables of a diagnosis as text, for the terminal and the page."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np

from quietformer.report.diagnosis_content import Diagnosis
from quietformer.report.number_text import MINUS, figure
from quietformer.report.outlier_content import kind_label
from quietformer.report.story import NOTHING
from quietformer.report.tables import Table

_NAMED = 3
_HEADS = 12


def places_table(diagnosis: Diagnosis) -> Table:
    """Per kind of tensor, how many values are beyond six deviations, and where most of them lie."""
    texts, delimiters = diagnosis.token_texts, frozenset(diagnosis.delimiters)
    by_kind: dict[str, list[dict[str, Any]]] = {}
    for tensor in diagnosis.outliers["tensors"]:
        by_kind.setdefault(tensor["kind"], []).append(tensor)
    rows = []
    for kind, tensors in by_kind.items():
        total = sum(tensor["num_outliers"] for tensor in tensors)
        cells = [kind_label(kind), figure(max(tensor["largest"] for tensor in tensors)), f"{total:,}"]
        if not total:
            rows.append((*cells, *[NOTHING] * 3))
            continue
        tokens: Counter[str] = Counter()
        for tensor in tensors:
            tokens.update(tensor["outliers_by_token"])
        on_delimiters = sum(count for token, count in tokens.items() if int(token) in delimiters)
        dimensions_D = np.sum([tensor["outliers_by_feature"] for tensor in tensors], axis=0)
        positions_T = np.sum([tensor["outliers_by_position"] for tensor in tensors], axis=0)
        dimensions = np.argsort(-dimensions_D, kind="stable")[:_NAMED]
        named = [f"'{texts.get(token, token)}' ({count / total:.0%})" for token, count in tokens.most_common(_NAMED)]
        where = named or [
            f"{position} ({positions_T[position] / total:.0%})"
            for position in np.argsort(-positions_T, kind="stable")[:_NAMED]
        ]
        rows.append(
            (
                *cells,
                ", ".join(f"{d} ({dimensions_D[d] / total:.0%})" for d in dimensions if dimensions_D[d]),
                ", ".join(where),
                f"{on_delimiters / total:.0%}" if tokens else f"{positions_T[0] / total:.0%}",
            )
        )
    by_token = bool(texts)
    return Table(
        header=(
            "Tensor",
            "Largest |x|",
            "Outliers",
            "In dimensions",
            "On tokens" if by_token else "At positions",
            "On delimiters" if by_token else "On the first",
        ),
        rows=tuple(rows),
        caption="Outliers: values further than six standard deviations from their sequence's mean; over all layers.",
    )


def heads_table(diagnosis: Diagnosis) -> Table:
    """The heads whose attention rests most where it moves least."""
    attention = diagnosis.attention
    idle_LH = np.asarray(attention["idleness"])
    rows = []
    for place in np.argsort(-idle_LH, axis=None, kind="stable")[:_HEADS]:
        layer, head = divmod(int(place), idle_LH.shape[1])
        share, norm = attention["delimiter_share"], attention["delimiter_value_norm"]
        gate = attention["gate_mean"]
        rows.append(
            (
                f"{layer}.{head}",
                f"{attention['sink_share'][layer][head]:.0%}",
                figure(attention["sink_value_norm"][layer][head]),
                f"{share[layer][head]:.0%}" if share else NOTHING,
                figure(norm[layer][head]) if norm else NOTHING,
                f"{attention['zero_share'][layer][head]:.1%}",
                figure(gate[layer][head]) if gate else NOTHING,
            )
        )
    return Table(
        header=(
            "Head",
            "Attention on its sink",
            "Norm of value there",
            "On delimiters",
            "Norm of values there",
            "Exact zeros",
            "Mean gate",
        ),
        rows=tuple(rows),
        caption=(
            "Sink: the key of a sequence that gets most of a head's attention. Norms relative to the mean norm of all values. The"
            f" {len(rows)} heads whose attention rests most where it moves least, over"
            f" {attention['num_sequences']:,} sequences."
        ),
    )


def gradient_table(diagnosis: Diagnosis) -> Table | None:
    """Per layer, how its softmax pulls on the FFN output below it."""
    if diagnosis.gradients is None:
        return None
    rows = []
    for layer in diagnosis.gradients["layers"]:
        through_D, total_D = np.asarray(layer["through_softmax"]), np.asarray(layer["total"])
        largest_D = np.asarray(layer["largest"])
        worst = int(largest_D.argmax())
        above = int((through_D > through_D[worst]).sum())
        whole = float(np.sqrt((total_D**2).sum()))
        rows.append(
            (
                str(layer["layer"]),
                f"{worst} ({figure(largest_D[worst])})",
                _optional(layer["pull_on_largest"]),
                f"{above + 1} of {len(through_D)}",
                _optional(layer["rank_correlation"]).replace("-", MINUS),
                figure(float(np.sqrt((through_D**2).sum())) / whole) if whole else NOTHING,
            )
        )
    return Table(
        header=(
            "Softmax of layer",
            "Largest dimension below",
            "Pull on it",
            "Its rank by pull",
            "Rank correlation",
            "Through softmax / all ways",
        ),
        rows=tuple(rows),
        caption=(
            f"Gradient of {diagnosis.gradients['loss']} at the FFN output below, by way of the softmax alone. Pull: norm over tokens,"
            " in multiples of the median dimension's. Rank correlation: of the largest |x| and the pull, over hidden dimensions."
        ),
    )


def _optional(value: float | None) -> str:
    return NOTHING if value is None else figure(value)
