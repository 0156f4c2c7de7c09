"""Calibration files of TensorRT and ONNX Runtime are taken over for one graph and given out, and refused where they cannot serve."""

from __future__ import annotations

import json
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnxruntime.quantization import calibrate as ort_calibration
from onnxruntime.quantization import quantize_static

from deploy.calibration.calibrate import calibrate
from deploy.calibration.calibration_cache import CalibrationCache
from deploy.calibration.foreign_ranges import export_ranges, import_ranges
from deploy.graphs.profiles import PROFILES
from deploy.graphs.sites import find_sites
from deploy.quantization.quantize import quantize
from tests.deploy.calibrated import calibrated
from tests.deploy.encoder_graph import feeds

HEADER = "TRT-8601-EntropyCalibration2"


def hex_of(scale: float) -> str:
    return struct.pack(">f", scale).hex()


def table_of(folder: Path, text: str, *, name: str = "table") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, CalibrationCache]:
    return calibrated(tmp_path_factory.mktemp("made"))


@pytest.mark.parametrize("method", ["minmax", "entropy"])
def test_a_tensorrt_cache_goes_out_and_comes_back_with_the_same_scales(
    made: tuple[Path, CalibrationCache], tmp_path: Path, method: str
) -> None:
    model, cache = made
    if method == "entropy":  # the method's name decides the calibrator's, the ranges are those of the method
        cache = calibrate(model, [feeds(batch=4, length=9)], method=method, data={"kind": "test"}, seed=0, threads=1)
    export_ranges(cache, "tensorrt", tmp_path / "trt.cache")
    header, *lines = (tmp_path / "trt.cache").read_text().splitlines()
    assert header == f"TRT-101600-{'EntropyCalibration2' if method == 'entropy' else 'MinMaxCalibration'}"
    written = {line.rpartition(": ")[0]: struct.unpack(">f", bytes.fromhex(line[-8:]))[0] for line in lines}
    assert written == {name: cache.range_of(name).scale for name in cache.tensors}

    taken = import_ranges(tmp_path / "trt.cache", model)
    assert not taken.missing
    assert not taken.unknown
    for site in find_sites(onnx.load(model), PROFILES["tensorrt"]).activations:
        assert taken.cache.range_of(site.tensor).scale == pytest.approx(cache.range_of(site.tensor).scale, rel=1e-6)


def test_imported_scales_quantize_as_the_calibration_that_they_come_from(
    made: tuple[Path, CalibrationCache], tmp_path: Path
) -> None:
    model, cache = made
    export_ranges(cache, "tensorrt", tmp_path / "trt.cache")
    import_ranges(tmp_path / "trt.cache", model).cache.save(tmp_path / "taken.json")
    taken = CalibrationCache.load(tmp_path / "taken.json")
    assert taken.method == "imported"
    assert taken.data["origin"] == "TRT-101600-MinMaxCalibration"
    assert taken.data["file"]["name"] == "trt.cache"
    quantize(model, taken, tmp_path / "taken.onnx")
    quantize(model, cache, tmp_path / "own.onnx")
    ours, theirs = (
        {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in onnx.load(path).graph.initializer}
        for path in (tmp_path / "own.onnx", tmp_path / "taken.onnx")
    )
    assert ours.keys() == theirs.keys()
    for name, value in ours.items():
        np.testing.assert_allclose(theirs[name], value, rtol=1e-6)


@pytest.mark.parametrize("profile", ["ort", "paper"])
def test_symmetric_ranges_are_refused_by_profiles_with_unsigned_activations(
    made: tuple[Path, CalibrationCache], tmp_path: Path, profile: str
) -> None:
    model, cache = made
    export_ranges(cache, "tensorrt", tmp_path / "trt.cache")
    taken = import_ranges(tmp_path / "trt.cache", model).cache
    with pytest.raises(ValueError, match="only profile 'tensorrt' can use them"):
        quantize(model, taken, tmp_path / "out.onnx", profile=profile)
    with pytest.raises(ValueError, match="symmetric"):
        export_ranges(taken, "onnxruntime", tmp_path / "ort.json")


def test_onnx_runtime_reads_what_is_written_for_it(made: tuple[Path, CalibrationCache], tmp_path: Path) -> None:
    _, cache = made
    export_ranges(cache, "onnxruntime", tmp_path / "ort.json")
    loaded = ort_calibration.load_tensors_data(tmp_path / "ort.json")
    assert loaded.calibration_method is ort_calibration.CalibrationMethod.MinMax
    for name in cache.tensors:
        low, high = cache.chosen_range(name, symmetric=False)
        assert loaded[name].range_value == (np.float32(low), np.float32(high))


