"""Readers of texts, pairs and labels: every format, every way in which data can be wrong."""

from __future__ import annotations

import json
from collections.abc import Generator
from pathlib import Path

import pytest
import zstandard

from deploy.data import text_files
from deploy.data.text_data import data_identity, read_labelled, read_pairs, read_texts
from deploy.data.text_files import read_chunks, read_lines

SHARED = Path(__file__).parents[4] / "shared" / "data"
WITHOUT_DATA = pytest.mark.skipif(not SHARED.is_dir(), reason="no ../shared/data beside the checkout")


def packed(path: Path, content: bytes) -> Path:
    path.write_bytes(zstandard.ZstdCompressor().compress(content))
    return path


def test_text_lines_are_texts_without_headings_and_blank_lines(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    file.write_text("\ufeff= Title =\n\nFirst paragraph.\r\n  = = Section = =  \nSecond = equal.\n", encoding="utf-8")
    assert read_texts(file) == ["First paragraph.", "Second = equal."]


def test_every_format_gives_the_same_texts_plain_and_packed(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    wanted = ['He said "no", then left.', "Second"]
    contents = {
        "t.txt": "\n".join(wanted),
        "t.jsonl": "\n".join(json.dumps({"id": 1, "text": text}) for text in wanted),
        "t.csv": 'id,text\n1,"He said ""no"", then left."\n2,Second\n',
        "t.tsv": "\n".join(["id\ttext", *(f"1\t{text}" for text in wanted)]),
    }
    for name, content in contents.items():
        (tmp_path / name).write_text(content, encoding="utf-8")
    parquet.write_table(pyarrow.table({"id": [1, 2], "text": wanted}), tmp_path / "t.parquet")
    for name in (*contents, "t.parquet"):
        zst = packed(tmp_path / f"{name}.zst", (tmp_path / name).read_bytes())
        assert read_texts(tmp_path / name) == wanted, name
        assert read_texts(zst) == wanted, name


def test_a_folder_is_its_readable_files_by_name_without_notes_about_the_data(tmp_path: Path) -> None:
    for name, content in {
        "b.txt": "from b",
        "a.txt": "from a",
        "README.txt": "no",
        "LICENSE.txt": "no",
        "c.bin": "no",
    }.items():
        (tmp_path / name).write_text(content)
    assert read_texts(tmp_path) == ["from a", "from b"]


def test_of_a_folder_with_splits_only_the_training_files_are_read(tmp_path: Path) -> None:
    for name in ("train-00.txt", "train-01.txt", "valid.txt", "articles.tsv"):
        (tmp_path / name).write_text(f"text of {name}")
    assert read_texts(tmp_path) == ["text of train-00.txt", "text of train-01.txt"]
    assert [entry["name"] for entry in data_identity(tmp_path)["files"]] == ["train-00.txt", "train-01.txt"]


@pytest.mark.parametrize(
    "name", ["valid.txt", "sts-dev.txt", "test-00000-of-00003.txt", "heldout.txt", "glue_dev.txt", "my.eval.txt"]
)
def test_an_evaluation_split_is_refused_unless_it_is_allowed(tmp_path: Path, name: str) -> None:
    file = tmp_path / name
    file.write_text("A text.")
    if name == "my.eval.txt":
        file = file.rename(tmp_path / "my_eval.txt")
    with pytest.raises(ValueError, match="looks like an evaluation split"):
        read_texts(file)
    with pytest.raises(ValueError, match="evaluation split"):
        data_identity(file)
    assert read_texts(file, allow_evaluation_split=True) == ["A text."]


def test_a_folder_of_evaluation_files_only_is_refused(tmp_path: Path) -> None:
    (tmp_path / "dev.txt").write_text("A text.")
    with pytest.raises(ValueError, match=r"dev\.txt looks like an evaluation split \('dev'\).* rename it"):
        read_texts(tmp_path)


def test_words_that_merely_contain_a_split_are_no_split(tmp_path: Path) -> None:
    file = tmp_path / "testimony_devices.txt"
    file.write_text("A text.")
    assert read_texts(file) == ["A text."]


def test_limit_stops_reading_early(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    file.write_bytes(b"good line\n" * 100_000 + b"\xff broken\n")
    assert read_texts(file, limit=3) == ["good line"] * 3
    with pytest.raises(ValueError, match=r"a\.txt is not UTF-8 text: byte 1000000 is 0xff"):
        read_texts(file)


def test_the_byte_offset_of_a_wrong_byte_counts_unpacked_bytes(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="byte 9 is 0xe9"):
        read_texts(packed(tmp_path / "a.txt.zst", b"first\ncaf\xe9 au lait\n"))


def test_lines_longer_than_a_chunk_and_several_zstd_frames_are_read(tmp_path: Path) -> None:
    long = "word " * 50_000
    frame = zstandard.ZstdCompressor().compress
    file = tmp_path / "a.txt.zst"
    file.write_bytes(frame(f"{long}\n".encode()) + frame(b"second\nthi") + frame(b"rd"))
    assert list(read_lines(file)) == [long, "second", "third"]
    assert b"".join(read_chunks(file)) == f"{long}\nsecond\nthird".encode()


def test_truncated_and_foreign_zstd_data_is_refused(tmp_path: Path) -> None:
    whole = zstandard.ZstdCompressor().compress("\n".join(f"line {n}" for n in range(50_000)).encode())
    file = tmp_path / "a.txt.zst"
    file.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match=r"a\.txt\.zst is truncated"):
        read_texts(file)
    file.write_bytes(b"plain text")
    with pytest.raises(ValueError, match="not intact zstd data"):
        read_texts(file)


@pytest.mark.parametrize(
    ("name", "content"), [("a.txt", ""), ("a.txt", "\n \n"), ("a.jsonl", ""), ("a.csv", ""), ("a.tsv", "text\n")]
)
def test_a_file_without_text_is_refused(tmp_path: Path, name: str, content: str) -> None:
    file = tmp_path / name
    file.write_text(content)
    with pytest.raises(ValueError, match="holds no text"):
        read_texts(file)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (
            "a.jsonl",
            '{"body": "x", "id": 1}',
            r"line 1 has no column 'text' or 'sentence' or 'content'; its columns are body, id",
        ),
        ("a.jsonl", '{"text": "x"}\n{"text": ', "line 2 is not JSON"),
        ("a.jsonl", '["x"]', "line 1 is a JSON list; expected an object"),
        ("a.jsonl", '{"text": 3}', "column 'text' holds a int; expected text"),
        ("a.tsv", "text\tid\nx\n", "line 2 has 1 fields; the header has 2"),
        ("a.csv", 'text\n"open', "is not CSV"),
        ("a.parquet", "no parquet at all", "is not a parquet file"),
        ("a.md", "x", r"no known format; expected \.txt, \.jsonl"),
    ],
)
def test_damaged_tables_name_the_line_and_what_exists(tmp_path: Path, name: str, content: str, message: str) -> None:
    file = tmp_path / name
    file.write_text(content)
    with pytest.raises(ValueError, match=message):
        read_texts(file)


