"""A small encoder as legible ONNX text, with every attention variant that an export can produce.

Legend: B batch, T length, D features (32), H heads (2), F inner features (64), V vocabulary (50).
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import onnx.parser

from deploy.graphs.graph_info import GraphInfo

D, H, F, V, MAX_T = 32, 2, 64, 50, 24

SOFTMAX = {
    "vanilla": "prob = Softmax<axis=-1>(masked)",
    "folded": "s = Softmax<axis=-1>(masked) c = Sub(s, cut) prob = Relu(c)",
    "literal": "s = Softmax<axis=-1>(masked) m = Mul(s, stretch) a = Add(m, gamma) prob = Clip(a, zero, one)",
    "per_row": (
        "keys = ReduceSum<keepdims=1>(am, last) g = Div(low, keys) h = Mul(g, tiny) st = Sub(one, h) "
        "s = Softmax<axis=-1>(masked) m = Mul(s, st) a = Add(m, h) prob = Clip(a, zero, one)"
    ),
    "padded": "wide = Pad(masked, pads) s = Softmax<axis=-1>(wide) prob = Slice(s, start, stop, three)",
    "off_by_one": (
        "top = ReduceMax<keepdims=1>(masked, last) safe = Max(top, zero) shifted = Sub(masked, safe) e = Exp(shifted) "
        "total = ReduceSum<keepdims=1>(e, last) rest = Neg(safe) extra = Exp(rest) all = Add(total, extra) prob = Div(e, all)"
    ),
}
GATE = {
    "none": "ctx = Identity(joined)",
    "linear": "gm = MatMul({x}, {p}gw) gl = Add(gm, {p}gb) gs = Sigmoid(gl) g3 = Unsqueeze(gs, minus) "
    "split = Reshape(joined, to4) mix = Mul(split, g3) ctx = Reshape(mix, to3)",
    "mlp": "hm = MatMul({x}, {p}hw) hl = Add(hm, {p}hb) hr = Relu(hl) gm = MatMul(hr, {p}mw) gl = Add(gm, {p}gb) "
    "gs = Sigmoid(gl) g3 = Unsqueeze(gs, minus) split = Reshape(joined, to4) mix = Mul(split, g3) ctx = Reshape(mix, to3)",
}
GELU = {
    "whole": "act = Gelu(f1)",
    "erf": "r = Div(f1, root2) er = Erf(r) er1 = Add(er, one) xe = Mul(f1, er1) act = Mul(xe, half)",
}
PRODUCT = {
    "plain": "score = MatMul(qt, kt)",
    "scaled": "qd = Shape(q) kd = Shape(kt) qs = Mul(qt, half) ks = Mul(half, kt) score = MatMul(qs, ks)",
    "divided": "qs = Div(qt, root2) score = MatMul(qs, kt)",
    "per_feature": "qs = Mul(qt, feature) score = MatMul(qs, kt)",
}
"""Of queries and keys; torch's exporter puts the scale's root on both sides, and asks for shapes."""
LAYER = """
    qm = MatMul({x}, {p}qw) q = Add(qm, {p}qb) q4 = Reshape(q, to4) qt = Transpose<perm=[0,2,1,3]>(q4)
    km = MatMul({x}, {p}kw) k = Add(km, {p}kb) k4 = Reshape(k, to4) kt = Transpose<perm=[0,2,3,1]>(k4)
    vm = MatMul({x}, {p}vw) v = Add({p}vb, vm) v4 = Reshape(v, to4) vt = Transpose<perm=[0,2,1,3]>(v4)
    {product} {mask}
    {softmax}
    c4 = MatMul(prob, vt) ct = Transpose<perm=[0,2,1,3]>(c4) joined = Reshape(ct, to3)
    {gate}
    om = MatMul(ctx, {p}ow) o = Add(om, {p}ob) r1 = Add(o, {x})
    n1 = LayerNormalization<axis=-1>(r1, {p}g1, {p}b1)
    f1m = MatMul(n1, {p}w1) f1 = Add(f1m, {p}fb1) {gelu}
    f2m = MatMul(act, {p}w2) f2 = Add(f2m, {p}fb2) r2 = Add(f2, n1)
    {out} = LayerNormalization<axis=-1>(r2, {p}g2, {p}b2)
