"""Make a named calibration set: one ``.npz`` with an array per input of the graph, and a manifest beside it.

The layout is that of NVIDIA ModelOpt's calibration data: arrays by input name, first axis samples. The same set from the
same data and tokenizer has the same bytes.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from calibration_data.sets import find_set, set_texts
from deploy.calibration.calibration_subset import calibration_batches, preprocessing_identity
from deploy.data.encoding import INPUT_NAMES, TextEncoder
from deploy.files import atomic_path, refuse_existing, sha256_file, write_atomically


@dataclass(frozen=True, kw_only=True, slots=True)
class MadeSet:
    """A calibration set on disk."""

    arrays: Path
    """``NAME.npz``."""
    manifest: Path
    """``NAME.json``."""
    sha256: str
    """Of the arrays' file."""
    samples: int
    """First axis of every array."""


def make_set(
    name: str,
    *,
    tokenizer_file: Path,
    out: Path,
    data_dir: Path | None = None,
    input_names: Iterable[str] = INPUT_NAMES,
    force: bool = False,
) -> MadeSet:
    """Draw, encode and write a named set.

    Args:
        name: a set of ``sets.toml``.
        tokenizer_file: the graph's ``tokenizer.json``.
        out: folder for ``NAME.npz`` and ``NAME.json``.
        data_dir: where the data lies, for sets that need it.
        input_names: the graph's inputs.
        force: replace an existing set.

    Raises:
        FileExistsError: the set exists and ``force`` is not set.
        FileNotFoundError: no data or no tokenizer.
        ValueError: an unknown set, or too little or damaged data.
    """
    entry = find_set(name)
    arrays, manifest = out / f"{name}.npz", out / f"{name}.json"
    for path in (arrays, manifest):
        refuse_existing(path, force=force)
    encoder = TextEncoder(tokenizer_file, max_length=entry.length)
    texts, identity = set_texts(name, data_dir=data_dir)
    (batch,), indices = calibration_batches(
        texts, encoder, batches=1, batch_size=entry.count, seed=entry.seed, length=entry.length, input_names=input_names
    )
    with atomic_path(arrays) as temporary, temporary.open("wb") as stream:
        np.savez_compressed(stream, allow_pickle=False, **batch)
    content: dict[str, Any] = {
        "set": asdict(entry),
        "data": identity | {"indices": indices},
        "preprocessing": preprocessing_identity(encoder, length=entry.length),
        "arrays": {key: {"shape": list(value.shape), "dtype": str(value.dtype)} for key, value in batch.items()},
        "sha256": sha256_file(arrays),
    }
    write_atomically(manifest, json.dumps(content, indent=1, sort_keys=True) + "\n")
    return MadeSet(arrays=arrays, manifest=manifest, sha256=content["sha256"], samples=entry.count)


def load_set(path: Path, *, batch_size: int = 16) -> tuple[list[dict[str, np.ndarray[Any, Any]]], dict[str, Any]]:
    """Batches and data identity of a set that :func:`make_set` wrote, or of any ``.npz`` in the same layout.

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
    if manifest.is_file() and (noted := _noted_sha256(manifest)) != sha256:
        raise ValueError(f"{path} has sha256 {sha256[:12]}, its manifest {manifest.name} says {noted[:12]}")
    batches = [
        {name: array[start : start + batch_size] for name, array in arrays.items()}
        for start in range(0, next(iter(sizes.values())), batch_size)
    ]
    return batches, {"kind": "npz", "sha256": sha256}


def _noted_sha256(manifest: Path) -> str:
    try:
        content = json.loads(manifest.read_bytes())
    except ValueError as error:
        raise ValueError(f"{manifest} is not the manifest of a calibration set: {error}") from error
    return str(content.get("sha256")) if isinstance(content, dict) else "nothing"
