"""What a checkpoint's graph is to be: its edge, what is known of it before it is traced, and the file that lies beside it.

Tokens come with their tokenizer, images with their preprocessing.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import PreTrainedModel

from deploy.data.image_preprocessing import PREPROCESSOR_FILE, preprocessor_file
from deploy.graphs.graph_info import TOKENIZER_FILE, GraphInfo
from export.checkpoint_facts import read_bare_tokenizer, read_facts
from export.image_facts import read_image_facts
from export.pixel_interface import PixelInterface
from export.tracing import GraphInterface
from train.families.known_families import family_of, layers_of


@dataclass(frozen=True, kw_only=True, slots=True)
class GraphSource:
    """Facts of one checkpoint for one export."""

    interface: GraphInterface | PixelInterface
    info: GraphInfo
    """Without what lowering decides."""
    companion: str
    """Name of the file beside the graph that says how its inputs are made."""
    companion_content: bytes


def graph_source(model: PreTrainedModel, checkpoint: Path, *, length: int | None, ids: torch.dtype) -> GraphSource:
    """Read a checkpoint's facts.

    Args:
        model: the checkpoint's model, loaded.
        checkpoint: its folder.
        length: static length in tokens, None for a dynamic one.
        ids: type of token ids and masks.

    Raises:
        FileNotFoundError: the checkpoint has no tokenizer, or does not say how images are prepared.
        ValueError: a head that cannot be exported, or a length that the model does not take.
    """
    if family_of(model).inputs == "pixels":
        return _pixel_source(model, checkpoint, length=length)
    return _token_source(model, checkpoint, length=length, ids=ids)


def _token_source(model: PreTrainedModel, checkpoint: Path, *, length: int | None, ids: torch.dtype) -> GraphSource:
    tokenizer = read_bare_tokenizer(checkpoint)
    facts = read_facts(model, checkpoint)
    if length is not None and not 1 <= length <= facts.max_length:
        raise ValueError(f"length is {length}; expected 1 to {facts.max_length}, the positions of {checkpoint}")
    return GraphSource(
        interface=GraphInterface(
            output=facts.output,
            token_types=facts.token_types,
            ids=ids,
            max_length=facts.max_length,
            length=length,
            causal=facts.causal,
        ),
        info=GraphInfo(
            task=facts.task,
            family=model.config.model_type,
            max_length=facts.max_length,
            vocab_size=facts.vocab_size,
            pad_token_id=facts.pad_token_id,
            num_layers=len(layers_of(model)),
            length=length,
            pooling=facts.pooling,
            tokenizer_sha256=hashlib.sha256(tokenizer).hexdigest(),
        ),
        companion=TOKENIZER_FILE,
        companion_content=tokenizer,
    )


def _pixel_source(model: PreTrainedModel, checkpoint: Path, *, length: int | None) -> GraphSource:
    if length is not None:
        raise ValueError(f"length {length} has no effect on {checkpoint}: its model reads images")
    facts = read_image_facts(model, checkpoint)
    return GraphSource(
        interface=PixelInterface(output=facts.output, size=facts.encoder.size),
        info=GraphInfo(
            task=facts.task,
            family=model.config.model_type,
            max_length=facts.positions,
            vocab_size=0,
            pad_token_id=0,
            num_layers=len(layers_of(model)),
            image=facts.encoder.identity(),
            labels=facts.labels,
        ),
        companion=PREPROCESSOR_FILE,
        companion_content=preprocessor_file(facts.encoder).encode(),
    )
