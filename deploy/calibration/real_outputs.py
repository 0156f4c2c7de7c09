"""The values of a graph's outputs that mean something: those of padded positions, and of rows that are padding alone, are left out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from deploy.calibration.calibrate import real_positions
from deploy.calibration.token_axes import real_parts
from deploy.calibration.token_layouts import find_layouts
from deploy.graphs.feed_types import MASK_NAME
from deploy.graphs.watched_graph import WatchedGraph


class RealOutputs:
    """Which values of the outputs count.

    Args:
        graph: the float graph, whose structure says where an output has its tokens.
        outputs: their names.
    """

    def __init__(self, graph: Path, outputs: Sequence[str]) -> None:
        self._layouts = find_layouts(WatchedGraph(graph), list(outputs), mask_name=MASK_NAME)

    def parts(self, name: str, values: np.ndarray, feeds: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        """Pieces of one output of these feeds, padding left out."""
        return list(real_parts(values, real_positions(feeds), self._layouts[name]))
