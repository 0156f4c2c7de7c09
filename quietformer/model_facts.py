"""Facts of a checkpoint for a report, read from its files without building the model."""

from __future__ import annotations

import json
import math
import re
import struct
from datetime import UTC, datetime
from pathlib import Path

from quietformer.report.content import ModelFacts
from train.checkpoints.checkpoint_files import checkpoint_sha256, is_gguf, read_config_file, weight_files

_HEADER_LENGTH = struct.Struct("<Q")
"""A safetensors file starts with the length of its JSON header."""
_BLOCK = re.compile(r"(?:^|\.)blocks\.(\d+)\.")
_NORM = re.compile(r"(?:^|\.)blocks\.0\.norm1\.weight$")
"""Where timm's models show what their config does not say: how many layers, and of how many features."""


def model_facts(checkpoint: Path, *, source: str) -> ModelFacts:
    """Facts of a checkpoint folder.

    Args:
        checkpoint: the folder.
        source: what the user called it.

    Raises:
        FileNotFoundError: no checkpoint there.
        ValueError: its files are not what they should be.
    """
    config = read_config_file(checkpoint)
    shapes = {name: shape for file in weight_files(checkpoint) for name, shape in _shapes_in(file).items()}
    return ModelFacts(
        name=source.removeprefix("package:").rstrip("/").rpartition("/")[2],
        family=str(config.get("architecture") or config.get("model_type", "")),
        num_layers=int(
            config.get("num_hidden_layers") or len({found[1] for found in map(_BLOCK.search, shapes) if found})
        ),
        hidden_size=int(
            config.get("hidden_size") or next((shape[0] for name, shape in shapes.items() if _NORM.search(name)), 0)
        ),
        num_parameters=sum(math.prod(shape) for shape in shapes.values()),
        checkpoint_sha256=checkpoint_sha256(checkpoint),
        source=source,
    )


def _shapes_in(file: Path) -> dict[str, list[int]]:
    if not is_gguf(file):
        return tensor_shapes(file)
    from train.checkpoints.gguf_checkpoint import gguf_tensor_shapes  # noqa: PLC0415  # imports transformers

    return gguf_tensor_shapes(file)


def tensor_shapes(file: Path) -> dict[str, list[int]]:
    """Shape of each tensor in a safetensors file, from its header.

    Raises:
        ValueError: the file is truncated or of another format.
    """
    try:
        with file.open("rb") as stream:
            (length,) = _HEADER_LENGTH.unpack(stream.read(_HEADER_LENGTH.size))
            header = json.loads(stream.read(length))
        return {
            name: [int(size) for size in entry["shape"]] for name, entry in header.items() if name != "__metadata__"
        }
    except (struct.error, ValueError, KeyError, TypeError, AttributeError, MemoryError, OverflowError) as error:
        raise ValueError(f"{file} is not a safetensors file: {error}") from error


def now() -> str:
    """UTC time in ISO 8601, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")