def test_a_named_column_is_read_and_has_no_effect_on_plain_text(tmp_path: Path) -> None:
    table, plain = tmp_path / "a.csv", tmp_path / "a.txt"
    table.write_text("body,text\nB,T\n")
    plain.write_text("x")
    assert read_texts(table, column="body") == ["B"]
    with pytest.raises(ValueError, match="no column 'head'; its columns are body, text"):
        read_texts(table, column="head")
    with pytest.raises(ValueError, match="has no effect"):
        read_texts(plain, column="body")


def test_missing_paths_and_empty_folders_are_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no data at"):
        read_texts(tmp_path / "absent")
    with pytest.raises(ValueError, match="holds no readable file"):
        read_texts(tmp_path)


def test_sts_benchmark_files_are_recognised_without_a_header(tmp_path: Path) -> None:
    file = tmp_path / "sts-dev.csv"
    file.write_text(
        'main\tMSR\t2012\t0001\t4.750\tA "quoted man.\tA man.\tlicence\nmain\tMSR\t2012\t0002\t0.0\tB.\tC.\n'
    )
    pairs = read_pairs(file)
    assert [(pair.first, pair.second, pair.score) for pair in pairs] == [
        ('A "quoted man.', "A man.", 4.75),
        ("B.", "C.", 0.0),
    ]
    assert read_texts(file, allow_evaluation_split=True) == ['A "quoted man.', "A man.", "B.", "C."]


def test_pairs_come_from_named_columns_too(tmp_path: Path) -> None:
    file = tmp_path / "pairs.jsonl"
    file.write_text(json.dumps({"sentence1": "a", "sentence2": "b", "similarity_score": 3}))
    (pair,) = read_pairs(file)
    assert (pair.first, pair.second, pair.score) == ("a", "b", 3.0)


