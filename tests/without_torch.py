"""An interpreter that sees every installed package but torch and what belongs to it; nothing is downloaded."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path

FORBIDDEN = ("torch", "transformers", "timm", "accelerate", "safetensors")
_LEFT_OUT = ("functorch", "__editable__", "_editable_impl", "quietformer")
"""What belongs to torch, and this project's own installation."""


def python_without_torch(folder: Path, paths: Sequence[Path]) -> Path:
    """Make a fresh environment.

    Args:
        folder: empty, gets the environment.
        paths: where it finds packages of this repository.

    Returns:
        The interpreter.
    """
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "venv"], check=True)
    packages = folder / "packages"
    packages.mkdir()
    for entry in Path(sysconfig.get_path("purelib")).iterdir():
        if not entry.name.lower().startswith((*FORBIDDEN, *_LEFT_OUT)):
            (packages / entry.name).symlink_to(entry)
    python = folder / "venv" / "bin" / "python"
    asked = [str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    site = subprocess.run(asked, check=True, capture_output=True, text=True).stdout.strip()
    (Path(site) / "packages.pth").write_text("".join(f"{path}\n" for path in (packages, *paths)))
    return python
