"""A corpus as one text, for perplexity in windows."""

from __future__ import annotations

from pathlib import Path

from deploy.data.text_data import read_texts
from deploy.data.text_files import data_files, file_format, read_lines

_BETWEEN = "\n\n"
"""What joins files, and the texts of a table: an empty line, as joined WikiText rows have it."""


def read_document(path: Path | str) -> str:
    """Everything of a corpus, in the order of its files.

    A ``.txt`` file is taken as it stands, headings and empty lines included; of a table and an ``hf:`` dataset, the texts
    joined by empty lines. Of a folder with splits the evaluation files are read.

    Raises:
        FileNotFoundError: no such path.
        ValueError: nothing to read, damaged content, or a table without texts.
        ImportError: the format needs an extra that is not installed.
    """
    text = str(path)
    if not text or text.startswith("hf:"):
        return _BETWEEN.join(read_texts(text, allow_evaluation_split=True))
    files = data_files(Path(path), purpose="evaluation")
    document = _BETWEEN.join(_document(file) for file in files)
    if not document.strip():
        raise ValueError(f"{path} holds no text")
    return document


def _document(file: Path) -> str:
    if file_format(file) == ".txt":
        return "\n".join(read_lines(file))
    return _BETWEEN.join(read_texts(file, allow_evaluation_split=True))
