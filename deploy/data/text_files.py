"""Files of a data path: which ones belong to it, their bytes and their lines, plain or packed with zstd.

Reading streams: a caller that stops after a thousand lines has read a few chunks, whatever the file's size.
"""

from __future__ import annotations

import re
from collections.abc import Generator
from contextlib import closing
from pathlib import Path
from typing import Literal

import zstandard

from deploy.files import sha256_file

Purpose = Literal["training", "evaluation"]

FORMATS = (".txt", ".jsonl", ".csv", ".tsv", ".parquet")
"""What can be read; each also with ``.zst`` behind it."""
EVALUATION_WORDS = frozenset({"valid", "validation", "val", "test", "dev", "heldout", "eval", "evaluation"})
"""Words of a file's or split's name that mark data to measure on."""
TRAINING_WORDS = frozenset({"train", "training"})

_ABOUT_THE_DATA = frozenset({"readme", "license", "licence", "copying", "notice", "citation", "changelog"})
_CHUNK_BYTES = 1 << 16


def file_format(path: Path) -> str:
    """The suffix that decides how a file is read, without ``.zst``; empty when it is none of :data:`FORMATS`."""
    inner = path.with_suffix("") if path.suffix == ".zst" else path
    return inner.suffix.lower() if inner.suffix.lower() in FORMATS else ""


def split_words(name: str, known: frozenset[str]) -> set[str]:
    """Words of ``known`` that a file or split name contains, as in ``sts-dev.csv`` or ``test-00000-of-00003``."""
    return set(re.split(r"[^a-z]+", name.lower())) & known


def data_files(path: Path, *, purpose: Purpose, allow_evaluation_split: bool = False) -> list[Path]:
    """The files to read for ``path``, sorted by name.

    A folder stands for the readable files directly in it, minus notes about the data. Where it holds splits,
    ``training`` takes the training files only; ``evaluation`` takes the files to measure on.

    Args:
        path: a file or a folder.
        purpose: what the data is for.
        allow_evaluation_split: let ``training`` read a file whose name says that it is for measuring.

    Raises:
        FileNotFoundError: no such path.
        ValueError: nothing readable, or an evaluation split where training data is expected.
    """
    if not path.exists():
        raise FileNotFoundError(f"no data at {path}")
    if path.is_file():
        if not file_format(path):
            raise ValueError(f"{path} has no known format; expected {', '.join(FORMATS)}, each also with .zst")
        files = [path]
    else:
        files = sorted(entry for entry in path.iterdir() if entry.is_file() and file_format(entry))
        files = [entry for entry in files if _stem(entry).lower() not in _ABOUT_THE_DATA]
        if not files:
            raise ValueError(
                f"folder {path} holds no readable file; expected {', '.join(FORMATS)}, each also with .zst"
            )
    training = [entry for entry in files if split_words(_stem(entry), TRAINING_WORDS)]
    measuring = [entry for entry in files if entry not in training and split_words(_stem(entry), EVALUATION_WORDS)]
    if purpose == "evaluation":
        return measuring or files
    if training:
        return training
    kept = files if allow_evaluation_split else [entry for entry in files if entry not in measuring]
    if not kept:
        refuse_evaluation_split(str(measuring[0]), _stem(measuring[0]))
    return kept


def refuse_evaluation_split(where: str, name: str) -> None:
    """Refuse data whose ``name`` says that it is for measuring.

    Raises:
        ValueError: always.
    """
    words = " ".join(sorted(split_words(name, EVALUATION_WORDS)))
    raise ValueError(
        f"{where} looks like an evaluation split ('{words}'); ranges and training must not see what is measured on. "
        "Give training data; names of files, folders and splits decide: rename it if nothing is measured on it"
    )


def identify_files(files: list[Path]) -> list[dict[str, str | int]]:
    """Name, sha256 and bytes of each file; the folder is left out, so moved data stays the same data."""
    return [{"name": file.name, "sha256": sha256_file(file), "bytes": file.stat().st_size} for file in files]


def read_chunks(path: Path) -> Generator[bytes]:
    """Content of a file in chunks, unpacked when its name ends in ``.zst``.

    Raises:
        ValueError: the zstd data is damaged or ends early.
    """
    with path.open("rb") as stream:
        if path.suffix != ".zst":
            while chunk := stream.read(_CHUNK_BYTES):
                yield chunk
            return
        decoder = None
        try:
            while packed := stream.read(_CHUNK_BYTES):
                while packed:
                    decoder = decoder or zstandard.ZstdDecompressor().decompressobj()
                    yield decoder.decompress(packed)
                    packed = decoder.unused_data if decoder.eof else b""
                    if decoder.eof:
                        decoder = None
        except zstandard.ZstdError as error:
            raise ValueError(f"{path} is not intact zstd data: {error}") from error
        if decoder is not None:
            raise ValueError(f"{path} is truncated: its zstd data ends early")


def read_lines(path: Path) -> Generator[str]:
    r"""Lines of a UTF-8 file without their ends (``\n`` or ``\r\n``); a byte order mark is dropped.

    Raises:
        ValueError: the file is not UTF-8 (names the byte offset in the unpacked text), or its zstd data is damaged.
    """
    offset = 0
    unfinished: list[bytes] = []
    with closing(read_chunks(path)) as chunks:
        for chunk in chunks:
            *ended, rest = chunk.split(b"\n")
            for part in ended:
                line = b"".join([*unfinished, part])
                unfinished.clear()
                yield _decode(line, path, offset)
                offset += len(line) + 1
            unfinished.append(rest)
    if line := b"".join(unfinished):
        yield _decode(line, path, offset)


def read_bytes(path: Path) -> bytes:
    """A whole file, unpacked when its name ends in ``.zst``; for formats that cannot stream."""
    return b"".join(read_chunks(path))


def _decode(line: bytes, path: Path, offset: int) -> str:
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{path} is not UTF-8 text: byte {offset + error.start} is 0x{line[error.start]:02x}"
        ) from error
    return text.removesuffix("\r").removeprefix("\ufeff" if offset == 0 else "")


def _stem(path: Path) -> str:
    return path.name.split(".", maxsplit=1)[0]
