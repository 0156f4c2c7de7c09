"""Element type of every tensor of an ONNX graph."""

from __future__ import annotations

import onnx

FLOATS: dict[int | None, str] = {
    onnx.TensorProto.FLOAT: "float32",
    onnx.TensorProto.FLOAT16: "float16",
    onnx.TensorProto.BFLOAT16: "bfloat16",
}
"""Names of the float types that products are computed in."""


def element_name(data_type: int) -> str:
    """NumPy's name of an element type; ``float8`` for E4M3, the one FP8 type here."""
    return (
        "float8" if data_type == onnx.TensorProto.FLOAT8E4M3FN else str(onnx.helper.tensor_dtype_to_np_dtype(data_type))
    )


def has_float8(structure: onnx.ModelProto) -> bool:
    """Whether a graph stores FP8 numbers, as every graph of profile ``fp8`` does."""
    return any(tensor.data_type == onnx.TensorProto.FLOAT8E4M3FN for tensor in structure.graph.initializer)


def tensor_types(structure: onnx.ModelProto) -> dict[str, int]:
    """ONNX element type by tensor; one that cannot be inferred is left out.

    Args:
        structure: a graph; weights in other files are not needed, since weights take part with type and shape alone.
    """
    inferred = _inferred(structure)
    return {
        value.name: value.type.tensor_type.elem_type
        for value in (*inferred.input, *inferred.value_info, *inferred.output)
    }


def shaped_outputs(structure: onnx.ModelProto) -> list[onnx.ValueInfoProto]:
    """Outputs of a graph with the shapes that can be inferred."""
    return list(_inferred(structure).output)


def _inferred(structure: onnx.ModelProto) -> onnx.GraphProto:
    constants = {tensor.name for tensor in structure.graph.initializer}
    graph = onnx.GraphProto(name="types", node=structure.graph.node, output=structure.graph.output)
    graph.input.extend(value for value in structure.graph.input if value.name not in constants)
    graph.input.extend(
        onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims))
        for tensor in structure.graph.initializer
    )
    bare = onnx.ModelProto(graph=graph, ir_version=structure.ir_version, opset_import=structure.opset_import)
    return onnx.shape_inference.infer_shapes(bare).graph
