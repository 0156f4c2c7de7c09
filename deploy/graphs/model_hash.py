"""One hash for an ONNX model with everything it is made of, weights in external files included."""

from __future__ import annotations

import hashlib
from pathlib import Path

from deploy.files import sha256_file
from deploy.graphs.graph_structure import files_beside, read_structure, stored_tensors


def model_sha256(path: Path) -> str:
    """Hex sha256 of a model: the file's own where it holds its weights, else of the graph and its data files' hashes.

    The names of data files are left out: the same model under another name has the same hash.

    Raises:
        FileNotFoundError: the model or one of its data files is missing.
        ValueError: not an ONNX model.
    """
    locations = files_beside(path)
    if not locations:
        return sha256_file(path)
    structure = read_structure(path)
    for tensor in stored_tensors(structure):
        for entry in tensor.external_data:
            if entry.key == "location":
                entry.value = str(locations.index(entry.value))
    parts = [hashlib.sha256(structure.SerializeToString(deterministic=True)).hexdigest()]
    for location in locations:
        data = path.parent / location
        if not data.is_file():
            raise FileNotFoundError(f"{path} keeps weights in {location}, which is not beside it")
        parts.append(sha256_file(data))
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()
