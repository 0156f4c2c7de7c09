"""The files that a runtime image copies, and no others, do the work of deployment where torch is not installed."""

from __future__ import annotations

import json
import shutil
import subprocess
import urllib.request
from pathlib import Path

import pytest

from docker.image_file import read_stages
from tests.export.tiny_checkpoints import tiny_model, write_checkpoint, write_pooling
from tests.quietformer.tiny_run import random_sentences
from tests.without_torch import FORBIDDEN, python_without_torch

ROOT = Path(__file__).parents[2]
RUNTIME = "tensorrt"
OTHERS = ("train", "export", "calibration_data")


IMPORTS = """
import importlib, importlib.util, pkgutil
import deploy
for name in {absent!r}:
    assert importlib.util.find_spec(name) is None, name
for entry in pkgutil.walk_packages(deploy.__path__, "deploy."):
    importlib.import_module(entry.name)
"""
COMMANDS = """
import json
from typer.testing import CliRunner
from quietformer.cli import app
results = [CliRunner().invoke(app, line.split()) for line in {lines!r}]
print(json.dumps([(result.exit_code, result.stdout, result.stderr) for result in results]))
"""


class Image:
    """A copied tree with an interpreter that sees it and no torch."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        tree = folder / "tree"
        for copy in read_stages(ROOT / "docker" / f"{RUNTIME}.Dockerfile")[-1].copies():
            for source in (ROOT / name for name in copy.sources if copy.stage is None):
                if source.is_dir():
                    target = tree / Path(copy.target).name
                    shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
        environment = folder / "environment"
        environment.mkdir()
        self.python = python_without_torch(environment, [tree])

    def run(self, code: str) -> str:
        line = [str(self.python), "-E", "-c", code]
        done = subprocess.run(line, cwd=self.folder, capture_output=True, text=True, check=False, timeout=300)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def commands(self, *lines: str) -> list[tuple[int, str, str]]:
        """Exit code, output and complaints of command lines, all in one interpreter."""
        told = self.run(COMMANDS.format(lines=lines))
        return [(code, out, err) for code, out, err in json.loads(told.splitlines()[-1])]


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Image:
    from export.to_onnx import export_checkpoint

    folder = tmp_path_factory.mktemp("image")
    checkpoint = write_checkpoint(tiny_model(), folder / "checkpoint")
    write_pooling(checkpoint, "mean")
    export_checkpoint(checkpoint, folder / "model.onnx")
    shutil.rmtree(checkpoint)
    (folder / "texts.txt").write_text("\n".join(random_sentences(60)))
    return Image(folder)


@pytest.mark.slow
def test_every_module_of_deploy_imports_and_the_other_packages_are_not_there(image: Image) -> None:
    image.run(IMPORTS.format(absent=(*FORBIDDEN, *OTHERS)))


@pytest.mark.slow
def test_the_commands_of_deployment_work_from_calibration_to_engine(image: Image) -> None:
    bench = "--shapes 1x16 --seconds 0.02 --repeats 2 --data texts.txt"
    judge = "--baseline model.onnx --candidate model.int8.onnx --task fidelity --data texts.txt --max-drop 1"
    shapes = "--opt-shapes 1x16 --max-shapes 4x32 --compute-capability 8.9"
    results = image.commands(
        "calibrate model.onnx --data texts.txt --out calibration.json --batches 2 --batch-size 8 --length 16",
        "quantize model.onnx --calibration calibration.json --out model.int8.onnx",
        "lint model.int8.onnx",
        f"bench model.onnx model.int8.onnx --backend openvino --backend onnxruntime {bench}",
        f"compare {judge}",
        f"compare {judge} --backend onnxruntime",
        f"build model.onnx --calibration calibration.json --out engines {shapes}",
        "doctor",
    )
    assert [(code, err) for code, _out, err in results if code] == []
    _calibrated, _quantized, linted, measured, _judged, _again, built, _doctor = (out for _code, out, _err in results)
    assert "no findings" in linted
    assert len(json.loads(measured.splitlines()[-1])) == 1
    assert "of the weights in INT8, for SM 8.9" in built


@pytest.mark.slow
def test_the_server_becomes_ready(image: Image) -> None:
    line = [str(image.python), "-E", "-m", "quietformer", "serve", "model.onnx", "--port", "0"]
    with subprocess.Popen(line, cwd=image.folder, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            told = []
            for text in process.stderr:
                told.append(text)
                if text.startswith("ready: "):
                    break
            assert told[-1].startswith("ready: "), told
            url = told[-1].split()[1]
            with urllib.request.urlopen(f"{url}/v2/health/ready", timeout=30) as answer:
                assert answer.status == 200
        finally:
            process.terminate()


@pytest.mark.slow
def test_what_needs_the_other_packages_says_so_in_one_line(image: Image) -> None:
    recipe = ROOT / "recipes" / "minilm-retrofit.toml"
    expected = {
        f"run {recipe}": "needs package 'train' of quietformer",
        "data": "needs package 'calibration_data' of quietformer",
        "export checkpoint --out other.onnx": "needs package 'export' of quietformer",
        "bench model.onnx --shapes 1x16": "no sample texts; give --data",
    }
    for (code, _out, complaint), message in zip(image.commands(*expected), expected.values(), strict=True):
        assert code == 2
        assert message in complaint
        assert len(complaint.strip().splitlines()) == 1
