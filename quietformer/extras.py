"""Which extra of quietformer installs which optional package, for messages about one that is missing.

Modules of ``deploy`` name their own extra. This is for everything that is imported as a matter of course, such as torch
in ``train``, and for a run, which should not find out in its thirteenth stage.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable

EXTRAS = {
    "torch": "train",
    "transformers": "train",
    "accelerate": "train",
    "safetensors": "train",
    "onnxscript": "export",
    "onnxruntime": "cpu",
    "openvino": "cpu",
    "tensorrt": "tensorrt",
    "tensorrt_rtx": "tensorrt-rtx",
    "pyarrow": "data",
    "PIL": "images",
    "timm": "timm",
    "gguf": "gguf",
    "datasets": "datasets",
    "matplotlib": "report",
    "jinja2": "report",
    "uvicorn": "serve",
    "uvloop": "serve",
    "httptools": "serve",
    "orjson": "serve",
    "grpc": "serve",
    "tritonclient": "serve",
}
"""Extra by import name."""
_NOT_IN_A_RUNTIME_IMAGE = ("calibration_data", "export", "train")
"""Packages of quietformer beside ``quietformer`` and ``deploy``."""


def describe_import_error(error: ImportError) -> str:
    """The error's message, with the extra or the image where the interpreter itself complained about a package."""
    package = (error.name or "").partition(".")[0]
    if isinstance(error, ModuleNotFoundError) and package in _NOT_IN_A_RUNTIME_IMAGE:
        return (
            f"this needs package '{package}' of quietformer, which a runtime image leaves out: use the training image"
        )
    if isinstance(error, ModuleNotFoundError) and package in EXTRAS:
        return f"{package} is not installed: pip install 'quietformer[{EXTRAS[package]}]'"
    return str(error)


def require(distributions: Iterable[str], *, what: str) -> None:
    """Look the optional packages among ``distributions`` up, without importing them.

    Args:
        distributions: names as package indexes spell them.
        what: what needs them, for the message.

    Raises:
        ImportError: one is not installed; the message names the extra.
    """
    for name in distributions:
        module = name.replace("-", "_").lower()
        if module in EXTRAS and not is_installed(module):
            raise ImportError(
                f"{what} needs {name}, which is not installed: pip install 'quietformer[{EXTRAS[module]}]'"
            )


def is_installed(module: str) -> bool:
    """Whether a package can be found; it is not imported."""
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):  # a package that is barred from import has no spec
        return False
