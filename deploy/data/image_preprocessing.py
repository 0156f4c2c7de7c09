"""The preprocessing that belongs to a vision checkpoint, read from the files beside its weights or graph.

Two notations: ``preprocessor_config.json`` of Hugging Face's image processors, which :func:`preprocessor_file` also
writes, and ``pretrained_cfg`` in the ``config.json`` of timm.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

from deploy.data.image_encoding import ImageEncoder
from deploy.data.image_pixels import INTERPOLATIONS

PREPROCESSOR_FILE = "preprocessor_config.json"
MODEL_CONFIG_FILE = "config.json"

_IMAGENET = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}
_PROCESSOR_DEFAULTS: dict[str, dict[str, Any]] = {
    "ViT": {"size": 224, "resample": 2},
    "DeiT": {"size": 256, "resample": 3, "do_center_crop": True, "crop_size": 224},
}
"""What the processor classes of a name that starts like this fill in for keys that a file leaves out."""
_COMMON_DEFAULTS: dict[str, Any] = {
    "do_resize": True,
    "do_center_crop": False,
    "do_rescale": True,
    "rescale_factor": 1 / 255,
    "do_normalize": True,
    "image_mean": [0.5] * 3,
    "image_std": [0.5] * 3,
}
_PROCESSOR_KEYS = {"image_processor_type", "feature_extractor_type", "size", "crop_size", "image_mean", "image_std"}
"""A file with none of these is of another kind."""


def read_image_encoder(folder: Path) -> ImageEncoder:
    """Preprocessing of the checkpoint or graph in ``folder``: ``preprocessor_config.json``, else timm's ``config.json``.

    Raises:
        FileNotFoundError: no such folder, or neither file says how images are prepared.
        ValueError: a file is damaged or asks for something that cannot be done here.
    """
    if not folder.is_dir():
        raise FileNotFoundError(f"no folder at {folder}")
    for name, parse in ((PREPROCESSOR_FILE, _from_processor), (MODEL_CONFIG_FILE, _from_timm)):
        file = folder / name
        if not file.is_file():
            continue
        values = _read_json(file)
        if name == MODEL_CONFIG_FILE and not isinstance(values.get("pretrained_cfg"), dict):
            continue
        return _parsed(file, values, parse)
    raise FileNotFoundError(
        f"{folder} does not say how images are prepared; expected {PREPROCESSOR_FILE}, "
        f"or timm's 'pretrained_cfg' in {MODEL_CONFIG_FILE}"
    )


def read_preprocessing(file: Path) -> ImageEncoder:
    """Preprocessing that one file tells, whatever it is called; which notation it has is seen by its keys.

    Raises:
        FileNotFoundError: no such file.
        IsADirectoryError: it is a folder.
        ValueError: not such a file, or it asks for something that cannot be done here.
    """
    if file.is_dir():
        raise IsADirectoryError(f"{file} is a folder; expected a file such as {PREPROCESSOR_FILE}")
    if not file.exists():
        raise FileNotFoundError(f"no file at {file}")
    values = _read_json(file)
    if isinstance(values.get("pretrained_cfg"), dict):
        return _parsed(file, values, _from_timm)
    if not _PROCESSOR_KEYS & set(values):
        raise ValueError(
            f"{file} does not say how images are prepared; expected the keys of {PREPROCESSOR_FILE} "
            f"({', '.join(sorted(_PROCESSOR_KEYS))}), or timm's 'pretrained_cfg'"
        )
    return _parsed(file, values, _from_processor)


def _parsed(file: Path, values: dict[str, Any], parse: Callable[[dict[str, Any]], ImageEncoder]) -> ImageEncoder:
    try:
        return parse(values)
    except (TypeError, ValueError, KeyError) as error:
        reason = f"no '{error.args[0]}'" if isinstance(error, KeyError) else str(error)
        raise ValueError(f"{file}: {reason}") from error


def preprocessor_file(encoder: ImageEncoder) -> str:
    """Content of a ``preprocessor_config.json`` that transformers and :func:`read_image_encoder` understand."""
    height, width = encoder.size
    resized = encoder.resize or encoder.size
    size = {"shortest_edge": resized} if isinstance(resized, int) else {"height": resized[0], "width": resized[1]}
    values = {
        "image_processor_type": "ViTImageProcessor",
        "do_resize": True,
        "size": size,
        "resample": INTERPOLATIONS.index(encoder.interpolation),
        "do_center_crop": resized != encoder.size,
        "crop_size": {"height": height, "width": width},
        "crop_rounding": encoder.crop_rounding,
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": list(encoder.mean),
        "image_std": list(encoder.std),
    }
    return json.dumps(values, indent=2) + "\n"


def _read_json(file: Path) -> dict[str, Any]:
    try:
        values = json.loads(file.read_text(encoding="utf-8"))
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ValueError(f"{file} is not JSON: {error}") from error
    if not isinstance(values, dict):
        raise ValueError(f"{file} is a JSON {type(values).__name__}; expected an object")  # noqa: TRY004 - a user's file
    return values


def _from_processor(values: dict[str, Any]) -> ImageEncoder:
    kind = str(values.get("image_processor_type") or values.get("feature_extractor_type") or "ViT")
    own = next((defaults for name, defaults in _PROCESSOR_DEFAULTS.items() if kind.startswith(name)), {})
    merged = _COMMON_DEFAULTS | own | {name: value for name, value in values.items() if value is not None}
    for name in ("do_resize", "do_rescale"):
        if not merged[name]:
            raise ValueError(f"{name} is false; expected true")
    if not math.isclose(merged["rescale_factor"], 1 / 255, rel_tol=1e-6):
        raise ValueError(f"rescale_factor is {merged['rescale_factor']}; expected 1/255")
    if merged.get("do_pad"):
        raise ValueError("do_pad is true; expected images that fill their size")
    resize = _processor_size(merged["size"])
    crop = _processor_size(merged["crop_size"]) if merged["do_center_crop"] else resize
    if isinstance(crop, int):
        raise ValueError("images keep their shape and are not cropped; expected one height and width for all")  # noqa: TRY004
    normalised = merged["do_normalize"]
    return ImageEncoder(
        size=crop,
        mean=_three(merged["image_mean"]) if normalised else (0.0, 0.0, 0.0),
        std=_three(merged["image_std"]) if normalised else (1.0, 1.0, 1.0),
        interpolation=_processor_interpolation(merged["resample"]),
        resize=None if resize == crop else resize,
        crop_rounding=merged.get("crop_rounding", "down"),
    )


def _processor_size(size: Any) -> tuple[int, int] | int:
    """Height and width, or an ``int`` for the shorter edge; a bare number in a file is a square."""
    if isinstance(size, int):
        return size, size
    if isinstance(size, dict) and {"height", "width"} <= set(size):
        return int(size["height"]), int(size["width"])
    if isinstance(size, dict) and set(size) == {"shortest_edge"}:
        return int(size["shortest_edge"])
    raise ValueError(f"size is {size!r}; expected a number, height and width, or shortest_edge")


def _processor_interpolation(resample: Any) -> Any:
    if not isinstance(resample, int) or not 0 <= resample < len(INTERPOLATIONS):
        raise ValueError(
            f"resample is {resample!r}; expected Pillow's number of a filter, 0 to {len(INTERPOLATIONS) - 1}"
        )
    return INTERPOLATIONS[resample]


def _from_timm(values: dict[str, Any]) -> ImageEncoder:
    """As timm resolves the evaluation transform of a model: what is not said is bicubic, ImageNet's, cropped to 0.875."""
    given = {name: value for name, value in values["pretrained_cfg"].items() if value}
    channels, height, width = given.get("input_size", (3, 224, 224))
    if channels != 3:
        raise ValueError(f"input_size has {channels} channels; expected 3")
    mode = given.get("crop_mode", "center")
    if mode not in {"center", "squash"}:
        raise ValueError(f"crop_mode is '{mode}'; expected center or squash")
    if mode == "center" and height != width:
        raise ValueError(f"crop_mode is center and input_size {height} x {width}; expected a square")
    share = float(given.get("crop_pct", 0.875))
    resized = math.floor(height / share), math.floor(width / share)
    squashed: tuple[int, int] | None = None if resized == (height, width) else resized
    return ImageEncoder(
        size=(height, width),
        mean=_three(given.get("mean", _IMAGENET["mean"])),
        std=_three(given.get("std", _IMAGENET["std"])),
        interpolation=given.get("interpolation", "bicubic"),
        resize=squashed if mode == "squash" else resized[0],
        crop_rounding="even",
    )


def _three(values: Any) -> tuple[float, float, float]:
    numbers = tuple(
        float(value) for value in (values * 3 if isinstance(values, (list, tuple)) and len(values) == 1 else values)
    )
    return cast("tuple[float, float, float]", numbers)  # ImageEncoder refuses other lengths
