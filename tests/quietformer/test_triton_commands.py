"""``triton-repo`` and ``triton-check``: what they print, refuse and return."""

from __future__ import annotations

from pathlib import Path

from typer.testing import CliRunner, Result

from quietformer.cli import app
from tests.deploy.triton.sources import run_folder


def invoke(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_a_run_becomes_a_repository_that_is_checked_again_after_an_edit(tmp_path: Path) -> None:
    run, out = run_folder(tmp_path / "run"), tmp_path / "models"
    done = invoke("triton-repo", run, "--name", "small", "--out", out)
    assert done.exit_code == 0, done.output
    assert done.stdout == f"{out}: small, small-tokenizer, small-answer, small-text\n"
    assert invoke("triton-check", out).stdout == f"{out}: no findings\n"
    config = out / "small/config.pbtxt"
    config.write_text(config.read_text().replace("max_batch_size: 16", "max_batch_size: 8"))
    found = invoke("triton-check", out)
    assert found.exit_code == 1
    assert "warm-up '16x16' has 16 rows; max_batch_size is 8" in found.stdout
    refused = invoke("triton-repo", run, "--out", out)
    assert refused.exit_code == 2
    assert refused.stderr == f"error: {out} exists; pass --force to replace it\n"
    refused = invoke("triton-repo", run, "--out", tmp_path / "more", "--runtime", "tensorrt")
    assert refused.exit_code == 2
    assert "build one with 'quietformer build --backend tensorrt'" in refused.stderr
