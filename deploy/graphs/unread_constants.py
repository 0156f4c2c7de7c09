"""Stored tensors that nothing reads any more, after an edit of a graph."""

from __future__ import annotations

import onnx

from deploy.graphs.graph_index import GraphIndex


def read_tensors(graph: onnx.GraphProto) -> set[str]:
    """Names that nodes, subgraphs of nodes or the outputs of a graph read."""
    read = {name for node in graph.node for name in (*node.input, *GraphIndex.inner_reads(node))}
    return read | {value.name for value in graph.output}


def drop_unread_constants(graph: onnx.GraphProto) -> None:
    """Drop initializers that nothing reads, in place."""
    read = read_tensors(graph)
    for place in reversed(range(len(graph.initializer))):
        if graph.initializer[place].name not in read:
            del graph.initializer[place]