"""
OWN_NAMES = """
qm q q4 qt keys g h st wide km k k4 kt vm v v4 vt score masked prob s c m a top safe shifted e total rest extra all c4 ct
joined gm gl gs g3 split mix hm hl hr ctx om o r1 n1 f1m f1 act r er er1 xe f2m f2 r2 scaled barred qs ks qd kd
"""
"""Tensors of one layer; each gets the layer's number as a suffix."""


@dataclass(frozen=True, kw_only=True)
class EncoderRecipe:
    """What the small encoder looks like."""

    softmax: str = "vanilla"
    gate: str = "none"
    gelu: str = "whole"
    product: str = "plain"
    mask: str = "add"
    head: bool = False
    num_layers: int = 1
    seed: int = 0
    weights: dict[str, np.ndarray] = field(default_factory=dict)


def encoder(recipe: EncoderRecipe | None = None) -> onnx.ModelProto:
    """Build the graph with random float32 weights and quietformer metadata."""
    recipe = recipe or EncoderRecipe()
    masks = {
        "add": "masked = Add(score, bias)",
        "where": "barred = Equal(bias, zero) masked = Where(barred, score, low)",
        "scaled": "scaled = Mul(score, quarter) masked = Add(scaled, bias)",
    }
    body = ""
    for layer in range(recipe.num_layers):
        last = layer + 1 == recipe.num_layers
        out = "hidden" if last else f"out{layer}"
        x = "x" if layer == 0 else f"out{layer - 1}"
        text = LAYER.format(
            x=x, p=f"w{layer}_", out=out, softmax=SOFTMAX[recipe.softmax], mask=masks[recipe.mask],
            product=PRODUCT[recipe.product],
            gate=GATE[recipe.gate].format(x=x, p=f"w{layer}_"), gelu=GELU[recipe.gelu],
        )  # fmt: skip
        body += _rename(text, suffix=f"_{layer}")
    if recipe.head:
        body += "hm = MatMul(hidden, w_head) logits = Add(hm, b_head)\n"
    name, width = ("logits", V) if recipe.head else ("hidden", D)
    model = onnx.parser.parse_model(
        f"""<ir_version: 10, opset_import: ["" : 20]>
        encoder (int64[B,T] input_ids, int64[B,T] attention_mask, int64[B,T] token_type_ids) => (float[B,T,{width}] {name}) {{
            word = Gather<axis=0>(word_table, input_ids) kind = Gather<axis=0>(type_table, token_type_ids)
            shape = Shape(input_ids) length = Gather<axis=0>(shape, idx1)
            ids = Range(idx0, length, idx1) place = Gather<axis=0>(position_table, ids)
            e1 = Add(word, kind) e2 = Add(e1, place) x = LayerNormalization<axis=-1>(e2, g0, b0)
            am4 = Unsqueeze(attention_mask, axes12) am = Cast<to=1>(am4) away = Sub(one, am) bias = Mul(away, low)
            {body}
        }}"""
    )
    _fill(model, recipe)
    onnx.checker.check_model(model, full_check=True)
    GraphInfo(task="fill-mask" if recipe.head else "feature-extraction", family="bert", max_length=MAX_T, vocab_size=V,
              pad_token_id=0, num_layers=recipe.num_layers).write(model)  # fmt: skip
    return model


