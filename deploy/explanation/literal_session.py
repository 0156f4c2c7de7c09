"""A Q/DQ graph computed as ONNX defines it, integers rounded in float: the same on every processor.

ONNX Runtime's fusions of Q/DQ into integer kernels are switched off, its others are on.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from deploy.graphs.graph_encoding import encoded_graph
from deploy.graphs.graph_writing import move_weights_out
from deploy.graphs.stored_constants import constant_size
from deploy.tasks.task import Infer

_INLINE_BYTES = 1_800_000_000


@contextmanager
def literal_session(
    model: onnx.ModelProto, *, source: Path | None = None, threads: int | None = None
) -> Iterator[Infer]:
    """A function from feeds to outputs by name, all outputs as arrays.

    Args:
        model: float or Q/DQ graph.
        source: the file whose outline it was made of; None where it holds its weights.
        threads: of ONNX Runtime; by default its own choice.

    Raises:
        ImportError: ONNX Runtime is not installed.
        ValueError: ONNX Runtime refuses the graph, or cannot run it on some feeds.
    """
    try:
        import onnxruntime  # noqa: PLC0415 - an optional extra
    except ImportError as error:
        raise ImportError("explain needs ONNX Runtime; install it with: pip install 'quietformer[cpu]'") from error
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.add_session_config_entry("session.disable_quant_qdq", "1")
    if threads is not None:
        options.intra_op_num_threads = threads
    with tempfile.TemporaryDirectory(prefix="quietformer-") as folder:
        path = Path(folder) / "literal.onnx"
        _write(model, path, source)
        try:
            session: Any = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        except Exception as error:  # the runtime's exceptions have no public base
            raise ValueError(f"ONNX Runtime does not accept the graph: {_first_line(error)}") from error
        outputs = [value.name for value in session.get_outputs()]
        inputs = {value.name for value in session.get_inputs()}

        def infer(feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
            try:
                values = session.run(outputs, {name: value for name, value in feeds.items() if name in inputs})
            except Exception as error:  # as above
                raise ValueError(f"ONNX Runtime cannot run these feeds: {_first_line(error)}") from error
            return dict(zip(outputs, values, strict=True))

        yield infer


def _write(model: onnx.ModelProto, path: Path, source: Path | None) -> None:
    """Write the graph for a session, with large weights beside it; the caller's model stays as it is."""
    if sum(constant_size(tensor, source) for tensor in model.graph.initializer) > _INLINE_BYTES:
        copy = onnx.ModelProto()
        copy.CopyFrom(model)
        weights = path.with_name("weights")
        with weights.open("wb") as stream:
            move_weights_out(copy.graph.initializer, stream, weights.name, source=source)
        model, source = copy, None
    with path.open("wb") as stream:
        stream.writelines(encoded_graph(model, source))


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0]
