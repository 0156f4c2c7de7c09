"""Calibration sets as arrays: one ``.npz`` with an array per input of a graph, samples on the first axis, and a manifest beside it.

``quietformer data`` makes them of named sets; anything in the same layout, as NVIDIA ModelOpt takes it, is read too.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from deploy.files import sha256_file


def load_set(path: Path, *, batch_size: int = 16) -> tuple[list[dict[str, np.ndarray[Any, Any]]], dict[str, Any]]:
    """Batches and data identity of a set.

    Args:
        path: the ``.npz`` file.
        batch_size: rows per batch; the last one may have fewer.

    Raises:
        FileNotFoundError: no such file.
        ValueError: not such a file, arrays of different sizes, or content that does not match the manifest beside it.
    """
    if not path.is_file():
        raise FileNotFoundError(f"no calibration set at {path}")
    try:
        with path.open("rb") as stream, np.load(stream, allow_pickle=False) as stored:
            arrays = {name: stored[name] for name in stored.files}
    except Exception as error:  # zipfile, numpy and OS errors alike
        raise ValueError(f"{path} is not an npz file with arrays: {error}") from error
    sizes = {name: len(array) if array.ndim else 0 for name, array in arrays.items()}
    if not sizes or 0 in sizes.values() or len(set(sizes.values())) > 1:
        raise ValueError(
            f"{path} needs one array per input with the samples on the first axis; it has {sizes or 'none'}"
        )
    sha256 = sha256_file(path)
    manifest = path.with_suffix(".json")
    noted = _noted_sha256(manifest) if manifest.is_file() else None
    if noted is not None and noted != sha256:
        raise ValueError(f"{path} has sha256 {sha256[:12]}, its manifest {manifest.name} says {noted[:12]}")
    batches = [
        {name: array[start : start + batch_size] for name, array in arrays.items()}
        for start in range(0, next(iter(sizes.values())), batch_size)
    ]
    return batches, {"kind": "npz", "sha256": sha256}


def _noted_sha256(manifest: Path) -> str | None:
    """What a manifest says; None of another JSON file with the set's name, such as the calibration cache that was made from it."""
    try:
        content = json.loads(manifest.read_bytes())
    except ValueError as error:
        raise ValueError(f"{manifest} is not the manifest of a calibration set: {error}") from error
    if not isinstance(content, dict):
        return "nothing"
    return str(content["sha256"]) if "sha256" in content else None
