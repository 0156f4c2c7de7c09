"""Rules on where pairs sit (FIELD.md, section 3).

QF003  scores or the mask are quantized
QF004  one tensor has several QuantizeLinear nodes
QF005  a pair sits between a linear layer and its activation function
QF006  a product of two activations has one integer operand
QF011  a pair feeds no matrix product
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import onnx

from deploy.graphs.attention_pattern import nodes_before_softmax
from deploy.graphs.graph_patterns import activation_after, residual_sums
from deploy.quantization.lint_rules.finding import Finding, Rule, at
from deploy.quantization.qdq_view import QdqView, is_activation_pair

_PRODUCTS = ("MatMul", "Gemm", "Conv")


def scores_and_mask(view: QdqView) -> Iterator[Finding]:
    """QF003: one masked score sets the scale of all of them. The ``paper`` profile quantizes scores before the mask."""
    for attention in view.attentions:
        allowed = attention.scores if view.profile.every_tensor else None
        for output in nodes_before_softmax(view.floats, attention):
            node = view.node(output)
            for name in node.input:
                pair = view.dequantizer_of(name)
                if pair is None or view.index.is_constant(name):
                    continue
                source = view.index.producer(pair.input[0])
                tensor = view.tensor_of(source) if source is not None else pair.input[0]
                if tensor != allowed and tensor not in view.included:
                    yield at(
                        node,
                        tensor,
                        "QF003",
                        "attention scores or mask are quantized",
                        advice="leave everything from the product of queries and keys to the softmax in float"
                        if allowed is None
                        else f"quantize '{allowed}', before the mask, and nothing else up to the softmax",
                    )


def one_quantizer_each(view: QdqView) -> Iterator[Finding]:
    """QF004: query, key and value must read the same integers, or the tensor is quantized three times."""
    counts = Counter(node.input[0] for node in view.quantizers())
    for tensor, count in counts.items():
        if count > 1:
            node = next(node for node in view.quantizers() if node.input[0] == tensor)
            yield at(
                node,
                tensor,
                "QF004",
                f"{count} QuantizeLinear nodes on one tensor",
                advice="let all its readers share one pair",
            )


def before_activation(view: QdqView) -> Iterator[Finding]:
    """QF005: a pair there stops the activation function from being part of the product's kernel."""
    for linear in view.linears:
        if activation_after(view.floats, linear.output) is None:
            continue
        for tensor in {linear.output, linear.node.output[0]}:
            for use in view.index.uses(tensor):
                if use.node.op_type == "QuantizeLinear":
                    yield at(
                        use.node,
                        tensor,
                        "QF005",
                        "quantized between a linear layer and its activation function",
                        advice="quantize after the activation function only",
                    )


def both_operands(view: QdqView) -> Iterator[Finding]:
    """QF006: a product with one integer operand runs in float, after two needless conversions."""
    for node in view.index.nodes:
        if node.op_type != "MatMul" or len(view.index.dynamic_inputs(node)) != 2:
            continue
        integer = [name for name in node.input if view.dequantizer_of(name) is not None]
        is_wanted = any(view.index.before_moves(name) in view.allowed_float for name in node.input)
        if len(integer) == 1 and not is_wanted:
            yield at(
                node,
                integer[0],
                "QF006",
                "only one operand of this product is quantized",
                advice="quantize both or none",
            )


def feeds_a_product(view: QdqView) -> Iterator[Finding]:
    """QF011: outside ``paper``, a pair that feeds no product only adds work and noise.

    What QF003, QF005 and QF008 say of the same pair is not said twice.
    """
    if view.profile.every_tensor:
        return
    explained = {name for attention in view.attentions for name in nodes_before_softmax(view.floats, attention)}
    explained.update(filter(None, (activation_after(view.floats, linear.output) for linear in view.linears)))
    biased = {linear.output for linear in view.linears}
    if view.profile.residual_adds == "on":
        explained.update(residual_sums(view.floats, view.linears))
    for node in view.dequantizers():
        uses = view.index.after_moves(node.output[0])
        readers = [use.node.op_type for use in uses]
        source = view.index.producer(node.input[0]) if is_activation_pair(view.index, node) else None
        if source is not None and view.tensor_of(source) in view.included:
            continue
        if source is None and _is_included_constant(view, node):
            continue
        known = explained | (biased if view.index.is_constant(node.output[0]) else set())
        if not any(kind in _PRODUCTS for kind in readers) and not any(use.node.output[0] in known for use in uses):
            what = "pair" if source is not None else "integer constant"
            yield at(
                node,
                node.output[0],
                "QF011",
                f"this {what} feeds {', '.join(sorted(set(readers))) or 'nothing'} and no matrix product",
                advice="remove it",
            )


def _is_included_constant(view: QdqView, dequantizer: onnx.NodeProto) -> bool:
    """Whether the reader of an integer constant was asked for: a table's ``Gather`` stands before the node, all others behind it."""
    gather = view.index.producer(dequantizer.input[0])
    readers = [use.node for use in view.index.uses(dequantizer.output[0])]
    return any(node.name in view.included for node in ([gather] if gather is not None else readers) if node.name)


PLACEMENT_RULES: tuple[Rule, ...] = (
    scores_and_mask,
    one_quantizer_each,
    before_activation,
    both_operands,
    feeds_a_product,
)
