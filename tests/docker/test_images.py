"""What the Dockerfiles say is true of the repository; no container engine is needed."""

from __future__ import annotations

import fnmatch
import shutil
import subprocess
import sysconfig
from pathlib import Path

import pytest

from docker.image_file import Stage, read_stages

ROOT = Path(__file__).parents[2]
DOCKERFILES = sorted((ROOT / "docker").glob("*.Dockerfile"))
WITHOUT_TORCH = [path for path in DOCKERFILES if path.name != "train.Dockerfile"]


def name_of(path: Path) -> str:
    return path.name.removesuffix(".Dockerfile")


@pytest.fixture(params=DOCKERFILES, ids=name_of)
def dockerfile(request: pytest.FixtureRequest) -> Path:
    path = request.param
    assert isinstance(path, Path)
    return path


@pytest.fixture
def final(dockerfile: Path) -> Stage:
    return read_stages(dockerfile)[-1]


def test_hadolint_finds_nothing(dockerfile: Path) -> None:
    linter = shutil.which("hadolint", path=sysconfig.get_path("scripts"))
    assert linter is not None, "hadolint belongs to the extra 'dev'"
    done = subprocess.run([linter, dockerfile], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_every_copied_path_exists_and_reaches_the_builder(dockerfile: Path) -> None:
    sent = [
        line.removeprefix("!") for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")
    ]
    stages = read_stages(dockerfile)
    names = [stage.name for stage in stages]
    for stage in stages:
        for copy in stage.copies():
            if copy.stage is not None:
                assert copy.stage in names
                continue
            for source in copy.sources:
                assert (ROOT / source).exists(), source
                assert Path(source).parts[0] in sent, f"{source} is kept from the builder by .dockerignore"


def test_what_is_ignored_is_what_git_ignores_or_no_image_needs() -> None:
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    rules = [line for line in lines if line and not line.startswith("#")]
    assert rules[0] == "*"
    kept = [line for line in rules[1:] if not line.startswith("!")]
    assert any(fnmatch.fnmatch("train/__pycache__", line) for line in kept)
    assert "calibration_data/made" in kept


def test_images_are_pinned(dockerfile: Path) -> None:
    for stage in read_stages(dockerfile):
        _, colon, tag = stage.image.rpartition(":")
        assert colon
        assert sum(character.isdigit() for character in tag) >= 4, f"{stage.image} moves"
        for step in stage.values("RUN"):
            assert step.count("pip install") == step.count("-c constraints.txt") + step.count("-r tensorrt.txt")
            assert step.count("pip install") == step.count("--no-cache-dir")


def test_an_image_runs_as_a_user_that_is_not_root(final: Stage) -> None:
    assert final.last("USER") == "1000:1000"
    last_user = max(index for index, (name, _) in enumerate(final.instructions) if name == "USER")
    assert not [name for name, _ in final.instructions[last_user:] if name in ("RUN", "COPY")]


def test_jobs_have_no_health_check_and_servers_ask_whether_they_are_ready(dockerfile: Path, final: Stage) -> None:
    check = final.last("HEALTHCHECK") or ""
    if final.values("EXPOSE"):
        assert "/v2/health/ready" in check
        assert str(final.last("EXPOSE")) in check
    else:
        assert check == "NONE", dockerfile


def test_the_entry_point_is_a_file_or_module_that_the_image_copies(final: Stage) -> None:
    python, *words = final.command("ENTRYPOINT")
    assert python in ("python", "python3")
    source = Path(words[1].replace(".", "/")) / "__main__.py" if words[0] == "-m" else Path(words[0])
    copied = [
        Path(copy.target) / Path(file).name if copy.target.endswith("/") else Path(copy.target)
        for copy in final.copies()
        for file in copy.sources
    ]
    inside = Path(final.environment()["PYTHONPATH"].partition(":")[0]) / source
    assert any(inside == path or path in inside.parents for path in copied), inside
    assert (ROOT / inside.relative_to("/opt/quietformer")).is_file()


@pytest.mark.parametrize("path", WITHOUT_TORCH, ids=name_of)
def test_a_runtime_image_copies_only_packages_that_run_without_torch(path: Path) -> None:
    final = read_stages(path)[-1]
    folders = {
        source for copy in final.copies() if copy.stage is None for source in copy.sources if (ROOT / source).is_dir()
    }
    assert folders == {"deploy", "quietformer"}
