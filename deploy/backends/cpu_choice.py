"""Where a graph runs on a CPU when nobody says."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from deploy.graphs.graph_structure import read_outline
from deploy.machine import machine_facts


def usual_cpu_backend(artifacts: Iterable[Path]) -> str:
    """OpenVINO; but ONNX Runtime where a graph holds integers and the processor has no 8-bit dot product.

    OpenVINO's kernels would saturate there, so it computes 8-bit values in float32 (or, of ``--reduce-range``, in integers), which takes longer than
    its float graph; ONNX Runtime's exact kernels took a third less time (MiniLM, AMD EPYC with AVX2).

    Args:
        artifacts: graphs that shall run on one backend; engines among them do not count.

    Raises:
        FileNotFoundError: no such file.
        ValueError: not an ONNX model.
    """
    if not machine_facts(versions={}).saturates_in_16_bits:
        return "openvino"
    graphs = (read_outline(path).graph for path in artifacts if not path.is_dir())
    has_integers = any(node.op_type == "QuantizeLinear" for graph in graphs for node in graph.node)
    return "onnxruntime" if has_integers else "openvino"
