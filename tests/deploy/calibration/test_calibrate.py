"""Calibration on a small encoder: the same statistics as plain numpy, whatever the padding, the chunks or the passes."""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx.reference import ReferenceEvaluator

from deploy.calibration import calibrate as calibrate_module
from deploy.calibration.calibrate import calibrate
from deploy.calibration.calibration_cache import CalibrationCache
from deploy.graphs.sites import ObservedTensor, observed_tensors
from tests.deploy.calibrated import quantized
from tests.deploy.encoder_graph import EncoderRecipe, V, encoder

DATA = {"kind": "files", "files": []}
LAST_BITS = 2e-5
"""ONNX Runtime computes other shapes in another order: float32 rounding of values of order 10."""


@pytest.fixture(scope="module")
def model_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "m.onnx"
    onnx.save(encoder(EncoderRecipe(softmax="folded", gate="linear", num_layers=2)), path)
    return path


def batch_of(*lengths: int, width: int | None = None, seed: int = 0, left: bool = False) -> dict[str, np.ndarray]:
    """Rows of ``lengths`` random tokens, padded with garbage ids to ``width``."""
    generator = np.random.default_rng(seed)
    width = width or max(lengths)
    ids, mask = np.zeros((len(lengths), width), np.int64), np.zeros((len(lengths), width), np.int64)
    for row, length in enumerate(lengths):
        place = slice(width - length, width) if left else slice(0, length)
        ids[row, place] = generator.integers(1, V, length)
        mask[row, place] = 1
    garbage = np.random.default_rng(seed + 1).integers(0, V, ids.shape)
    return {"input_ids": np.where(mask, ids, garbage), "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}


def run(model_path: Path, batches: Any, **changes: Any) -> CalibrationCache:
    arguments: dict[str, Any] = {"method": "minmax", "data": DATA, "seed": 0, "threads": 1}
    return calibrate(model_path, batches, **(arguments | changes))


def assert_same_statistics(one: CalibrationCache, two: CalibrationCache) -> None:
    assert list(one.tensors) == list(two.tensors)
    for name, mine in one.tensors.items():
        theirs = two.tensors[name]
        assert (mine.count, mine.batches) == (theirs.count, theirs.batches), name
        for field in ("low", "high", "running_low", "running_high"):
            assert getattr(mine, field) == pytest.approx(getattr(theirs, field), abs=LAST_BITS), (name, field)


def test_extremes_equal_those_of_the_reference_evaluator_at_real_positions(model_path: Path) -> None:
    batches = [batch_of(3, 7, seed=1), batch_of(5, 2, 4, seed=2)]
    cache = run(model_path, batches, method="running-minmax")
    names = [tensor.name for tensor in observed_tensors(onnx.load(model_path))]
    assert list(cache.tensors) == names
    model = onnx.load(model_path)
    model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names if name != "hidden")
    evaluator = ReferenceEvaluator(model)
    real: dict[str, list[np.ndarray]] = {name: [] for name in names}
    for batch in batches:
        for name, array in zip(names, evaluator.run(names, batch), strict=True):
            found = []
            for row, mask in zip(array, batch["attention_mask"].astype(bool), strict=True):
                axes = [axis for axis, size in enumerate(row.shape) if size == mask.size][-2:]
                scores = name.startswith(("score", "prob"))
                selected = row
                for axis in axes if scores else axes[:1]:
                    selected = np.compress(mask, selected, axis=axis)
                found.append(selected.ravel())
            real[name].append(np.concatenate(found))
    for name, statistics in cache.tensors.items():
        everything = np.concatenate(real[name])
        assert statistics.count == everything.size, name
        assert statistics.low == pytest.approx(everything.min(), abs=LAST_BITS), name
        assert statistics.high == pytest.approx(everything.max(), abs=LAST_BITS), name
        first, second = real[name]
        assert statistics.running_high == pytest.approx(0.9 * first.max() + 0.1 * second.max(), abs=LAST_BITS), name
    assert (cache.samples, cache.batches) == (5, 2)


