"""The whole pipeline on a tiny model, through the command as a user starts it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
from dataclasses import replace
from pathlib import Path

import pytest

from deploy.backends.cuda_devices import cuda_devices
from deploy.machine import machine_facts
from deploy.measuring.engine_modes import MODES
from quietformer.manifest import Manifest
from quietformer.recipe.recipe import load_recipe
from quietformer.report.content import load_report
from quietformer.report.tables import arm_table
from quietformer.stages.other_arms import record_arm, write_other_arms
from quietformer.whole_run import run_recipe
from tests.deploy.runtime_doubles import HostDriver, add_runtime, use_gpu
from tests.deploy.tensorrt_doubles import make_double
from tests.quietformer.tiny_run import write_tiny_run

ROOT = Path(__file__).parents[2]
TIMED_STAGES = {"bench", "report"}
"""Their artifacts hold measured times, so they differ from run to run."""
TIMED_ARTIFACTS = {"retrofit.json", "retrofit.log.jsonl"}
ENVIRONMENT = os.environ | {"PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
NOT_REPEATABLE = {"engine"}
"""TensorRT-RTX does not promise equal bytes for equal graphs."""


def quietformer(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "quietformer", *arguments],
        capture_output=True, text=True, check=False, timeout=400, env=ENVIRONMENT,
    )  # fmt: skip


def repeatable_hashes(folder: Path) -> dict[str, str]:
    return {
        name: sha256
        for stage, record in Manifest.load(folder).stages.items()
        if stage not in TIMED_STAGES | NOT_REPEATABLE
        for name, sha256 in record.artifacts.items()
        if name not in TIMED_ARTIFACTS
    }


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_run(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def finished(recipe: Path) -> tuple[Path, subprocess.CompletedProcess[str]]:
    folder = recipe.parent / "run"
    return folder, quietformer("run", str(recipe), "--out", str(folder))


@pytest.mark.slow
def test_a_run_ends_with_every_artifact_and_its_story(finished: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    folder, done = finished
    assert done.returncode == 0, done.stderr
    for name in (
        "recipe.toml", "manifest.json", "checkpoint/model.safetensors", "model.onnx", "tokenizer.json", "calibration.json",
        "model.int8.onnx", "model.int8.paper.onnx", "model.int8.ort.onnx", "engine/engine.json", "original/model.onnx",
        "original/model.int8.onnx", "model.fp16.onnx", "model.fp16.int8.onnx", "original/model.fp16.onnx",
        "report/report.json", "report/report.md", "report/index.html",
    ):  # fmt: skip
        assert (folder / name).is_file(), name
    assert f"report: {folder / 'report' / 'index.html'}" in done.stdout
    report = load_report(folder / "report" / "report.json")
    assert [comparison.task for comparison in report.comparisons] == ["sts", "fidelity"]
    rows = report.comparisons[0].rows
    integers = {"onnxruntime"} if machine_facts().saturates_in_16_bits else {"openvino", "onnxruntime"}
    assert {row.backend for row in rows if row.evidence == "measured"} == integers
    (simulated,) = (row for row in rows if row.backend == "pytorch")
    assert simulated.evidence == "simulated"
    assert (simulated.backend, simulated.arm, simulated.profile) == ("pytorch", "retrofitted", "paper")
    assert report.engines[0].compute_capabilities == ("8.9",)
    assert report.engines[0].facts["onnx"] == "model.fp16.int8.onnx"
    assert json.loads((folder / "lint.json").read_text(encoding="utf-8"))["tensorrt in float16"] == []


@pytest.mark.slow
def test_one_key_takes_the_same_run_to_engines(
    recipe: Path,
    finished: tuple[Path, subprocess.CompletedProcess[str]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    driver, module = HostDriver(), make_double("10.16.1.11")
    add_runtime(module, driver)
    use_gpu(monkeypatch, driver, module)
    folder = Path(shutil.copytree(finished[0], tmp_path / "run"))
    run_recipe(load_recipe(recipe, ["backend=tensorrt"]), folder, force=True)
    before, after = Manifest.load(finished[0]), Manifest.load(folder)
    assert {name for name in after.stages if after.stages[name] != before.stages[name]} == {
        "engine", "compare", "bench", "report",
    }  # fmt: skip
    report = load_report(folder / "report" / "report.json")
    assert [(row.arm, row.backend, row.precision, row.profile) for row in report.comparisons[0].rows] == [
        ("original", "tensorrt", "float16", None),
        ("retrofitted", "tensorrt", "float16", None),
        ("original", "tensorrt", "W8A8", "tensorrt"),
        ("retrofitted", "tensorrt", "W8A8", "tensorrt"),
    ]
    assert len(report.latency) == len(MODES)
    assert [timing.precision for timing in report.latency[0].timings] == ["float16", "float16", "int8 + float16"]
    assert "retrofitted in INT8: " in report.latency[0].verdicts[0]
    assert [(engine.backend, engine.evidence, engine.note) for engine in report.engines] == [
        ("tensorrt", "measured", precision) for precision in ("float16", "int8 + float16") * 2
    ]
    page = (folder / "report" / "index.html").read_text(encoding="utf-8")
    assert "back to back, no CUDA graph" in page
    assert report.latency[0].verdicts[0] in (folder / "report" / "report.md").read_text(encoding="utf-8")


FLOAT8 = 'quantize.profiles=["tensorrt", "paper", "ort", "fp8"]'


@pytest.mark.slow
def test_fp8_and_switches_left_to_timing_join_a_run_on_engines(
    recipe: Path,
    finished: tuple[Path, subprocess.CompletedProcess[str]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    driver, module = HostDriver(), make_double("11.4.0.106")
    add_runtime(module, driver)
    use_gpu(monkeypatch, driver, module)
    folder = Path(shutil.copytree(finished[0], tmp_path / "run"))
    overrides = ["backend=tensorrt", FLOAT8, "quantize.sites.tensorrt.bmms=auto", "quantize.sites.ort.bmms=auto"]
    run_recipe(load_recipe(recipe, overrides), folder, force=True)
    report = load_report(folder / "report" / "report.json")
    assert [(row.arm, row.precision, row.profile) for row in report.comparisons[0].rows] == [
        (arm, precision, profile)
        for precision, profile in (("float16", None), ("W8A8", "tensorrt"), ("FP8", "fp8"))
        for arm in ("original", "retrofitted")
    ]
    assert [timing.precision for timing in report.latency[0].timings] == [
        "float16", "float16", "int8 + float16", "float8 + float16",
    ]  # fmt: skip
    assert [verdict.partition(":")[0] for verdict in report.latency[0].verdicts] == [
        "retrofitted in INT8", "retrofitted in FP8",
    ]  # fmt: skip
    assert {(graph, decision.backend) for graph, decision in report.switch_decisions.items()} == {
        (f"{place}{graph}", backend)
        for place in ("", "original/")
        for graph, backend in (("model.int8.onnx", "tensorrt"), ("model.int8.ort.onnx", "onnxruntime"))
    }
    on_gpu = report.switch_decisions["model.int8.onnx"]
    assert (on_gpu.measured, on_gpu.switches) == ("batch 1, length 16, per request, CUDA graph", {"bmms": "off"})
    facts = json.loads((folder / "engine" / "engine.json").read_text(encoding="utf-8"))
    assert facts["switch_decision"]["device"] == "NVIDIA L4, SM 8.9"
    assert (folder / "engine-fp8" / "engine.json").is_file()
    assert "Sites decided by timing" in (folder / "report" / "report.md").read_text(encoding="utf-8")
    assert "Sites decided by timing" in (folder / "report" / "index.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("overrides", "capability", "told"),
    [
        (["backend=tensorrt"], "8.6", "profile 'fp8' of the recipe: SM 8.6 has no FP8: it begins with SM 8.9"),
        (['engine.compute_capabilities=["7.5", "8.0"]'], "8.9", "profile 'fp8' of the recipe: SM 7.5 has no FP8"),
    ],
)
def test_fp8_is_refused_before_a_run_where_no_target_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, overrides: list[str], capability: str, told: str
) -> None:
    use_gpu(monkeypatch, HostDriver(capability=capability), make_double("11.4.0.106"))
    with pytest.raises(ValueError, match=told):
        run_recipe(load_recipe(write_tiny_run(tmp_path), [FLOAT8, *overrides]), tmp_path / "run", force=False)
    assert not (tmp_path / "run" / "manifest.json").exists()


@pytest.mark.slow
@pytest.mark.skipif(bool(cuda_devices()[0]), reason="this machine has a GPU")
def test_a_run_on_engines_without_a_gpu_does_not_start(
    recipe: Path, finished: tuple[Path, subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    done = quietformer("run", str(recipe), "--out", str(tmp_path / "run"), "--set", "backend=tensorrt-rtx")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "error: backend 'tensorrt-rtx' runs on an NVIDIA GPU: " in done.stderr
    assert not (tmp_path / "run" / "manifest.json").exists()


@pytest.mark.slow
def test_no_file_of_a_run_is_outside_its_manifest(finished: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    folder, _ = finished
    known = {name for record in Manifest.load(folder).stages.values() for name in record.artifacts}
    found = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    assert found - known == {".lock", "manifest.json", "recipe.toml"}


@pytest.mark.slow
def test_a_second_run_skips_every_stage(recipe: Path, finished: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    folder, first = finished
    before = (folder / "manifest.json").read_bytes()
    again = quietformer("run", str(recipe), "--out", str(folder))
    assert again.returncode == 0, again.stderr
    stages = len(Manifest.load(folder).stages)
    assert again.stderr.count("unchanged, skipped") == stages
    assert (folder / "manifest.json").read_bytes() == before
    assert again.stdout == first.stdout


@pytest.mark.slow
def test_the_report_shows_arms_that_other_runs_left_beside_it(
    recipe: Path, finished: tuple[Path, subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(finished[0], tmp_path / "run"))
    record = record_arm(finished[0])
    assert {row.arm for row in record.arm.compared} == {"retrofitted"}
    write_other_arms(folder, [replace(record, arm=replace(record.arm, name="another arm"))])
    again = quietformer("run", str(recipe), "--out", str(folder))
    assert again.returncode == 0, again.stderr
    assert again.stderr.count("unchanged, skipped") == len(Manifest.load(folder).stages) - 1
    report = load_report(folder / "report" / "report.json")
    assert [(arm.name, arm.chosen) for arm in report.arms] == [("gates + penalty", True), ("another arm", False)]
    table = arm_table(report)
    assert table is not None
    own, other = table.rows
    assert own[1:] == other[1:]  # the same run in two roles


@pytest.mark.slow
def test_a_gate_that_fails_exits_1_after_the_report_is_written(
    recipe: Path, finished: tuple[Path, subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(finished[0], tmp_path / "run"))
    done = quietformer(
        "run", str(recipe), "--out", str(folder), "--force", "--set", "compare.fidelity.max_drop.paper=0"
    )
    assert done.returncode == 1
    assert "gate failed: fidelity, profile paper on openvino, failed: lost" in done.stderr
    assert "again: tasks.fidelity.max_drop.paper is new" in done.stderr
    assert load_report(folder / "report" / "report.json").comparisons[1].passed is False


KILLED_IN_THE_MIDDLE = textwrap.dedent("""
    import os, signal, sys
    from pathlib import Path

    from quietformer.pipeline import run_stages
    from quietformer.recipe.recipe import load_recipe
    from quietformer.whole_run import all_stages

    recipe, folder, name = sys.argv[1:]
    stages = all_stages(load_recipe(Path(recipe)))
    stage = next(stage for stage in stages if stage.name == name)
    work = stage.work

    def die(*arguments):
        os.kill(os.getpid(), signal.SIGKILL)

    def work_and_die(run, job):
        # What is being written lies complete under its temporary name, and never gets its own.
        Path.replace = die
        if name == "retrofit":
            # Its checkpoints come into place by a rename: the first ones do, a later one does not.
            rename = Path.rename
            Path.replace = replace
            Path.rename = lambda path, target: die() if "step-00000003" in str(target) else rename(path, target)
        work(run, job)

    replace = Path.replace
    stage.work = work_and_die
    run_stages(load_recipe(Path(recipe)), Path(folder), stages)
""")
KILLED_STAGES = ("data", "retrofit", "export", "calibrate", "quantize", "lint", "engine", "compare", "bench")


@pytest.mark.slow
def test_a_run_killed_in_stage_after_stage_resumes_and_ends_with_the_same_artifacts(
    recipe: Path, finished: tuple[Path, subprocess.CompletedProcess[str]]
) -> None:
    folder = recipe.parent / "killed"
    for stage in KILLED_STAGES:
        done = subprocess.run(
            [sys.executable, "-c", KILLED_IN_THE_MIDDLE, str(recipe), str(folder), stage],
            capture_output=True, text=True, check=False, timeout=400, env=ENVIRONMENT,
        )  # fmt: skip
        assert done.returncode == -signal.SIGKILL, done.stderr
        assert stage not in Manifest.load(folder).stages
    resumed = quietformer("run", str(recipe), "--out", str(folder))
    assert resumed.returncode == 0, resumed.stderr
    assert repeatable_hashes(folder) == repeatable_hashes(finished[0])
    assert not [path for path in folder.rglob(".*") if path.name != ".lock"]
