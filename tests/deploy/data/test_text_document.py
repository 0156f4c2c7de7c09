import json
from pathlib import Path

import pytest
import zstandard

from deploy.data.text_document import read_document


def test_plain_text_is_taken_as_it_stands(tmp_path: Path) -> None:
    text = " = Title = \n \n First line .\nSecond line .\n"
    (tmp_path / "test.txt").write_text(text, encoding="utf-8")
    (tmp_path / "packed.txt.zst").write_bytes(zstandard.compress(text.encode()))
    assert read_document(tmp_path / "test.txt") == text.removesuffix("\n")
    assert read_document(tmp_path / "packed.txt.zst") == text.removesuffix("\n")


def test_texts_of_a_table_are_joined_by_empty_lines(tmp_path: Path) -> None:
    rows = [{"text": "one"}, {"text": "two\nlines"}]
    (tmp_path / "data.jsonl").write_text("\n".join(json.dumps(row) for row in rows), encoding="utf-8")
    assert read_document(tmp_path / "data.jsonl") == "one\n\ntwo\nlines"


def test_of_a_folder_with_splits_the_evaluation_files_are_read(tmp_path: Path) -> None:
    for name in ("train", "test"):
        (tmp_path / f"{name}.txt").write_text(name, encoding="utf-8")
    assert read_document(tmp_path) == "test"


def test_an_empty_file_and_a_missing_one_are_refused(tmp_path: Path) -> None:
    (tmp_path / "empty.txt").write_text("\n \n", encoding="utf-8")
    with pytest.raises(ValueError, match="holds no text"):
        read_document(tmp_path / "empty.txt")
    with pytest.raises(FileNotFoundError, match="no data at"):
        read_document(tmp_path / "missing.txt")
    with pytest.raises(ValueError, match="path of the data is empty"):
        read_document("")
