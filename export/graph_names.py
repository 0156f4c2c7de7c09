"""Names that people can read and exclusion lists can use, from the module paths that the exporter records.

- A node is called after its module and its operator: ``encoder.layer.0.attention.self.query/MatMul``; the second such
  node of a module gets ``_1``. A tensor has the name of the node that makes it.
- A weight is called after the parameter it holds; where one parameter is stored in two layouts, after the module that
  reads it, and a table that is also the weight of a head after the embedding. A constant is called after its reader and the input it fills: ``mask/Sub.A``.

Inputs and outputs of the graph keep their names. The names depend on the graph's structure only, never on the exporter's
counters, so they are the same for every length, lowering permitting, and in every run.
"""

from __future__ import annotations

import ast
from collections import Counter

import onnx
import onnx_ir as ir

from export.graph_cleanup import PARAMETER, is_table

_SCOPES_KEY = "pkg.torch.onnx.name_scopes"
_NO_SCOPE = "_empty_nn_module_stack_from_metadata_hook"
"""What torch writes for an operation outside of every module, such as the length of an input."""


def name_everything(model: ir.Model, *, root: str) -> None:
    """Name nodes, tensors and initializers as the module says, and drop what the exporter noted about itself.

    Args:
        model: cleaned up; edited in place.
        root: path of the model inside the traced module, taken off every name.
    """
    graph = model.graph
    scopes = {node: _scope(node, root) for node in graph}
    _name_nodes(graph, scopes)
    _name_initializers(graph, scopes, root)
    graph.sort()
    _drop_notes(model)


def _scope(node: ir.Node, root: str) -> str:
    """Module path of a node. The exporter's list ends with the traced operation itself; what folding made has none."""
    recorded = ast.literal_eval(node.metadata_props.get(_SCOPES_KEY, "[]"))
    if len(recorded) > 1:
        return "" if recorded[-2] == _NO_SCOPE else _below(recorded[-2], root)
    makers = [value.producer() for value in node.inputs if value is not None]
    return next((_scope(maker, root) for maker in makers if maker is not None), "")


def _below(path: str, root: str) -> str:
    return "" if path == root else path.removeprefix(f"{root}.")


def _name_nodes(graph: ir.Graph, scopes: dict[ir.Node, str]) -> None:
    kept = {value.name for value in (*graph.inputs, *graph.outputs)}
    seen: Counter[str] = Counter()
    for node in graph:
        base = "/".join(part for part in (scopes[node], node.op_type) if part)
        name = f"{base}_{seen[base]}" if seen[base] else base
        seen[base] += 1
        node.name = name
        for place, output in enumerate(node.outputs):
            if output.name not in kept:
                output.name = f"{name}:{place}" if place else name


def _name_initializers(graph: ir.Graph, scopes: dict[ir.Node, str], root: str) -> None:
    values = list(graph.initializers.values())
    paths = Counter(value.meta[PARAMETER] for value in values if PARAMETER in value.meta)
    names: dict[str, ir.Value] = {}
    for value in values:
        use = next((use for use in value.uses() if use.node.op_type == "Gather"), next(iter(value.uses())))
        if PARAMETER not in value.meta:
            name = f"{use.node.name}.{_formal_name(use.node, use.idx)}"
        elif paths[value.meta[PARAMETER]] > 1 or (is_table(value) and len(value.uses()) > 1):
            name = f"{scopes[use.node]}.{value.meta[PARAMETER].rpartition('.')[2]}"
        else:
            name = _below(value.meta[PARAMETER], root)
        assert name not in names, f"two initializers would be called {name}"
        names[name] = value
    for value in values:
        assert value.name is not None
        del graph.initializers[value.name]
    for name, value in names.items():
        value.name = name
        assert value.const_value is not None
        value.const_value.name = name
        graph.register_initializer(value)


def _formal_name(node: ir.Node, place: int) -> str:
    """Name that the operator's definition gives to an input; variadic ones are numbered."""
    formal = onnx.defs.get_schema(node.op_type, node.domain).inputs
    return formal[place].name if place < len(formal) - 1 or len(formal) == len(node.inputs) else str(place)


def _drop_notes(model: ir.Model) -> None:
    """Stack traces with paths of this machine, class names, graph and node texts."""
    values = {*model.graph.inputs, *model.graph.outputs, *model.graph.initializers.values()}
    for node in model.graph:
        node.metadata_props.clear()
        node.doc_string = None
        values.update(node.outputs)
    for value in values:
        value.metadata_props.clear()
        value.doc_string = None
    for holder in (model, model.graph):
        holder.metadata_props.clear()
        holder.doc_string = None
