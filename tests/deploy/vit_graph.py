"""A small vision transformer as legible ONNX text: patch convolution, class token, pre-LN blocks, one or three projections.

Legend: B batch, C channels (3), S image side (16), P patch side (4), T tokens (17), D features (32), H heads (2), F inner
features (64), K classes (5).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import onnx.parser

from deploy.data.image_encoding import ImageEncoder
from deploy.graphs.graph_info import GraphInfo

C, S, P, D, H, F, K = 3, 16, 4, 32, 2, 64, 5
T = (S // P) ** 2 + 1
ENCODER = ImageEncoder(size=(S, S), mean=(0.5, 0.4, 0.3), std=(0.3, 0.2, 0.25), resize=S + 2)

SPLIT = """
    qm = MatMul(a, {p}qw) q = Add(qm, {p}qb) q4 = Reshape(q, to4) qt = Transpose<perm=[0,2,1,3]>(q4)
    km = MatMul(a, {p}kw) k = Add(km, {p}kb) k4 = Reshape(k, to4) kt = Transpose<perm=[0,2,3,1]>(k4)
    vm = MatMul(a, {p}vw) v = Add(vm, {p}vb) v4 = Reshape(v, to4) vt = Transpose<perm=[0,2,1,3]>(v4)
"""
FUSED = """
    wm = MatMul(a, {p}fw) w = Add(wm, {p}fb) w5 = Reshape(w, to5) wt = Transpose<perm=[2,0,3,1,4]>(w5)
    qt = Gather<axis=0>(wt, i0) kg = Gather<axis=0>(wt, i1) vt = Gather<axis=0>(wt, i2) kt = Transpose<perm=[0,1,3,2]>(kg)
"""
NORM = {
    "whole": "{out} = LayerNormalization<axis=-1>({x}, {g}, {b})",
    "decomposed": (
        "{out}_m = ReduceMean<keepdims=1>({x}, last) {out}_s = Sub({x}, {out}_m) {out}_q = Pow({out}_s, two) "
        "{out}_v = ReduceMean<keepdims=1>({out}_q, last) {out}_e = Add({out}_v, eps) {out}_r = Sqrt({out}_e) "
        "{out}_d = Div({out}_s, {out}_r) {out}_g = Mul({out}_d, {g}) {out} = Add({out}_g, {b})"
    ),
}
LAYER = """
    {norm1}
    {project}
    score = MatMul(qt, kt) prob = Softmax<axis=-1>(score)
    c4 = MatMul(prob, vt) ct = Transpose<perm=[0,2,1,3]>(c4) joined = Reshape(ct, to3) {gate}
    om = MatMul(ctx, {p}ow) o = Add(om, {p}ob) {scale1} r1 = Add({o}, {x})
    {norm2}
    f1m = MatMul(n, {p}w1) f1 = Add(f1m, {p}fb1) act = Gelu(f1)
    f2m = MatMul(act, {p}w2) f2 = Add(f2m, {p}fb2) {scale2} {out} = Add({f2}, r1)
"""
GATE = {
    "none": "ctx = Identity(joined)",
    "linear": "gm = MatMul(a, {p}gw) gl = Add(gm, {p}gb) gs = Sigmoid(gl) g3 = Unsqueeze(gs, minus) "
    "split = Reshape(joined, to4) mix = Mul(split, g3) ctx = Reshape(mix, to3)",
}
OWN_NAMES = """
a q k v w qm km vm wm q4 k4 v4 qt kt vt kg w5 wt score prob c4 ct joined ctx gm gl gs g3 split mix om o os r1 n f1m f1 act
f2m f2 fs
""" + " ".join(f"{name}_{part}" for name in ("a", "n") for part in "msqverdg")
"""Tensors of one layer; each gets the layer's number as a suffix."""


@dataclass(frozen=True, kw_only=True)
class VitRecipe:
    """What the small vision transformer looks like."""

    gate: str = "none"
    norm: str = "whole"
    fused: bool = False
    layer_scale: bool = False
    patch_norm: bool = False
    head: bool = True
    num_layers: int = 2


