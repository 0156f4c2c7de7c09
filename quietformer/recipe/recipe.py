"""A recipe: one TOML file that says everything a run does. Imports no torch.

``load_recipe`` reads, overrides (``--set retrofit.steps=200``) and checks; ``Recipe.to_toml`` writes the resolved form
that a run directory keeps as ``recipe.toml``.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, ValidationError, model_validator

import quietformer
from deploy.quantization.float8 import LOWEST_OPSET
from quietformer.recipe.complaints import complaint_text
from quietformer.recipe.quantization_sections import CalibrateSection, QuantizeSection
from quietformer.recipe.retrofit_section import RetrofitSection
from quietformer.recipe.sections import (
    AttentionSection,
    BenchSection,
    CompareSection,
    DataSection,
    EngineSection,
    ExportSection,
    ModelSection,
    Section,
)
from quietformer.recipe.text_shape import parse_shape
from quietformer.recipe.training_section import ON_CHECKPOINTS, TrainSection

FLOAT16_SCALES_OPSET = 19
"""First opset in which the scales of integers may be float16."""
DEMO_RECIPE = "minilm-retrofit.toml"
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_ENGINE_OF_IMAGES = {"min_shape": "1", "opt_shape": "1", "max_shape": "8"}
"""What an ``[engine]`` table leaves out where the model reads images: batches."""


class Recipe(Section):
    """A whole recipe; see :mod:`quietformer.recipe.sections` for its tables."""

    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9._-]*$")]
    """Name of the run directory when ``--out`` is not given: ``runs/NAME``."""
    backend: Literal["cpu", "tensorrt", "tensorrt-rtx"] = "cpu"
    """Where the run compares and measures. On the GPU at hand with one of the others: a float and an INT8 engine of each model
    are built for it, an FP8 one where profile ``fp8`` is named, and these profiles alone are judged."""
    model: ModelSection
    attention: AttentionSection = AttentionSection()
    data: DataSection = DataSection()
    retrofit: RetrofitSection = RetrofitSection()
    train: TrainSection | None = None
    """Instead of ``retrofit``: the model is trained on a labelled task."""
    export: ExportSection = ExportSection()
    calibrate: CalibrateSection = CalibrateSection()
    quantize: QuantizeSection = QuantizeSection()
    engine: EngineSection | None = None
    compare: CompareSection = CompareSection()
    bench: BenchSection = BenchSection()

    @model_validator(mode="before")
    @classmethod
    def _fill_engine_of_images(cls, values: Any) -> Any:
        if not isinstance(values, dict) or not isinstance(data := values.get("data"), dict) or "images" not in data:
            return values
        engine = values.get("engine")
        return values | {"engine": _ENGINE_OF_IMAGES | engine} if isinstance(engine, dict) else values

    @model_validator(mode="before")
    @classmethod
    def _refuse_two_ways_to_learn(cls, values: Any) -> Any:
        """Before their keys are looked at: of a table that does not belong there, no key can be right."""
        if isinstance(values, dict) and "train" in values and "retrofit" in values:
            raise ValueError("[train] and [retrofit] exclude each other; a recipe has one of them")
        return values

    @model_validator(mode="after")
    def _check_across_tables(self) -> Self:
        self._check_training()
        profiles = self.quantize.profiles
        if self.runs_engines and "tensorrt" not in profiles:
            raise ValueError(
                f"backend '{self.backend}' runs the 'tensorrt' profile, which quantize.profiles leaves out"
            )
        if self.engine is not None and "tensorrt" not in profiles:
            raise ValueError("[engine] is built from the 'tensorrt' profile, which quantize.profiles leaves out")
        if self.export.float16 and "tensorrt" in profiles and self.export.opset < FLOAT16_SCALES_OPSET:
            raise ValueError(f"export.float16 needs export.opset {FLOAT16_SCALES_OPSET} or newer, with float16 scales")
        if "fp8" in profiles and self.export.opset < LOWEST_OPSET:
            raise ValueError(f"profile 'fp8' needs export.opset {LOWEST_OPSET} or newer, with FP8 numbers")
        for name, task in self.compare:
            if task is not None and (unmade := sorted(set(task.max_drop) - set(profiles))):
                raise ValueError(f"compare.{name}.max_drop names '{unmade[0]}', which quantize.profiles leaves out")
        self._check_shapes()
        length = self.export.length
        engine = self.engine
        shapes = {"bench.shapes": self.bench.shapes}
        if engine is not None:
            shapes["[engine]"] = (engine.min_shape, engine.opt_shape, engine.max_shape)
        for name, texts in shapes.items():
            if length != "dynamic" and (wrong := [text for text in texts if not text.endswith(f"x{length}")]):
                raise ValueError(f"{name} has {wrong[0]}, but export.length fixes the length to {length}")
        if length != "dynamic" and self.calibrate.length > length:
            raise ValueError(f"calibrate.length is {self.calibrate.length}, but export.length fixes it to {length}")
        return self

    def _check_shapes(self) -> None:
        """Images have a batch, texts a batch and a length."""
        shapes = {"bench.shapes": self.bench.shapes}
        if self.engine is not None:
            shapes["engine.opt_shape"] = (self.engine.opt_shape,)
        if self.data.images is not None and self.export.length != "dynamic":
            raise ValueError(f"export.length is {self.export.length}; a model that reads images has no length")
        for name, texts in shapes.items():
            for text in texts:
                if self.data.images is None:
                    parse_shape(text)
                elif not text.isdecimal():
                    raise ValueError(f"{name} has {text}; images take the batch alone, for example 8")

    def _check_training(self) -> None:
        if self.train is None:
            if self.model.checkpoint is None:
                raise ValueError("a model from scratch needs a [train] table")
            self._check_retrofit()
            return
        if (self.train.objective == "image_classification") != (self.data.images is not None):
            raise ValueError("data.images and objective = 'image_classification' belong together")
        if (self.train.objective in ON_CHECKPOINTS) != (self.model.checkpoint is not None):
            needed = "a checkpoint" if self.train.objective in ON_CHECKPOINTS else "an architecture"
            raise ValueError(f"objective '{self.train.objective}' needs {needed} in [model]")
        if self.model.architecture is not None:
            reads_text = self.train.objective != "image_classification"
            if reads_text != (self.model.tokenizer is not None):
                needed = "needs a tokenizer" if reads_text else "reads no text, so it takes no tokenizer"
                raise ValueError(f"objective '{self.train.objective}' {needed} in [model]")

    def _check_retrofit(self) -> None:
        """What a retrofit starts from must be what the original computes, or the recipe says how it differs."""
        if self.attention.prefix:
            raise ValueError(
                "attention.prefix starts at zero, which changes what a checkpoint computes; give its tokens as retrofit.prefix"
            )
        if self.attention.patch_norm:
            raise ValueError(
                "attention.patch_norm changes what a checkpoint computes; it is for models from scratch ([train])"
            )
        if self.data.images is not None and self.retrofit.prefix:
            raise ValueError("retrofit.prefix is made of tokens; data.images has none")

    @property
    def runs_engines(self) -> bool:
        """Whether the run compares and measures on engines."""
        return self.backend != "cpu"

    def default_engine(self) -> EngineSection:
        """The ``[engine]`` table of a recipe that has none."""
        return EngineSection.model_validate(_ENGINE_OF_IMAGES if self.data.images is not None else {})

    def values(self) -> dict[str, Any]:
        """The resolved recipe as plain values; without ``retrofit`` where the model is trained instead."""
        return self.model_dump(
            mode="json", exclude_none=True, exclude=None if self.train is None else {"retrofit": True}
        )

    def to_toml(self) -> str:
        """The resolved recipe as TOML, every default spelt out; reading it back gives an equal recipe."""
        return _to_toml(self.values())


def demo_recipe_path() -> Path:
    """The demo's recipe: inside the installed package, or ``recipes/`` of a source checkout."""
    package = Path(quietformer.__file__).parent
    installed = package / "recipes" / DEMO_RECIPE
    return installed if installed.is_file() else package.parent / "recipes" / DEMO_RECIPE


