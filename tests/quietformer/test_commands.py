"""Every command on a tiny model: what it does, and how it answers to bad input."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from safetensors.torch import load_file
from typer.testing import CliRunner, Result

from deploy.calibration.calibration_cache import CalibrationCache
from deploy.graphs.graph_info import read_info
from quietformer import latency_measurement
from quietformer.cli import app
from tests.deploy.vit_graph import VitRecipe, vit
from tests.export.tiny_checkpoints import tiny_model, write_checkpoint, write_pooling
from tests.quietformer.tiny_run import random_sentences, write_tiny_run


def invoke(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def succeed(*arguments: object) -> Result:
    done = invoke(*arguments)
    assert done.exit_code == 0, done.output
    return done


def refuse(*arguments: object) -> str:
    """Run what must end with exit code 2 and one or two lines on stderr; the message."""
    done = invoke(*arguments)
    assert done.exit_code == 2, done.output
    assert not done.stdout
    message = done.stderr[done.stderr.index("error: ") :]
    assert message.count("\n") <= 2, message
    return message


@dataclass(frozen=True, kw_only=True)
class Workshop:
    """Artifacts of one tiny model, made with the commands themselves."""

    folder: Path
    checkpoint: Path
    recipe: Path
    texts: Path
    pairs: Path
    model: Path
    cache: Path
    int8: Path


@pytest.fixture(scope="module")
def workshop(tmp_path_factory: pytest.TempPathFactory) -> Workshop:
    folder = tmp_path_factory.mktemp("workshop")
    recipe = write_tiny_run(folder)
    made = Workshop(
        folder=folder,
        checkpoint=folder / "tiny-bert",
        recipe=recipe,
        texts=folder / "texts.txt",
        pairs=folder / "pairs.jsonl",
        model=folder / "model.onnx",
        cache=folder / "calibration.json",
        int8=folder / "model.int8.onnx",
    )
    told = succeed("export", made.checkpoint, "--out", made.model)
    assert "largest difference from PyTorch" in told.stdout
    options = ("--batches", 2, "--batch-size", 8, "--length", 16)
    told = succeed("calibrate", made.model, "--data", made.texts, "--out", made.cache, *options)
    assert "from 16 rows, running-minmax" in told.stdout
    told = succeed("quantize", made.model, "--calibration", made.cache, "--out", made.int8, "--weights", "mse")
    assert "profile tensorrt" in told.stdout
    return made


@pytest.fixture
def untouched(workshop: Workshop) -> Iterator[None]:
    """Assert that a test leaves every artifact as it was."""
    before = {path: path.read_bytes() for path in workshop.folder.rglob("*") if path.is_file()}
    yield
    assert {path: path.read_bytes() for path in workshop.folder.rglob("*") if path.is_file()} == before


def test_inspect_prints_a_table_and_writes_json_and_a_page(workshop: Workshop, tmp_path: Path) -> None:
    json_file, page = tmp_path / "o.json", tmp_path / "o.html"
    told = succeed("inspect", workshop.checkpoint, "--data", workshop.texts, "--json", json_file, "--html", page)
    assert "ffn_output: largest infinity norm" in told.stdout
    assert "ffn_output" in json.loads(json_file.read_text())["outliers"]["summary"]
    text = page.read_text()
    assert text.lower().startswith("<!doctype html>")
    assert "<svg" in text
    assert "The tensor with the largest value." in text


def test_quantize_excludes_what_a_file_names(workshop: Workshop, tmp_path: Path) -> None:
    exclude, out = tmp_path / "exclude.txt", tmp_path / "model.int8.onnx"
    exclude.write_text("# the first layer stays float\n*layer.0*  # a pattern\n")
    told = succeed("quantize", workshop.model, "--calibration", workshop.cache, "--out", out, "--exclude", exclude)
    assert "excluded by the user" in told.stdout
    assert read_info(out).profile == "tensorrt"


def test_quantize_takes_patterns_kinds_switches_methods_and_widths(workshop: Workshop, tmp_path: Path) -> None:
    out = tmp_path / "model.int8.onnx"
    told = succeed(
        "quantize", workshop.model, "--calibration", workshop.cache, "--out", out, "--bmms", "on", "--residual-adds", "on",
        "--exclude", "kind:context", "--exclude", "*layer.1*", "--method-of", "kind:probabilities=known-range", "--list-sites",
    )  # fmt: skip
    assert "probabilities: " in told.stdout
    contexts = [line for line in told.stdout.splitlines() if line.startswith("  context: ")]
    assert contexts
    assert all("float (" in line for line in contexts)
    assert any("float (excluded by the user)" in line for line in contexts)
    listed = succeed("quantize", workshop.model, "--calibration", workshop.cache, "--list-sites").stdout
    assert "residual_sum: " in listed
    assert "float (profile tensorrt leaves it; --include takes it in)" in listed
    assert "sites in integers, profile tensorrt" in listed
    assert "give --out" in refuse("quantize", workshop.model, "--calibration", workshop.cache)
    assert "no findings" in succeed("lint", out).stdout
    paper = tmp_path / "paper.onnx"
    options = ("quantize", workshop.model, "--calibration", workshop.cache, "--out", paper, "--profile", "paper")
    told = succeed(*options, "--bits", "W6A8")
    assert "simulated: no integer kernel has the widths W6A8" in told.stdout
    compared = succeed("compare", "--baseline", workshop.model, "--candidate", paper, "--task", "sts", "--data", workshop.pairs,
                       "--backend", "onnxruntime", "--json", tmp_path / "compare.json")  # fmt: skip
    assert "simulated" in compared.stdout
    (_, row) = json.loads((tmp_path / "compare.json").read_text())["rows"]
    assert (row["precision"], row["evidence"]) == ("W6A8", "simulated")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--exclude", "layer.9*"), "exclude pattern 'layer.9*' matches nothing"),
        (("--exclude", "kind:tokens"), "'kind:tokens' names no kind"),
        (("--include", "kind:context"), "include pattern 'kind:context' matches nothing"),
        (
            ("--bmms", "auto"),
            "bmms is 'auto', which needs a device to time on: backend 'tensorrt' runs on an NVIDIA GPU: ",
        ),
        (("--method-of", "kind:context=mse"), "needs histograms; this calibration kept only the extremes"),
        (("--method-of", "kind:context=median"), "unknown calibration method 'median'"),
        (("--method-of", "kind:context"), "is not PATTERN=METHOD"),
        (("--method-of", "kind:context=known-range"), "this tensor's range is not known"),
        (("--method-of", "nothing*=minmax"), "pattern 'nothing*' of method 'minmax' matches no tensor"),
        (("--bits", "W4A8"), "W4A8 exists in profile 'paper' only"),
    ],
)
def test_quantize_refuses_choices_without_effect(
    workshop: Workshop, tmp_path: Path, options: tuple[str, str], message: str
) -> None:
    out = tmp_path / "q.onnx"
    assert message in refuse("quantize", workshop.model, "--calibration", workshop.cache, "--out", out, *options)
    assert not out.exists()


def test_explain_ranks_sites_and_writes_a_list_that_quantize_reads(workshop: Workshop, tmp_path: Path) -> None:
    out, page = tmp_path / "float.txt", tmp_path / "page.html"
    options = (
        "explain", workshop.model, "--calibration", workshop.cache, "--profile", "paper", "--task", "fidelity",
        "--data", workshop.texts, "--limit", 40, "--evaluate", 1, "--threads", 1,
    )  # fmt: skip
    plain = succeed(*options, "--json", tmp_path / "plain.json")
    drop = (found := json.loads((tmp_path / "plain.json").read_text()))["float_score"] - found["quantized_score"]
    assert found["evidence"] == "simulated"
    assert found["sites"][0]["name"][:40] in plain.stdout
    searched = (*options, "--max-drop", 0.97 * drop, "--largest", 46, "--out", out, "--html", page)
    told = succeed(*searched, "--json", tmp_path / "once.json")
    succeed(*searched, "--json", tmp_path / "twice.json", "--force")
    assert (tmp_path / "once.json").read_bytes() == (tmp_path / "twice.json").read_bytes()
    assert "sites in float give" in told.stdout
    assert "<svg" in page.read_text()
    assert "The search" in page.read_text()
    succeed("quantize", workshop.model, "--calibration", workshop.cache, "--out", tmp_path / "q.onnx", "--profile", "paper",
            "--exclude", out)  # fmt: skip
    assert "no findings for profile 'paper', its own" in succeed("lint", tmp_path / "q.onnx").stdout
    assert (found["examples"]["used"], found["examples"]["chosen"], found["examples"]["seed"]) == (40, "drawn", 0)
    assert sum(len(rows) for rows in found["probe"]["rows"]) == 16
    assert "drawn at random, seed 0" in page.read_text()
    assert "drawn at random, seed 0" in out.read_text().splitlines()[0]
    failed = invoke(*options, "--max-drop", 0, "--largest", 1, "--json", tmp_path / "failed.json")
    assert failed.exit_code == 1
    assert "no set of up to 1 sites in float loses at most 0.0" in failed.stderr
    assert json.loads((tmp_path / "failed.json").read_text())["float_sites"] is None
    assert "--out has no effect without --max-drop" in refuse(*options, "--out", tmp_path / "never.txt")


def test_lint_passes_the_own_graph_and_fails_it_under_another_profile(workshop: Workshop) -> None:
    assert "no findings for profile 'tensorrt', its own" in succeed("lint", workshop.int8).stdout
    assert "'tensorrt', as asked for" in succeed("lint", workshop.int8, "--profile", "tensorrt").stdout
    done = invoke("lint", workshop.int8, "--profile", "paper")
    assert done.exit_code == 1
    assert "QF" in done.stdout
    assert "gate failed" in done.stderr
    assert "profile paper, as asked for" in done.stderr


def test_lint_writes_its_findings_as_json_and_as_a_page(workshop: Workshop, tmp_path: Path) -> None:
    files = ("--json", tmp_path / "lint.json", "--html", tmp_path / "lint.html")
    succeed("lint", workshop.int8, *files)
    clean = json.loads((tmp_path / "lint.json").read_text())
    assert clean["findings"] == []
    assert "No findings for profile tensorrt" in (tmp_path / "lint.html").read_text()
    assert "lint.json exists" in refuse("lint", workshop.int8, *files)
    done = invoke("lint", workshop.int8, "--profile", "paper", *files, "--force", "--all")
    assert done.exit_code == 1
    found = json.loads((tmp_path / "lint.json").read_text())
    assert found["graph_sha256"] == clean["graph_sha256"]
    assert all(f"{finding['node']} ({finding['tensor']}): " in done.stdout for finding in found["findings"])
    short = invoke("lint", workshop.int8, "--profile", "paper")
    assert short.exit_code == 1
    assert len(short.stdout.splitlines()) <= 5 * len({(each["rule"], each["advice"]) for each in found["findings"]})
    assert "more; --all, --json and --html list them" in short.stdout
    page = (tmp_path / "lint.html").read_text()
    for finding in found["findings"]:
        assert finding["rule"] in page
        assert finding["node"] in page
        assert str(finding["advice"]) in done.stdout


def test_build_makes_an_engine_without_a_gpu(workshop: Workshop, tmp_path: Path) -> None:
    out = tmp_path / "engine"
    told = succeed(
        "build",
        workshop.int8,
        "--out",
        out,
        "--opt-shapes",
        "1x16",
        "--max-shapes",
        "4x32",
        "--compute-capability",
        "8.9",
    )
    assert "for SM 8.9" in told.stdout
    assert json.loads((out / "engine.json").read_text())["compute_capabilities"] == ["8.9"]


def test_bench_prints_a_table_and_one_line_of_json(workshop: Workshop, tmp_path: Path) -> None:
    json_file = tmp_path / "bench.json"
    told = succeed(
        "bench", workshop.model, workshop.int8, "--shapes", "1x16", "--seconds", 0.02, "--data", workshop.texts,
        "--backend", "openvino", "--backend", "onnxruntime", "--json", json_file,
    )  # fmt: skip
    reports = json.loads(told.stdout.splitlines()[-1])
    assert reports == json.loads(json_file.read_text())
    assert [timing["name"] for timing in reports[0]["timings"]] == [
        "model.onnx, openvino", "model.int8.onnx, openvino", "model.onnx, onnxruntime", "model.int8.onnx, onnxruntime",
    ]  # fmt: skip


def test_bench_tells_graphs_of_one_name_apart(workshop: Workshop, tmp_path: Path) -> None:
    twin = Path(shutil.copyfile(workshop.model, tmp_path / workshop.model.name))
    told = succeed("bench", workshop.model, twin, "--shapes", "1x16", "--seconds", 0.02, "--backend", "onnxruntime")
    names = [timing["name"] for timing in json.loads(told.stdout.splitlines()[-1])[0]["timings"]]
    assert names == [f"{workshop.model}, onnxruntime", f"{twin}, onnxruntime"]


def test_bench_refuses_artifacts_of_other_inputs_before_it_opens_any(
    workshop: Workshop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def opened(*_: object, **__: object) -> None:
        raise AssertionError("opened")

    monkeypatch.setattr(latency_measurement, "open_backend", opened)
    other = tmp_path / "vit.onnx"
    onnx.save(vit(VitRecipe()), other)
    told = refuse("bench", workshop.model, other, "--shapes", "1x16", "--backend", "onnxruntime")
    assert f"{other} takes pixel_values, and {workshop.model} takes input_ids, attention_mask" in told
    assert "must take the same inputs" in told
    for artifacts in ((tmp_path,), (workshop.model, tmp_path)):
        told = refuse("bench", *artifacts, "--shapes", "1x16", "--backend", "onnxruntime")
        assert str(tmp_path) in told
        assert "engine.json" in told
    fixed = onnx.load(workshop.model)
    for value in fixed.graph.input:
        value.type.tensor_type.shape.dim[1].dim_value = 8
    onnx.save(fixed, tmp_path / "fixed.onnx")
    told = refuse("bench", workshop.model, tmp_path / "fixed.onnx", "--shapes", "1x16", "--backend", "onnxruntime")
    assert "fixed.onnx: input 'input_ids' has shape (1, 16); expected (" in told


@pytest.mark.parametrize("task", ["sts", "fidelity"])
def test_compare_gives_a_verdict(workshop: Workshop, tmp_path: Path, task: str) -> None:
    data = workshop.pairs if task == "sts" else workshop.texts
    json_file = tmp_path / "compare.json"
    arguments = ("--baseline", workshop.model, "--candidate", workshop.int8, "--task", task, "--data", data)
    passed = succeed("compare", *arguments, "--max-drop", 1.0, "--limit", 20, "--json", json_file)
    assert "passed" in passed.stdout
    report = json.loads(json_file.read_text())
    assert report["passed"] is True
    assert (report["examples"]["used"], report["examples"]["chosen"]) == (20, "drawn")
    assert "drawn at random, seed 0" in " ".join(passed.stdout.split())
    assert "seed 1 has no effect without a limit" in invoke("compare", *arguments, "--seed", 1).stderr


def test_compare_exits_1_when_the_candidate_loses_too_much(workshop: Workshop) -> None:
    arguments = ("--baseline", workshop.model, "--candidate", workshop.int8, "--task", "fidelity")
    done = invoke("compare", *arguments, "--data", workshop.texts, "--max-drop", 0.0, "--limit", 30)
    assert done.exit_code == 1
    assert "gate failed: model.int8.onnx lost more Spearman to float than 0.0" in done.stderr


def test_compare_takes_a_checkpoint_as_baseline(workshop: Workshop) -> None:
    arguments = ("--baseline", workshop.checkpoint, "--candidate", workshop.model, "--task", "fidelity")
    succeed("compare", *arguments, "--data", workshop.texts, "--max-drop", 0.0001, "--limit", 30)


def test_data_lists_named_sets_and_makes_one_that_calibrate_reads(workshop: Workshop, tmp_path: Path) -> None:
    assert "docstrings" in succeed("data").stdout
    told = succeed("data", "sample", "--tokenizer", workshop.folder / "tokenizer.json", "--out", tmp_path)
    assert "192 samples" in told.stdout
    with np.load(tmp_path / "sample.npz", allow_pickle=False) as arrays:
        assert len(arrays["input_ids"]) == 192
    told = succeed("calibrate", workshop.model, "--data", tmp_path / "sample.npz", "--out", tmp_path / "c.json")
    assert "from 192 rows" in told.stdout


def test_a_cache_goes_to_other_tools_and_comes_back(workshop: Workshop, tmp_path: Path) -> None:
    told = succeed("cache", workshop.cache).stdout
    assert "running-minmax, 16 rows" in told
    for form, origin in (("tensorrt", "TRT-101600-MinMaxCalibration"), ("onnxruntime", "MinMax")):
        table, back, out = tmp_path / form, tmp_path / f"{form}.json", tmp_path / f"{form}.onnx"
        succeed("cache", workshop.cache, "--to", form, "--out", table)
        told = succeed("calibrate", workshop.model, "--import", table, "--out", back).stdout
        assert f"({form}, {origin})" in told
        succeed("quantize", workshop.model, "--calibration", back, "--out", out, "--weights", "mse")
        assert "method" in refuse(
            "quantize", workshop.model, "--calibration", back, "--out", out, "--force", "--method", "mse"
        )
    assert "--to and --out belong together" in refuse("cache", workshop.cache, "--to", "tensorrt")
    table = tmp_path / "tensorrt"
    message = refuse("calibrate", workshop.model, "--import", table, "--out", tmp_path / "x", "--method", "mse")
    assert "--method has no effect with --import" in message
    given = {"--data": workshop.texts, "--import": table, "--random": None}
    for left_out in given:
        pair = {option: value for option, value in given.items() if option != left_out}
        options = [part for option, value in pair.items() for part in (option, value) if part is not None]
        told = refuse("calibrate", workshop.model, *options, "--out", tmp_path / "x")
        assert f"{' and '.join(pair)} exclude each other" in told


def test_a_method_takes_its_parameter_as_in_method_of(workshop: Workshop, tmp_path: Path) -> None:
    options = ("calibrate", workshop.model, "--random", "--batches", 1, "--length", 16, "--force", "--out")
    out = tmp_path / "c.json"
    for text, name, parameters in (
        ("percentile:99.9", "percentile", {"percentile": 99.9}),
        ("percentile", "percentile", {"percentile": 99.99}),
        ("running-minmax:0.5", "running-minmax", {"momentum": 0.5}),
        ("mse", "mse", {}),
    ):
        succeed(*options, out, "--method", text)
        cache = CalibrationCache.load(out)
        assert (cache.method, cache.parameters) == (name, parameters)
    assert "known are running-minmax" in refuse(*options, out, "--method", "best").replace("minmax, running", "running")
    assert "expected above 50" in refuse(*options, out, "--method", "percentile:5")
    assert "no effect with method 'mse'" in refuse(*options, out, "--method", "mse:5")
    assert "--method-of PATTERN=known-range" in refuse(*options, out, "--method", "known-range")


def test_random_ranges_mark_the_cache(workshop: Workshop, tmp_path: Path) -> None:
    out = tmp_path / "random.json"
    succeed("calibrate", workshop.model, "--random", "--out", out, "--batches", 1, "--length", 16)
    assert json.loads(out.read_text())["not_for_accuracy"] is True
    assert "nothing says where ranges come from: give --data" in refuse(
        "calibrate", workshop.model, "--out", tmp_path / "none.json"
    )


@pytest.mark.usefixtures("untouched")
class TestBadInput:
    """Each ends with one or two lines and exit code 2, and leaves every artifact as it was."""

    def test_a_missing_checkpoint(self, workshop: Workshop, tmp_path: Path) -> None:
        told = refuse("export", tmp_path / "absent", "--out", workshop.model, "--force")
        assert f"checkpoint folder {tmp_path / 'absent'} does not exist" in told

    def test_a_truncated_checkpoint(self, workshop: Workshop, tmp_path: Path) -> None:
        broken = Path(shutil.copytree(workshop.checkpoint, tmp_path / "broken"))
        weights = broken / "model.safetensors"
        weights.write_bytes(weights.read_bytes()[:-100])
        assert str(weights) in refuse("export", broken, "--out", workshop.model, "--force")
        assert str(weights) in refuse("inspect", broken, "--data", workshop.texts)

    def test_a_pickle_checkpoint(self, workshop: Workshop, tmp_path: Path) -> None:
        import torch

        pickled = Path(shutil.copytree(workshop.checkpoint, tmp_path / "pickled"))
        weights = pickled / "model.safetensors"
        torch.save(load_file(weights), pickled / "pytorch_model.bin")
        weights.unlink()
        assert "pickle" in refuse("export", pickled, "--out", workshop.model, "--force")
        settings = ("--set", f"model.checkpoint={json.dumps(str(pickled))}")
        assert "pickle" in refuse("run", workshop.recipe, "--out", tmp_path / "run", *settings)

    def test_a_misspelt_key(self, workshop: Workshop) -> None:
        told = refuse("run", workshop.recipe, "--set", "retrofit.stesp=3")
        assert "unknown key 'retrofit.stesp'; did you mean 'retrofit.steps'?" in told

    def test_a_value_out_of_range(self, workshop: Workshop) -> None:
        told = refuse("retrofit", workshop.recipe, "--set", "retrofit.steps=-1")
        assert "'retrofit.steps' is -1; expected greater than or equal to 0" in told

    def test_a_cache_of_another_model(self, workshop: Workshop, tmp_path: Path) -> None:
        other = write_checkpoint(tiny_model(seed=1), tmp_path / "other")
        write_pooling(other, "mean_tokens")
        succeed("export", other, "--out", tmp_path / "other.onnx")
        told = refuse(
            "quantize", tmp_path / "other.onnx", "--calibration", workshop.cache, "--out", workshop.int8, "--force"
        )
        assert "model_sha256" in told

    def test_a_cache_of_another_model_passes_only_when_that_is_asked_for(
        self, workshop: Workshop, tmp_path: Path
    ) -> None:
        import onnx

        model, out = onnx.load(workshop.model), tmp_path / "renamed.int8.onnx"
        model.producer_name = "changed"
        onnx.save(model, tmp_path / "renamed.onnx")
        shutil.copyfile(workshop.folder / "tokenizer.json", tmp_path / "tokenizer.json")
        arguments = ("quantize", tmp_path / "renamed.onnx", "--calibration", workshop.cache, "--out", out)
        assert "model_sha256" in refuse(*arguments)
        succeed(*arguments, "--allow-stale-cache")
        assert out.is_file()

    def test_a_quantized_graph_where_a_float_one_belongs(self, workshop: Workshop, tmp_path: Path) -> None:
        out = ("--out", tmp_path / "out")
        told = refuse("calibrate", workshop.int8, "--data", workshop.texts, "--batches", 1, "--length", 16, *out)
        assert "is quantized already" in told
        told = refuse("quantize", workshop.int8, "--calibration", workshop.cache, *out)
        assert "is quantized already; give the float graph it was made from" in told
        assert "is a file; expected a folder" in refuse("export", workshop.int8, *out)

    def test_a_cache_of_another_data_set(self, workshop: Workshop, tmp_path: Path) -> None:
        other = tmp_path / "other.txt"
        other.write_text("\n".join(random_sentences(50, seed=1)))
        arguments = ("quantize", workshop.model, "--calibration", workshop.cache, "--out", workshop.int8, "--force")
        told = refuse(*arguments, "--data", other)
        assert f"{workshop.cache} was made from other data" in told
        assert other.name in told

    def test_a_cache_of_another_method(self, workshop: Workshop, tmp_path: Path) -> None:
        arguments = ("quantize", workshop.model, "--calibration", workshop.cache, "--out", workshop.int8, "--force")
        assert '"mse" here' in refuse(*arguments, "--method", "mse")
        assert "parameters.momentum is 0.9 there and 0.5 here" in refuse(*arguments, "--method", "running-minmax:0.5")
        assert "known are " in refuse(*arguments, "--method", "median")
        succeed(*arguments[:4], "--out", tmp_path / "again.onnx", "--method", "running-minmax:0.9")

    def test_a_cache_with_an_entry_deleted(self, workshop: Workshop, tmp_path: Path) -> None:
        content = json.loads(workshop.cache.read_text())
        lost = sorted(content["tensors"])[0]
        del content["tensors"][lost]
        damaged = tmp_path / "damaged.json"
        damaged.write_text(json.dumps(content))
        told = refuse("quantize", workshop.model, "--calibration", damaged, "--out", workshop.int8, "--force")
        assert f"the entry of tensor '{lost}' was deleted" in told

    @pytest.mark.parametrize("content", [b"", b"not an onnx file", b"\x08\x0a\x12\x00"])
    def test_a_file_that_is_not_onnx(self, workshop: Workshop, tmp_path: Path, content: bytes) -> None:
        foreign = tmp_path / "foreign.onnx"
        foreign.write_bytes(content)
        for arguments in (
            ("lint", foreign),
            ("calibrate", foreign, "--data", workshop.texts, "--out", workshop.cache, "--force"),
            ("quantize", foreign, "--calibration", workshop.cache, "--out", workshop.int8, "--force"),
            ("build", foreign, "--out", tmp_path / "engine"),
            ("bench", foreign),
            (
                "compare",
                "--baseline",
                workshop.model,
                "--candidate",
                foreign,
                "--task",
                "sts",
                "--data",
                workshop.pairs,
            ),
        ):
            assert str(foreign) in refuse(*arguments)

    @pytest.mark.parametrize(("content", "word"), [(b"", "no text"), (b"caf\xe9 au lait\n", "UTF-8")])
    def test_texts_that_are_empty_or_not_utf8(
        self, workshop: Workshop, tmp_path: Path, content: bytes, word: str
    ) -> None:
        texts = tmp_path / "texts.txt"
        texts.write_bytes(content)
        for arguments in (
            ("calibrate", workshop.model, "--data", texts, "--out", workshop.cache, "--force"),
            ("inspect", workshop.checkpoint, "--data", texts),
            ("run", workshop.recipe, "--out", tmp_path / "run", "--set", f"data.texts={json.dumps(str(texts))}"),
        ):
            told = refuse(*arguments)
            assert word in told
            assert str(texts) in told

    @pytest.mark.parametrize(
        ("setting", "name"),
        [
            ("retrofit.max_length=49", "retrofit.max_length"),
            ("calibrate.length=49", "calibrate.length"),
            ("bench.shapes=['1x49']", "bench.shapes, 1x49"),
            ("engine.max_shape='4x49'", "engine.max_shape, 4x49"),
        ],
    )
    def test_a_run_whose_last_stage_asks_for_too_long_a_length_does_not_start(
        self, workshop: Workshop, tmp_path: Path, setting: str, name: str
    ) -> None:
        told = refuse("run", workshop.recipe, "--out", tmp_path / "run", "--set", setting)
        assert f"{name}: length 49 is above the 48 positions of {workshop.checkpoint}" in told
        assert not (tmp_path / "run" / "manifest.json").exists()

    def test_a_run_for_a_target_that_the_builder_does_not_know_does_not_start(
        self, workshop: Workshop, tmp_path: Path
    ) -> None:
        settings = ("--set", "engine.compute_capabilities=['99.9']")
        told = refuse("run", workshop.recipe, "--out", tmp_path / "run", *settings)
        assert "does not build for compute capability 99.9; it builds for" in told

    def test_a_run_with_too_few_texts_to_calibrate_on_ends_at_its_first_stage(
        self, workshop: Workshop, tmp_path: Path
    ) -> None:
        done = invoke("run", workshop.recipe, "--out", tmp_path / "run", "--set", "calibrate.batches=1000")
        assert done.exit_code == 2
        assert "calibrate.batch_size asks for 8000 of them" in done.stderr.splitlines()[-1]

    def test_sizes_that_no_memory_holds(self, workshop: Workshop, tmp_path: Path) -> None:
        assert "shape '99999999999x8' is too large" in refuse("bench", workshop.model, "--shapes", "99999999999x8")
        told = refuse("build", workshop.int8, "--out", tmp_path / "engine", "--max-shapes", "99999999999x8")
        assert "'99999999999x8' in '99999999999x8' is too large" in told

    def test_a_limit_below_one(self, workshop: Workshop) -> None:
        arguments = ("--baseline", workshop.model, "--candidate", workshop.int8, "--task", "sts", "--limit", -1)
        done = invoke("compare", *arguments, "--data", workshop.pairs)
        assert done.exit_code == 2
        assert "Invalid value for '--limit'" in done.stderr

    def test_an_infinite_value(self, workshop: Workshop) -> None:
        told = refuse("run", workshop.recipe, "--set", "attention.gate_scale=inf")
        assert "'attention.gate_scale' is Infinity; expected a finite number" in told

    def test_a_baseline_that_is_quantized(self, workshop: Workshop) -> None:
        arguments = ("--candidate", workshop.model, "--task", "fidelity", "--data", workshop.texts)
        told = refuse("compare", "--baseline", workshop.int8, *arguments)
        assert "is quantized (profile 'tensorrt'); expected the float model" in told

    def test_a_candidate_that_reads_texts_in_another_way(self, workshop: Workshop, tmp_path: Path) -> None:
        import onnx

        model = onnx.load(workshop.model)
        replace(read_info(workshop.model), tokenizer_sha256="0" * 64).write(model)
        onnx.save(model, tmp_path / "other.onnx")
        arguments = ("--candidate", tmp_path / "other.onnx", "--task", "fidelity", "--data", workshop.texts)
        told = refuse("compare", "--baseline", workshop.model, *arguments)
        assert "differ in tokenizer: 000000000000 and" in told

    @pytest.mark.parametrize("text", ["{", "[]", "{}"])
    def test_metadata_that_is_damaged(self, workshop: Workshop, tmp_path: Path, text: str) -> None:
        import onnx

        model, graph = onnx.load(workshop.model), tmp_path / "model.onnx"
        onnx.helper.set_model_props(model, {"quietformer": text})
        onnx.save(model, graph)
        for arguments in (
            ("calibrate", graph, "--data", workshop.texts, "--out", tmp_path / "c.json"),
            ("bench", workshop.model, graph, "--shapes", "1x16"),
        ):
            assert f"{graph} has damaged quietformer metadata" in refuse(*arguments)

    def test_a_length_above_the_positions(self, workshop: Workshop, tmp_path: Path) -> None:
        assert "48" in refuse("export", workshop.checkpoint, "--out", tmp_path / "m.onnx", "--length", 49)
        assert "48" in refuse("inspect", workshop.checkpoint, "--data", workshop.texts, "--length", 49)
        assert "48" in refuse("bench", workshop.model, "--shapes", "1x49")
        told = refuse(
            "calibrate", workshop.model, "--data", workshop.texts, "--length", 49, "--out", workshop.cache, "--force"
        )
        assert "length 49 is above the 48 positions" in told

    def test_an_extra_that_is_not_installed(
        self, workshop: Workshop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        import sys

        for module in ("openvino", "tensorrt_rtx", "deploy.backends.openvino_cpu"):
            monkeypatch.setitem(sys.modules, module, None)
        monkeypatch.delitem(sys.modules, "deploy.backends.openvino_cpu")
        assert "pip install 'quietformer[cpu]'" in refuse(
            "bench", workshop.model, "--backend", "openvino", "--shapes", "1x16"
        )
        told = refuse("build", workshop.int8, "--out", tmp_path / "engine")
        assert "pip install 'quietformer[tensorrt-rtx]'" in told

    def test_a_run_that_lacks_the_extra_of_a_late_stage_does_not_start(
        self, workshop: Workshop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        import sys

        monkeypatch.setitem(sys.modules, "openvino", None)
        told = refuse("run", workshop.recipe, "--out", tmp_path / "run")
        assert "needs openvino, which is not installed: pip install 'quietformer[cpu]'" in told

    def test_a_package_that_is_not_installed(self, workshop: Workshop, tmp_path: Path) -> None:
        told = refuse("run", workshop.recipe, "--out", tmp_path / "run", "--set", "model.checkpoint=package:not_there")
        assert "package 'not_there' is not installed; pip install not-there" in told

    def test_an_existing_output(self, workshop: Workshop) -> None:
        for arguments in (
            ("export", workshop.checkpoint, "--out", workshop.model),
            ("calibrate", workshop.model, "--data", workshop.texts, "--out", workshop.cache),
            ("quantize", workshop.model, "--calibration", workshop.cache, "--out", workshop.int8),
            ("inspect", workshop.checkpoint, "--data", workshop.texts, "--json", workshop.cache),
            ("bench", workshop.model, "--json", workshop.cache),
        ):
            assert "exists; pass --force to replace it" in refuse(*arguments)

    def test_an_output_that_is_an_input_whatever_is_forced(self, workshop: Workshop) -> None:
        for arguments in (
            ("calibrate", workshop.model, "--data", workshop.texts, "--out", workshop.model),
            ("calibrate", workshop.model, "--data", workshop.texts, "--out", workshop.texts),
            ("quantize", workshop.model, "--calibration", workshop.cache, "--out", workshop.cache),
            ("inspect", workshop.checkpoint, "--data", workshop.texts, "--json", workshop.texts),
            ("bench", workshop.model, "--json", workshop.model),
        ):
            assert "is what this command reads; give the output another name" in refuse(*arguments, "--force")
        out = workshop.checkpoint / "model.safetensors"
        assert "is inside the checkpoint" in refuse("export", workshop.checkpoint, "--out", out, "--force")

    def test_a_folder_that_is_no_run(self, workshop: Workshop) -> None:
        assert "is not a run directory" in refuse("run", workshop.recipe, "--out", workshop.folder)

    def test_the_tokenizer_of_another_model(self, workshop: Workshop, tmp_path: Path) -> None:
        graph = Path(shutil.copyfile(workshop.model, tmp_path / "model.onnx"))
        text = (workshop.folder / "tokenizer.json").read_text()
        (tmp_path / "tokenizer.json").write_text(text + "\n")
        told = refuse("calibrate", graph, "--data", workshop.texts, "--out", tmp_path / "c.json", "--length", 16)
        assert "is not the tokenizer that" in told

    def test_settings_without_effect(self, workshop: Workshop) -> None:
        arguments = ("quantize", workshop.model, "--calibration", workshop.cache, "--out", workshop.int8, "--force")
        told = refuse(*arguments, "--allow-stale-cache", "--method", "mse")
        assert "have no effect with --allow-stale-cache" in told


class TestWithoutAnEightBitDotProduct:
    """What a user is told on x86 processors whose sums of products saturate, and only there."""

    @pytest.fixture(params=["avx2", "avx2 avx512_vnni"])
    def saturates(self, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
        import deploy.backends.cpu_choice
        import deploy.machine

        facts = deploy.machine.machine_facts(cpuinfo=f"processor : 0\nflags : fpu {request.param}\n", versions={})
        for module in (deploy.machine, deploy.backends.cpu_choice):
            monkeypatch.setattr(module, "machine_facts", lambda **_: facts)
        return bool(request.param == "avx2")

    def test_quantize_names_the_way_out(self, workshop: Workshop, tmp_path: Path, saturates: bool) -> None:
        given = ("quantize", workshop.model, "--calibration", workshop.cache, "--out")
        told = succeed(*given, tmp_path / "plain.onnx").output
        assert ("--reduce-range makes linear layers exact in all" in told) is saturates
        reduced = succeed(*given, tmp_path / "reduced.onnx", "--weights", "per-channel", "--reduce-range").output
        assert "weights quantized (per-channel, reduced range)" in reduced
        assert "--reduce-range makes" not in reduced

    def test_bench_says_where_integers_run(self, workshop: Workshop, saturates: bool) -> None:
        given = ("bench", workshop.int8, "--shapes", "1x16", "--seconds", 0.05, "--repeats", 1)
        assert ("integers run on onnxruntime" in succeed(*given).output) is saturates
        assert "integers run on onnxruntime" not in succeed(*given, "--backend", "onnxruntime").output