@given(lengths=st.lists(st.integers(1, 8), min_size=1, max_size=4), extra=st.integers(0, 6), seed=st.integers(0, 99))
@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_padding_never_changes_a_statistic(model_path: Path, lengths: list[int], extra: int, seed: int) -> None:
    tight, wide = batch_of(*lengths, seed=seed), batch_of(*lengths, width=max(lengths) + extra, seed=seed)
    wide["input_ids"][:, : max(lengths)] = np.where(
        tight["attention_mask"], tight["input_ids"], wide["input_ids"][:, : max(lengths)]
    )
    alone = [
        {name: value[row : row + 1, :length] for name, value in tight.items()} for row, length in enumerate(lengths)
    ]
    padded = run(model_path, [wide], method="mse")
    assert_same_statistics(padded, run(model_path, [tight], method="mse"))
    for name, statistics in run(model_path, alone).tensors.items():
        assert statistics.count == padded.tensors[name].count
        assert statistics.high == pytest.approx(padded.tensors[name].high, abs=LAST_BITS)


def test_a_static_graph_gives_the_statistics_of_the_open_one(model_path: Path, tmp_path: Path) -> None:
    # 16 tokens, and heads 16 wide.
    batch = batch_of(9, 16, 4, width=16)
    model = onnx.load(model_path)
    for value in model.graph.input:
        value.type.tensor_type.shape.dim[1].dim_value = 16
    onnx.save(model, tmp_path / "static.onnx")
    assert_same_statistics(run(tmp_path / "static.onnx", [batch]), run(model_path, [batch]))


def test_padding_on_the_left_is_left_out_as_well(tmp_path: Path) -> None:
    # No positions and no attention: a token's value does not depend on its place.
    model = onnx.parser.parse_model(
        """<ir_version: 10, opset_import: ["": 20]> g (int64[B,T] input_ids, int64[B,T] attention_mask) => (float[B,T,1] out) {
            values = Cast<to=1>(input_ids) axis = Constant<value=int64[1]{2}>() out = Unsqueeze(values, axis)
        }"""
    )
    onnx.save(model, tmp_path / "m.onnx")
    watched = [ObservedTensor(name="out", kind="linear_output", unit_interval=False)]
    ids = np.array([[99, 99, 5, 7], [99, 2, 3, 4]])
    cache = run(
        tmp_path / "m.onnx", [{"input_ids": ids, "attention_mask": (ids != 99).astype(np.int64)}], observed=watched
    )
    assert (cache.tensors["out"].low, cache.tensors["out"].high, cache.tensors["out"].count) == (2, 7, 5)


def test_a_fully_padded_row_is_no_sample(model_path: Path) -> None:
    batch = batch_of(4, 6, seed=5)
    batch["attention_mask"][0] = 0
    cache = run(model_path, [batch])
    assert cache.samples == 1
    assert_same_statistics(cache, run(model_path, [{name: value[1:] for name, value in batch.items()}]))


@pytest.mark.parametrize("limit", ["_CHUNK_BYTES", "_PASS_BYTES"])
def test_chunks_and_passes_change_nothing(model_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str) -> None:
    batches = [batch_of(3, 7, 5, seed=1), batch_of(8, 2, seed=2)]
    whole = run(model_path, batches, method="running-minmax")
    told: list[tuple[int, int | None]] = []
    monkeypatch.setattr(calibrate_module, limit, 20_000)
    cut = run(
        model_path, iter(batches), method="running-minmax", progress=lambda done, total: told.append((done, total))
    )
    assert_same_statistics(cut, whole)
    assert cut.samples == whole.samples == 5
    assert told[-1][0] == len(told) >= len(batches)


def test_the_same_calibration_writes_the_same_bytes(model_path: Path) -> None:
    batches = [batch_of(3, 7, 5, seed=1)]
    assert run(model_path, batches, method="entropy").to_json() == run(model_path, batches, method="entropy").to_json()


