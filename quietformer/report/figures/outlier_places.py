"""Where values beyond six standard deviations lie: hidden dimensions by layer, tokens, positions or patches."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np

from quietformer.report.diagnosis_content import Diagnosis
from quietformer.report.figures.heat_map import heat_map
from quietformer.report.figures.label_bars import label_bars
from quietformer.report.figures.plot import Plot
from quietformer.report.outlier_content import kind_label
from quietformer.report.plots import AFTER, canvas

_DIMENSIONS_SHOWN = 14
_TOKENS_SHOWN = 12


def outlier_place_plots(diagnosis: Diagnosis) -> list[Plot]:
    """The kind of tensor that reaches furthest, summed over its layers; nothing where no value is that far out."""
    kind = worst_kind(diagnosis.outliers)
    tensors = [tensor for tensor in diagnosis.outliers["tensors"] if tensor["kind"] == kind]
    if not sum(tensor["num_outliers"] for tensor in tensors):
        return []
    plots = [_dimensions(tensors, kind)]
    if diagnosis.patches is not None:
        plots.append(_patches(tensors, diagnosis.patches))
    else:
        if diagnosis.token_texts:
            plots.append(_tokens(tensors, diagnosis))
        plots.append(_positions(tensors))
    return plots


def worst_kind(outliers: dict[str, Any]) -> str:
    """The kind of layer tensor with the largest value."""
    inside = [tensor for tensor in outliers["tensors"] if tensor["name"].startswith("layer.")]
    return str(max(inside, key=lambda tensor: tensor["largest"])["kind"])


def _dimensions(tensors: list[dict[str, Any]], kind: str) -> Plot:
    count_LD = np.array([tensor["outliers_by_feature"] for tensor in tensors])
    total = int(count_LD.sum())
    worst = np.argsort(-count_LD.sum(axis=0), kind="stable")[:_DIMENSIONS_SHOWN]
    worst = worst[count_LD.sum(axis=0)[worst] > 0]
    share_L1 = np.maximum(count_LD.sum(axis=1, keepdims=True), 1)
    top, top_share = int(worst[0]), count_LD[:, worst[0]].sum() / total
    layers = [tensor["name"].split(".")[1] for tensor in tensors]
    svg = heat_map(
        count_LD[:, worst] / share_L1,
        heading="Outliers by dimension",
        rows=layers,
        columns=[str(dimension) for dimension in worst],
        row_axis="layer",
        column_axis="hidden dimension",
        largest=1.0,
        cell_height=18.0 if len(layers) <= 12 else 10.0,
        color="before",
    )
    covered = count_LD[:, worst].sum() / total
    text = (
        f"{kind_label(kind)}, all layers: {covered:.0%} of {total:,} outliers lie in {len(worst)} of {count_LD.shape[1]} dimensions,"
        f" {top_share:.0%} in dimension {top}"
    )
    return Plot(
        svg=svg, alt=f"{text}.", caption=f"{text}. Full colour: all of a layer's outliers.", evidence="measured"
    )


def _tokens(tensors: list[dict[str, Any]], diagnosis: Diagnosis) -> Plot:
    counts: Counter[int] = Counter()
    for tensor in tensors:
        counts.update({int(token): count for token, count in tensor["outliers_by_token"].items()})
    total, delimiters = sum(counts.values()), frozenset(diagnosis.delimiters)
    shown = counts.most_common(_TOKENS_SHOWN)
    on_delimiters = sum(count for token, count in counts.items() if token in delimiters) / total
    svg = label_bars(
        [diagnosis.token_texts.get(str(token), str(token)) for token, _ in shown],
        [count / total for _, count in shown],
        heading="Outliers by token",
        marked=[token in delimiters for token, _ in shown],
        texts=[f"{count / total:.1%}" for _, count in shown],
    )
    text = f"{on_delimiters:.0%} of the outliers lie on delimiters: special tokens, punctuation, line breaks"
    return Plot(svg=svg, alt=f"{text}.", caption=f"{text} (in red).", evidence="measured")


def _positions(tensors: list[dict[str, Any]]) -> Plot:
    count_T = np.sum([tensor["outliers_by_position"] for tensor in tensors], axis=0)
    share_T = count_T / count_T.sum()
    with canvas("outlier-positions") as drawing:
        axes = drawing.axes
        axes.bar(np.arange(len(share_T)), 100 * share_T, width=0.9, color=AFTER)
        axes.grid(visible=False, axis="x")
        axes.set_title("Outliers by position")
        axes.set_xlabel("token")
        axes.set_ylabel("%")
    text = (
        f"{share_T[0]:.0%} of the outliers lie on the first token, {share_T[1:].max(initial=0.0):.0%} on any one other"
    )
    return Plot(svg=drawing.svg, alt=f"{text}.", caption=f"{text}.", evidence="measured")


def _patches(tensors: list[dict[str, Any]], patches: list[int]) -> Plot:
    count_T = np.sum([tensor["outliers_by_position"] for tensor in tensors], axis=0)
    rows, columns = patches
    prefix = len(count_T) - rows * columns
    on_prefix = count_T[:prefix].sum() / count_T.sum()
    grid_RC = count_T[prefix:].reshape(rows, columns)
    svg = heat_map(
        grid_RC,
        heading="Outliers by patch",
        rows=[""] * rows,
        columns=[""] * columns,
        color="before",
    )
    peak = np.unravel_index(grid_RC.argmax(), grid_RC.shape)
    text = (
        f"{on_prefix:.0%} of the outliers lie on the {prefix} tokens before the patches; of the patches, most lie on row"
        f" {int(peak[0])}, column {int(peak[1])} ({grid_RC.max() / count_T.sum():.0%})"
    )
    return Plot(svg=svg, alt=f"{text}.", caption=f"{text}.", evidence="measured")
