"""Engines for the GPU at hand, for tests marked ``gpu``."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from deploy.backends.artifact import input_shapes
from deploy.backends.cuda_devices import cuda_devices
from deploy.backends.engine_builder import build_engine
from deploy.graphs.graph_structure import read_structure


def engine_backend() -> str:
    """Whichever of the two libraries is installed, TensorRT first."""
    return "tensorrt" if importlib.util.find_spec("tensorrt") is not None else "tensorrt-rtx"


def build_here(graph: Path, out: Path, *, opt: tuple[int, int] = (1, 8), largest: tuple[int, int] = (4, 24)) -> Path:
    """Build an engine of a graph of texts for the first GPU; the engine's folder."""
    names = input_shapes(read_structure(graph))
    backend = engine_backend()
    build_engine(
        graph,
        out,
        backend=backend,
        compute_capabilities=None if backend == "tensorrt" else (cuda_devices()[0][0].compute_capability,),
        min_shapes=dict.fromkeys(names, (1, 1)),
        opt_shapes=dict.fromkeys(names, opt),
        max_shapes=dict.fromkeys(names, largest),
    )
    return out
