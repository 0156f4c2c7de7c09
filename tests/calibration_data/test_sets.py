"""Named sets: described, found, made with the same bytes, and read back."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from calibration_data import sets
from calibration_data.docstrings import collect_sentences
from calibration_data.make import make_set
from calibration_data.sets import SAMPLE_FILE, find_set, named_sets, set_texts
from deploy.data.array_sets import load_set
from deploy.files import sha256_file
from tests.deploy.word_tokenizer import write_tokenizer

SHARED = Path(__file__).parents[3] / "shared" / "data"


@pytest.fixture
def tokenizer_file(tmp_path: Path) -> Path:
    return write_tokenizer(tmp_path / "tokenizer.json")


def test_every_set_says_what_it_is() -> None:
    assert list(named_sets()) == ["sample", "docstrings", "text", "wikipedia", "sst2", "stsb"]
    for entry in named_sets().values():
        assert all((entry.description, entry.source, entry.licence, entry.split, entry.how)), entry.name
        assert entry.count > 0
        assert entry.length > 0


def test_an_unknown_set_is_answered_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match="unknown calibration set 'imagenet'; known are sample, docstrings"):
        find_set("imagenet")


def test_the_sample_is_distinct_english_sentences() -> None:
    sentences = SAMPLE_FILE.read_text(encoding="utf-8").splitlines()
    assert len(sentences) == len(set(sentences)) >= find_set("sample").count
    assert all(re.fullmatch(r"[A-Z][A-Za-z ,;'-]{28,160}[.?]", sentence) for sentence in sentences)
    assert set_texts("sample")[0] == sentences


def test_a_set_is_made_with_the_same_bytes_and_read_back(tokenizer_file: Path, tmp_path: Path) -> None:
    one, two = (make_set("sample", tokenizer_file=tokenizer_file, out=tmp_path / folder) for folder in ("one", "two"))
    assert one.arrays.read_bytes() == two.arrays.read_bytes()
    assert one.manifest.read_bytes() == two.manifest.read_bytes()
    assert one.sha256 == sha256_file(one.arrays)
    with np.load(one.arrays, allow_pickle=False) as arrays:
        assert set(arrays.files) == {"input_ids", "attention_mask", "token_type_ids"}
        assert {arrays[name].shape for name in arrays.files} == {(192, 32)}
        ids = arrays["input_ids"]
    manifest = json.loads(one.manifest.read_text())
    assert manifest["set"]["licence"] == "Apache-2.0"
    assert len(set(manifest["data"]["indices"])) == 192
    batches, identity = load_set(one.arrays, batch_size=50)
    assert [len(batch["input_ids"]) for batch in batches] == [50, 50, 50, 42]
    assert np.array_equal(np.concatenate([batch["input_ids"] for batch in batches]), ids)
    assert identity == {"kind": "npz", "sha256": one.sha256}


def test_an_existing_set_is_replaced_only_by_force(tokenizer_file: Path, tmp_path: Path) -> None:
    make_set("sample", tokenizer_file=tokenizer_file, out=tmp_path / "made")
    with pytest.raises(FileExistsError, match="--force"):
        make_set("sample", tokenizer_file=tokenizer_file, out=tmp_path / "made")
    make_set("sample", tokenizer_file=tokenizer_file, out=tmp_path / "made", force=True)


def test_the_text_set_is_the_callers_own_file(tokenizer_file: Path, tmp_path: Path) -> None:
    own = tmp_path / "own.txt"
    own.write_text("\n".join(f"w{number % 40}" for number in range(600)))
    made = make_set("text", tokenizer_file=tokenizer_file, out=tmp_path / "made", data_dir=own)
    assert made.samples == 512


def test_docstrings_are_identified_by_their_content(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "m.py").write_text('"""This is the only sentence of a very small package."""')
    monkeypatch.setattr(sets, "collect_sentences", lambda limit: collect_sentences({"small": tmp_path}, limit=limit))
    texts, identity = set_texts("docstrings")
    assert texts == ["This is the only sentence of a very small package."]
    assert (identity["kind"], identity["count"], identity["packages"]) == ("docstrings", 1, {"small": 1})


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"name": "wikipedia"}, ValueError, "set 'wikipedia' needs a data folder. A folder wikipedia_en_2014"),
        (
            {"name": "wikipedia", "data_dir": Path("/nowhere")},
            FileNotFoundError,
            "no data at /nowhere/wikipedia_en_2014. A folder",
        ),
        ({"name": "sample", "data_dir": Path("/nowhere")}, ValueError, "a data folder has no effect on set 'sample'"),
    ],
)
def test_missing_and_useless_data_folders_are_named(
    arguments: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=re.escape(message)):
        set_texts(**arguments)


def test_damaged_and_foreign_arrays_are_refused(tokenizer_file: Path, tmp_path: Path) -> None:
    made = make_set("sample", tokenizer_file=tokenizer_file, out=tmp_path)
    content = made.arrays.read_bytes()
    np.savez(made.arrays, allow_pickle=False, input_ids=np.ones((3, 4), np.int64))
    with pytest.raises(ValueError, match=r"its manifest sample\.json says"):
        load_set(made.arrays)
    made.arrays.write_bytes(content[:500])
    with pytest.raises(ValueError, match="is not an npz file"):
        load_set(made.arrays)
    np.savez(tmp_path / "ragged.npz", allow_pickle=False, a=np.ones(3), b=np.ones(4))
    with pytest.raises(ValueError, match="one array per input with the samples on the first axis"):
        load_set(tmp_path / "ragged.npz")
    with pytest.raises(FileNotFoundError, match="no calibration set at"):
        load_set(tmp_path / "absent.npz")


@pytest.mark.skipif(not SHARED.is_dir(), reason="no ../shared/data beside the checkout")
@pytest.mark.parametrize("name", ["sst2", "stsb"])
def test_real_sets_draw_from_the_training_split(name: str) -> None:
    texts, identity = set_texts(name, data_dir=SHARED)
    assert len(texts) >= find_set(name).count
    assert all("train" in entry["name"] for entry in identity["files"])
