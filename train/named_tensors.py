"""Named tensors of a running model: what the attention and the FFN write, the residual sums, the LayerNorm outputs.

Names are the kinds of ``train.families``, with the layer in front: ``layer.3.ffn_output``,
``layer.3.residual_sum.ffn``; the embedding's are ``embedding_sum`` and ``embedding_ln_output``. Tensors keep their
gradient history, so a penalty on them trains the model.

Shapes: B batch, T tokens, D hidden size.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, cast

import torch
from torch import nn
from transformers import PreTrainedModel

from train.families import TENSOR_KINDS, TensorKind, TensorPlace, family_of, layers_of


def tensor_names(model: PreTrainedModel, *, kinds: Iterable[TensorKind] = TENSOR_KINDS) -> list[str]:
    """Names that :func:`named_tensors` fills, in the order in which the tensors arise.

    Raises:
        ValueError: the family is not supported, or it has no tensor of an asked kind.
    """
    return [name for name, _, _ in _places(model, kinds)]


def kind_of(name: str) -> TensorKind:
    """Kind of a named tensor: ``layer.3.ffn_output`` is an ``ffn_output``."""
    return cast("TensorKind", name.split(".", 2)[2] if name.startswith("layer.") else name)


@contextmanager
def named_tensors(
    model: PreTrainedModel, *, kinds: Iterable[TensorKind] = TENSOR_KINDS
) -> Iterator[dict[str, torch.Tensor]]:
    """Collect the named tensors of each forward pass inside the ``with`` block.

    Yields:
        A dictionary from name to (B, T, D) tensor, with gradient history. Each forward pass overwrites the last one's
        entries; clear it to free memory. It stays as the last pass left it after the block.

    Raises:
        ValueError: the family is not supported, or it has no tensor of an asked kind.
    """
    tensors: dict[str, torch.Tensor] = {}
    with ExitStack() as hooks:
        for name, module, place in _places(model, kinds):
            hooks.callback(_watch(module, place, name, tensors).remove)
        yield tensors


def _watch(
    module: nn.Module, place: TensorPlace, name: str, tensors: dict[str, torch.Tensor]
) -> torch.utils.hooks.RemovableHandle:
    def keep_input(_module: nn.Module, args: tuple[Any, ...]) -> None:
        tensors[name] = args[0]

    def keep_output(_module: nn.Module, _args: tuple[Any, ...], output: Any) -> None:
        tensors[name] = output[0] if isinstance(output, tuple) else output

    if place.side == "input":
        return module.register_forward_pre_hook(keep_input)
    return module.register_forward_hook(keep_output)


def _places(model: PreTrainedModel, kinds: Iterable[TensorKind]) -> list[tuple[str, nn.Module, TensorPlace]]:
    family, wanted = family_of(model), tuple(kinds)
    known = family.embedding_tensors.keys() | family.layer_tensors.keys()
    if unknown := [kind for kind in wanted if kind not in known]:
        raise ValueError(f"family '{family.name}' has no tensor '{unknown[0]}'; it has {', '.join(sorted(known))}")
    places = [
        (str(kind), model.base_model.get_submodule(place.path), place)
        for kind, place in family.embedding_tensors.items()
        if kind in wanted
    ]
    for index, modules in enumerate(layers_of(model)):
        places += [
            (f"layer.{index}.{kind}", modules.layer.get_submodule(place.path), place)
            for kind, place in family.layer_tensors.items()
            if kind in wanted
        ]
    return places
