"""Texts, sentence pairs and labelled texts from files, folders and Hugging Face datasets.

A path is a ``.txt`` (one paragraph a line), ``.jsonl``, ``.csv``, ``.tsv`` or ``.parquet`` file, each also zstd-packed, a
folder of them, or ``hf:NAME:SPLIT`` (``hf:NAME:CONFIG:SPLIT``). Everything streams, so ``limit`` bounds the work.
"""

from __future__ import annotations

import math
import re
from collections.abc import Generator, Iterator
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from deploy.data.text_files import (
    EVALUATION_WORDS,
    Purpose,
    data_files,
    file_format,
    identify_files,
    read_lines,
    refuse_evaluation_split,
    split_words,
)
from deploy.data.text_records import Row, pick_column, read_rows

_HUGGING_FACE = "hf:"
_HEADING = re.compile(r"=+ .* =+")
_TEXT_COLUMNS = ("text", "sentence", "content")
_PAIR_COLUMNS = ("sentence1", "sentence2")


@dataclass(frozen=True, kw_only=True, slots=True)
class SentencePair:
    """Two sentences and how similar people find them."""

    first: str
    second: str
    score: float
    """Similarity; STS Benchmark's is 0 to 5."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LabelledText:
    """A text and its class."""

    text: str
    label: int
    """Class number, from 0."""


def read_texts(
    path: Path | str, *, column: str | None = None, limit: int | None = None, allow_evaluation_split: bool = False
) -> list[str]:
    """The texts that :func:`each_text` gives, to train or calibrate on, with its arguments and errors.

    ``limit`` stops after so many; ``deploy.data.example_draw`` draws from all.
    """
    if limit is not None and limit < 1:
        raise ValueError(f"limit is {limit}; expected at least 1")
    with closing(each_text(path, column=column, allow_evaluation_split=allow_evaluation_split)) as texts:
        return list(islice(texts, limit))


def each_text(path: Path | str, *, column: str | None = None, allow_evaluation_split: bool = False) -> Generator[str]:
    """Texts one by one, in the order of the files.

    In a ``.txt`` file every line is a text; blank lines and ``= headings =`` are dropped. In tables the texts are in
    ``column``, else in ``text``, ``sentence`` or ``content``, else both sentences of a pair are texts.

    Args:
        path: file, folder or ``hf:`` name. Of a folder with splits only the training files are read.
        column: column of the texts in tables.
        allow_evaluation_split: read a file although its name says that it is for measuring.

    Raises:
        FileNotFoundError: no such path.
        ValueError: nothing to read, an evaluation split, damaged content, or a missing column.
        ImportError: the format needs an extra that is not installed.
    """
    is_empty = True
    for source in _sources(path, purpose="training", allow_evaluation_split=allow_evaluation_split):
        with closing(_texts_of(source, column)) as found:
            for text in found:
                is_empty = False
                yield text
    if is_empty:
        raise ValueError(f"{path} holds no text")


def read_pairs(path: Path | str) -> list[SentencePair]:
    """Scored sentence pairs: an STS Benchmark file, or columns ``sentence1``, ``sentence2`` and ``score`` (``similarity_score``).

    Of a folder with splits the evaluation files are read.

    Raises:
        FileNotFoundError: no such path.
        ValueError: nothing to read, a missing column, or a score that is not a finite number.
        ImportError: the format needs an extra that is not installed.
    """
    pairs = []
    for where, row in _rows(path):
        first, second = (_text(where, row, pick_column((where, row), name)) for name in _PAIR_COLUMNS)
        name = pick_column((where, row), "score", "similarity_score")
        pairs.append(SentencePair(first=first, second=second, score=_number(where, name, row[name])))
    if not pairs:
        raise ValueError(f"{path} holds no sentence pair")
    return pairs


def read_labelled(path: Path | str) -> list[LabelledText]:
    """Labelled texts: columns ``sentence`` (``text``) and ``label``, as in SST-2. Of a folder the evaluation files are read.

    Raises:
        FileNotFoundError: no such path.
        ValueError: nothing to read, a missing column, or a label that is not a whole number from 0.
        ImportError: the format needs an extra that is not installed.
    """
    texts = []
    for where, row in _rows(path):
        label = _number(where, "label", row[pick_column((where, row), "label")])
        if label < 0 or not label.is_integer():
            raise ValueError(f"{where}: label is {label}; expected a class number from 0")
        text = _text(where, row, pick_column((where, row), *_TEXT_COLUMNS))
        texts.append(LabelledText(text=text, label=int(label)))
    if not texts:
        raise ValueError(f"{path} holds no labelled text")
    return texts


def data_identity(
    path: Path | str, *, column: str | None = None, allow_evaluation_split: bool = False
) -> dict[str, Any]:
    """What a calibration cache says of its data: kind, and per file name, sha256 and bytes (or the dataset's name).

    The files are those that :func:`read_texts` reads with the same arguments, which raise the same errors.
    """
    chosen = {"column": column} if column else {}
    text = str(path)
    if text.startswith(_HUGGING_FACE):
        name, config, split = _dataset_name(text, allow_evaluation_split=allow_evaluation_split)
        return {"kind": "huggingface", "name": name, "config": config, "split": split} | chosen
    files = data_files(_path(path), purpose="training", allow_evaluation_split=allow_evaluation_split)
    return {"kind": "files", "files": identify_files(files)} | chosen


def _sources(
    path: Path | str, *, purpose: Purpose, allow_evaluation_split: bool
) -> list[Path | tuple[str, str | None, str]]:
    if str(path).startswith(_HUGGING_FACE):
        allowed = allow_evaluation_split or purpose == "evaluation"
        return [_dataset_name(str(path), allow_evaluation_split=allowed)]
    return list(data_files(_path(path), purpose=purpose, allow_evaluation_split=allow_evaluation_split))


def _path(path: Path | str) -> Path:
    if path == "":  # an unset shell variable; it would stand for the working directory
        raise ValueError("the path of the data is empty; expected a file or folder")
    return Path(path)


def _rows(path: Path | str) -> Iterator[Row]:
    for source in _sources(path, purpose="evaluation", allow_evaluation_split=True):
        if isinstance(source, Path) and file_format(source) == ".txt":
            raise ValueError(
                f"{source} is plain text; expected a table (.jsonl, .csv, .tsv, .parquet) with named columns"
            )
        yield from _dataset_rows(*source) if isinstance(source, tuple) else read_rows(source)


def _texts_of(source: Path | tuple[str, str | None, str], column: str | None) -> Generator[str]:
    if isinstance(source, Path) and file_format(source) == ".txt":
        if column is not None:
            raise ValueError(f"column '{column}' has no effect on {source}: plain text has no columns")
        with closing(read_lines(source)) as lines:
            for line in lines:
                if (text := line.strip()) and not _HEADING.fullmatch(text):
                    yield text
        return
    rows = _dataset_rows(*source) if isinstance(source, tuple) else read_rows(source)
    for where, row in rows:
        columns: tuple[str, ...]
        if column is None and all(name in row for name in _PAIR_COLUMNS):
            columns = _PAIR_COLUMNS
        else:
            columns = (pick_column((where, row), *([column] if column is not None else _TEXT_COLUMNS)),)
        for name in columns:
            if text := _text(where, row, name).strip():
                yield text


def _text(where: str, row: dict[str, Any], column: str) -> str:
    value = row[column]
    if not isinstance(value, str):
        raise ValueError(f"{where}: column '{column}' holds a {type(value).__name__}; expected text")  # noqa: TRY004 - a fault of the data
    try:
        value.encode()
    except UnicodeEncodeError as error:  # half of a pair of \\u escapes, as JSON allows it
        raise ValueError(f"{where}: column '{column}' holds half a character (a lone surrogate)") from error
    return value


def _number(where: str, column: str, value: Any) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number):
        raise ValueError(f"{where}: {column} is {value!r}; expected a finite number")
    return number


def _dataset_name(text: str, *, allow_evaluation_split: bool) -> tuple[str, str | None, str]:
    parts = text.split(":")[1:]
    if len(parts) not in {2, 3} or not all(parts):
        raise ValueError(f"'{text}' is no dataset name; expected hf:NAME:SPLIT or hf:NAME:CONFIG:SPLIT")
    name, split = parts[0], parts[-1]
    if not allow_evaluation_split and split_words(split, EVALUATION_WORDS):
        refuse_evaluation_split(text, split)
    return name, parts[1] if len(parts) == 3 else None, split


def _dataset_rows(name: str, config: str | None, split: str) -> Iterator[Row]:
    try:
        from datasets import load_dataset  # noqa: PLC0415 - an optional extra
    except ImportError as error:
        raise ImportError("hf: data needs datasets; install it with: pip install 'quietformer[datasets]'") from error
    for number, values in enumerate(load_dataset(name, config, split=split, streaming=True), start=1):
        yield f"{_HUGGING_FACE}{name}:{split} row {number}", values
