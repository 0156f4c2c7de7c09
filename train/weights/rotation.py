"""The residual stream and the values written in a rotated basis: the same function, with no channel that stands out.

An RMSNorm without gains commutes with every rotation, so a rotation ``R`` of the residual stream can be folded into the matrices around it:
embeddings ``E R``, whatever reads the stream ``W diag(gain) R``, whatever writes to it ``R' W``; gains become 1. A channel that was ten times
as large as its neighbours, in the stream or as a row or column of a weight, is then spread over all of them, which is what one
step per tensor asks for. Values get a rotation of their own per head, undone by the attention's output projection.

Scales (:mod:`train.weights.equalization`) make up for channels of an activation by weights of the opposite unevenness; a rotation evens out
both sides at once, but cannot pass through an activation function: inner units are left to scales.

The head's matrix takes the final norm's gains, which the embeddings do not have, so tied embeddings become two tensors.

(Ashkboos et al., "QuaRot: Outlier-Free 4-Bit Inference in Rotated LLMs", 2024; of its rotations, those that cost nothing at run time.)

Shapes: D features of the stream, V features of all value heads, G value heads of d features, Q features of all query heads.
"""

from __future__ import annotations

import torch
from torch import nn
from transformers import PreTrainedModel

from train.attention.stored_prefix import prefix_of
from train.conversion.convert import settings_of
from train.families.known_families import LayerModules, Projection, family_of, final_norm_of, hidden_size_of, layers_of


@torch.no_grad()
def rotate(model: PreTrainedModel, *, seed: int = 0) -> None:
    """Rotate in place; logits stay the same to float rounding, hidden states are those of another basis.

    Args:
        model: in evaluation mode, with a language-model head, of a family with RMSNorms before its blocks and gated FFNs; without
            gates on the attention, which read the norm's output too.
        seed: of the rotations.

    Raises:
        ValueError: the family is another one, the attention has gates, or the model has no language-model head.
    """
    family, settings, layers = family_of(model), settings_of(model), layers_of(model)
    final_norm = final_norm_of(model)
    norms = [final_norm, *(norm for layer in layers for norm in (layer.attention_norm, layer.ffn_norm))]
    if len(family.ffn_in) != 2 or not family.norms_before_blocks or not all(_is_rms_norm(norm) for norm in norms):
        raise ValueError(
            f"a rotation takes models with RMSNorms before their blocks and gated FFNs; family '{family.name}' has others"
        )
    if settings is not None and settings.gate != "none":
        raise ValueError(f"the attention has gates ('{settings.gate}'); rotate the model before it gets some")
    embeddings, head = model.get_input_embeddings(), model.get_output_embeddings()  # type: ignore[no-untyped-call]
    if not isinstance(head, nn.Linear):
        raise ValueError("a rotation ends in the language-model head, and this model has none")  # noqa: TRY004
    assert isinstance(embeddings, nn.Embedding)
    assert final_norm is not None
    generator = torch.Generator().manual_seed(seed)
    rotation_DD = _random_rotation(hidden_size_of(model), generator, like=embeddings.weight)
    _untie(model, head)
    embeddings.weight.copy_(embeddings.weight.double() @ rotation_DD)
    _rotate_readers(final_norm, [head.weight], rotation_DD)
    for layer in layers:
        readers = [projection.weight for projection in (layer.query, layer.key, layer.value)]
        _rotate_readers(layer.attention_norm, readers, rotation_DD)
        _rotate_readers(layer.ffn_norm, [linear.weight for linear in layer.ffn_in], rotation_DD)
        for linear in (layer.output_projection, layer.ffn_out):
            _rotate_writer(linear, rotation_DD)
        head_size = int(layer.attention.head_dim)  # type: ignore[arg-type]
        _rotate_values(layer, _random_rotation(head_size, generator, like=embeddings.weight))


def _is_rms_norm(norm: nn.Module | None) -> bool:
    """Whether a norm only divides by the root mean square and multiplies by gains."""
    if norm is None or isinstance(norm, nn.LayerNorm):
        return False
    return [name for name, _ in norm.named_parameters()] == ["weight"]


def _random_rotation(size: int, generator: torch.Generator, *, like: torch.Tensor) -> torch.Tensor:
    """Uniformly distributed orthogonal matrix (size, size), float64: the Q of a Gaussian matrix whose R has a positive diagonal."""
    q, r = torch.linalg.qr(torch.randn(size, size, dtype=torch.float64, generator=generator))
    rotation: torch.Tensor = q * r.diagonal().sign()
    return rotation.to(like.device)


def _untie(model: PreTrainedModel, head: nn.Linear) -> None:
    head.weight = nn.Parameter(head.weight.clone(), requires_grad=head.weight.requires_grad)
    model.config.tie_word_embeddings = False


def _rotate_readers(norm: nn.Module, weights: list[torch.Tensor], rotation_DD: torch.Tensor) -> None:
    gain_D = norm.weight
    assert isinstance(gain_D, torch.Tensor)
    for weight_OD in weights:
        weight_OD.copy_((weight_OD.double() * gain_D) @ rotation_DD)
    gain_D.fill_(1.0)


def _rotate_writer(linear: nn.Linear, rotation_DD: torch.Tensor) -> None:
    linear.weight.copy_(rotation_DD.T @ linear.weight.double())
    if linear.bias is not None:
        linear.bias.copy_(linear.bias.double() @ rotation_DD)


def _rotate_values(layer: LayerModules, rotation_dd: torch.Tensor) -> None:
    """Every head by the same rotation, so that all queries of a group find it undone."""
    value: Projection = layer.value
    size = len(rotation_dd)
    value_VD = value.weight
    rotated_GdD = rotation_dd.T @ value_VD.double().view(-1, size, value_VD.shape[1])
    value_VD.copy_(rotated_GdD.view_as(value_VD))
    if value.bias is not None:
        value.bias.copy_((value.bias.double().view(-1, size) @ rotation_dd).flatten())
    prefix = prefix_of(layer.attention)
    if prefix is not None:
        prefix.value.copy_(prefix.value.double() @ rotation_dd)
    output_DQ = layer.output_projection.weight
    output_DQ.copy_((output_DQ.double().view(len(output_DQ), -1, size) @ rotation_dd).view_as(output_DQ))
