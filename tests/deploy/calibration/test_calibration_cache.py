"""The cache is bound to what it was made from, and a damaged one is told from a whole one."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from deploy.calibration.calibration_cache import CalibrationCache
from deploy.calibration.ranges import quant_params
from deploy.calibration.tensor_statistics import TensorStatistics
from deploy.files import sha256_file
from tests.deploy.encoder_graph import encoder


@pytest.fixture
def model_path(tmp_path: Path) -> Path:
    onnx.save(encoder(), tmp_path / "m.onnx")
    return tmp_path / "m.onnx"


def statistics_of(*values: float) -> TensorStatistics:
    statistics = TensorStatistics(with_histogram=True)
    statistics.update(np.array(values, np.float32))
    return statistics


def cache_of(model_path: Path, **changes: Any) -> CalibrationCache:
    arguments: dict[str, Any] = {
        "model_sha256": sha256_file(model_path),
        "data": {"kind": "files", "files": [{"name": "a.txt", "sha256": "0" * 64, "bytes": 9}], "indices": [4, 1]},
        "preprocessing": {"max_length": 8, "padding": "longest row", "tokenizer_sha256": "1" * 64},
        "method": "percentile",
        "parameters": {"percentile": 99.5},
        "seed": 3,
        "samples": 2,
        "batches": 1,
        "tensors": {"x": statistics_of(-1.0, 2.0), "dead": statistics_of(0.0, 0.0), 'odd "name"': statistics_of(3.5)},
    }
    return CalibrationCache(**(arguments | changes))


def edited(path: Path, **changes: Any) -> None:
    content = json.loads(path.read_text())
    path.write_text(json.dumps(content | changes))


def test_a_cache_round_trips_byte_for_byte(model_path: Path, tmp_path: Path) -> None:
    cache = cache_of(model_path)
    cache.save(tmp_path / "c.json")
    loaded = CalibrationCache.load(tmp_path / "c.json")
    assert loaded.to_json() == cache.to_json() == (tmp_path / "c.json").read_text()
    assert loaded.range_of("x") == cache.range_of("x")
    assert list(loaded.tensors) == ["x", "dead", 'odd "name"']  # the order of the graph


def test_an_existing_cache_is_replaced_only_by_force(model_path: Path, tmp_path: Path) -> None:
    cache_of(model_path).save(tmp_path / "c.json")
    with pytest.raises(FileExistsError, match="--force"):
        cache_of(model_path).save(tmp_path / "c.json")
    replace(cache_of(model_path), seed=9).save(tmp_path / "c.json", force=True)
    assert CalibrationCache.load(tmp_path / "c.json").seed == 9


def test_ranges_follow_method_and_parameters(model_path: Path) -> None:
    extremes = cache_of(model_path, method="minmax", parameters={})
    assert extremes.range_of("x") == quant_params(-1.0, 2.0)
    assert extremes.range_of("x", bits=4, symmetric=False) == quant_params(-1.0, 2.0, bits=4, symmetric=False)
    values = np.linspace(-1, 1, 1001)
    half = cache_of(model_path, tensors={"x": statistics_of(*values)}, parameters={"percentile": 60.0})
    assert half.range_of("x").scale == pytest.approx(0.6 / 127, rel=0.01)


def test_a_tensor_that_was_not_calibrated_is_named(model_path: Path) -> None:
    with pytest.raises(ValueError, match="tensor 'y' was not calibrated"):
        cache_of(model_path).range_of("y")
    empty = cache_of(model_path, tensors={"x": TensorStatistics()}, method="minmax", parameters={})
    with pytest.raises(ValueError, match="tensor 'x': the tensor has no values"):
        empty.range_of("x")
    assert empty.warnings() == ["tensor 'x' has no values: every position was padding"]


def test_tensors_that_never_varied_are_listed(model_path: Path) -> None:
    assert cache_of(model_path).warnings() == [
        "tensor 'dead' was 0 throughout; its range is set to 1",
        "tensor 'odd \"name\"' was 3.5 throughout; its range is set to contain 0 and that value",
    ]


def test_a_matching_cache_passes_its_check(model_path: Path) -> None:
    cache = cache_of(model_path)
    cache.check(
        model_path, data=cache.data, method="percentile", parameters={"percentile": 99.5},
        preprocessing=cache.preprocessing, tensors=["x", "dead"],
    )  # fmt: skip
    cache.check(model_path, data={key: value for key, value in cache.data.items() if key != "indices"})


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"method": "minmax"}, 'method is "percentile" there and "minmax" here'),
        ({"parameters": {"percentile": 99.9}}, r"parameters\.percentile is 99\.5 there and 99\.9 here"),
        ({"data": {"kind": "files", "files": [], "indices": [4, 1]}}, r"data\.files is"),
        ({"data": {"kind": "random"}}, r"data\.files is"),
        ({"preprocessing": {"max_length": 16}}, r"preprocessing\.\w+ is"),
        ({"tensors": ["x", "y"]}, r"no entry for tensor 'y' \(1 missing\)"),
    ],
)
def test_a_mismatch_names_the_differing_field(model_path: Path, given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        cache_of(model_path).check(model_path, **given)


def test_another_model_of_the_same_shapes_is_refused(model_path: Path) -> None:
    cache = cache_of(model_path)
    model = onnx.load(model_path)
    weight = next(tensor for tensor in model.graph.initializer if tensor.name == "w0_qw")
    weight.CopyFrom(onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(weight) * 20, weight.name))
    onnx.save(model, model_path)
    with pytest.raises(ValueError, match="model_sha256 is"):
        cache.check(model_path)
    file = model_path.with_name("ranges.json")
    cache.save(file)
    with pytest.raises(ValueError, match="model_sha256 is") as raised:
        CalibrationCache.load(file).check(model_path)
    told = str(raised.value)
    assert told.startswith(f"calibration cache {file} was made from another graph than {model_path}: model_sha256 is ")
    assert cache.model_sha256 not in told
    assert "Run 'quietformer calibrate' again" in told
    assert "--allow-stale-cache" in told


def test_other_data_is_told_by_the_names_of_its_files(model_path: Path) -> None:
    def identity(name: str) -> dict[str, Any]:
        return {"kind": "files", "files": [{"name": name, "sha256": name[0] * 64, "bytes": 7}]}

    cache = replace(cache_of(model_path), data=identity("a.txt"))
    expected = (
        r"other data: data\.files is a\.txt \(sha256 aaaaaaaaaaaa…\) there and b\.txt \(sha256 bbbbbbbbbbbb…\) here"
    )
    with pytest.raises(ValueError, match=expected):
        cache.check(model_path, data=identity("b.txt"))
    with pytest.raises(ValueError, match=r"preprocessing\.max_length is .* there and 16 here"):
        cache.check(model_path, preprocessing=cache.preprocessing | {"max_length": 16})


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        pytest.param(lambda text: text[: len(text) // 2], "is not JSON, or ends early", id="half"),
        pytest.param(lambda text: "", "is not JSON, or ends early", id="empty"),
        pytest.param(lambda text: "\x00\xff", "is not JSON, or ends early", id="binary"),
        pytest.param(lambda text: "[]", "is not a calibration cache", id="list"),
        pytest.param(lambda text: '{"TensorsData": {}}', "is not a calibration cache", id="foreign"),
        pytest.param(
            lambda text: text.replace('"schema_version": 1', '"schema_version": 7'),
            "has schema version 7; this version reads 1",
            id="version",
        ),
        pytest.param(lambda text: text.replace('"max": 2.0', '"max": 1.0'), "does not match its digest", id="range"),
        pytest.param(
            lambda text: json.dumps(json.loads(text) | {"tensors": 3}), "its tensors are no table", id="table"
        ),
        pytest.param(lambda text: text.replace('"seed": 3', '"seed": 4'), "does not match its digest", id="seed"),
        pytest.param(lambda text: text.replace(' "seed": 3,\n', ""), "field 'seed' is missing", id="missing"),
        pytest.param(
            lambda text: text.replace(' "seed": 3,', ' "seed": 3, "extra": 1,'),
            "field 'extra' is unknown",
            id="unknown",
        ),
        pytest.param(lambda text: "[" * 100_000, "is not JSON, or ends early", id="nested too deeply"),
        pytest.param(lambda text: text.replace('"seed": 3', '"seed": NaN'), "is damaged: ValueError", id="nan"),
        pytest.param(
            lambda text: json.dumps(json.loads(text) | {"tensors": {key: [] for key in json.loads(text)["tensors"]}}),
            "content does not match its digest",
            id="no statistics",
        ),
    ],
)
def test_damaged_and_foreign_files_are_refused(model_path: Path, tmp_path: Path, damage: Any, message: str) -> None:
    path = tmp_path / "c.json"
    path.write_text(damage(cache_of(model_path).to_json()))
    with pytest.raises(ValueError, match=message):
        CalibrationCache.load(path)


def test_a_deleted_entry_is_named(model_path: Path, tmp_path: Path) -> None:
    path = tmp_path / "c.json"
    cache_of(model_path).save(path)
    tensors = json.loads(path.read_text())["tensors"]
    del tensors["dead"]
    edited(path, tensors=tensors)
    with pytest.raises(ValueError, match="the entry of tensor 'dead' was deleted or added"):
        CalibrationCache.load(path)
    edited(path, tensors=tensors, tensor_names=sorted(tensors))
    with pytest.raises(ValueError, match="does not match its digest"):
        CalibrationCache.load(path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no calibration cache at"):
        CalibrationCache.load(tmp_path / "absent.json")


def test_shards_merge_in_any_order(model_path: Path) -> None:
    one = cache_of(model_path)
    two = cache_of(
        model_path, data=one.data | {"indices": [7, 2]}, samples=5, batches=2,
        tensors={"x": statistics_of(-4.0, 0.5), "dead": statistics_of(0.0), 'odd "name"': statistics_of(3.5)},
    )  # fmt: skip
    merged = one.merge(two)
    assert merged.to_json() == two.merge(one).to_json()
    assert (merged.samples, merged.batches, merged.data["indices"]) == (7, 3, [1, 2, 4, 7])
    assert (merged.tensors["x"].low, merged.tensors["x"].high, merged.tensors["x"].count) == (-4.0, 2.0, 4)
    assert one.tensors["x"].count == 2  # the shards stay as they are


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"seed": 4}, "shards do not match: seed is 3 there and 4 here"),
        ({"model_sha256": "2" * 64}, "model_sha256"),
        ({"tensors": {}}, "tensors"),
        ({"data": {"kind": "random"}}, "data"),
        ({}, "both saw the same sample"),
    ],
)
def test_shards_of_different_calibrations_do_not_merge(model_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        cache_of(model_path).merge(cache_of(model_path, **changes))
