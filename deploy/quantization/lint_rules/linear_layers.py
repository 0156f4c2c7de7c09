"""Rules on linear layers.

QF007  a small layer is quantized
QF008  a bias is quantized
QF012  a layer that the profile quantizes is float
QF015  a layer whose output is an output of the graph is quantized
QF016  one side of a layer is quantized and the other is not
"""

from __future__ import annotations

from collections.abc import Iterator

from deploy.graphs.graph_patterns import Linear, is_head
from deploy.graphs.sites import reason_for_float
from deploy.quantization.lint_rules.finding import Finding, Rule, at
from deploy.quantization.qdq_view import QdqView


def _sides(view: QdqView, linear: Linear) -> tuple[bool, bool]:
    node = view.node(linear.node.output[0])
    return view.dequantizer_of(node.input[0]) is not None, view.dequantizer_of(node.input[1]) is not None


def small_layers(view: QdqView) -> Iterator[Finding]:
    """QF007: a product this small is slower in integers than in float."""
    for linear in view.linears:
        size = min(linear.in_features, linear.out_features)
        is_wanted = linear.node.name in view.included
        if size < view.profile.smallest_gemm and _sides(view, linear)[1] and not is_wanted:
            yield at(
                linear.node,
                linear.weight,
                "QF007",
                f"{linear.in_features}x{linear.out_features} is quantized; sides below "
                f"{view.profile.smallest_gemm} stay float",
                advice="exclude this node",
            )


def biases(view: QdqView) -> Iterator[Finding]:
    """QF008: biases are added in float, after the integer product."""
    for linear in view.linears:
        product = view.node(linear.node.output[0])
        adder = view.node(linear.output)
        candidates = list(product.input[2:3])
        if adder is not product:
            candidates += [name for name in adder.input if view.index.is_constant(name)]
        for name in candidates:
            if view.dequantizer_of(name) is not None:
                yield at(adder, name, "QF008", "bias is quantized", advice="store the bias in float")


def left_in_float(view: QdqView) -> Iterator[Finding]:
    """QF012: a forgotten layer costs speed silently."""
    for linear in view.linears:
        reason = reason_for_float(view.floats, linear, view.profile, view.gates)
        if reason is not None or linear.node.name in view.allowed_float:
            continue
        if not any(_sides(view, linear)):
            yield at(
                linear.node,
                linear.input,
                "QF012",
                f"linear layer {linear.in_features}x{linear.out_features} is float",
                advice="quantize its input and weight, or exclude it on purpose",
            )


def heads(view: QdqView) -> Iterator[Finding]:
    """QF015: errors of the last layer reach the result undiluted."""
    for linear in view.linears:
        is_wanted = linear.node.name in view.included
        if is_head(view.floats, linear) and _sides(view, linear)[1] and not is_wanted:
            yield at(
                linear.node,
                linear.weight,
                "QF015",
                "the layer that makes an output of the graph is quantized",
                advice="leave classifiers and language-model heads in float",
            )


def one_sided(view: QdqView) -> Iterator[Finding]:
    """QF016: integers on one side alone give a float product."""
    for linear in view.linears:
        has_input, has_weight = _sides(view, linear)
        if has_weight and not has_input and linear.input not in view.allowed_float:
            yield at(
                linear.node, linear.input, "QF016", "only the weight is quantized", advice="quantize the input as well"
            )
        elif has_input and not has_weight and not view.profile.every_tensor:
            yield at(
                linear.node, linear.weight, "QF016", "only the input is quantized", advice="quantize the weight as well"
            )


LINEAR_RULES: tuple[Rule, ...] = (small_layers, biases, left_in_float, heads, one_sided)
