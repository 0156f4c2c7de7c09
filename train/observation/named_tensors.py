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

from train.families.known_families import MEASURED_KINDS, TensorKind, TensorPlace, family_of, final_norm_of, layers_of


def kind_of(name: str) -> TensorKind:
    """Kind of a named tensor: ``layer.3.ffn_output`` is an ``ffn_output``."""
    return cast("TensorKind", name.split(".", 2)[2] if name.startswith("layer.") else name)


@contextmanager
def named_tensors(
    model: PreTrainedModel, *, kinds: Iterable[TensorKind] | None = None
) -> Iterator[dict[str, torch.Tensor]]:
    """Collect the named tensors of each forward pass inside the ``with`` block.

    Args:
        model: of a supported family.
        kinds: which tensors; ``None``: all of ``MEASURED_KINDS`` that the family has.

    Yields:
        A dictionary from name to (B, T, D) tensor, with gradient history. Each forward pass overwrites the last one's
        entries; clear it to free memory. It stays as the last pass left it after the block.

    Raises:
        ValueError: the family is not supported, or it has no tensor of an asked kind.
    """
    tensors: dict[str, torch.Tensor] = {}
    rows_and_tokens: list[int] = []

    def keep_shape(_layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        rows_and_tokens[:] = (args[0] if args else kwargs["hidden_states"]).shape[:2]

    with ExitStack() as hooks:
        first_layer = layers_of(model)[0].layer
        hooks.callback(first_layer.register_forward_pre_hook(keep_shape, with_kwargs=True).remove)
        for name, module, place in _places(model, kinds):
            hooks.callback(_watch(module, place, name, tensors, rows_and_tokens).remove)
        yield tensors


def _watch(
    module: nn.Module, place: TensorPlace, name: str, tensors: dict[str, torch.Tensor], rows_and_tokens: list[int]
) -> torch.utils.hooks.RemovableHandle:
    def keep(x: torch.Tensor) -> None:
        # Some families lay the tokens of all rows out as one inside their FFN: (B * T, D).
        tensors[name] = x.view(*rows_and_tokens, -1) if x.ndim == 2 else x

    def keep_input(_module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        keep(args[0] if args else kwargs["hidden_states"])

    def keep_output(_module: nn.Module, _args: tuple[Any, ...], output: Any) -> None:
        keep(output[0] if isinstance(output, tuple) else output)

    if place.side == "input":
        return module.register_forward_pre_hook(keep_input, with_kwargs=True)
    return module.register_forward_hook(keep_output)


def _places(model: PreTrainedModel, kinds: Iterable[TensorKind] | None) -> list[tuple[str, nn.Module, TensorPlace]]:
    family = family_of(model)
    known = family.embedding_tensors.keys() | family.layer_tensors.keys()
    wanted = [kind for kind in known if kind in MEASURED_KINDS] if kinds is None else list(kinds)
    if unknown := [kind for kind in wanted if kind not in known]:
        raise ValueError(f"family '{family.name}' has no tensor '{unknown[0]}'; it has {', '.join(sorted(known))}")
    places = [
        (str(kind), model.base_model.get_submodule(place.path), place)
        for kind, place in family.embedding_tensors.items()
        if kind in wanted
    ]
    layers = [modules.layer for modules in layers_of(model)]
    for index, layer in enumerate(layers):
        following = layers[index + 1] if index + 1 < len(layers) else None
        for kind, place in family.layer_tensors.items():
            if kind not in wanted:
                continue
            if not place.in_next_layer:
                places.append((f"layer.{index}.{kind}", layer.get_submodule(place.path), place))
            elif following is not None:
                places.append((f"layer.{index}.{kind}", following.get_submodule(place.path), place))
            elif (final_norm := final_norm_of(model)) is not None:
                places.append((f"layer.{index}.{kind}", final_norm, place))
    return places
