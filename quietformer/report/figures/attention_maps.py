"""Where heads rest, what chosen heads do on one sequence, and what gates let through."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from quietformer.report.diagnosis_content import Diagnosis
from quietformer.report.figures.heat_map import heat_map
from quietformer.report.figures.label_bars import label_bars
from quietformer.report.figures.plot import Plot
from quietformer.report.number_text import TIMES, figure
from quietformer.report.plots import MEDIUM, WIDE

_LABELLED_TOKENS = 48
"""Beyond it, the tokens of a sequence are not named."""


def rest_plots(diagnosis: Diagnosis) -> list[Plot]:
    """Layer by head: attention at rest, and the share of probabilities that are exactly zero where there are any."""
    attention = diagnosis.attention
    idle_LH, zero_LH = np.asarray(attention["idleness"]), np.asarray(attention["zero_share"])
    layer, head = np.unravel_index(idle_LH.argmax(), idle_LH.shape)
    text = (
        f"Share of attention on a resting place times how far its value is below the mean: {figure(idle_LH.mean())} on average,"
        f" {figure(idle_LH.max())} in head {layer}.{head}"
    )
    if not zero_LH.any():
        return [_by_head(idle_LH, "Attention at rest", text, wide=True)]
    zeros = f"Share of visible probabilities that are exactly 0: {zero_LH.mean():.1%} on average, at most {zero_LH.max():.1%}"
    return [_by_head(idle_LH, "Attention at rest", text), _by_head(zero_LH, "Exact zeros", zeros)]


def gate_plots(diagnosis: Diagnosis) -> list[Plot]:
    """Mean gate and share of closed gates by layer and head, then every gate on the shown sequence; nothing without gates."""
    attention = diagnosis.attention
    if attention["gate_mean"] is None:
        return []
    mean_LH, low_LH = np.asarray(attention["gate_mean"]), np.asarray(attention["gate_low_share"])
    plots = [
        _by_head(mean_LH, "Mean gate", f"Mean over tokens: {figure(mean_LH.min())} to {figure(mean_LH.max())}"),
        _by_head(
            low_LH,
            f"Gates below {attention['low_gate']:g}",
            f"Share of tokens at which a head's gate is closed: {low_LH.mean():.1%} on average, at most {low_LH.max():.1%}",
        ),
    ]
    gates_LHT = np.asarray(diagnosis.sequence["gates"])
    num_layers, num_heads, num_tokens = gates_LHT.shape
    names = _names(diagnosis, num_tokens)
    svg = heat_map(
        gates_LHT.reshape(num_layers * num_heads, num_tokens),
        heading="Every gate on one sequence",
        rows=[f"{layer}.{head}" if head == 0 else "" for layer in range(num_layers) for head in range(num_heads)],
        columns=names,
        row_axis="layer.head",
        largest=1.0,
        inches=WIDE,
        cell_height=max(2.5, min(8.0, 360 / (num_layers * num_heads))),
        marked_columns=_delimiters(diagnosis, names),
    )
    text = f"Gates from {figure(gates_LHT.min())} to {figure(gates_LHT.max())}"
    caption = f"{text}; heads of a layer from top to bottom. Full colour: 1."
    plots.append(Plot(svg=svg, alt=f"{text}.", caption=caption, evidence="measured", wide=True))
    return plots


def head_plots(diagnosis: Diagnosis) -> list[Plot]:
    """Three panels per chosen head: probabilities, norms of values, and their product."""
    return [plot for head in diagnosis.sequence["heads"] for plot in _head(diagnosis, head)]


def _head(diagnosis: Diagnosis, head: dict[str, Any]) -> list[Plot]:
    name = f"{head['layer']}.{head['head']}"
    p_TT, norm_T = np.asarray(head["probabilities"]), np.asarray(head["value_norm"])
    product_TT = p_TT * norm_T
    names = _names(diagnosis, len(norm_T))
    marked = _delimiters(diagnosis, names)
    sink = int(p_TT.mean(axis=0).argmax())
    sink_name = f"'{names[sink]}'" if names[sink] else f"token {sink}"
    share = p_TT.mean(axis=0)[sink]
    matrix = partial(heat_map, rows=names, columns=names, marked_columns=marked, row_axis="query")
    norms = (
        label_bars(names, norm_T.tolist(), heading="Norm of values", marked=[i in marked for i in range(len(names))])
        if any(names)
        else _patch_norms(diagnosis, norm_T)
    )
    mean = norm_T.mean() or 1.0  # a head whose values are all zero moves nothing
    rest, moved = norm_T[sink] / mean, product_TT.sum(axis=1).mean() / mean
    texts = (
        f"Head {name}: {share:.0%} of the attention rests on {sink_name}",
        f"Head {name}: the value of {sink_name} has {figure(rest)} times the mean norm",
        f"Head {name}: what is moved is {figure(moved)} of the mean norm",
    )
    svgs = (
        matrix(p_TT, heading=f"Head {name}: probabilities", largest=1.0),
        norms,
        matrix(product_TT, heading=f"Probability {TIMES} norm", largest=float(norm_T.max()), color="before"),
    )
    return [
        Plot(svg=svg, alt=f"{text}.", caption=f"{text}.", evidence="measured")
        for svg, text in zip(svgs, texts, strict=True)
    ]


def _patch_norms(diagnosis: Diagnosis, norm_T: np.ndarray) -> str:
    rows, columns = diagnosis.patches or [1, len(norm_T)]
    grid_RC = norm_T[len(norm_T) - rows * columns :].reshape(rows, columns)
    return heat_map(grid_RC, heading="Norm of values, by patch", rows=[""] * rows, columns=[""] * columns)


def _by_head(values_LH: np.ndarray, heading: str, text: str, *, wide: bool = False) -> Plot:
    num_layers, num_heads = values_LH.shape
    svg = heat_map(
        values_LH,
        heading=heading,
        rows=[str(layer) for layer in range(num_layers)],
        columns=[str(head) for head in range(num_heads)],
        row_axis="layer",
        column_axis="head",
        largest=1.0,
        numbers=num_heads <= 16,
        inches=WIDE if wide else MEDIUM,
        cell_height=18.0 if num_layers <= 16 else 11.0,
    )
    return Plot(svg=svg, alt=f"{text}.", caption=f"{text}.", evidence="measured", wide=wide)


def _names(diagnosis: Diagnosis, num_tokens: int) -> list[str]:
    tokens = diagnosis.sequence["tokens"]
    return [""] * num_tokens if tokens is None or num_tokens > _LABELLED_TOKENS else list(tokens)


def _delimiters(diagnosis: Diagnosis, names: list[str]) -> frozenset[int]:
    found = diagnosis.sequence["is_delimiter"]
    return frozenset(index for index in range(len(names)) if found is not None and found[index])
