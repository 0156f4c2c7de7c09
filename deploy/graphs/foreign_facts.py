"""What a foreign graph of texts tells of its model: vocabulary, positions and layers, read off its embedding tables."""

from __future__ import annotations

from dataclasses import dataclass

import onnx

from deploy.graphs.attention_pattern import find_attentions
from deploy.graphs.graph_index import GraphIndex
from deploy.graphs.graph_patterns import embedding_tables


@dataclass(frozen=True, kw_only=True, slots=True)
class ForeignFacts:
    """What the structure tells; None where it does not."""

    vocab_size: int | None
    max_length: int | None
    """Rows of the smallest table that is looked up by neither ids nor token types."""
    length: int | None
    """Static length in tokens."""
    num_layers: int
    """Attention patterns; a graph that holds attention as one operator counts those."""


def foreign_facts(model: onnx.ModelProto, *, ids_name: str, types_name: str) -> ForeignFacts:
    """Facts of a graph that reads token ids.

    Args:
        model: in form (:func:`deploy.graphs.foreign_graph.normalise`).
        ids_name: input of the token ids.
        types_name: input of the token types, if there is one.
    """
    index = GraphIndex(model.graph)
    words: int | None = None
    places: list[int] = []
    for node in embedding_tables(index):
        rows = (index.constant_shape(node.input[0]) or (0,))[0]
        looked_up_by = index.before_moves(node.input[1])
        if looked_up_by == ids_name:
            words = rows
        elif looked_up_by != types_name and rows > 2:
            places.append(rows)
    ids = next(value for value in model.graph.input if value.name == ids_name)
    sizes = [dim.dim_value if dim.HasField("dim_value") else None for dim in ids.type.tensor_type.shape.dim]
    return ForeignFacts(
        vocab_size=words,
        max_length=min(places, default=None),
        length=sizes[1] if len(sizes) == 2 else None,
        num_layers=_attention_layers(index),
    )


def attention_layers(model: onnx.ModelProto) -> int:
    """How many layers of attention are recognised in a graph, held as one operator or written out; 0 where none is."""
    return _attention_layers(GraphIndex(model.graph))


def _attention_layers(index: GraphIndex) -> int:
    return len(find_attentions(index)) + sum(node.op_type == "Attention" for node in index.nodes)
