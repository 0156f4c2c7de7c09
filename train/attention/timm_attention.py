"""timm's Vision Transformers: attention that asks transformers for its attention function.

timm's attention projects queries, keys and values at once and calls the fused kernel itself. :class:`TimmAttention` takes its place with
the same submodules under the same names and hands its tensors to the function that the config names, as Hugging Face models do, so
softmax, gates, sites and export are those of every other family. The one module that imports timm.

Shapes: B batch, T tokens, H heads, d features of a head, D = H * d.
"""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

if TYPE_CHECKING:
    from timm.layers.attention import Attention

TIMM_MODEL_TYPE = "timm_wrapper"
"""transformers' model type for timm's models."""


class TimmAttention(nn.Module):
    """Self-attention with the weights of a timm ``Attention``, through the attention interface."""

    def __init__(self, original: Attention, config: PreTrainedConfig) -> None:
        """Take over the submodules of ``original``.

        Args:
            original: timm's ``Attention`` without gate and without norm of its context.
            config: of the model; names the attention function.
        """
        super().__init__()
        self.config = config
        self.num_heads = original.num_heads
        self.head_dim = original.head_dim
        self.qkv, self.proj = original.qkv, original.proj
        self.q_norm, self.k_norm = original.q_norm, original.k_norm
        self.attn_drop, self.proj_drop = original.attn_drop, original.proj_drop
        self.is_causal = False
        # A normalised query does not feel a factor on its projection, which is where an exporter puts the scaling.
        self._query_factor = 1.0 if isinstance(self.q_norm, nn.Identity) else self.head_dim**-0.5
        self.scaling = self.head_dim**-0.5 / self._query_factor
        self.train(original.training)

    def forward(
        self,
        hidden_states: torch.Tensor,
        attn_mask: torch.Tensor | None = None,
        is_causal: bool = False,
        **kwargs: Any,
    ) -> torch.Tensor:
        """What the attention adds to the stream.

        Args:
            hidden_states: (B, T, D).
            attn_mask: as the attention function takes it; ``None``: every token sees every token.
            is_causal: only false is supported.
            **kwargs: keywords for the attention function.

        Returns:
            (B, T, D).
        """
        assert not is_causal
        B, T, _ = hidden_states.shape
        fused_3BHTd = self.qkv(hidden_states).reshape(B, T, 3, self.num_heads, self.head_dim).permute(2, 0, 3, 1, 4)
        query_BHTd, key_BHTd, value_BHTd = fused_3BHTd.unbind(0)
        query_BHTd, key_BHTd = self.q_norm(query_BHTd), self.k_norm(key_BHTd)
        if self._query_factor != 1.0:
            query_BHTd = query_BHTd * self._query_factor
        attention_function = ALL_ATTENTION_FUNCTIONS[self.config._attn_implementation]
        context_BTHd, _ = attention_function(
            self,
            query_BHTd,
            key_BHTd,
            value_BHTd,
            attn_mask,
            scaling=self.scaling,
            dropout=self.attn_drop.p if self.training else 0.0,
            **kwargs,
        )
        output_BTD = self.proj_drop(self.proj(context_BTHd.flatten(2)))
        assert isinstance(output_BTD, torch.Tensor)
        return output_BTD


def require_timm() -> None:
    """Refuse to go on without timm.

    Raises:
        ImportError: it is not installed.
    """
    if importlib.util.find_spec("timm") is None:
        raise ImportError("this checkpoint is a timm model; install timm with: pip install 'quietformer[timm]'")


def replace_attention_(model: PreTrainedModel) -> None:
    """Give every block of a wrapped timm Vision Transformer a :class:`TimmAttention`, in place; repeating it does nothing.

    Raises:
        ValueError: the model is no Vision Transformer of plain blocks; the message says what differs.
    """
    blocks = getattr(model.base_model, "blocks", ())
    if blocks and all(isinstance(block.attn, TimmAttention) for block in blocks):
        return
    if reason := _unsupported(model.base_model):
        raise ValueError(f"timm model '{model.config.architecture}' is not supported: {reason}")
    for block in blocks:
        block.attn = TimmAttention(block.attn, model.config)


def _unsupported(vit: nn.Module) -> str | None:
    """What keeps a timm model from being converted; ``None`` where nothing does."""
    from timm.layers.attention import Attention  # noqa: PLC0415 - an optional extra
    from timm.layers.mlp import Mlp  # noqa: PLC0415
    from timm.models.vision_transformer import Block, VisionTransformer  # noqa: PLC0415

    if not isinstance(vit, VisionTransformer):
        return f"it is a {type(vit).__name__}, not a VisionTransformer"
    if vit.attn_pool is not None:
        return "it pools its tokens by an attention of another kind"
    for index, block in enumerate(vit.blocks):
        if type(block) is not Block:
            return f"block {index} is a {type(block).__name__}, not norm, attention, norm, MLP in turn"
        if type(block.attn) is not Attention or type(block.mlp) is not Mlp:
            return f"block {index} is made of {type(block.attn).__name__} and {type(block.mlp).__name__}, not Attention and Mlp"
        if block.attn.gate is not None or not isinstance(block.attn.norm, nn.Identity):
            return f"the attention of block {index} has a gate or a norm of its own"
        if block.attn.attn_dim != block.attn.qkv.in_features:
            return f"the heads of block {index} have {block.attn.attn_dim} features, the stream {block.attn.qkv.in_features}"
        if not isinstance(block.norm1, nn.LayerNorm) or not isinstance(block.norm2, nn.LayerNorm):
            return f"block {index} normalises with {type(block.norm1).__name__}, not LayerNorm"
    return None
