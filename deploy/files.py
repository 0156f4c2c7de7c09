"""Files that are never half-written: content hashes, atomic writes, refusal to overwrite."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

_CHUNK_BYTES = 1 << 20


def sha256_file(path: Path) -> str:
    """Hex sha256 of one file's bytes, read in chunks."""
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while chunk := stream.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def refuse_existing(path: Path, *, force: bool) -> None:
    """Guard an output file, before the work whose result goes there.

    Raises:
        FileExistsError: the output exists and ``force`` is not set.
        IsADirectoryError: it is a folder.
        NotADirectoryError: something above it is a file.
        PermissionError: its folder cannot be written to.
    """
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a folder; expected the name of a file to write")
    if path.exists() and not force:
        raise FileExistsError(f"{path} exists; pass --force to replace it")
    folder = next(folder for folder in path.absolute().parents if folder.exists())
    if not folder.is_dir():
        raise NotADirectoryError(f"{path} cannot be written: {folder} is a file")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise PermissionError(f"{path} cannot be written: folder {folder} is read-only")


def refuse_own_input(out: Path, inputs: Iterable[Path | str | None]) -> None:
    """Guard what a command reads from what it writes: ``--force`` replaces earlier results, never a source.

    Args:
        out: file to write.
        inputs: files that are read; what is no existing path, such as ``hf:`` names, is passed over.

    Raises:
        ValueError: ``out`` is one of the inputs.
    """
    for name in inputs:
        if name and out.exists() and Path(name).exists() and out.samefile(name):
            raise ValueError(f"{out} is what this command reads; give the output another name")


@contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside ``path`` that becomes ``path`` on success and vanishes on any error."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=path.suffix)
    os.close(descriptor)
    temporary = Path(name)
    try:
        yield temporary
        with temporary.open("rb") as stream:
            os.fsync(stream.fileno())
        temporary.chmod(0o644)
        temporary.replace(path)
    except OSError as error:
        if error.errno is not None and error.filename is None:  # a full disk, which does not say whose
            raise OSError(error.errno, error.strerror, str(path)) from error
        raise
    finally:
        temporary.unlink(missing_ok=True)


def write_atomically(path: Path, content: str | bytes) -> None:
    """Write a whole file or leave what was there untouched."""
    with atomic_path(path) as temporary:
        temporary.write_bytes(content.encode() if isinstance(content, str) else content)


@contextmanager
def atomic_folder(folder: Path) -> Iterator[Path]:
    """Yield an empty folder beside ``folder`` that takes its place on success and vanishes on any error.

    An earlier folder is moved aside first and removed last: there is no moment at which neither is on the disk.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}."))
    try:
        made = temporary / "made"
        made.mkdir()
        yield made
        if folder.exists():
            folder.rename(temporary / "earlier")
        made.rename(folder)
    except BaseException:
        if (temporary / "earlier").exists() and not folder.exists():
            (temporary / "earlier").rename(folder)
        raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
