"""Element type of every tensor of an ONNX graph."""

from __future__ import annotations

import onnx

FLOATS: dict[int | None, str] = {
    onnx.TensorProto.FLOAT: "float32",
    onnx.TensorProto.FLOAT16: "float16",
    onnx.TensorProto.BFLOAT16: "bfloat16",
}
"""Names of the float types that products are computed in."""


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
