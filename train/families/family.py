"""What is known of a family of transformers: the names of its modules and where its named tensors pass.

Named tensors of a layer (``TensorKind``) mean the same in every family, whether its norms stand before a block or after
it. ``attention_output`` and ``ffn_output`` are what the two output projections write, before dropout, ``ffn_inner`` what
the second of them reads; ``residual_sum.*`` are the sums of these with the stream; ``ln_output.*`` is what the norm that
reads that sum makes of it. So
``ln_output.attention`` is what enters the FFN, and ``ln_output.ffn`` what enters the next layer's attention: with norms
before the blocks it is made by the next layer's attention norm, after the last layer by the final norm. In the same
way ``embedding_sum`` is the stream as it starts and ``embedding_ln_output`` what enters the first attention.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

TensorKind = Literal[
    "attention_output",
    "ffn_inner",
    "ffn_output",
    "residual_sum.attention",
    "residual_sum.ffn",
    "ln_output.attention",
    "ln_output.ffn",
    "embedding_sum",
    "embedding_ln_output",
]
TENSOR_KINDS: tuple[TensorKind, ...] = get_args(TensorKind)
MEASURED_KINDS: tuple[TensorKind, ...] = tuple(kind for kind in TENSOR_KINDS if kind != "ffn_inner")
"""What is collected unless a caller says otherwise. The inner units are of another width and mostly near 0, so that norm and kurtosis of
theirs say nothing of the stream; a penalty may name them, since a scale per tensor reads them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TensorPlace:
    """A tensor that is the first input or the output of a module."""

    path: str
    """Path of the module from the layer (or from the base model, for embeddings); empty for the layer itself."""
    side: Literal["input", "output"]
    in_next_layer: bool = False
    """The path starts at the next layer; after the last layer the module is the final norm, where there is one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Family:
    """Module paths of one block layout; layer paths are relative to one element of ``layers``."""

    name: str
    model_types: tuple[str, ...]
    """``config.model_type`` values that share the layout."""
    config_values: Mapping[str, Any] = field(default_factory=dict)
    """Values of the config that the layout stands for, where one model type has several layouts."""
    inputs: Literal["tokens", "pixels"] = "tokens"
    """Whether the model reads ``input_ids`` and ``attention_mask``, or ``pixel_values``."""
    causal: bool = False
    """Whether a token sees only itself and what is before it."""
    rotary: bool = False
    """Whether positions enter as rotations of queries and keys, so that only their differences matter."""
    layers: str
    """Path of the list of layers from the base model."""
    attention: str
    """Module that calls the attention interface; the block's hidden state is its first argument or ``hidden_states``."""
    query: str
    key: str
    value: str
    """The same path three times: one linear layer projects all three, its rows being first those of the queries."""
    output_projection: str
    ffn_in: tuple[str, ...]
    """Linear layers that read the FFN's input: two where the activation of one is multiplied by the other."""
    ffn_out: str
    ffn_width: str | None = "intermediate_size"
    """The config's name for the number of inner units; ``None`` where no single number says it."""
    norms_before_blocks: bool
    """``x + block(norm(x))``, or else ``norm(x + block(x))``."""
    attention_norm: str
    """LayerNorm or RMSNorm that belongs to the attention block, before or after it."""
    ffn_norm: str
    embedding_norm: str | None = None
    """Norm of the embedding sum; path from the base model."""
    final_norm: str | None = None
    """Norm after the last layer; path from the base model. It may be missing from a single model."""
    patch_embedding: str | None = None
    """Module that makes tokens (B, T, D) of the patches of an image; path from the base model."""
    classifiers: tuple[str, ...] = ()
    """Classifiers that stand inside the base model; paths from there."""
    replaced_attention: Literal["timm"] | None = None
    """Whose attention modules do not ask transformers for their attention function, so that others take their place."""
    former_names: tuple[tuple[str, str], ...] = ()
    """Regular expressions for names of weights in older checkpoints, in the order in which they apply, and what to write instead."""

    @property
    def layer_tensors(self) -> dict[TensorKind, TensorPlace]:
        """Where the named tensors of a layer pass, in the order in which they arise."""
        before = self.norms_before_blocks
        return {
            "attention_output": TensorPlace(path=self.output_projection, side="output"),
            "residual_sum.attention": TensorPlace(path=self.ffn_norm if before else self.attention_norm, side="input"),
            "ln_output.attention": TensorPlace(path=self.ffn_norm if before else self.attention_norm, side="output"),
            "ffn_inner": TensorPlace(path=self.ffn_out, side="input"),
            "ffn_output": TensorPlace(path=self.ffn_out, side="output"),
            "residual_sum.ffn": TensorPlace(path="", side="output")
            if before
            else TensorPlace(path=self.ffn_norm, side="input"),
            "ln_output.ffn": TensorPlace(
                path=self.attention_norm if before else self.ffn_norm, side="output", in_next_layer=before
            ),
        }

    @property
    def embedding_tensors(self) -> dict[TensorKind, TensorPlace]:
        """Where the stream starts and what enters the first attention; paths from the base model."""
        first = f"{self.layers}.0"
        if self.norms_before_blocks:
            return {
                "embedding_sum": TensorPlace(path=first, side="input"),
                "embedding_ln_output": TensorPlace(path=f"{first}.{self.attention_norm}", side="output"),
            }
        if self.embedding_norm is None:
            return {"embedding_sum": TensorPlace(path=first, side="input")}
        return {
            "embedding_sum": TensorPlace(path=self.embedding_norm, side="input"),
            "embedding_ln_output": TensorPlace(path=self.embedding_norm, side="output"),
        }
