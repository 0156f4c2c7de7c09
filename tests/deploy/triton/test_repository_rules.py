"""Every rule catches what breaks it, in repositories that quietformer wrote and that were edited afterwards."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from deploy.triton.config_text import TYPES, parse_config, read_config, to_text
from deploy.triton.repository_rules import check_repository
from tests.deploy.triton.sources import engine_folder
from tests.deploy.triton.test_repository_writer import write

Edit = Callable[[Any], Any]


@pytest.fixture(scope="session")
def repository(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(run, tmp_path_factory.mktemp("written") / "models")


def edited(repository: Path, out: Path, edit: Edit, *, model: str = "encoder") -> list[str]:
    """Messages about a copy whose configuration was changed."""
    shutil.copytree(repository, out)
    path = out / model / "config.pbtxt"
    config = read_config(path)
    edit(config)
    path.write_text(to_text(config))
    return [str(finding) for finding in check_repository(out)]


GRAPH_EDITS: dict[str, tuple[Edit, str]] = {
    "another name": (lambda config: setattr(config, "name", "other"), "Triton expects the folder's name, 'encoder'"),
    "unknown input": (lambda config: setattr(config.input[0], "name", "ids"), "has no input 'ids'"),
    "missing input": (lambda config: config.input.pop(), "input 'token_type_ids' of model.onnx is not declared"),
    "no output": (lambda config: config.output.pop(), "declares no output"),
    "another type": (lambda config: setattr(config.input[0], "data_type", TYPES["TYPE_INT32"]), "is TYPE_INT32; in model.onnx TYPE_INT64"),
    "another size": (lambda config: config.output[0].dims.__setitem__(1, 33), "has dims [-1, 33]; in model.onnx [-1, 32]"),
    "batch among the dims": (lambda config: config.input[0].dims.insert(0, -1), "has dims [-1, -1]; in model.onnx [-1]"),
    "no dims": (lambda config: config.input[0].ClearField("dims"), "has no dims"),
    "size of zero": (lambda config: config.input[0].dims.__setitem__(0, 0), "expected positive sizes or -1"),
    "batching without a batch": (lambda config: setattr(config, "max_batch_size", 0), "dynamic_batching needs max_batch_size"),
    "negative batch": (lambda config: setattr(config, "max_batch_size", -1), "expected 0 or more"),
    "preferred too large": (lambda config: config.dynamic_batching.preferred_batch_size.append(9), "preferred_batch_size 9"),
    "version that is not there": (lambda config: config.version_policy.specific.versions.append(3), "version 3 is to be served and not there; there are 1"),
    "another file": (lambda config: setattr(config, "default_model_filename", "m.onnx"), "1/m.onnx is missing"),
    "large warm-up": (lambda config: setattr(config.model_warmup[0], "batch_size", 9), "has 9 rows; max_batch_size is 8"),
    "warm-up of another input": (lambda config: config.model_warmup[0].inputs["more"].dims.append(1), "differ in 'more'"),
    "warm-up of another rank": (lambda config: config.model_warmup[0].inputs["input_ids"].dims.append(1), "does not fit input 'input_ids'"),
}  # fmt: skip


@pytest.mark.parametrize("what", GRAPH_EDITS)
def test_an_edit_of_the_graphs_model_is_found(what: str, repository: Path, tmp_path: Path) -> None:
    edit, message = GRAPH_EDITS[what]
    found = edited(repository, tmp_path / "models", edit)
    assert any(message in text for text in found), found


ENSEMBLE_EDITS: dict[str, tuple[Edit, str]] = {
    "unknown model": (lambda config: setattr(config.ensemble_scheduling.step[1], "model_name", "none"), "'none' is no model of this repository"),
    "unmapped input": (lambda config: config.ensemble_scheduling.step[1].input_map.pop("input_ids"), "its input_map differ in 'input_ids'"),
    "dangling tensor": (lambda config: config.ensemble_scheduling.step[0].output_map.pop("input_ids"), "reads 'input_ids', which nothing before it makes"),
    "unknown output": (lambda config: config.ensemble_scheduling.step[2].output_map.update({"LABEL": "x"}), "has no output 'LABEL'"),
    "output nobody makes": (lambda config: setattr(config.output[0], "name", "VECTOR"), "no step makes output 'VECTOR'"),
    "another type": (lambda config: setattr(config.input[0], "data_type", TYPES["TYPE_INT64"]), "differ in type"),
    "another size": (lambda config: config.output[0].dims.__setitem__(0, 3), "differ in dims"),
    "larger batch": (lambda config: setattr(config, "max_batch_size", 9), "max_batch_size is 9; step 'encoder-tokenizer' takes 8"),
    "no steps": (lambda config: config.ensemble_scheduling.ClearField("step"), "without steps"),
}  # fmt: skip


@pytest.mark.parametrize("what", ENSEMBLE_EDITS)
def test_an_edit_of_the_ensemble_is_found(what: str, repository: Path, tmp_path: Path) -> None:
    edit, message = ENSEMBLE_EDITS[what]
    found = edited(repository, tmp_path / "models", edit, model="encoder-text")
    assert any(message in text for text in found), found


def test_shapes_outside_of_a_plans_profile_are_found(run: Path, tmp_path: Path) -> None:
    copy = tmp_path / "run"
    shutil.copytree(run, copy)
    engine_folder(copy / "engine", copy / "model.int8.onnx", batch=4, length=16)
    written = write(copy, tmp_path / "models", runtime="tensorrt", cuda_graphs=True)

    def edit(config: Any) -> None:
        config.max_batch_size = 8
        config.model_warmup[0].inputs["input_ids"].dims[0] = 17
        config.optimization.cuda.graph_spec[0].input["input_ids"].dim[0] = 17
        config.instance_group[0].kind = 2

    found = edited(written, tmp_path / "edited", edit)
    for message in (
        "max_batch_size is 8; the profile of model.sm89.plan ends at 4 rows",
        "has 1x17 of 'input_ids', outside of the profile",
        "a CUDA graph has 1x17",
        "TensorRT plans run on GPUs",
    ):
        assert any(message in text for text in found), (message, found)


def test_files_that_were_changed_or_lost_are_found(repository: Path, tmp_path: Path) -> None:
    shutil.copytree(repository, tmp_path / "models")
    (tmp_path / "models/encoder-tokenizer/1/tokenizer.json").write_text("{}")
    (tmp_path / "models/encoder-answer/1/model.py").unlink()
    (tmp_path / "models/encoder-text/config.pbtxt").unlink()
    (tmp_path / "models/more/1").mkdir(parents=True)
    (tmp_path / "models/more/config.pbtxt").write_text('nane: "more"')
    found = "\n".join(map(str, check_repository(tmp_path / "models")))
    assert "tokenizer.json is not the file that was written" in found
    assert "encoder-answer: 1/model.py is missing" in found
    assert "encoder-text: no config.pbtxt" in found
    assert "more: " in found
    assert 'has no field named "nane"' in found


def test_a_folder_without_models_is_a_finding_and_no_folder_an_error(tmp_path: Path) -> None:
    assert "holds no model" in str(check_repository(tmp_path)[0])
    with pytest.raises(NotADirectoryError):
        check_repository(tmp_path / "none")


def test_text_of_a_configuration_comes_back_the_same(repository: Path) -> None:
    for path in sorted(repository.glob("*/config.pbtxt")):
        text = path.read_text()
        assert to_text(parse_config(text, name=path.name)) == text