def test_merged_shards_equal_one_calibration(model_path: Path) -> None:
    batches = [batch_of(3, 7, seed=1), batch_of(5, 2, seed=2)]
    shards = [
        run(model_path, [batch], method="mse", data=DATA | {"indices": [number]})
        for number, batch in enumerate(batches)
    ]
    whole = run(model_path, batches, method="mse", data=DATA | {"indices": [0, 1]})
    merged = shards[1].merge(shards[0])
    assert merged.data == whole.data
    assert (merged.samples, merged.batches) == (whole.samples, whole.batches)
    for name, statistics in whole.tensors.items():
        mine, theirs = (entry.to_dict() for entry in (merged.tensors[name], statistics))
        assert {key: mine[key] for key in mine if "running" not in key} == {
            key: theirs[key] for key in theirs if "running" not in key
        }


def test_non_finite_values_fail_with_the_name_of_the_tensor(tmp_path: Path) -> None:
    model = encoder()
    for tensor in model.graph.initializer:
        if tensor.name == "w0_fb1":
            values = onnx.numpy_helper.to_array(tensor).copy()
            values[3] = np.nan
            tensor.CopyFrom(onnx.numpy_helper.from_array(values, tensor.name))
    onnx.save(model, tmp_path / "m.onnx")
    with pytest.raises(ValueError, match=r"tensor 'act_0' has 12 non-finite values beside 756 finite ones \(batch 1\)"):
        run(tmp_path / "m.onnx", [batch_of(5, 7)])


def test_non_finite_values_at_padded_positions_do_not_matter(tmp_path: Path) -> None:
    model = onnx.parser.parse_model(
        """<ir_version: 10, opset_import: ["": 20]> g (int64[B,T] input_ids, int64[B,T] attention_mask) => (float[B,T] out) {
            values = Cast<to=1>(input_ids) out = Reciprocal(values)
        }"""
    )
    onnx.save(model, tmp_path / "m.onnx")
    watched = [ObservedTensor(name="out", kind="linear_output", unit_interval=False)]
    feeds = {"input_ids": np.array([[2, 0, 4], [1, 5, 0]]), "attention_mask": np.array([[1, 0, 1], [1, 1, 0]])}
    assert run(tmp_path / "m.onnx", [feeds], observed=watched).tensors["out"].high == 1.0


def test_random_data_needs_leave_and_marks_the_cache(model_path: Path) -> None:
    with pytest.raises(ValueError, match="random data gives ranges that mean nothing"):
        run(model_path, [batch_of(4)], data={"kind": "random"})
    assert run(model_path, [batch_of(4)], data={"kind": "random"}, allow_random=True).not_for_accuracy
    assert not run(model_path, [batch_of(4)]).not_for_accuracy


@pytest.mark.parametrize(
    ("batches", "message"),
    [
        ([], "no batch to calibrate on"),
        (iter([]), "no batch to calibrate on"),
        ([{"input_ids": np.ones((1, 4), np.int64)}], "batch 1 lacks input 'attention_mask'; it has input_ids"),
        ([batch_of(4) | {"pixels": np.ones((1, 4))}], "batch 1 has 'pixels', which is no input of"),
        (
            [batch_of(4), batch_of(4) | {"token_type_ids": np.zeros((2, 4), np.int64)}],
            "batch 2 has inputs of different or no rows",
        ),
        ([batch_of(4) | {"token_type_ids": np.zeros((1, 3), np.int64)}], "the graph cannot run on"),
        ([batch_of(30)], "the graph cannot run on"),
    ],
)
def test_batches_that_do_not_fit_are_refused(model_path: Path, batches: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        run(model_path, batches)


def test_memory_does_not_grow_with_the_number_of_batches(model_path: Path) -> None:
    def growth(number: int) -> int:
        generated = (batch_of(6, 8, seed=seed) for seed in range(number))
        tracemalloc.start()
        try:
            run(model_path, generated, method="percentile")
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    growth(1)  # imports and caches
    few, many = growth(3), growth(40)
    assert many < few + 200_000


def test_a_quantized_graph_is_refused(tmp_path: Path) -> None:
    path = quantized(tmp_path, "tensorrt")
    with pytest.raises(ValueError, match="is quantized already; give the float graph it was made from"):
        calibrate(path, [batch_of(5, 7)], method="minmax", data=DATA, seed=0)
