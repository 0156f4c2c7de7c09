from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from quietformer.cli import app
from quietformer.gate import GateFailedError

COMMANDS = (
    "demo", "run", "retrofit", "train", "inspect", "export", "adopt", "calibrate", "quantize", "lint", "explain", "build", "bench", "compare",
    "data", "cache", "doctor", "gpu-check",
)  # fmt: skip
HEAVY = (
    "torch", "transformers", "pydantic", "onnx", "onnxruntime", "openvino", "tensorrt_rtx", "numpy", "scipy", "rich",
    "matplotlib", "jinja2", "pyarrow", "datasets", "tokenizers",
)  # fmt: skip


def run_cli(*arguments: str, timeout: float = 60) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "quietformer", *arguments], capture_output=True, text=True, timeout=timeout, check=False
    )


def test_help_names_every_command() -> None:
    told = CliRunner().invoke(app, ["--help"])
    assert told.exit_code == 0
    for command in COMMANDS:
        assert f"\n  {command} " in told.stdout


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_with_an_example(command: str) -> None:
    told = CliRunner().invoke(app, [command, "--help"])
    assert told.exit_code == 0
    assert f"Example: quietformer {command}" in told.stdout


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys, contextlib\n"
        "from quietformer.cli import app\n"
        "with contextlib.suppress(SystemExit):\n"
        "    app(['--help'])\n"
        f"found = sorted(set(sys.modules) & {set(HEAVY)!r})\n"
        "assert not found, found\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)


def test_a_user_error_is_told_in_one_line_with_exit_code_2(tmp_path: Path) -> None:
    done = run_cli("run", str(tmp_path / "absent.toml"))
    assert done.returncode == 2
    assert done.stderr == f"error: no recipe at {tmp_path / 'absent.toml'}\n"
    assert not done.stdout


def test_debug_shows_the_traceback(tmp_path: Path) -> None:
    done = run_cli("--debug", "run", str(tmp_path / "absent.toml"))
    assert done.returncode != 0
    assert "Traceback" in done.stderr


@pytest.mark.parametrize(
    "arguments", [["unknown"], ["run"], ["export", "x", "--nonsense"], ["bench", "x", "--backend", "y"]]
)
def test_a_wrong_command_line_exits_2_without_traceback(arguments: list[str]) -> None:
    told = CliRunner().invoke(app, arguments)
    assert told.exit_code == 2
    assert "Traceback" not in told.output


def test_a_failed_gate_exits_1(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise GateFailedError("lost 0.1, 0.0 allowed")

    monkeypatch.setattr("quietformer.doctor.examine_machine", fail)
    told = CliRunner().invoke(app, ["doctor"])
    assert told.exit_code == 1
    assert told.stderr == "gate failed: lost 0.1, 0.0 allowed\n"


def test_an_interrupted_command_exits_130(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("quietformer.doctor.examine_machine", interrupt)
    told = CliRunner().invoke(app, ["doctor"])
    assert told.exit_code == 130
    assert told.stderr == "interrupted\n"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_a_command_without_traceback_or_half_written_file(number: signal.Signals, tmp_path: Path) -> None:
    code = (
        "import time, pathlib, quietformer.doctor\n"
        "from deploy.files import atomic_folder, atomic_path\n"
        "from quietformer.cli import main\n"
        "import sys\n"
        "def wait():\n"
        f"    place = pathlib.Path({str(tmp_path)!r})\n"
        "    with atomic_path(place / 'model.onnx'), atomic_folder(place / 'models'):\n"
        "        print('waiting', len(list(place.iterdir())), flush=True)\n"
        "        time.sleep(60)\n"
        "quietformer.doctor.examine_machine = wait\n"
        "sys.argv = ['quietformer', 'doctor']\n"
        "main()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "waiting 2\n"
        os.kill(process.pid, number)
        _, errors = process.communicate(timeout=20)
    assert process.returncode == 128 + number
    assert not list(tmp_path.iterdir())
    assert "Traceback" not in errors
