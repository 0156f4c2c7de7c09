"""Labelled images from parquet files and from folders of class folders, in a fixed order, not yet decoded.

A path is one of:

- a ``.parquet`` file (also ``.zst``) with a column of encoded images (bytes, or Hugging Face's ``{bytes, path}``) and a
  column of class numbers;
- a folder of such files, of which the splits that serve the purpose are read, as for texts;
- a folder of class folders with JPEG or PNG files, or a folder of splits (``train``, ``val``, ...) of these. Classes are
  numbered in the order of their names, and taken in turn, so that every prefix of the data is balanced;
- without labels, also a folder of image files, or one image file.

``deploy.data.image_pixels`` decodes. Nothing here needs Pillow.
"""

from __future__ import annotations

import hashlib
from collections.abc import Generator
from contextlib import closing
from dataclasses import dataclass
from itertools import islice, zip_longest
from pathlib import Path
from typing import Any

from deploy.data.text_files import (
    EVALUATION_WORDS,
    TRAINING_WORDS,
    Purpose,
    data_files,
    file_format,
    identify_files,
    refuse_evaluation_split,
)
from deploy.data.text_records import Row, pick_column, read_rows
from deploy.files import sha256_file

IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png")
"""Image files that a folder is searched for, in any case."""
IMAGE_COLUMNS = ("image", "img", "jpeg", "png", "bytes")
LABEL_COLUMNS = ("label", "labels", "fine_label", "target")


@dataclass(frozen=True, kw_only=True, slots=True)
class LabelledImage:
    """An encoded image, where it is from, and its class."""

    where: str
    """For messages: ``FILE row N`` or the file."""
    source: bytes | Path
    """The encoded image, or the file that holds it."""
    label: int | None
    """Class number, from 0; ``None`` where labels were not asked for."""

    def read(self) -> bytes:
        """The encoded image."""
        return self.source if isinstance(self.source, bytes) else self.source.read_bytes()


def read_images(
    path: Path | str,
    *,
    purpose: Purpose = "training",
    labelled: bool = True,
    limit: int | None = None,
    allow_evaluation_split: bool = False,
) -> list[LabelledImage]:
    """The images that :func:`each_image` gives, with its arguments and errors.

    ``limit`` stops after so many; ``deploy.data.example_draw`` draws from all.
    """
    if limit is not None and limit < 1:
        raise ValueError(f"limit is {limit}; expected at least 1")
    found = each_image(path, purpose=purpose, labelled=labelled, allow_evaluation_split=allow_evaluation_split)
    with closing(found):
        return list(islice(found, limit))


def each_image(
    path: Path | str, *, purpose: Purpose = "training", labelled: bool = True, allow_evaluation_split: bool = False
) -> Generator[LabelledImage]:
    """Images one by one: rows as they stand in the files, or class folders in turn.

    Args:
        path: file or folder; see the module.
        purpose: which splits of a folder to read; ``training`` refuses data whose name says that it is for measuring.
        labelled: without, labels are neither read nor expected.
        allow_evaluation_split: let ``training`` read data for measuring.

    Raises:
        FileNotFoundError: no such path.
        ValueError: nothing to read, an evaluation split, damaged content, missing columns or labels.
        ImportError: parquet without pyarrow.
    """
    is_empty = True
    for image in _images(_path(path), purpose, labelled=labelled, allow_evaluation_split=allow_evaluation_split):
        is_empty = False
        yield image
    if is_empty:
        raise ValueError(f"{path} holds no image")


def class_names(path: Path | str, *, purpose: Purpose = "training") -> tuple[str, ...] | None:
    """Names of the classes by number, where class folders name them; ``None`` for parquet files.

    Raises:
        FileNotFoundError: no such path.
        ValueError: nothing to read.
    """
    where = _path(path)
    if where.is_file() or _parquet_files(where):
        return None
    return tuple(folder.name for folder in _folders(_split_folder(where, purpose, allow_evaluation_split=True)))


def image_data_identity(
    path: Path | str,
    *,
    purpose: Purpose = "training",
    labelled: bool = True,
    limit: int | None = None,
    allow_evaluation_split: bool = False,
) -> dict[str, Any]:
    """What a calibration cache says of its images; takes and raises what :func:`read_images` does.

    Parquet files are identified one by one, whole. Image files by their number and one hash over names (below ``path``),
    labels and contents, of those that ``limit`` lets through.
    """
    where = _path(path)
    if (where.is_file() and file_format(where)) or (where.is_dir() and _parquet_files(where)):
        files = _table_files(where, purpose, allow_evaluation_split=allow_evaluation_split)
        return {"kind": "image files", "files": identify_files(files)}
    images = read_images(
        where, purpose=purpose, labelled=labelled, limit=limit, allow_evaluation_split=allow_evaluation_split
    )
    digest, size = hashlib.sha256(), 0
    for image in images:
        assert isinstance(image.source, Path)
        name = image.source.relative_to(where).as_posix() if image.source != where else where.name
        digest.update(f"{name}\0{image.label}\0{sha256_file(image.source)}\n".encode())
        size += image.source.stat().st_size
    return {"kind": "image folder", "images": len(images), "bytes": size, "sha256": digest.hexdigest()}


