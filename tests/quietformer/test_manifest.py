from __future__ import annotations

import json
from pathlib import Path

import pytest

from deploy.files import sha256_file
from quietformer.manifest import (
    MANIFEST_FILE,
    Manifest,
    StageRecord,
    describe_change,
    hash_paths,
    hash_source,
    tool_versions,
)


def record_of(folder: Path, *names: str) -> StageRecord:
    return StageRecord(
        settings={"steps": 3, "nested": {"a": [1, 2]}},
        made_from={"source": "00"},
        artifacts=hash_paths(folder, names),
        tools={"numpy": "2"},
        seconds=1.5,
    )


def test_a_written_manifest_reads_back(tmp_path: Path) -> None:
    (tmp_path / "a.bin").write_bytes(b"a")
    Manifest(folder=tmp_path).record("first", record_of(tmp_path, "a.bin"))
    assert Manifest.load(tmp_path).stages["first"] == record_of(tmp_path, "a.bin")


def test_every_artifact_has_hash_origin_settings_tools_and_time(tmp_path: Path) -> None:
    (tmp_path / "a.bin").write_bytes(b"a")
    Manifest(folder=tmp_path).record("first", record_of(tmp_path, "a.bin"))
    stage = json.loads((tmp_path / MANIFEST_FILE).read_text())["stages"]["first"]
    assert stage["artifacts"] == {"a.bin": sha256_file(tmp_path / "a.bin")}
    assert set(stage) == {"settings", "made_from", "artifacts", "tools", "seconds"}


def test_a_folder_counts_with_all_its_files(tmp_path: Path) -> None:
    (tmp_path / "checkpoint" / "deep").mkdir(parents=True)
    (tmp_path / "checkpoint" / "config.json").write_text("{}")
    (tmp_path / "checkpoint" / "deep" / "vocab.txt").write_text("a")
    assert list(hash_paths(tmp_path, ["checkpoint"])) == ["checkpoint/config.json", "checkpoint/deep/vocab.txt"]


def test_a_pattern_counts_with_its_matches_or_none(tmp_path: Path) -> None:
    (tmp_path / "model.onnx.00ff.data").write_text("weights")
    assert list(hash_paths(tmp_path, ["model.onnx.*.data"])) == ["model.onnx.00ff.data"]
    assert not hash_paths(tmp_path, ["other.onnx.*.data"])


def test_altered_and_missing_artifacts_are_told_apart(tmp_path: Path) -> None:
    for name in ("kept", "altered", "gone"):
        (tmp_path / name).write_text(name)
    manifest = Manifest(folder=tmp_path)
    manifest.record("first", record_of(tmp_path, "kept", "altered", "gone"))
    (tmp_path / "altered").write_text("something else")
    (tmp_path / "gone").unlink()
    assert manifest.altered_artifacts("first") == ["altered"]
    assert manifest.missing_artifacts("first") == ["gone"]


def test_an_absent_input_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="nowhere"):
        hash_paths(tmp_path, ["nowhere"])


@pytest.mark.parametrize(
    "content", ["", "[]", "{}", '{"schema_version": 1, "stages": {"a": {}}}', '{"schema_version": 9, "stages": {}}']
)
def test_a_damaged_manifest_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / MANIFEST_FILE).write_text(content)
    with pytest.raises(ValueError, match=r"manifest\.json"):
        Manifest.load(tmp_path)


def test_a_source_hash_follows_names_and_contents(tmp_path: Path) -> None:
    folder = tmp_path / "source"
    folder.mkdir()
    (folder / "a").write_text("1")
    before = hash_source(folder)
    assert hash_source(folder / "a") == sha256_file(folder / "a")
    (folder / "a").rename(folder / "b")
    renamed = hash_source(folder)
    (folder / "b").write_text("2")
    assert len({before, renamed, hash_source(folder)}) == 3


def test_the_first_difference_is_described_with_its_path() -> None:
    assert describe_change({"a": 1, "b": {"c": [1]}}, {"a": 1, "b": {"c": [2]}}) == "b.c was [1] and is [2]"
    assert describe_change({"a": 1}, {"a": 1, "b": 2}) == "b is new"
    assert describe_change({"a": 1, "b": 2}, {"a": 1}) == "b is gone"
    assert describe_change({"a": {"b": 1}}, {"a": {"b": 1}}) is None


def test_packages_that_are_not_installed_have_no_version() -> None:
    assert set(tool_versions(["numpy", "surely-not-installed"])) == {"numpy"}