def test_ranges_that_onnx_runtime_calibrated_serve_every_profile(
    made: tuple[Path, CalibrationCache], tmp_path: Path
) -> None:
    model, cache = made
    exact = {
        name: ort_calibration.TensorData(
            lowest=np.array(statistics.low, np.float32), highest=np.array(statistics.high, np.float32)
        )
        for name, statistics in cache.tensors.items()
    }
    table = ort_calibration.TensorsData(ort_calibration.CalibrationMethod.MinMax, exact)
    ort_calibration.save_tensors_data(table, tmp_path / "ort.json")
    taken = import_ranges(tmp_path / "ort.json", model)
    assert taken.cache.data["origin"] == "MinMax"
    for name in cache.tensors:
        for symmetric in (True, False):
            ours, theirs = (c.range_of(name, symmetric=symmetric) for c in (cache, taken.cache))
            assert theirs.scale == pytest.approx(ours.scale, rel=1e-6)
            assert theirs.zero_point == ours.zero_point
    for profile in PROFILES:
        quantize(model, taken.cache, tmp_path / f"{profile}.onnx", profile=profile)


def test_a_run_of_quantize_static_leaves_a_table_that_is_taken_over(
    made: tuple[Path, CalibrationCache], tmp_path: Path
) -> None:
    model, cache = made

    class Reader:
        def __init__(self) -> None:
            self.left = [feeds(batch=4, length=9, seed=seed) for seed in range(2)]

        def get_next(self) -> Any:
            return self.left.pop() if self.left else None

    quantize_static(
        model,
        tmp_path / "q.onnx",
        Reader(),
        op_types_to_quantize=["MatMul"],
        calibration_cache_path=tmp_path / "t.json",
    )
    taken = import_ranges(tmp_path / "t.json", model)
    wanted = {site.tensor for site in find_sites(onnx.load(model), PROFILES["ort"]).activations}
    assert wanted <= set(taken.cache.tensors)
    for name in wanted:  # theirs saw the padded positions as well
        low, high = taken.cache.chosen_range(name, symmetric=False)
        ours = cache.chosen_range(name, symmetric=False)
        assert low <= ours[0] * (1 - 1e-6)
        assert high >= ours[1] * (1 - 1e-6)


def test_the_bare_table_of_an_execution_provider_is_read(made: tuple[Path, CalibrationCache], tmp_path: Path) -> None:
    model, cache = made
    name = next(iter(cache.tensors))
    plain = {name: {"CLS": "TensorData", "lowest": -1.5, "highest": 3.0}, "elsewhere": {"lowest": 0, "highest": 1}}
    taken = import_ranges(table_of(tmp_path, json.dumps(plain)), model)
    assert taken.cache.chosen_range(name, symmetric=False) == (-1.5, 3.0)
    assert taken.unknown == ("elsewhere",)
    assert len(taken.missing) == len(cache.tensors) - 1
    with pytest.raises(ValueError, match="was not calibrated"):
        quantize(model, taken.cache, tmp_path / "out.onnx")


def test_a_table_that_names_its_graph_is_refused_by_another(
    made: tuple[Path, CalibrationCache], tmp_path: Path
) -> None:
    model, cache = made
    export_ranges(replace(cache, model_sha256="0" * 64), "onnxruntime", tmp_path / "ort.json")
    with pytest.raises(ValueError, match="was made from another graph"):
        import_ranges(tmp_path / "ort.json", model)


def test_random_ranges_keep_their_mark_or_stay_here(made: tuple[Path, CalibrationCache], tmp_path: Path) -> None:
    model, cache = made
    random = replace(cache, not_for_accuracy=True)
    with pytest.raises(ValueError, match="random data"):
        export_ranges(random, "tensorrt", tmp_path / "trt.cache")
    export_ranges(random, "onnxruntime", tmp_path / "ort.json")
    assert import_ranges(tmp_path / "ort.json", model).cache.not_for_accuracy