def load_recipe(path: Path, overrides: Sequence[str] = ()) -> Recipe:
    """Read and check a recipe.

    Args:
        path: TOML file.
        overrides: ``key=value`` texts with dotted keys; values are TOML, a bare word is a string.

    Raises:
        FileNotFoundError: no such file.
        ValueError: not TOML, an unknown key, a value of the wrong type or out of range, a malformed override.
    """
    if not path.is_file():
        raise FileNotFoundError(f"no recipe at {path}")
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not a text file: byte {error.start} is not UTF-8") from error
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"{path} is not TOML: {error}") from error
    for override in overrides:
        _apply_override(values, override)
    try:
        return Recipe.model_validate(values)
    except ValidationError as error:
        raise ValueError(f"recipe {path}: {complaint_text(error, Recipe)}") from error


def _apply_override(values: dict[str, Any], override: str) -> None:
    key, separator, text = override.partition("=")
    parts = [part.strip() for part in key.split(".")]
    if not separator or not all(parts):
        raise ValueError(f"--set '{override}' is not key=value, for example --set retrofit.steps=200")
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text
    table = values
    for part in parts[:-1]:
        table = table.setdefault(part, {})
        if not isinstance(table, dict):
            raise ValueError(f"--set '{override}': '{part}' is a value, not a table")  # noqa: TRY004 - the user's mistake
    table[parts[-1]] = value


def _to_toml(table: dict[str, Any], prefix: str = "") -> str:
    """TOML of plain values: a table's own keys first, then its tables."""
    lines = [f"{_toml_key(key)} = {_toml_value(value)}" for key, value in table.items() if not isinstance(value, dict)]
    if prefix and (lines or not table):
        lines.insert(0, f"[{prefix}]")
    blocks = ["\n".join(lines) + "\n"] if lines else []
    for key, value in table.items():
        if isinstance(value, dict):
            blocks.append(_to_toml(value, f"{prefix}.{_toml_key(key)}" if prefix else _toml_key(key)))
    return "\n".join(block for block in blocks if block)


def _toml_key(key: str) -> str:
    return key if _BARE_KEY.fullmatch(key) else json.dumps(key, ensure_ascii=False)


def _toml_value(value: Any) -> str:
    # JSON and TOML agree on strings, booleans, arrays and finite numbers.
    return json.dumps(value, ensure_ascii=False)
