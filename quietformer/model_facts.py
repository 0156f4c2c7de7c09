"""Facts of a checkpoint for a report, read from its files without building the model."""

from __future__ import annotations

import json
import math
import struct
from datetime import UTC, datetime
from pathlib import Path

from quietformer.report.content import ModelFacts
from train.checkpoint_files import checkpoint_sha256, read_config_file, weight_files

_HEADER_LENGTH = struct.Struct("<Q")
"""A safetensors file starts with the length of its JSON header."""


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
    return ModelFacts(
        name=source.removeprefix("package:").rstrip("/").rpartition("/")[2],
        family=str(config.get("model_type", "")),
        num_layers=int(config.get("num_hidden_layers", 0)),
        hidden_size=int(config.get("hidden_size", 0)),
        num_parameters=sum(num_parameters(file) for file in weight_files(checkpoint)),
        checkpoint_sha256=checkpoint_sha256(checkpoint),
        source=source,
    )


def num_parameters(file: Path) -> int:
    """Numbers in a safetensors file, from its header.

    Raises:
        ValueError: the file is truncated or of another format.
    """
    try:
        with file.open("rb") as stream:
            (length,) = _HEADER_LENGTH.unpack(stream.read(_HEADER_LENGTH.size))
            header = json.loads(stream.read(length))
        return sum(math.prod(entry["shape"]) for name, entry in header.items() if name != "__metadata__")
    except (struct.error, ValueError, KeyError, TypeError, AttributeError, MemoryError, OverflowError) as error:
        raise ValueError(f"{file} is not a safetensors file: {error}") from error


def now() -> str:
    """UTC time in ISO 8601, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")
