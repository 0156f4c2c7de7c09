"""Where artifacts lie in a run directory: the made model's at the top, the original's under ``original/`` where there is one."""

from __future__ import annotations

from typing import Final, Literal

from quietformer.recipe.recipe import Recipe
from quietformer.recipe.sections import Profile

Variant = Literal["original", "retrofitted", "trained"]

RECIPE_FILE = "recipe.toml"
"""The resolved recipe."""
TRAIN_TEXTS = "data/train.jsonl"
VALIDATION_TEXTS = "data/choosing.jsonl"
"""By which the retrofit chooses its best state."""
HELD_OUT_TEXTS = "data/held-out.jsonl"
CHECKPOINT = "checkpoint"
TRAINING = "training"
"""What an interrupted training resumes from; gone when it is done."""
TRAIN_RESULT = "train.json"
"""Outcome of every seed."""
TRAIN_LOG = "train.log.jsonl"
TENSORBOARD = "tensorboard"
RETROFIT_RESULT = "retrofit.json"
RETROFIT_LOG = "retrofit.log.jsonl"
"""Scalars of every update and evaluation."""
COMPARISON = "comparison.json"
LATENCY = "latency.json"
LINT = "lint.json"
REPORT = "report"
OTHER_ARMS = "other-arms"
"""Records of other ways of training, put there from outside, for the report to show."""
ENGINE_PROFILES: Final[tuple[Profile, ...]] = ("tensorrt", "fp8")
"""Profiles whose 8 bits go into float16 graphs and into engines."""


def variants(recipe: Recipe) -> tuple[Variant, ...]:
    """The models of a run: the original and what the retrofit made of it, or the one that was trained."""
    return ("original", "retrofitted") if recipe.train is None else ("trained",)


def baseline(recipe: Recipe) -> Variant:
    """The model whose float graph everything is compared with."""
    return variants(recipe)[0]


def made(recipe: Recipe) -> Variant:
    """The model that the run makes."""
    return variants(recipe)[-1]


def in_variant(variant: Variant, name: str) -> str:
    """An artifact's name for one of the models."""
    return f"original/{name}" if variant == "original" else name


def float_graph(variant: Variant) -> str:
    """The exported float graph."""
    return in_variant(variant, "model.onnx")


def float16_graph(variant: Variant) -> str:
    """The float16 form of the exported graph, where the recipe asks for it."""
    return in_variant(variant, "model.fp16.onnx")


def float16_quantized_graph(variant: Variant, profile: Profile) -> str:
    """The 8 bits of one of :data:`ENGINE_PROFILES` in the float16 graph."""
    return in_variant(variant, "model.fp16.fp8.onnx" if profile == "fp8" else "model.fp16.int8.onnx")


def engine_profiles(recipe: Recipe) -> tuple[Profile, ...]:
    """Those of the recipe's profiles that engines are built from."""
    return tuple(profile for profile in ENGINE_PROFILES if profile in recipe.quantize.profiles)


def float16_profiles(recipe: Recipe) -> tuple[Profile, ...]:
    """Profiles of which the run makes :func:`float16_quantized_graph`."""
    return engine_profiles(recipe) if recipe.export.float16 else ()


def engine(variant: Variant, profile: Profile = "tensorrt") -> str:
    """Folder of the engine from the 8 bits of a profile."""
    return in_variant(variant, "engine-fp8" if profile == "fp8" else "engine")


def float_engine(variant: Variant) -> str:
    """Folder of the float engine, where the run measures on engines."""
    return in_variant(variant, "engine-float")


def tokenizer(variant: Variant) -> str:
    """The tokenizer beside the graphs."""
    return in_variant(variant, "tokenizer.json")


def export_facts(variant: Variant) -> str:
    """What the checks after the export found."""
    return in_variant(variant, "export.json")


def outliers(variant: Variant) -> str:
    """Outlier metrics of the named tensors."""
    return in_variant(variant, "outliers.json")


def calibration_cache(variant: Variant, recipe: Recipe, seed: int) -> str:
    """Ranges from one subset of the texts; the first seed's has no number."""
    is_first = seed == recipe.calibrate.seeds[0]
    return in_variant(variant, "calibration.json" if is_first else f"calibration.seed-{seed}.json")


def int8_graph(variant: Variant, recipe: Recipe, profile: str) -> str:
    """A quantized graph from the first seed's ranges; the first profile's has no name, and that of ``fp8`` holds no integers."""
    if profile == "fp8":
        return in_variant(variant, "model.fp8.onnx")
    is_first = profile == recipe.quantize.profiles[0]
    return in_variant(variant, "model.int8.onnx" if is_first else f"model.int8.{profile}.onnx")
