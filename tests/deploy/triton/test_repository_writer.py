"""What is written for each runtime, from what, and what is left alone."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

from deploy.backends.opening import open_backend
from deploy.triton.config_text import KINDS, read_config
from deploy.triton.repository_manifest import MANIFEST_FILE, RepositoryManifest
from deploy.triton.repository_rules import check_repository
from deploy.triton.repository_settings import RUNTIMES, RepositorySettings
from deploy.triton.repository_writer import write_repository
from deploy.triton.sources import find_sources
from tests.deploy.encoder_graph import feeds
from tests.deploy.triton.sources import classifier_folder, engine_folder
from tests.deploy.vit_graph import C, S, vit


def write(source: Path, out: Path, *, force: bool = False, **choices: Any) -> Path:
    usual: dict[str, Any] = {"name": "encoder", "runtime": "onnxruntime", "max_batch_size": 8}
    settings = RepositorySettings(**(usual | choices))
    found = find_sources(source, plan=settings.runtime == "tensorrt")
    write_repository(found, settings, out, force=force)
    return out


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.fixture
def run_with_engine(run: Path, tmp_path: Path) -> Path:
    copy = tmp_path / "run"
    shutil.copytree(run, copy)
    engine_folder(copy / "engine", copy / "model.int8.onnx")
    return copy


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_every_runtime_gets_a_repository_without_findings_and_always_the_same(
    runtime: str, run_with_engine: Path, tmp_path: Path
) -> None:
    first = write(run_with_engine, tmp_path / "a", runtime=runtime)
    second = write(run_with_engine, tmp_path / "b", runtime=runtime)
    assert check_repository(first) == []
    assert contents(first) == contents(second)
    assert {path.name for path in first.iterdir()} == {
        "encoder", "encoder-tokenizer", "encoder-answer", "encoder-text", MANIFEST_FILE
    }  # fmt: skip


def test_queue_versions_warm_up_and_cache_are_as_chosen(run: Path, tmp_path: Path) -> None:
    out = write(
        run, tmp_path / "out", preferred_batch_sizes=(4, 8), queue_delay=0.0005, queue_timeout=2.0, max_queue_size=64,
        instances=2, threads=3, version=7, version_policy="specific:7", response_cache=True,
    )  # fmt: skip
    config = read_config(out / "encoder" / "config.pbtxt")
    assert (out / "encoder/7/model.onnx").is_file()
    assert list(config.version_policy.specific.versions) == [7]
    batching = config.dynamic_batching
    assert (list(batching.preferred_batch_size), batching.max_queue_delay_microseconds) == ([4, 8], 500)
    policy = batching.default_queue_policy
    assert (policy.timeout_action, policy.default_timeout_microseconds, policy.max_queue_size) == (0, 2_000_000, 64)
    assert (config.instance_group[0].kind, config.instance_group[0].count) == (KINDS["KIND_CPU"], 2)
    assert config.parameters["intra_op_thread_count"].string_value == "3"
    assert config.response_cache.enable
    rows = {(sample.batch_size, *sample.inputs["input_ids"].dims) for sample in config.model_warmup}
    assert rows == {(1, 16), (8, 16), (1, 24), (8, 24)}  # 24 positions
    plain = read_config(write(run, tmp_path / "plain", warm_up=False) / "encoder" / "config.pbtxt")
    assert not plain.model_warmup
    assert not plain.response_cache.enable


def test_a_graph_for_the_cpu_has_unsigned_activations_and_the_same_numbers(run: Path, tmp_path: Path) -> None:
    cpu = write(run, tmp_path / "cpu") / "encoder/1/model.onnx"
    gpu = write(run, tmp_path / "gpu", runtime="onnxruntime-cuda") / "encoder/1/model.onnx"
    assert gpu.read_bytes() == (run / "model.int8.onnx").read_bytes()
    zeros = {node.input[2] for node in onnx.load(cpu).graph.node if node.op_type == "QuantizeLinear"}
    assert zeros
    assert all(name.endswith("unsigned_zero_point") for name in zeros)
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry("session.x64quantprecision", "1")
    given = feeds(batch=3, length=6)
    bare = onnxruntime.InferenceSession(cpu, options, providers=["CPUExecutionProvider"]).run(None, given)[0]
    with open_backend("onnxruntime", run / "model.int8.onnx") as backend:
        np.testing.assert_array_equal(backend.infer(given)["last_hidden_state"], bare)


def test_weights_in_other_files_come_along(run: Path, tmp_path: Path) -> None:
    folder = tmp_path / "external"
    folder.mkdir()
    onnx.save(onnx.load(run / "model.int8.onnx"), folder / "model.int8.onnx", save_as_external_data=True,
              location="weights.data", size_threshold=1024)  # fmt: skip
    out = write(folder, tmp_path / "out")
    assert (out / "encoder/1/weights.data").read_bytes() == (folder / "weights.data").read_bytes()
    session = onnxruntime.InferenceSession(out / "encoder/1/model.onnx", providers=["CPUExecutionProvider"])
    assert session.run(None, feeds())[0].shape == (2, 7, 32)


def test_plans_are_found_by_the_gpu_they_are_for(run_with_engine: Path, tmp_path: Path) -> None:
    other = engine_folder(tmp_path / "other", run_with_engine / "model.int8.onnx", capability="9.0", batch=4, length=16)
    settings = RepositorySettings(name="encoder", runtime="tensorrt", max_batch_size=64, cuda_graphs=True, gpus=(0, 1))
    source = find_sources(run_with_engine, engines=[other], plan=True)
    write_repository(source, settings, tmp_path / "out", force=False)
    config = read_config(tmp_path / "out/encoder/config.pbtxt")
    assert dict(config.cc_model_filenames) == {"8.9": "model.sm89.plan", "9.0": "model.sm90.plan"}
    assert b"for 9.0" in (tmp_path / "out/encoder/1/model.sm90.plan").read_bytes()
    assert config.max_batch_size == 4  # what both profiles cover
    assert max(dims for sample in config.model_warmup for dims in sample.inputs["input_ids"].dims) == 16
    assert [spec.batch_size for spec in config.optimization.cuda.graph_spec] == [1, 2, 4]
    assert list(config.optimization.cuda.graph_spec[0].input["input_ids"].dim) == [12]
    assert (list(config.instance_group[0].gpus), list(config.instance_group[0].profile)) == ([0, 1], ["0"])
    manifest = RepositoryManifest.load(tmp_path / "out")
    assert manifest is not None
    assert [engine["tensorrt"] for engine in manifest.engines] == ["10.16.1.11"] * 2


def test_the_accelerator_is_told_of_integers_and_where_its_engines_are_kept(run: Path, tmp_path: Path) -> None:
    def accelerator(source: Path, out: str) -> Any:
        made = write(source, tmp_path / out, runtime="onnxruntime-tensorrt", engine_cache="/engines")
        return read_config(made / "encoder/config.pbtxt").optimization.execution_accelerators.gpu_execution_accelerator[
            0
        ]

    found = accelerator(run, "int8")
    assert (found.name, found.parameters["precision_mode"]) == ("tensorrt", "INT8")
    assert found.parameters["trt_engine_cache_path"] == "/engines"
    assert "precision_mode" not in accelerator(run / "model.onnx", "float").parameters


def test_openvino_is_not_batched_for_because_triton_would_pad_to_the_limit(run: Path, tmp_path: Path) -> None:
    out = write(run, tmp_path / "out", runtime="openvino")
    config = read_config(out / "encoder/config.pbtxt")
    assert (config.max_batch_size, config.HasField("dynamic_batching")) == (0, False)
    assert [list(tensor.dims) for tensor in config.input] == [[-1, -1]] * 3
    assert list(read_config(out / "encoder-text/config.pbtxt").input[0].dims) == [-1, 1]


def test_a_classifier_gives_labels_and_a_bare_graph_no_texts(tmp_path: Path) -> None:
    source = classifier_folder(tmp_path / "classifier")
    out = write(source, tmp_path / "out")
    outputs = read_config(out / "encoder-text/config.pbtxt").output
    assert [(tensor.name, list(tensor.dims)) for tensor in outputs] == [("LABEL", [1]), ("SCORES", [3])]
    (source / "tokenizer.json").unlink()
    settings = RepositorySettings(name="encoder", runtime="onnxruntime")
    bare = write_repository(find_sources(source, plan=False), settings, tmp_path / "bare", force=False)
    assert bare.models == ("encoder",)
    assert "no tokenizer.json" in bare.notes[0]


def test_a_graph_of_images_has_the_sizes_that_it_fixes(tmp_path: Path) -> None:
    onnx.save(vit(), tmp_path / "model.onnx")
    out = write(tmp_path / "model.onnx", tmp_path / "out")
    config = read_config(out / "encoder/config.pbtxt")
    assert [(tensor.name, list(tensor.dims)) for tensor in config.input] == [("pixel_values", [C, S, S])]
    assert [(sample.batch_size, list(sample.inputs["pixel_values"].dims)) for sample in config.model_warmup] == [
        (1, [C, S, S]), (8, [C, S, S])
    ]  # fmt: skip
    assert {path.name for path in out.iterdir()} == {"encoder", MANIFEST_FILE}
    openvino = write(tmp_path / "model.onnx", tmp_path / "openvino", runtime="openvino")
    assert [list(tensor.dims) for tensor in read_config(openvino / "encoder/config.pbtxt").input] == [[-1, C, S, S]]


def test_only_an_earlier_repository_is_replaced_and_only_when_asked(run: Path, tmp_path: Path) -> None:
    out = write(run, tmp_path / "out")
    with pytest.raises(FileExistsError, match="pass --force"):
        write(run, out)
    write(run, out, force=True, runtime="openvino")
    assert read_config(out / "encoder/config.pbtxt").backend == "openvino"
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/letter.txt").write_text("dear")
    with pytest.raises(FileExistsError, match="no repository of quietformer"):
        write(run, tmp_path / "mine", force=True)
    with pytest.raises(ValueError, match="lies in"):
        write(out / "encoder/1/model.onnx", out, force=True)
    assert {path.name for path in tmp_path.iterdir()} == {"out", "mine"}


def test_a_repository_that_fails_its_last_check_is_not_there(run: Path, tmp_path: Path) -> None:
    from deploy.triton.repository_rules import Finding

    settings = RepositorySettings(name="encoder", runtime="onnxruntime")
    with pytest.raises(ValueError, match="Triton does not load it"):
        write_repository(
            find_sources(run, plan=False), settings, tmp_path / "out", force=False,
            last_check=lambda _folder: [Finding(model="encoder", message="Triton does not load it")],
        )  # fmt: skip
    assert list(tmp_path.iterdir()) == []


def test_engines_that_triton_cannot_run_are_refused_with_the_reason(run: Path, tmp_path: Path) -> None:
    graph = run / "model.int8.onnx"
    rtx = engine_folder(tmp_path / "rtx", graph, backend="tensorrt-rtx")
    with pytest.raises(ValueError, match="Triton has no backend for"):
        find_sources(rtx, graph=graph, plan=True)
    with pytest.raises(FileNotFoundError, match="holds no engine"):
        find_sources(run, plan=True)
    lone = engine_folder(tmp_path / "lone", graph)
    with pytest.raises(FileNotFoundError, match="name it with --graph"):
        find_sources(lone, plan=True)
    with pytest.raises(ValueError, match="built from another graph"):
        find_sources(lone, graph=run / "model.onnx", plan=True)
    with pytest.raises(ValueError, match="both for compute capability"):
        find_sources(lone, engines=[lone], graph=graph, plan=True)
    with pytest.raises(ValueError, match="only --runtime tensorrt"):
        find_sources(lone, graph=graph, plan=False)
    (lone / "model.engine").write_bytes(b"other")
    with pytest.raises(ValueError, match="not the engine that"):
        find_sources(lone, graph=graph, plan=True)


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        ({"gpus": (0,)}, "runs on the CPU"),
        ({"runtime": "tensorrt", "threads": 2}, "runs on the GPU"),
        ({"cuda_graphs": True}, "CUDA graphs"),
        ({"version_policy": "newest"}, "expected latest:1"),
        ({"version_policy": "specific:1,x"}, "expected latest:1"),
        ({"version_policy": "latest:1,2"}, "expected latest:1"),
        ({"max_queue_size": 0}, "max_queue_size is 0"),
        ({"name": "../elsewhere"}, "'../elsewhere' is no name of a model"),
        ({"name": ".."}, "no name of a model"),
        ({"name": ".hidden"}, "no name of a model"),
        ({"name": "two words"}, "no name of a model"),
        ({"name": ""}, "no name of a model"),
        ({"runtime": "vitis"}, "unknown runtime"),
        ({"runtime": "openvino", "preferred_batch_sizes": (4,)}, "does not batch"),
    ],
)
def test_choices_without_effect_or_meaning_are_refused(choices: dict[str, Any], message: str) -> None:
    usual: dict[str, Any] = {"name": "encoder", "runtime": "onnxruntime"}
    with pytest.raises(ValueError, match=message):
        RepositorySettings(**(usual | choices))


def test_a_preferred_batch_above_the_limit_is_a_finding_that_stops_the_writing(run: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="preferred_batch_size 32 is not between 1 and max_batch_size 8"):
        write(run, tmp_path / "out", preferred_batch_sizes=(32,))
    assert not (tmp_path / "out").exists()
