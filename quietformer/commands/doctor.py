"""``quietformer doctor``: what this machine can do, and how to get what is missing."""

from __future__ import annotations

from typing import Annotated

import typer


def doctor(
    *,
    json_output: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Show what this machine can do.

    Backends, devices, instruction sets and versions, and how to get what is missing.

    Example: quietformer doctor --json
    """
    import json

    from quietformer.doctor import examine_machine, findings_table

    findings = examine_machine()
    typer.echo(json.dumps(findings, indent=1) if json_output else findings_table(findings))
