"""Whatever is wrong with an engine's folder is an error with a message, wherever the folder is named; no runtime is made for it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from deploy.backends.artifact_facts import artifact_facts
from deploy.backends.engine_report import EngineReport
from deploy.backends.opening import open_backend
from deploy.serving.artifact_choice import choose_artifact
from tests.deploy.runtime_doubles import HostDriver, add_runtime, use_gpu
from tests.deploy.tensorrt_doubles import make_double
from tests.deploy.triton.sources import classifier_folder, engine_folder

ODD_VALUES: tuple[Any, ...] = (None, 5, -1, "x", [], {}, [5], {"a": 5}, {"input_ids": {"min": [1]}}, "../x", True)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("source")
    return engine_folder(folder / "engine", classifier_folder(folder / "graph") / "model.onnx")


@pytest.fixture
def engine(source: Path, tmp_path: Path) -> Path:
    folder = tmp_path / "engine"
    folder.mkdir()
    for file in source.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    return folder


@pytest.fixture
def runtimes(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Runtimes that were made on a machine with TensorRT 10.16 and a GPU of SM 8.9."""
    driver, module = HostDriver(), make_double("10.16.1.11")
    use_gpu(monkeypatch, driver, module)
    return add_runtime(module, driver)


def _change(folder: Path, **values: Any) -> None:
    path = folder / "engine.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def _look_everywhere(folder: Path) -> list[str]:
    """Messages of what a wrong engine is named to; anything but a plain error breaks the test."""
    told = []
    for look in (
        lambda: open_backend("tensorrt", folder),
        lambda: artifact_facts(folder),
        lambda: choose_artifact(folder),
    ):
        try:
            look()
        except (ValueError, OSError) as error:
            told.append(str(error))
    return told


@pytest.mark.parametrize("field", EngineReport.__dataclass_fields__)
def test_a_value_of_another_kind_is_told_or_harmless(engine: Path, runtimes: list[str], field: str) -> None:
    right = json.loads((engine / "engine.json").read_text())[field]
    for value in ODD_VALUES:
        _change(engine, **{field: value})
        told = _look_everywhere(engine)
        assert all("\n" not in message for message in told), (value, told)
        if type(value) is not type(right) and right is not None and not isinstance(right, float):
            assert told, value


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"engine": "../graph/model.onnx"}, "is no name of a file beside it"),
        (
            {"profile": {"input_ids": {"min": [1, 1], "max": [8, 24]}}},
            "profile of 'input_ids' has not one size per axis",
        ),
        ({"profile": {"input_ids": {"min": [1], "opt": [1, 1], "max": [8, 24]}}}, "has not one size per axis"),
        ({"profile": {"pixels": {"min": [1], "opt": [1], "max": [8]}}}, "profile of 'pixels'"),
        ({"engine_bytes": "many"}, "is damaged: 'engine_bytes': input should be a valid integer"),
        ({"settings": []}, "is damaged: 'settings': input should be a valid dictionary"),
        ({"format": 3}, "has format 3; expected"),
    ],
)
def test_facts_that_contradict_one_another_are_named(
    engine: Path, runtimes: list[str], values: dict[str, Any], told: str
) -> None:
    _change(engine, **values)
    with pytest.raises(ValueError, match=told):
        open_backend("tensorrt", engine)
    assert runtimes == []


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"null", b"\xff\xfe", b"a text\n"])
def test_a_report_that_is_none(engine: Path, runtimes: list[str], content: bytes) -> None:
    (engine / "engine.json").write_bytes(content)
    assert len(_look_everywhere(engine)) == 3
    assert runtimes == []


@pytest.mark.parametrize("plan", ["empty", "truncated", "changed", "missing", "folder"])
def test_a_plan_that_is_not_the_one_that_was_built(engine: Path, runtimes: list[str], plan: str) -> None:
    path = engine / "model.engine"
    content = path.read_bytes()
    path.unlink()
    if plan == "folder":
        path.mkdir()
    elif plan != "missing":
        path.write_bytes({"empty": b"", "truncated": content[:-1], "changed": content[:-1] + b"!"}[plan])
    expected = {
        "empty": "is truncated: 0 bytes", "truncated": "is truncated", "changed": "was changed after it was built",
        "missing": "names model.engine, which is not there", "folder": "names model.engine, which is not there",
    }  # fmt: skip
    assert any(expected[plan] in message for message in _look_everywhere(engine))
    assert runtimes == []


@pytest.mark.parametrize("kind", ["text file", "empty file", "folder", "nothing"])
def test_a_path_that_is_no_engine(tmp_path: Path, runtimes: list[str], kind: str) -> None:
    path = tmp_path / "thing"
    if kind == "folder":
        path.mkdir()
    elif kind != "nothing":
        path.write_text("a text\n" if kind == "text file" else "")
    with pytest.raises(OSError, match=r"is a file; expected the folder|holds no engine\.json|no engine folder at"):
        open_backend("tensorrt", path)
    assert runtimes == []
