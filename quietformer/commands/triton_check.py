"""``quietformer triton-check``: a model repository against the rules, and with the real Triton."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def triton_check(
    repository: Annotated[Path, typer.Argument(metavar="DIR", help="A model repository, edited or not.")],
    *,
    tritonserver: Annotated[
        Path | None, typer.Option("--tritonserver", metavar="BINARY", help="Also load it with this server.")
    ] = None,
) -> None:
    """Check a model repository: syntax, files, tensors against the graph, profiles, ensembles.

    Exits 1 when there are findings.

    Example: quietformer triton-check models --tritonserver /opt/tritonserver/bin/tritonserver
    """
    from deploy.triton.real_triton import check_by_loading
    from deploy.triton.repository_rules import check_repository
    from quietformer.gate import GateFailedError

    findings = check_repository(repository)
    if not findings and tritonserver is not None:
        findings = check_by_loading(tritonserver, repository)
    for finding in findings:
        typer.echo(str(finding))
    if findings:
        raise GateFailedError(f"{repository} has {len(findings)} findings")
    typer.echo(f"{repository}: no findings")