def _path(path: Path | str) -> Path:
    if path == "":  # an unset shell variable; it would stand for the working directory
        raise ValueError("the path of the images is empty; expected a file or folder")
    found = Path(path)
    if not found.exists():
        raise FileNotFoundError(f"no images at {found}")
    return found


def _images(path: Path, purpose: Purpose, *, labelled: bool, allow_evaluation_split: bool) -> Generator[LabelledImage]:
    if path.is_file() and _is_image(path):
        if labelled:
            raise ValueError(
                f"{path} is one image and has no label; expected a parquet file or a folder of class folders"
            )
        yield LabelledImage(where=str(path), source=path, label=None)
    elif path.is_file() or _parquet_files(path):
        for file in _table_files(path, purpose, allow_evaluation_split=allow_evaluation_split):
            for row in read_rows(file):
                yield _image_of_row(row, labelled=labelled)
    else:
        folder = _split_folder(path, purpose, allow_evaluation_split=allow_evaluation_split)
        yield from _images_of_folder(folder, labelled=labelled)


def _table_files(path: Path, purpose: Purpose, *, allow_evaluation_split: bool) -> list[Path]:
    if path.is_file() and file_format(path) != ".parquet":
        raise ValueError(
            f"{path} is no image data; expected .parquet, or a folder of class folders with JPEG or PNG files"
        )
    files = data_files(path, purpose=purpose, allow_evaluation_split=allow_evaluation_split)
    return [file for file in files if file_format(file) == ".parquet"]


def _image_of_row(row: Row, *, labelled: bool) -> LabelledImage:
    where, values = row
    column = pick_column(row, *IMAGE_COLUMNS)
    value = values[column]
    data = value.get("bytes") if isinstance(value, dict) else value
    if not isinstance(data, bytes):
        held = "no bytes" if isinstance(value, dict) else f"a {type(value).__name__}"
        raise ValueError(f"{where}: column '{column}' holds {held}; expected an encoded image")  # noqa: TRY004 - a fault of the data
    label = None
    if labelled:
        name = pick_column(row, *LABEL_COLUMNS)
        label = values[name]
        if isinstance(label, bool) or not isinstance(label, int) or label < 0:
            raise ValueError(f"{where}: {name} is {label!r}; expected a class number from 0")
    return LabelledImage(where=where, source=data, label=label)


def _images_of_folder(folder: Path, *, labelled: bool) -> Generator[LabelledImage]:
    direct = _image_files(folder)
    classes = _folders(folder)
    if direct and (labelled or not classes):
        if labelled:
            raise ValueError(f"{folder} holds images without labels, such as {direct[0].name}; expected class folders")
        yield from (LabelledImage(where=str(file), source=file, label=None) for file in direct)
        return
    if not classes:
        raise ValueError(
            f"folder {folder} holds no image; expected .parquet files, or class folders with JPEG or PNG files"
        )
    by_class = [_image_files(entry) for entry in classes]
    for entry, files in zip(classes, by_class, strict=True):
        if not files:
            raise ValueError(f"class folder {entry} holds no image; expected {', '.join(IMAGE_SUFFIXES)}")
    for turn in zip_longest(*by_class):
        for label, file in enumerate(turn):
            if file is not None:
                yield LabelledImage(where=str(file), source=file, label=label if labelled else None)


def _split_folder(path: Path, purpose: Purpose, *, allow_evaluation_split: bool) -> Path:
    """The folder of class folders that serves the purpose: ``path`` itself where it has no splits."""
    folders = _folders(path)
    training = [folder for folder in folders if folder.name.lower() in TRAINING_WORDS]
    measuring = [folder for folder in folders if folder.name.lower() in EVALUATION_WORDS]
    if folders and len(training) + len(measuring) == len(folders):
        if purpose == "training":
            wanted = training or (measuring if allow_evaluation_split else [])
        else:
            wanted = measuring or training
        if not wanted:
            refuse_evaluation_split(str(measuring[0]), measuring[0].name)
        if len(wanted) > 1:
            raise ValueError(f"{path} holds several splits: {', '.join(f.name for f in wanted)}; give one of them")
        return wanted[0]
    if path.name.lower() in EVALUATION_WORDS and purpose == "training" and not allow_evaluation_split:
        refuse_evaluation_split(str(path), path.name)
    return path


def _parquet_files(folder: Path) -> list[Path]:
    return [entry for entry in folder.iterdir() if entry.is_file() and file_format(entry) == ".parquet"]


def _folders(folder: Path) -> list[Path]:
    return sorted(entry for entry in folder.iterdir() if entry.is_dir() and not entry.name.startswith("."))


def _image_files(folder: Path) -> list[Path]:
    return sorted(entry for entry in folder.iterdir() if entry.is_file() and _is_image(entry))


def _is_image(path: Path) -> bool:
    return path.suffix.lower() in IMAGE_SUFFIXES and not path.name.startswith(".")