@pytest.mark.parametrize("score", ["high", "nan", ""])
def test_a_score_that_is_no_number_is_refused(tmp_path: Path, score: str) -> None:
    file = tmp_path / "pairs.tsv"
    file.write_text(f"sentence1\tsentence2\tscore\na\tb\t1\nc\td\t{score}\n")
    with pytest.raises(ValueError, match=r"pairs\.tsv line 3: score is '.*'; expected a finite number"):
        read_pairs(file)


def test_labels_are_class_numbers(tmp_path: Path) -> None:
    file = tmp_path / "labels.tsv"
    file.write_text("sentence\tlabel\nit 's \"good \t1\nbad\t0\n")
    assert [(entry.text, entry.label) for entry in read_labelled(file)] == [("it 's \"good ", 1), ("bad", 0)]
    file.write_text("sentence\tlabel\nbad\t-1\n")
    with pytest.raises(ValueError, match="label is -1"):
        read_labelled(file)
    file.write_text("sentence\tstars\nbad\t1\n")
    with pytest.raises(ValueError, match="no column 'label'; its columns are sentence, stars"):
        read_labelled(file)


def test_plain_text_has_no_pairs_and_no_labels(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    file.write_text("x")
    for read in (read_pairs, read_labelled):
        with pytest.raises(ValueError, match="is plain text; expected a table"):
            read(file)


def test_data_identity_follows_content_and_not_place(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    for folder in ("one", "two"):
        (tmp_path / folder / "a.txt").write_text("same")
    assert data_identity(tmp_path / "one") == data_identity(tmp_path / "two")
    (tmp_path / "two" / "a.txt").write_text("other")
    assert data_identity(tmp_path / "one") != data_identity(tmp_path / "two")


def test_dataset_names_carry_their_split() -> None:
    assert data_identity("hf:owner/name:train") == {
        "kind": "huggingface",
        "name": "owner/name",
        "config": None,
        "split": "train",
    }
    assert data_identity("hf:owner/name:small:train")["config"] == "small"
    with pytest.raises(ValueError, match=r"hf:NAME:SPLIT"):
        read_texts("hf:owner/name")
    with pytest.raises(ValueError, match="evaluation split"):
        read_texts("hf:owner/name:validation")


@WITHOUT_DATA
def test_a_thousand_wikipedia_paragraphs_come_from_the_start_of_a_large_packed_file(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    chunks = []

    def counted(path: Path) -> Generator[bytes]:
        for chunk in read_chunks(path):
            chunks.append(len(chunk))
            yield chunk

    monkeypatch.setattr(text_files, "read_chunks", counted)
    texts = read_texts(SHARED / "wikipedia_en_2014", limit=1000)
    assert sum(chunks) < 2_000_000  # of 100 million
    assert len(texts) == 1000
    assert texts[0].startswith("The Round Oak Stove Company")
    assert not any(text.startswith("=") for text in texts)


@WITHOUT_DATA
def test_real_evaluation_files_have_their_known_sizes() -> None:
    assert len(read_pairs(SHARED / "stsb" / "sts-dev.csv.zst")) == 1500
    assert len(read_pairs(SHARED / "stsb")) == 1500
    assert len(read_labelled(SHARED / "sst2" / "glue_dev.tsv.zst")) == 872
    with pytest.raises(ValueError, match="evaluation split"):
        read_texts(SHARED / "wikipedia_en_2014" / "valid.txt.zst")


def test_half_a_character_is_refused_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text('{"text": "whole"}\n{"text": "half \\ud800"}\n')
    with pytest.raises(ValueError, match="line 2: column 'text' holds half a character"):
        read_texts(path)


def test_json_nested_too_deeply_is_refused_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text("[" * 100_000 + "\n")
    with pytest.raises(ValueError, match="line 1 is JSON nested too deeply"):
        read_texts(path)


def test_an_empty_path_is_not_the_working_directory() -> None:
    for read in (read_texts, data_identity):
        with pytest.raises(ValueError, match="the path of the data is empty"):
            read("")


def test_a_column_that_is_there_twice_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_text("text,text\na,b\n")
    with pytest.raises(ValueError, match="names the column 'text' twice"):
        read_texts(path)