def test_imported_ranges_do_not_merge_and_belong_to_no_method(
    made: tuple[Path, CalibrationCache], tmp_path: Path
) -> None:
    model, cache = made
    export_ranges(cache, "tensorrt", tmp_path / "trt.cache")
    taken = import_ranges(tmp_path / "trt.cache", model).cache
    with pytest.raises(ValueError, match="cannot be merged"):
        taken.merge(taken)
    with pytest.raises(ValueError, match='method is "imported" there and "entropy" here'):
        taken.check(model, method="entropy")


def test_names_with_colons_blanks_and_brackets_survive(tmp_path: Path, made: tuple[Path, CalibrationCache]) -> None:
    model, cache = made
    first, second = list(cache.tensors)[:2]
    odd = ["(Unnamed Layer* 12) [Fully Connected]_output", "input_ids:0", "a: b"]
    lines = [HEADER, *(f"{name}: {hex_of(0.5)}" for name in (*odd, first)), "", f"{second}: {hex_of(0.0)}"]
    taken = import_ranges(table_of(tmp_path, "\r\n".join(lines)), model)
    assert taken.unknown == tuple(odd)
    assert taken.cache.range_of(first).scale == pytest.approx(0.5)
    assert any(second in warning for warning in taken.cache.warnings())  # a tensor that was always 0


BROKEN = {
    "nothing": ("", "first line is ''"),
    "another format": ("scale,zero\n1,2\n", "expected one like 'TRT-8601"),
    "a header alone": (HEADER + "\n", "holds no scale"),
    "a short scale": (f"{HEADER}\nx: 3c01\n", "line 2: .*8 hexadecimal"),
    "no colon": (f"{HEADER}\nx 3c010a14\n", "line 2"),
    "a repeated name": (f"{HEADER}\nx: 3c010a14\nx: 3c010a14\n", "line 3: tensor 'x' has a scale already"),
    "a negative scale": (f"{HEADER}\nx: {hex_of(-1.0)}\n", "scale -1.0; expected 0 or more"),
    "a scale that is no number": (f"{HEADER}\nx: {hex_of(float('nan'))}\n", "scale nan"),
    "an infinite scale": (f"{HEADER}\nx: {hex_of(float('inf'))}\n", "expected finite ends"),
    "JSON cut short": ('{"CLS": "TensorsData", "data": {', "ends early"),
    "a JSON list": ("[1, 2]", "JSON list; expected"),
    "other JSON": ('{"encodings": [1]}', "no ranges by tensor name"),
    "no ends": ('{"x": {"avg": 1.0, "std": 2.0}}', "has no 'lowest'"),
    "ends per channel": ('{"x": {"lowest": {"data": [0, 1]}, "highest": 1}}', "'lowest' of tensor 'x'.*one number"),
    "ends that are no numbers": ('{"x": {"lowest": "low", "highest": 1}}', "expected one number"),
    "ends upside down": ('{"x": {"lowest": 2, "highest": 1}}', r"range \[2, 1\]"),
    "an infinite end": ('{"x": {"lowest": 0, "highest": Infinity}}', "expected finite ends"),
    "a smoothed graph": (
        '{"CLS": "TensorsData", "smooth_quant": true, "data": {"x": {"lowest": 0, "highest": 1}}}',
        "SmoothQuant changed",
    ),
    "names of another graph": (f"{HEADER}\nx/y/z: 3c010a14\n", "knows no tensor .* it names 'x/y/z'"),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_a_broken_file_is_refused_with_what_is_wrong(
    made: tuple[Path, CalibrationCache], tmp_path: Path, kind: str
) -> None:
    text, expected = BROKEN[kind]
    path = table_of(tmp_path, text)
    with pytest.raises(ValueError, match=expected) as caught:
        import_ranges(path, made[0])
    assert str(path) in str(caught.value)


def test_bytes_and_missing_files_are_told(made: tuple[Path, CalibrationCache], tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"\x80\x81\xff")
    with pytest.raises(ValueError, match="byte 0 is not text"):
        import_ranges(tmp_path / "binary", made[0])
    with pytest.raises(FileNotFoundError, match="no calibration file"):
        import_ranges(tmp_path / "none", made[0])


def test_an_unknown_format_and_an_existing_file_are_refused(
    made: tuple[Path, CalibrationCache], tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match="unknown format 'aimet'; known are tensorrt, onnxruntime"):
        export_ranges(made[1], "aimet", tmp_path / "x")
    (tmp_path / "x").touch()
    with pytest.raises(FileExistsError, match="--force"):
        export_ranges(made[1], "tensorrt", tmp_path / "x")
