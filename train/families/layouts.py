"""The supported families, each described as data."""

from __future__ import annotations

from dataclasses import replace

from train.families.family import Family

_BERT = Family(
    name="bert",
    model_types=("bert", "roberta", "xlm-roberta", "camembert", "electra"),
    layers="encoder.layer",
    attention="attention.self",
    query="attention.self.query",
    key="attention.self.key",
    value="attention.self.value",
    output_projection="attention.output.dense",
    ffn_in=("intermediate.dense",),
    ffn_out="output.dense",
    norms_before_blocks=False,
    attention_norm="attention.output.LayerNorm",
    ffn_norm="output.LayerNorm",
    embedding_norm="embeddings.LayerNorm",
)

_OPT = Family(
    name="opt",
    model_types=("opt",),
    config_values={"do_layer_norm_before": True},
    causal=True,
    layers="decoder.layers",
    attention="self_attn",
    query="self_attn.q_proj",
    key="self_attn.k_proj",
    value="self_attn.v_proj",
    output_projection="self_attn.out_proj",
    ffn_in=("fc1",),
    ffn_out="fc2",
    ffn_width="ffn_dim",
    norms_before_blocks=True,
    attention_norm="self_attn_layer_norm",
    ffn_norm="final_layer_norm",
    final_norm="decoder.final_layer_norm",
)

# OPT-350m alone among the published sizes.
_OPT_POST_NORM = replace(
    _OPT,
    name="opt-post-norm",
    config_values={"do_layer_norm_before": False},
    norms_before_blocks=False,
    final_norm=None,
)

_LLAMA = Family(
    name="llama",
    model_types=("llama", "mistral", "qwen2"),
    causal=True,
    rotary=True,
    layers="layers",
    attention="self_attn",
    query="self_attn.q_proj",
    key="self_attn.k_proj",
    value="self_attn.v_proj",
    output_projection="self_attn.o_proj",
    ffn_in=("mlp.gate_proj", "mlp.up_proj"),
    ffn_out="mlp.down_proj",
    norms_before_blocks=True,
    attention_norm="input_layernorm",
    ffn_norm="post_attention_layernorm",
    final_norm="norm",
)

_VIT = Family(
    name="vit",
    model_types=("vit", "deit"),
    inputs="pixels",
    layers="layers",
    attention="attention",
    query="attention.q_proj",
    key="attention.k_proj",
    value="attention.v_proj",
    output_projection="attention.o_proj",
    ffn_in=("mlp.fc1",),
    ffn_out="mlp.fc2",
    norms_before_blocks=True,
    attention_norm="layernorm_before",
    ffn_norm="layernorm_after",
    final_norm="layernorm",
    patch_embedding="embeddings.patch_embeddings",
    former_names=(
        (r"encoder\.layer\.(\d+)\.", r"layers.\1."),
        (r"(layers\.\d+\.attention\.)attention\.(query|key|value)\.", r"\1\2."),
        (r"(layers\.\d+\.attention)\.query\.", r"\1.q_proj."),
        (r"(layers\.\d+\.attention)\.key\.", r"\1.k_proj."),
        (r"(layers\.\d+\.attention)\.value\.", r"\1.v_proj."),
        (r"(layers\.\d+\.attention)\.output\.dense\.", r"\1.o_proj."),
        (r"(layers\.\d+)\.intermediate\.dense\.", r"\1.mlp.fc1."),
        (r"(layers\.\d+)\.output\.dense\.", r"\1.mlp.fc2."),
    ),
)

# timm's VisionTransformer, as transformers wraps it. Blocks with LayerScale multiply what the two output projections write
# before the sum; the named tensors are those of the projections.
_TIMM_VIT = Family(
    name="timm-vit",
    model_types=("timm_wrapper",),
    inputs="pixels",
    layers="blocks",
    attention="attn",
    query="attn.qkv",
    key="attn.qkv",
    value="attn.qkv",
    output_projection="attn.proj",
    ffn_in=("mlp.fc1",),
    ffn_out="mlp.fc2",
    ffn_width=None,
    norms_before_blocks=True,
    attention_norm="norm1",
    ffn_norm="norm2",
    embedding_norm="norm_pre",
    final_norm="norm",
    patch_embedding="patch_embed",
    classifiers=("head", "head_dist"),
    replaced_attention="timm",
)

FAMILIES: tuple[Family, ...] = (_BERT, _OPT, _OPT_POST_NORM, _LLAMA, _VIT, _TIMM_VIT)
