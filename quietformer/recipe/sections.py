"""What a recipe may say: one class per TOML table, one field per key, with ranges. Imports no torch.

Unknown keys are errors, values are never converted silently, and every section is frozen. Paths are relative to the
working directory.
"""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from train.attention.settings import AttentionSettings, GateKind, SoftmaxKind

Profile = Literal["tensorrt", "paper", "ort", "fp8"]
Shape = Annotated[str, Field(pattern=r"^[1-9]\d*(x[1-9]\d*)?$", examples=["1x128"])]
"""Batch and length of texts, for example ``1x128``; batch alone of images, for example ``8``."""
PositiveInt = Annotated[int, Field(ge=1)]
NaturalInt = Annotated[int, Field(ge=0)]
Bits = Annotated[int, Field(ge=2, le=16)]
MaxDrops = dict[Profile, Annotated[float, Field(ge=0)]]

DOCSTRINGS = "docstrings"
"""Value of ``data.texts``: sentences from the documentation of Python and of the installed packages."""


class Section(BaseModel):
    """A table of a recipe."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class ModelSection(Section):
    """``[model]``: a checkpoint, or the description of a model to train from scratch."""

    checkpoint: Annotated[str | None, Field(min_length=1)] = None
    """Checkpoint folder, or ``package:NAME`` for weights that an installed Python package ships."""
    architecture: Annotated[str | None, Field(min_length=1)] = None
    """``bert``, ``opt``, ``vit``, ``llama``, ...: a ``model_type`` of transformers; or ``timm:NAME`` for a Vision Transformer of timm."""
    config: dict[str, bool | int | float | str] = {}
    """Values of the architecture's config class, or arguments of timm's model; what is left out has the default."""
    tokenizer: Annotated[str | None, Field(min_length=1)] = None
    """Of a model from scratch: a folder with ``tokenizer.json``, ``vocab.json`` and ``merges.txt``, or ``vocab.txt``; or ``bpe:SIZE``, made
    from the run's texts."""

    @model_validator(mode="after")
    def _check_source(self) -> Self:
        if (self.checkpoint is None) == (self.architecture is None):
            raise ValueError("give either checkpoint, or architecture for a model from scratch")
        if self.checkpoint is not None and (self.config or self.tokenizer is not None):
            raise ValueError("config and tokenizer belong to architecture; a checkpoint brings its own")
        return self


class AttentionSection(Section):
    """``[attention]``: the fields of :class:`train.attention.settings.AttentionSettings`, which checks their combinations."""

    softmax: SoftmaxKind = "vanilla"
    gamma: float | None = None
    alpha: float | None = None
    length: int | None = None
    zeta: float = 1.0
    gate: GateKind = "none"
    gate_hidden: int | None = None
    gate_init: float = 0.5
    gate_scale: float = 1.0
    patch_norm: bool = False
    prefix: NaturalInt = 0

    @model_validator(mode="after")
    def _check_combination(self) -> Self:
        self.settings()
        return self

    def settings(self) -> AttentionSettings:
        """The settings as train and export read them."""
        return AttentionSettings.from_dict(self.model_dump())


class DataSection(Section):
    """``[data]``: texts or images to learn from and to calibrate on; never the data of the task."""

    texts: Annotated[str, Field(min_length=1)] = DOCSTRINGS
    """File or folder of texts, ``hf:NAME:SPLIT``, or ``docstrings``."""
    images: Annotated[str | None, Field(min_length=1)] = None
    """File or folder of labelled images, training and evaluation splits, for a model that reads images."""
    column: str | None = None
    """Column of the texts in tables and JSON lines."""
    limit: Annotated[int | None, Field(ge=1)] = None
    """Read the first so many texts, to learn from, to calibrate on and to hold out; mix an ordered file before."""
    unit: Literal["text", "sentence"] = "text"
    """Take each text whole, or its sentences of 30 to 300 characters one by one, as sentence encoders are used."""
    held_out: Annotated[int, Field(ge=2, le=100_000)] = 1000
    """Texts kept apart for the ``fidelity`` task: neither distilled from nor calibrated on."""
    validation: Annotated[int, Field(ge=3, le=10_000)] = 128
    """Further texts kept apart, by which the retrofit chooses its best state."""


class ExportSection(Section):
    """``[export]``: the ONNX graphs."""

    length: PositiveInt | Literal["dynamic"] = "dynamic"
    """Static length in tokens, or ``dynamic``."""
    lowering: Literal["folded", "literal"] = "folded"
    opset: Annotated[int, Field(ge=17, le=23)] = 20
    float16: bool = False
    """Write a float16 form of every graph as well, and for the ``tensorrt`` profile its integers: what a GPU is given."""


class EngineSection(Section):
    """``[engine]``: a TensorRT-RTX engine from the ``tensorrt`` profile's graph; built without a GPU."""

    compute_capabilities: Annotated[
        tuple[Annotated[str, Field(pattern=r"^\d+\.\d$")], ...], Field(strict=False, min_length=1)
    ] = ("8.0", "8.9")
    min_shape: Shape = "1x1"
    opt_shape: Shape = "1x128"
    max_shape: Shape = "8x512"

    @model_validator(mode="after")
    def _check_order(self) -> Self:
        sizes = [[int(size) for size in text.split("x")] for text in (self.min_shape, self.opt_shape, self.max_shape)]
        same_form = len({len(shape) for shape in sizes}) == 1
        if not (same_form and all(low <= mid <= high for low, mid, high in zip(*sizes, strict=True))):
            raise ValueError(
                f"shapes must grow from min to opt to max; got {self.min_shape}, {self.opt_shape}, {self.max_shape}"
            )
        return self


class TaskSection(Section):
    """One task of ``[compare]``."""

    data: str | None = None
    """File or folder of the task's data; ``fidelity`` takes the held-out texts by default, ``image`` the evaluation split of
    ``data.images``, the others are not run without."""
    max_drop: MaxDrops = {}
    """Per profile, the largest allowed loss of the retrofitted INT8 model against the float original; else no gate."""
    limit: Annotated[int | None, Field(ge=2)] = None
    """Use so many examples, drawn at random from all."""
    seed: Annotated[int | None, Field(ge=0)] = None
    """Of the draw, 0 by default."""

    @model_validator(mode="after")
    def _check_seed(self) -> Self:
        if self.seed is not None and self.limit is None:
            raise ValueError(f"seed {self.seed} has no effect without a limit: all examples are used")
        return self


class ClmSection(TaskSection):
    """``[compare.clm]``: perplexity of a causal language model over windows of a text."""

    window: Annotated[int, Field(ge=2)] = 512
    """Tokens of a window; the first one of each is not scored. ``limit`` takes the first so many windows: they are one document."""

    @model_validator(mode="after")
    def _check_no_seed(self) -> Self:
        if self.seed is not None:
            raise ValueError(f"seed {self.seed} has no effect on clm: it takes the first windows of a document")
        return self


class CompareSection(Section):
    """``[compare]``: one table per task."""

    fidelity: TaskSection | None = None
    sts: TaskSection | None = None
    mlm: TaskSection | None = None
    clm: ClmSection | None = None
    classify: TaskSection | None = None
    image: TaskSection | None = None


class BenchSection(Section):
    """``[bench]``: interleaved latency of float and INT8."""

    shapes: Annotated[tuple[Shape, ...], Field(strict=False)] = ()
    """By default one example: of 128 tokens, or fewer where the model has fewer positions."""
    seconds: Annotated[float, Field(gt=0)] = 3.0
    """Measured time per candidate, shape and repeat."""
    repeats: Annotated[int, Field(ge=3)] = 3
