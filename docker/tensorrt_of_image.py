"""The TensorRT of a Triton image: which Python bindings belong to it, and whether they found their library.

Example: python tensorrt_of_image.py 26.05            the requirements of the bindings
         python tensorrt_of_image.py 26.05 --check    inside the image: its library is that version, and the bindings load
"""

from __future__ import annotations

import ctypes
import importlib
import sys
import tomllib
from pathlib import Path

VERSIONS = Path(__file__).with_name("tensorrt_versions.toml")
_USAGE = "usage: tensorrt_of_image.py YY.MM [--check]"


def version_of(image: str) -> str:
    """TensorRT of an image such as ``26.05``.

    Raises:
        ValueError: the table does not have it.
    """
    table = tomllib.loads(VERSIONS.read_text(encoding="utf-8"))
    if image not in table:
        raise ValueError(f"no TensorRT version is known for image '{image}'; known are {', '.join(table)}")
    return str(table[image])


def library_version(library: str) -> str:
    """Version of a TensorRT library, from its own functions; no device is needed.

    Raises:
        OSError: no such library.
    """
    loaded = ctypes.CDLL(library)
    parts = (getattr(loaded, f"getInferLib{part}Version")() for part in ("Major", "Minor", "Patch", "Build"))
    return ".".join(str(part) for part in parts)


def check(image: str) -> str:
    """Compare an image's library with the table and import the bindings; returns the version.

    Raises:
        ImportError: the bindings do not load.
        OSError: the image has no such library.
        ValueError: library or bindings are of another version than the table says.
    """
    expected = version_of(image)
    found = library_version(f"libnvinfer.so.{expected.partition('.')[0]}")
    bindings = importlib.import_module("tensorrt").__version__
    for what, version in (("library", found), ("bindings", bindings)):
        if version != expected:
            raise ValueError(
                f"image {image} has TensorRT {what} {version}; {VERSIONS.name} says {expected}: correct it"
            )
    return expected


def main(arguments: list[str]) -> str:
    """What is printed for the arguments of the command line."""
    match arguments:
        case [image]:
            version = version_of(image)
            return f"tensorrt_cu13=={version}\ntensorrt_cu13_bindings=={version}"
        case [image, "--check"]:
            return f"TensorRT {check(image)}"
    raise ValueError(_USAGE)


if __name__ == "__main__":
    try:
        print(main(sys.argv[1:]))
    except (ImportError, OSError, ValueError) as error:
        sys.exit(f"error: {error}")
