"""What later stages must know of a graph, carried inside the ONNX file under the metadata key ``quietformer``.

What a graph reads decides how its inputs are made: tokens of texts, by the tokenizer that travels beside the graph as
``tokenizer.json`` (its hash is in here, so a foreign one is refused), or pixels of images, by the preprocessing in here.
"""

from __future__ import annotations

import json
from dataclasses import MISSING, asdict, dataclass, field, fields
from pathlib import Path
from types import UnionType
from typing import Any, Literal, Self, Union, get_args, get_origin, get_type_hints

import onnx

from deploy.graphs.graph_structure import read_outline

METADATA_KEY = "quietformer"
TOKENIZER_FILE = "tokenizer.json"

Task = Literal[
    "feature-extraction",
    "fill-mask",
    "text-classification",
    "text-generation",
    "image-feature-extraction",
    "image-classification",
    "arrays",
]
Pooling = Literal["mean", "cls"]
Reads = Literal["tokens", "pixels", "arrays"]


@dataclass(frozen=True, kw_only=True, slots=True)
class GraphInfo:
    """Facts of an exported graph."""

    task: Task
    """What the output means: ``last_hidden_state`` (feature-extraction) or ``logits``; ``arrays``: nobody said, and the
    inputs are arrays as they come."""
    family: str
    """Hugging Face ``model_type`` of the checkpoint, for example ``bert``; ``foreign`` for a graph of other tools."""
    max_length: int
    """Positions of the model: no input may be longer (tokens; for images, patches and class token)."""
    vocab_size: int
    """Token ids are in [0, vocab_size); 0 for a graph that reads pixels."""
    pad_token_id: int
    """Id that padded positions hold; 0 for a graph that reads pixels."""
    num_layers: int
    """Attention layers, each with exactly one attention pattern in the graph."""
    length: int | None = None
    """Static sequence length in tokens, None when dynamic."""
    image: dict[str, Any] | None = None
    """How an image becomes ``pixel_values``, as plain values; None for a graph that reads tokens."""
    labels: tuple[str, ...] = ()
    """Names of the classes in the order of the logits, where the checkpoint gives them."""
    pooling: Pooling | None = None
    """How token features become one embedding (L2-normalised), where the checkpoint says so."""
    lowering: Literal["folded", "literal"] = "folded"
    """Form in which clipped softmax and gates were lowered."""
    attention: dict[str, Any] = field(default_factory=dict)
    """``AttentionSettings`` of the checkpoint as plain values."""
    checkpoint_sha256: str = ""
    """Hash of the checkpoint's weights."""
    tokenizer_sha256: str = ""
    """Hash of the ``tokenizer.json`` beside the graph."""
    dtype: Literal["float32", "float16"] = "float32"
    """Type of the weights and of what is computed outside of islands; inputs and outputs of the graph are never float16."""
    float32_sha256: str | None = None
    """Of a float16 graph: hash of the float32 graph with the same tensors, on which it is calibrated."""
    profile: str | None = None
    """Quantization profile, None for a float graph."""
    bits: str | None = None
    """Widths of the integers, ``W8A8``; others than 8 are simulated. None for a float graph."""
    float_sha256: str | None = None
    """Hash of the float ONNX, in float32 or float16, that a quantized graph was made from."""
    not_for_accuracy: bool = False
    """True when ranges came from random data."""

    @property
    def reads(self) -> Reads:
        """What the graph's inputs are made of."""
        if self.task == "arrays":
            return "arrays"
        return "tokens" if self.image is None else "pixels"

    def write(self, model: onnx.ModelProto) -> None:
        """Store in ``model`` (in place), replacing earlier information."""
        kept = [(entry.key, entry.value) for entry in model.metadata_props if entry.key != METADATA_KEY]
        del model.metadata_props[:]
        onnx.helper.set_model_props(model, dict(kept) | {METADATA_KEY: json.dumps(asdict(self), sort_keys=True)})

    @classmethod
    def read(cls, model: onnx.ModelProto, *, name: str) -> Self:
        """Read back from a model.

        Raises:
            ValueError: the graph carries no quietformer metadata, or what it carries is foreign or damaged.
        """
        text = next((entry.value for entry in model.metadata_props if entry.key == METADATA_KEY), None)
        if text is None:
            raise ValueError(
                f"{name} carries no quietformer metadata; export it with 'quietformer export', or take a graph of "
                "other tools over with 'quietformer adopt'"
            )
        try:
            values = json.loads(text)
        except json.JSONDecodeError as error:
            raise ValueError(f"{name} has damaged quietformer metadata: not JSON, {error}") from error
        if not isinstance(values, dict):
            raise ValueError(f"{name} has damaged quietformer metadata: a JSON {type(values).__name__}, not an object")  # noqa: TRY004 - a fault of the file
        if unknown := sorted(set(values) - {entry.name for entry in fields(cls)}):
            raise ValueError(
                f"{name} has unknown quietformer metadata '{unknown[0]}'; it was written by another version"
            )
        kinds = get_type_hints(cls)
        for entry in fields(cls):
            if entry.name not in values:
                if entry.default is MISSING and entry.default_factory is MISSING:
                    raise ValueError(f"{name} has damaged quietformer metadata: '{entry.name}' is missing")
            elif not _is_a(values[entry.name], kinds[entry.name]):
                raise ValueError(
                    f"{name} has damaged quietformer metadata: '{entry.name}' is {json.dumps(values[entry.name])}"
                )
            elif get_origin(kinds[entry.name]) is tuple:
                values[entry.name] = tuple(values[entry.name])
        return cls(**values)


def _is_a(value: object, kind: Any) -> bool:
    """Whether a JSON value is of a field's type: a plain type, a literal, a list, a table, or one of several of these."""
    if get_origin(kind) is tuple:
        return isinstance(value, list) and all(_is_a(entry, get_args(kind)[0]) for entry in value)
    if get_origin(kind) is Literal:
        return value in get_args(kind)
    if get_origin(kind) in (Union, UnionType):
        return any(_is_a(value, option) for option in get_args(kind))
    return type(value) is (get_origin(kind) or kind)


def read_info(path: Path) -> GraphInfo:
    """Metadata of an ONNX file, without loading external weights.

    Raises:
        FileNotFoundError: no such file.
        ValueError: not an ONNX model, or one without quietformer metadata.
    """
    return GraphInfo.read(read_outline(path), name=str(path))
