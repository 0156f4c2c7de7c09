"""One hash for an ONNX model with everything it is made of, weights in external files included."""

from __future__ import annotations

import hashlib
from pathlib import Path

from deploy.files import sha256_file
from deploy.graph_structure import external_files, read_structure


def model_sha256(path: Path) -> str:
    """Hex sha256 of a model: the file's own where it holds its weights, else of the file's and its data files' hashes.

    Raises:
        FileNotFoundError: the model or one of its data files is missing.
        ValueError: not an ONNX model.
    """
    locations = external_files(read_structure(path))
    own = sha256_file(path)
    if not locations:
        return own
    parts = [own]
    for location in locations:
        data = path.parent / location
        if not data.is_file():
            raise FileNotFoundError(f"{path} keeps weights in {location}, which is not beside it")
        parts.append(f"{location} {sha256_file(data)}")
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()
