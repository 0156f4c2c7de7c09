"""What an export must know of a checkpoint beyond its weights: task, output, positions, vocabulary, tokenizer."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn
from transformers import PreTrainedModel

from deploy.graphs.graph_info import Pooling, Task
from train.checkpoints.checkpoint import read_pooling
from train.checkpoints.tokenizer_file import tokenizer_file
from train.families.known_families import family_of

_HEADS: dict[str, tuple[Task, str]] = {
    "Model": ("feature-extraction", "last_hidden_state"),
    "ForMaskedLM": ("fill-mask", "logits"),
    "ForCausalLM": ("text-generation", "logits"),
    "ForSequenceClassification": ("text-classification", "logits"),
}
"""Ending of the architecture's name, the task, the output of the graph."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckpointFacts:
    """Facts read from a loaded model and its folder."""

    task: Task
    output: str
    """Field of the model's result that the graph puts out."""
    max_length: int
    """Positions, in tokens."""
    vocab_size: int
    pad_token_id: int
    causal: bool
    """Whether a token sees only itself and what is before it."""
    token_types: bool
    """Whether the model tells token types apart."""
    pooling: Pooling | None


def read_facts(model: PreTrainedModel, checkpoint: Path) -> CheckpointFacts:
    """Read the facts.

    Raises:
        ValueError: the architecture has a head that cannot be exported, or pools in an unsupported way.
    """
    architecture = type(model).__name__
    known = [found for ending, found in _HEADS.items() if architecture.endswith(ending)]
    if not known:
        raise ValueError(
            f"{checkpoint} is a {architecture}; expected one that ends in {', '.join(_HEADS)} (the bare model, a "
            "masked or causal language model, or a classifier of sequences)"
        )
    task, output = known[0]
    config = model.config
    causal = family_of(model).causal
    if causal and task == "text-classification":
        raise ValueError(
            f"{checkpoint} is a {architecture}; of decoders, the bare model and the language model are exported"
        )
    return CheckpointFacts(
        task=task,
        output=output,
        max_length=config.max_position_embeddings if causal else _num_positions(model),
        vocab_size=config.vocab_size,
        pad_token_id=config.pad_token_id or 0,
        causal=causal,
        token_types=getattr(config, "type_vocab_size", 0) > 1,
        pooling=read_pooling(checkpoint),
    )


def _num_positions(model: PreTrainedModel) -> int:
    """Longest input in tokens. RoBERTa's positions start after the padding index of their table."""
    table = model.base_model.get_submodule("embeddings.position_embeddings")
    assert isinstance(table, nn.Embedding)
    return table.num_embeddings - (0 if table.padding_idx is None else table.padding_idx + 1)


def read_bare_tokenizer(checkpoint: Path) -> bytes:
    """The checkpoint's ``tokenizer.json`` without its sections on truncation and padding, as UTF-8.

    Lengths belong to whoever feeds the graph; a length left in the file would cut texts without a word.

    Raises:
        FileNotFoundError: there is none.
        ImportError: a GGUF file and no package ``gguf``.
        ValueError: it is not a tokenizer in JSON.
    """
    with tokenizer_file(checkpoint) as path:
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
        except (UnicodeDecodeError, json.JSONDecodeError) as error:
            raise ValueError(f"{path} is not JSON: {error}") from error
        if not isinstance(values, dict) or "model" not in values:
            raise ValueError(f"{path} is not a tokenizer: expected an object with a 'model'")
    return json.dumps(values | {"truncation": None, "padding": None}, ensure_ascii=False).encode()


def integer_type(ids: str) -> torch.dtype:
    """Type of the graph's inputs.

    Raises:
        ValueError: neither ``int64`` nor ``int32``.
    """
    types = {"int64": torch.int64, "int32": torch.int32}
    if ids not in types:
        raise ValueError(f"unknown type of ids '{ids}'; known are {', '.join(types)}")
    return types[ids]
