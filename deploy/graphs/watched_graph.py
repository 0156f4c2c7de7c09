"""A float graph whose inner tensors are outputs, run by ONNX Runtime.

Only what the watched tensors need is kept, so a large vocabulary head costs nothing. Weights in external files stay
there; of a graph that holds its weights they go into a temporary file, aligned, which ONNX Runtime maps instead of copying.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from deploy.graphs.feed_types import as_input_type
from deploy.graphs.graph_index import GraphIndex
from deploy.graphs.graph_structure import files_beside, read_outline, read_structure
from deploy.graphs.graph_writing import move_weights_out
from deploy.graphs.stored_constants import constant_size, is_reference, refer

Feeds = Mapping[str, NDArray[Any]]

_INPUT_TYPES = {
    "tensor(int64)": np.int64,
    "tensor(int32)": np.int32,
    "tensor(bool)": np.bool_,
    "tensor(float)": np.float32,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class GraphInput:
    """An input of a graph."""

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int | None, ...]
    """None for a dimension that the graph leaves open."""


class WatchedGraph:
    """An ONNX file as a source of inner tensors.

    Raises:
        FileNotFoundError: no such file.
        ValueError: not an ONNX model.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        graph = self.outline().graph
        constants = {tensor.name for tensor in graph.initializer}
        self.inputs = [_input_of(value) for value in graph.input if value.name not in constants]

    @property
    def fixed_rows(self) -> int | None:
        """Rows of the only batch that the graph takes, None where it takes any."""
        return next((entry.shape[0] for entry in self.inputs if entry.shape and entry.shape[0]), None)

    def outline(self) -> onnx.ModelProto:
        """The graph without its weights, read anew; see :func:`deploy.graphs.graph_structure.read_outline`."""
        return read_outline(self.path)

    def open(self, tensors: Sequence[str], *, shapes_only: bool = False, threads: int | None = None) -> WatchedSession:
        """A session that computes ``tensors`` (in this order), or only their shapes.

        Args:
            tensors: names of inner tensors or of inputs.
            shapes_only: give each tensor's shape, int64 (rank,), instead of its values, and optimise nothing.
            threads: of ONNX Runtime; by default its own choice.

        Raises:
            ImportError: ONNX Runtime is not installed.
            ValueError: ONNX Runtime refuses the graph.
        """
        model = read_structure(self.path) if (beside := files_beside(self.path)) else self.outline()
        _watch(model.graph, tensors, shapes_only=shapes_only)
        try:
            import onnxruntime  # noqa: PLC0415 - an optional extra
        except ImportError as error:
            raise ImportError(
                "calibration needs ONNX Runtime; install it with: pip install 'quietformer[cpu]'"
            ) from error
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        if threads is not None:
            options.intra_op_num_threads = threads
        if shapes_only:
            options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
            options.execution_order = onnxruntime.ExecutionOrder.PRIORITY_BASED  # a tensor dies once its shape is read
            options.add_session_config_entry("session.disable_prepacking", "1")
        providers = ["CPUExecutionProvider"]
        with tempfile.TemporaryDirectory(prefix="quietformer-") as folder:
            home = self.path.parent.resolve() if beside else Path(folder)
            if not beside:
                self._place_weights(model, home / "weights", shapes_only=shapes_only)
            options.add_session_config_entry("session.model_external_initializers_file_folder_path", str(home))
            source = model.SerializeToString()
            try:
                return WatchedSession(onnxruntime.InferenceSession(source, options, providers=providers), tensors)
            except Exception as error:  # the library's exceptions have no common base
                reason = str(error).strip().splitlines()[0]
                raise ValueError(f"ONNX Runtime cannot run {self.path}: {reason}") from error

    def _place_weights(self, model: onnx.ModelProto, file: Path, *, shapes_only: bool) -> None:
        """Write the weights that ``model`` refers to; for shapes alone a hole of the largest one's size stands for each."""
        weights = [tensor for tensor in model.graph.initializer if is_reference(tensor, self.path)]
        with file.open("wb") as stream:
            if not shapes_only:
                move_weights_out(weights, stream, file.name, source=self.path)
                return
            stream.truncate(max((constant_size(tensor, self.path) for tensor in weights), default=0))
            for tensor in weights:
                refer(tensor, file.name, offset=0, length=constant_size(tensor, self.path))


class WatchedSession:
    """Runs feeds and gives the watched tensors."""

    def __init__(self, session: Any, tensors: Sequence[str]) -> None:
        self._session = session
        self._tensors = list(tensors)
        self._inputs = {entry.name: _INPUT_TYPES.get(entry.type) for entry in session.get_inputs()}

    def run(self, feeds: Feeds) -> dict[str, NDArray[Any]]:
        """Values (or shapes) of the watched tensors by name; ids and masks may be of any integer type.

        Raises:
            ValueError: the graph cannot run on these feeds.
        """
        try:
            results = self._session.run(None, self._typed(feeds))
        except Exception as error:  # the library's exceptions have no common base
            shapes = ", ".join(f"{name} {list(value.shape)}" for name, value in feeds.items())
            raise ValueError(f"the graph cannot run on {shapes}: {str(error).strip().splitlines()[0]}") from error
        return dict(zip(self._tensors, results, strict=True))

    def _typed(self, feeds: Feeds) -> dict[str, NDArray[Any]]:
        return {
            name: feeds[name] if kind is None else as_input_type(feeds[name], np.dtype(kind), name)
            for name, kind in self._inputs.items()
        }


def _watch(graph: onnx.GraphProto, tensors: Sequence[str], *, shapes_only: bool) -> None:
    """Make ``tensors`` the only outputs and drop what they do not need, in place."""
    needed = set(tensors)
    kept: list[onnx.NodeProto] = []
    for node in reversed(graph.node):
        if needed.intersection(node.output):
            needed.update(node.input, GraphIndex.inner_reads(node))
            kept.append(node)
    kept = [_copy(node) for node in reversed(kept)]
    wanted = set(tensors)
    inputs = {value.name for value in graph.input}
    del graph.node[:]
    names: set[str] = set()
    for node in kept:
        if node.name in names:
            node.name = ""  # ONNX Runtime refuses a name that two nodes have
        names.add(node.name)
        graph.node.append(node)
        if shapes_only:
            graph.node.extend(_shape_node(name) for name in node.output if name in wanted)
    for index in reversed([i for i, tensor in enumerate(graph.initializer) if tensor.name not in needed]):
        del graph.initializer[index]
    for index in reversed([i for i, value in enumerate(graph.input) if value.name not in needed]):
        del graph.input[index]
    del graph.output[:]
    for name in tensors:
        if name in inputs:
            graph.node.append(
                _shape_node(name) if shapes_only else onnx.helper.make_node("Identity", [name], [f"{name}/watched"])
            )
        watched = f"{name}/shape" if shapes_only else f"{name}/watched" if name in inputs else name
        graph.output.append(onnx.ValueInfoProto(name=watched))


def _shape_node(name: str) -> onnx.NodeProto:
    return onnx.helper.make_node("Shape", [name], [f"{name}/shape"])


def _copy(node: onnx.NodeProto) -> onnx.NodeProto:
    copy = onnx.NodeProto()
    copy.CopyFrom(node)
    return copy


def _input_of(value: onnx.ValueInfoProto) -> GraphInput:
    tensor = value.type.tensor_type
    shape = tuple(size.dim_value if size.HasField("dim_value") else None for size in tensor.shape.dim)
    return GraphInput(name=value.name, dtype=onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type), shape=shape)
