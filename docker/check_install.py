"""Each image without a container engine: its pip steps in a fresh environment, then its entry point's ``--help`` on what it copies.

Runs what the first stage of a Dockerfile runs, as it is written, with ``/opt`` and ``/build`` moved into a scratch folder and
``python`` the interpreter that the stage's image has (``python3.12`` for ``python:3.12...``, to be found on the PATH). The second stage's ``RUN``
needs its base image and is left out.

Example: python docker/check_install.py --image tensorrt
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPOSITORY))

from docker.image_file import Stage, read_stages  # noqa: E402  # from the repository, wherever this was started

IMAGES = tuple(sorted(path.name.removesuffix(".Dockerfile") for path in (REPOSITORY / "docker").glob("*.Dockerfile")))
_LEARNING = ("torch", "transformers")


class CheckError(Exception):
    """An image that would not build, or whose entry point does not start."""


def check_image(image: str, scratch: Path) -> dict[str, Any]:
    """Install what an image installs and start its entry point.

    Args:
        image: name of the Dockerfile.
        scratch: empty folder, the root of the image.

    Returns:
        Plain values: ``image``, ``python``, ``seconds``, ``megabytes``, ``packages``, ``has_torch``.

    Raises:
        CheckError: a step failed; the message ends with what it printed.
    """
    packages, final = read_stages(REPOSITORY / "docker" / f"{image}.Dockerfile")
    interpreter = _interpreter(packages)
    started = time.perf_counter()
    _environment(interpreter, scratch / "usr")
    build = scratch / "build"
    _copy(packages, scratch, working_directory=build)
    path = f"{scratch / 'usr' / 'bin'}:{os.environ['PATH']}"
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}
    for step in packages.values("RUN"):
        _run(["bash", "-ec", _moved(step, scratch)], cwd=build, env=clean | {"PATH": path})
    _copy(final, scratch, working_directory=scratch)
    variables = {name: _moved(value, scratch).replace("$PATH", path) for name, value in final.environment().items()}
    entry = [_moved(word, scratch) for word in final.command("ENTRYPOINT")]
    python, *rest = entry
    if python == "python3":  # the final image's own interpreter, of the same version
        python = str(scratch / "usr" / "bin" / "python3")
    work = scratch / "work"
    work.mkdir()
    told = _run([python, *rest, "--help"], cwd=work, env=clean | {"PATH": path} | variables)
    installed = next(folder for folder in (scratch / "opt" / "venv", scratch / "opt" / "packages") if folder.is_dir())
    names = {
        folder.name
        for folder in installed.rglob("*")
        if folder.is_dir() and folder.parent.name in ("site-packages", "packages")
    }
    return {
        "image": image,
        "python": interpreter,
        "seconds": round(time.perf_counter() - started),
        "megabytes": round(
            sum(file.stat().st_size for file in installed.rglob("*") if file.is_file() and not file.is_symlink()) / 1e6
        ),
        "packages": sum(name.endswith(".dist-info") for name in names),
        "has_torch": bool(names & set(_LEARNING)),
        "help": told.strip().splitlines()[0],
    }


def _interpreter(stage: Stage) -> str:
    match = re.fullmatch(r"python:(\d+\.\d+)\.\S+", stage.image)
    if match is None:
        raise CheckError(f"the packages of an image are installed in {stage.image}; expected an image of Python")
    found = shutil.which(f"python{match[1]}")
    if found is None:
        raise CheckError(f"no python{match[1]} on the PATH")
    return f"python{match[1]}"


def _environment(interpreter: str, folder: Path) -> None:
    _run([interpreter, "-m", "venv", str(folder)], cwd=folder.parent, env=dict(os.environ))


def _copy(stage: Stage, scratch: Path, *, working_directory: Path) -> None:
    """What a stage copies from the repository."""
    working_directory.mkdir(exist_ok=True)
    for copy in stage.copies():
        if copy.stage is not None:
            continue
        target = working_directory if copy.target == "./" else Path(_moved(copy.target, scratch))
        for source in copy.sources:
            origin = REPOSITORY / source
            if origin.is_dir():
                shutil.copytree(origin, target, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                target.mkdir(parents=True, exist_ok=True)
                shutil.copy(origin, target)


def _moved(text: str, scratch: Path) -> str:
    return re.sub(r"(?<![\w/])/(opt|cache|srv)\b", rf"{scratch}/\1", text)


def _run(command: list[str], *, cwd: Path, env: dict[str, str]) -> str:
    done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        last = "\n".join((done.stdout + done.stderr).strip().splitlines()[-15:])
        raise CheckError(f"exit code {done.returncode} of: {' '.join(command)}\n{last}")
    return done.stdout


def main() -> None:
    """Entry point."""
    first, _, rest = str(__doc__).partition("\n\n")
    parser = argparse.ArgumentParser(
        description=first, epilog=rest, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--image", action="append", choices=IMAGES, help="Which image, repeatable; all by default.")
    chosen = parser.parse_args().image or IMAGES
    failed = False
    for image in chosen:
        print(f"{image}: installing ...", file=sys.stderr, flush=True)
        with TemporaryDirectory(prefix=f"{image}-") as scratch:
            try:
                found = check_image(image, Path(scratch))
            except CheckError as error:
                print(f"{image}: {error}", file=sys.stderr)
                failed = True
                continue
        print(json.dumps(found), flush=True)
    sys.exit(failed)


if __name__ == "__main__":
    main()
