"""What each quantization profile quantizes, as data.

A profile says which tensors become 8-bit integers and how; where they are in a graph is :mod:`deploy.graphs.sites`' business.
Common to all: linear layers whose output is an output of the graph (classifier, LM head) stay float, and so do
biases, the insides of LayerNorm, softmax and activation functions, and the graph's outputs themselves.

Tensors of one encoder layer (``*``: only with a gate), by kind:

    linear_output      queries, keys, values, attention output, FFN output; a layer that goes into an activation
                       function has none, it is quantized after that function only
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
"""

from __future__ import annotations

from dataclasses import dataclass
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
]
WeightKind = Literal["linear", "embedding", "layernorm_gain"]
ProfileName = Literal["tensorrt", "ort", "paper"]

UNIT_INTERVAL: frozenset[TensorKind] = frozenset({"probabilities", "gate_probability"})
"""Kinds whose values lie in [0, 1] whatever the data."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Profile:
    """One policy for a whole graph."""

    name: ProfileName
    symmetric: bool
    """Activations: int8 with zero point 0, else uint8 with a free zero point. Always static and per tensor."""
    every_tensor: bool
    """Quantize every tensor of the kinds above for every reader, else only what enters a quantized linear layer."""
    weights: frozenset[WeightKind]
    """Stored as int8, symmetric, with a DequantizeLinear."""
    smallest_gemm: int
    """Linear layers with fewer input or output features stay float (FIELD.md, section 3: small GEMMs lose)."""

    @property
    def activation_dtype(self) -> Literal["int8", "uint8"]:
        """Element type of quantized activations."""
        return "int8" if self.symmetric else "uint8"


PROFILES: dict[ProfileName, Profile] = {
    "tensorrt": Profile(
        name="tensorrt",
        symmetric=True,
        every_tensor=False,
        weights=frozenset({"linear"}),
        smallest_gemm=16,
    ),
    "ort": Profile(
        name="ort",
        symmetric=False,
        every_tensor=False,
        weights=frozenset({"linear"}),
        smallest_gemm=16,
    ),
    "paper": Profile(
        name="paper",
        symmetric=False,
        every_tensor=True,
        weights=frozenset({"linear", "embedding", "layernorm_gain"}),
        smallest_gemm=1,
    ),
}


def profile_named(name: str) -> Profile:
    """Look a profile up.

    Raises:
        ValueError: no such profile.
    """
    for known in get_args(ProfileName):
        if known == name:
            return PROFILES[known]
    raise ValueError(f"unknown profile '{name}'; known profiles are {', '.join(get_args(ProfileName))}")
