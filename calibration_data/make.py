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
