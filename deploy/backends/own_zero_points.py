"""Give every stored weight a zero point of its own.

On processors without an 8-bit dot product ONNX Runtime's exact kernels take weights as unsigned: it shifts a weight's zero point once for
each weight that reads it, and refuses the graph at the second ("Attempt to replace the existing tensor"). Graphs of other tools
often share one zero among all weights.
"""

from __future__ import annotations

import onnx
from onnx.external_data_helper import uses_external_data

from deploy.graphs.graph_index import GraphIndex


def separate_zero_points(model: onnx.ModelProto) -> int:
    """Rewrite ``model`` in place; return how many weights got a copy of the zero point that they shared."""
    index = GraphIndex(model.graph)
    taken: set[str] = set()
    changed = 0
    for node in index.nodes:
        if node.op_type != "DequantizeLinear" or len(node.input) < 3 or node.input[0] not in index.initializers:
            continue
        shared = index.initializers.get(node.input[2])
        if shared is None or uses_external_data(shared):
            continue
        if shared.name not in taken:
            taken.add(shared.name)
            continue
        own = onnx.TensorProto()
        own.CopyFrom(shared)
        own.name = f"{node.output[0]}/own_zero_point"
        model.graph.initializer.append(own)
        node.input[2] = own.name
        changed += 1
    return changed
