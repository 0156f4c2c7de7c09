"""``config.pbtxt``: Triton's model configuration as protobuf and as text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

try:
    from google.protobuf import text_format
    from tritonclient.grpc import model_config_pb2
except ImportError as error:
    raise ImportError(f"{error.name} is not installed: pip install 'quietformer[serve]'") from error

CONFIG_FILE = "config.pbtxt"
ModelConfig = Any
"""``inference.ModelConfig``; its class is generated when tritonclient is imported."""

new_config = model_config_pb2.ModelConfig
TYPES: dict[str, int] = dict(model_config_pb2.DataType.items())
"""Numbers of the element types, ``TYPE_INT64`` and so on."""
TYPE_NAMES = {number: name for name, number in TYPES.items()}
KINDS: dict[str, int] = dict(model_config_pb2.ModelInstanceGroup.Kind.items())


def to_text(config: ModelConfig) -> str:
    """The same text for the same configuration: fields in the order of the protocol, maps by key."""
    return str(text_format.MessageToString(config))


def parse_config(text: str, *, name: str) -> ModelConfig:
    """A configuration from its text.

    Args:
        text: of ``config.pbtxt``.
        name: of the file, for messages.

    Raises:
        ValueError: not the text of a model configuration; names line and field.
    """
    try:
        return text_format.Parse(text, new_config())
    except text_format.ParseError as error:
        raise ValueError(f"{name} is not a model configuration: {error}") from error


def read_config(path: Path) -> ModelConfig:
    """Of a file.

    Raises:
        FileNotFoundError: no such file.
        ValueError: not a model configuration.
    """
    if not path.is_file():
        raise FileNotFoundError(f"no {CONFIG_FILE} at {path}")
    return parse_config(path.read_text(encoding="utf-8"), name=str(path))