def vit(recipe: VitRecipe | None = None) -> onnx.ModelProto:
    """Build the graph with random float32 weights and quietformer metadata."""
    recipe = recipe or VitRecipe()
    norm = NORM[recipe.norm]
    body = ""
    for layer in range(recipe.num_layers):
        p, scaled = f"w{layer}_", recipe.layer_scale
        text = LAYER.format(
            p=p, x="x" if layer == 0 else f"out{layer - 1}", out=f"out{layer}",
            norm1=norm.format(out="a", x="x" if layer == 0 else f"out{layer - 1}", g=f"{p}g1", b=f"{p}b1"),
            norm2=norm.format(out="n", x="r1", g=f"{p}g2", b=f"{p}b2"),
            project=(FUSED if recipe.fused else SPLIT).format(p=p), gate=GATE[recipe.gate].format(p=p),
            scale1=f"os = Mul(o, {p}l1)" if scaled else "", o="os" if scaled else "o",
            scale2=f"fs = Mul(f2, {p}l2)" if scaled else "", f2="fs" if scaled else "f2",
        )  # fmt: skip
        body += _rename(text, suffix=f"_{layer}")
    body += norm.format(out="hidden", x=f"out{recipe.num_layers - 1}", g="g9", b="b9")
    if recipe.head:
        body += " first = Gather<axis=1>(hidden, i0) logits = Gemm<transB=1>(first, w_head, b_head)"
    out = f"float[B,{K}] logits" if recipe.head else f"float[B,{T},{D}] hidden"
    patches = norm.format(out="e", x="pt", g="g0", b="b0") if recipe.patch_norm else "e = Identity(pt)"
    model = onnx.parser.parse_model(
        f"""<ir_version: 10, opset_import: ["" : 20]>
        vit (float[B,{C},{S},{S}] pixel_values) => ({out}) {{
            pc = Conv<kernel_shape=[{P},{P}], strides=[{P},{P}]>(pixel_values, w_patch, b_patch)
            pf = Reshape(pc, flat) pt = Transpose<perm=[0,2,1]>(pf) {patches}
            shape = Shape(pixel_values) rows = Slice(shape, z, o1) goal = Concat<axis=0>(rows, tail)
            cls = Expand(class_token, goal) joint = Concat<axis=1>(cls, e) x = Add(joint, positions)
            {body}
        }}"""
    )
    _fill(model)
    onnx.checker.check_model(model, full_check=True)
    GraphInfo(task="image-classification" if recipe.head else "image-feature-extraction", family="vit", max_length=T,
              vocab_size=0, pad_token_id=0, num_layers=recipe.num_layers, image=ENCODER.identity()).write(model)  # fmt: skip
    return model


def images(*, batch: int = 2, seed: int = 0) -> dict[str, np.ndarray]:
    """Pixels of normalised images, float32 (batch, C, S, S)."""
    return {"pixel_values": np.random.default_rng(seed).standard_normal((batch, C, S, S)).astype(np.float32)}


def _rename(text: str, *, suffix: str) -> str:
    for mark in "=(),<>":
        text = text.replace(mark, f" {mark} ")
    own = set(OWN_NAMES.split())
    return " ".join(word + suffix if word in own else word for word in text.split()) + "\n"


def _fill(model: onnx.ModelProto) -> None:
    generator = np.random.default_rng(0)

    def normal(*shape: int) -> Any:
        return generator.standard_normal(shape) / np.sqrt(shape[0])

    arrays: dict[str, Any] = {
        "w_patch": generator.standard_normal((D, C, P, P)) / 7, "b_patch": normal(D), "class_token": normal(1, 1, D),
        "positions": normal(1, T, D), "g0": 1 + normal(D), "b0": normal(D), "g9": 1 + normal(D), "b9": normal(D),
        "w_head": normal(K, D), "b_head": normal(K), "two": np.float32(2), "eps": np.float32(1e-6),
        "last": np.array([-1]), "minus": np.array([-1]), "flat": np.array([0, 0, -1]), "tail": np.array([1, D]),
        "z": np.array([0]), "o1": np.array([1]), "i0": np.int64(0), "i1": np.int64(1), "i2": np.int64(2),
        "to4": np.array([0, 0, H, D // H]), "to3": np.array([0, 0, D]), "to5": np.array([0, 0, 3, H, D // H]),
    }  # fmt: skip
    layers = sum(
        tensor.startswith("w") and tensor.endswith("_ow") for node in model.graph.node for tensor in node.input
    )
    for layer in range(layers):
        for name, shape in {
            "qw": (D, D), "kw": (D, D), "vw": (D, D), "ow": (D, D), "fw": (D, 3 * D), "w1": (D, F), "w2": (F, D),
            "qb": (D,), "kb": (D,), "vb": (D,), "ob": (D,), "fb": (3 * D,), "fb1": (F,), "fb2": (D,), "g1": (D,),
            "b1": (D,), "g2": (D,), "b2": (D,), "gw": (D, H), "gb": (H,), "l1": (D,), "l2": (D,),
        }.items():  # fmt: skip
            arrays[f"w{layer}_{name}"] = normal(*shape) + (1 if name in ("g1", "g2") else 0)
    used = {name for node in model.graph.node for name in node.input}
    for name, array in arrays.items():
        if name in used:
            value = np.asarray(array)
            value = value.astype(np.float32) if value.dtype.kind == "f" else value
            model.graph.initializer.append(onnx.numpy_helper.from_array(value, name))
    for place, node in enumerate(model.graph.node):
        node.name = f"vit/{node.op_type}_{place}"