def feeds(*, batch: int = 2, length: int = 7, seed: int = 0) -> dict[str, np.ndarray]:
    """Token ids with one padded row, int64 (batch, length)."""
    generator = np.random.default_rng(seed)
    mask = np.ones((batch, length), np.int64)
    mask[-1, length // 2 :] = 0
    return {
        "input_ids": generator.integers(1, V, (batch, length)) * mask,
        "attention_mask": mask,
        "token_type_ids": np.zeros((batch, length), np.int64),
    }


def _rename(text: str, *, suffix: str) -> str:
    for mark in "=(),<>":
        text = text.replace(mark, f" {mark} ")
    own = set(OWN_NAMES.split())
    return " ".join(word + suffix if word in own else word for word in text.split()) + "\n"


def _fill(model: onnx.ModelProto, recipe: EncoderRecipe) -> None:
    generator = np.random.default_rng(recipe.seed)

    def normal(*shape: int) -> Any:
        return (generator.standard_normal(shape) / np.sqrt(shape[0])).astype(np.float32)

    arrays: dict[str, Any] = {
        "word_table": generator.standard_normal((V, D)).astype(np.float32),
        "type_table": normal(2, D), "position_table": generator.standard_normal((MAX_T, D)).astype(np.float32),
        "g0": 1 + normal(D), "b0": normal(D), "w_head": normal(D, V), "b_head": normal(V),
        "low": np.float32(-1e4), "zero": np.float32(0), "one": np.float32(1), "half": np.float32(0.5),
        "quarter": np.float32(0.25), "root2": np.float32(np.sqrt(2)), "feature": normal(D // H), "cut": np.float32(0.05), "stretch": np.float32(1.1),
        "gamma": np.float32(-0.05), "idx0": np.int64(0), "idx1": np.int64(1), "axes12": np.array([1, 2]),
        "last": np.array([-1]), "minus": np.array([-1]), "tiny": np.float32(2e-5),
        "pads": np.array([0] * 7 + [1]), "start": np.array([0]), "stop": np.array([-1]), "three": np.array([3]),
        "to4": np.array([0, 0, H, D // H]), "to3": np.array([0, 0, D]),
    }  # fmt: skip
    for layer in range(recipe.num_layers):
        for name, shape in {
            "qw": (D, D), "kw": (D, D), "vw": (D, D), "ow": (D, D), "w1": (D, F), "w2": (F, D), "qb": (D,), "kb": (D,),
            "vb": (D,), "ob": (D,), "fb1": (F,), "fb2": (D,), "g1": (D,), "b1": (D,), "g2": (D,), "b2": (D,),
            "gw": (D, H), "gb": (H,), "hw": (D, 2 * 16), "hb": (2 * 16,), "mw": (2 * 16, H),
        }.items():  # fmt: skip
            arrays[f"w{layer}_{name}"] = normal(*shape) + (1 if name in ("g1", "g2") else 0)
    arrays.update(recipe.weights)
    used = {name for node in model.graph.node for name in node.input}
    for name, array in arrays.items():
        if name in used:
            value = array.astype(np.float32) if array.dtype.kind == "f" else array
            model.graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(value), name))
    for place, node in enumerate(model.graph.node):
        node.name = f"encoder/{node.op_type}_{place}"


def from_text(
    text: str, *, seed: int = 0, positive: Collection[str] = (), zeros: Collection[str] = ()
) -> onnx.ModelProto:
    """Parse a model; tensors declared in ``<...>`` without a value become random initializers of their type."""
    model = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : 20, "far" : 1]>\n{text}')
    generator = np.random.default_rng(seed)
    known = {tensor.name for tensor in model.graph.initializer}
    for value in model.graph.value_info:
        shape = [dim.dim_value for dim in value.type.tensor_type.shape.dim]
        if value.name not in known:
            kind = onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
            array = (generator.standard_normal(shape) * (1 if kind.kind == "f" else 20)).astype(kind)
            array = np.abs(array) + 1 if value.name in positive else array * (value.name not in zeros)
            model.graph.initializer.append(onnx.numpy_helper.from_array(array, value.name))
    for place, node in enumerate(model.graph.node):
        node.name = f"{node.op_type}_{place}"
    onnx.checker.check_model(model, full_check=True)
    return model
