"""Rules on the operators of the graph.

QF000  nothing is quantized
QF010  dynamic quantization, integer operators or operators outside the standard
QF013  two nodes have one name
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from deploy.quantization.lint_rules.finding import Finding, Rule, at
from deploy.quantization.qdq_view import QdqView

_STANDARD_DOMAINS = ("", "ai.onnx")
_INTEGER_OPERATORS = ("DynamicQuantizeLinear", "MatMulInteger", "ConvInteger")


def quantized_at_all(view: QdqView) -> Iterator[Finding]:
    """QF000: a float graph has nothing to check."""
    if not view.quantizers():
        node = view.index.nodes[0]
        yield at(
            node,
            node.output[0],
            "QF000",
            "the graph holds no QuantizeLinear on an activation",
            advice="run 'quietformer quantize' first",
        )


def standard_operators(view: QdqView) -> Iterator[Finding]:
    """QF010: TensorRT's parser knows explicit Q/DQ with standard operators only."""
    for node in view.index.nodes:
        if node.domain not in _STANDARD_DOMAINS:
            problem = f"operator {node.domain}.{node.op_type} is not standard ONNX"
        elif node.op_type in _INTEGER_OPERATORS or node.op_type.startswith("QLinear"):
            problem = f"operator {node.op_type} is not explicit Q/DQ"
        else:
            continue
        yield at(
            node,
            node.output[0],
            "QF010",
            problem,
            advice="export without a runtime's own fusions and quantize statically with QuantizeLinear/DequantizeLinear",
        )


def distinct_names(view: QdqView) -> Iterator[Finding]:
    """QF013: exclusions, engine reports and error messages name nodes."""
    counts = Counter(node.name for node in view.index.nodes if node.name)
    seen: set[str] = set()
    for node in view.index.nodes:
        if counts[node.name] > 1 and node.name not in seen:
            seen.add(node.name)
            yield at(
                node, node.output[0], "QF013", f"{counts[node.name]} nodes have this name", advice="rename all but one"
            )


OPERATOR_RULES: tuple[Rule, ...] = (quantized_at_all, standard_operators, distinct_names)
