"""What rounding does to every site by itself: its range, its step, and how much of it saturates, becomes zero or is noise.

Activations are seen on a few examples of the float model, weights whole.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx

from deploy.calibration.calibrate import real_positions
from deploy.calibration.quant_params import QuantParams
from deploy.calibration.token_axes import real_parts
from deploy.calibration.token_layouts import find_layouts
from deploy.explanation.site_figures import RoundingFigures
from deploy.explanation.switched_graph import Switchable, constants_of
from deploy.explanation.trials import Trials
from deploy.graphs.feed_types import MASK_NAME
from deploy.graphs.watched_graph import WatchedGraph
from deploy.tasks.task import Feeds


@dataclass(frozen=True, kw_only=True, slots=True)
class SiteRounding:
    """Of one site."""

    figures: RoundingFigures
    low: float
    high: float
    """Ends of the range that the integers are spread over."""
    step: float
    """Scale; the largest one of a weight with several."""


def rounding_of_sites(
    trials: Trials,
    float_model: onnx.ModelProto,
    quantized: onnx.ModelProto,
    sites: Sequence[Switchable],
    batches: Sequence[Feeds],
) -> dict[str, SiteRounding]:
    """Every site's own rounding, by name.

    Args:
        trials: whose graph.
        float_model: that graph, or its outline.
        quantized: its Q/DQ graph with all sites.
        sites: of that graph.
        batches: examples.
    """
    params = {site.measured: trials.params_of(site.measured) for site in sites if not site.is_weight}
    seen = _of_tensors(trials, params, batches)
    found = {
        site.name: _of_activation(seen[site.measured], params[site.measured]) for site in sites if not site.is_weight
    }
    stored = {tensor.name: tensor for tensor in quantized.graph.initializer}
    for name, exact in constants_of(float_model, sites, source=trials.path).items():
        integers, scale = (onnx.numpy_helper.to_array(stored[f"{name}/{part}"]) for part in ("quantized", "scale"))
        found[name] = _of_weight(exact, integers, scale, bits=trials.bits.weights)
    return found


def _of_tensors(
    trials: Trials, params: Mapping[str, QuantParams], batches: Sequence[Feeds]
) -> dict[str, RoundingFigures]:
    graph = WatchedGraph(trials.path)
    layouts = find_layouts(graph, list(params), mask_name=MASK_NAME)
    figures = {name: RoundingFigures() for name in params}
    session = graph.open(list(params), threads=trials.threads)
    for feeds in batches:
        mask = real_positions(feeds)
        for name, values in session.run(feeds).items():
            figures[name].add(real_parts(values, mask, layouts[name]), params[name])
    return figures


def _of_activation(figures: RoundingFigures, params: QuantParams) -> SiteRounding:
    return SiteRounding(
        figures=figures,
        low=(params.qmin - params.zero_point) * params.scale,
        high=(params.qmax - params.zero_point) * params.scale,
        step=params.scale,
    )


def _of_weight(exact: np.ndarray, integers: np.ndarray, scale: np.ndarray, *, bits: int) -> SiteRounding:
    axes = tuple(axis for axis in range(exact.ndim) if scale.ndim and exact.shape[axis] != scale.size)
    rounded = integers.astype(np.float32) * (np.expand_dims(scale, axes) if scale.ndim else scale)
    figures = RoundingFigures()
    figures.add_pair(exact, rounded)
    step = float(scale.max())
    bound = step * (2 ** (bits - 1) - 1)
    return SiteRounding(figures=figures, low=-bound, high=bound, step=step)
