"""What each quantization profile quantizes, as data.

A profile says which tensors become integers and how; where they are in a graph is :mod:`deploy.graphs.sites`' business, and what a
person changes about it is a :class:`deploy.graphs.site_choice.SiteChoice`.
Common to all: linear layers whose output is an output of the graph (classifier, LM head) stay float unless they are
included by name, and so do biases, the insides of LayerNorm, softmax and activation functions, and the graph's outputs themselves.

Tensors of one encoder layer (``*``: only with a gate), by kind:

    linear_output      queries, keys, values, attention output, FFN output; a layer that goes into an activation
                       function has none, it is quantized after that function only; queries and keys after the
                       number they are multiplied with, where an export put the scale of the scores there
    scores             after the scale and before the mask
    probabilities      after the softmax and its clip
    gate_probability*  after the gate's sigmoid; the hidden layer of an MLP gate is an ``activation_output``
    values_mixed*      probabilities times values, before the gate
    context            what enters the output projection: after the gate
    residual_sum       attention and FFN residual sums
    layernorm_output   both norms (LayerNorm or RMSNorm), the one of the embeddings (patches), and the last one of pre-LN models
    activation_output  after GELU (also ReLU, SiLU, and tanh of pooler and gate)
    embedding_sum      token + type + position, or patches and class token + position, once per model
    linear_input       the input of a linear layer that is none of the above (the pooled token, an image, the product of a
                       gated FFN's two halves)
    product_operand    what enters a product of two activations and is none of the above (rotated queries and keys)
    sum_operand        what enters a residual sum and is none of the above (after a layer scale)
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, get_args

TensorKind = Literal[
    "linear_output",
    "scores",
    "probabilities",
    "gate_probability",
    "values_mixed",
    "context",
    "residual_sum",
    "layernorm_output",
    "activation_output",
    "embedding_sum",
    "linear_input",
    "product_operand",
    "sum_operand",
]
WeightKind = Literal["linear", "embedding", "layernorm_gain"]
KINDS: tuple[str, ...] = (*get_args(TensorKind), *get_args(WeightKind))
ProfileName = Literal["tensorrt", "ort", "paper", "fp8"]
Switch = Literal["off", "on"]

UNIT_INTERVAL: frozenset[TensorKind] = frozenset({"probabilities", "gate_probability"})
"""Kinds whose values lie in [0, 1] whatever the data."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Profile:
    """One policy for a whole graph; by default that of integer kernels, which gain from linear layers alone."""

    name: ProfileName
    symmetric: bool
    """Activations: int8 with zero point 0, else uint8 with a free zero point. Always static and per tensor."""
    every_tensor: bool = False
    """Quantize every tensor of the kinds above for every reader, else only what enters a quantized linear layer."""
    weights: frozenset[WeightKind] = frozenset({"linear"})
    """Stored in 8 bits, symmetric, with a DequantizeLinear."""
    smallest_gemm: int = 16
    """Linear layers with fewer input or output features stay float (FIELD.md, section 3: small GEMMs lose)."""
    bmms: Switch = "off"
    """Whether the two products of activations in attention (queries and keys; probabilities and values) read integers, on both sides."""
    residual_adds: Switch = "off"
    """Whether residual sums read integers, on both sides."""
    gate_path: Switch = "off"
    """Whether gates are quantized: their linear layers and their probabilities. Off, a gated model has the sites of a vanilla one."""
    is_float8: bool = False
    """Whether the 8 bits are floats (E4M3, on GPUs from SM 8.9 on) and not integers."""
    heads: Switch = "off"
    """Whether layers whose output is an output of the graph are quantized."""


PROFILES: dict[ProfileName, Profile] = {
    "tensorrt": Profile(name="tensorrt", symmetric=True),
    "ort": Profile(name="ort", symmetric=False),
    "paper": Profile(
        name="paper",
        symmetric=False,
        every_tensor=True,
        weights=frozenset({"linear", "embedding", "layernorm_gain"}),
        smallest_gemm=1,
        bmms="on",
        residual_adds="on",
        gate_path="on",
    ),
    "fp8": Profile(name="fp8", symmetric=True, is_float8=True),
}
EVERYTHING = replace(PROFILES["paper"], heads="on")
"""Every switch on: whatever a choice of sites may add to any profile."""


def profile_named(name: str) -> Profile:
    """Look a profile up.

    Raises:
        ValueError: no such profile.
    """
    for known in get_args(ProfileName):
        if known == name:
            return PROFILES[known]
    raise ValueError(f"unknown profile '{name}'; known profiles are {', '.join(get_args(ProfileName))}")
