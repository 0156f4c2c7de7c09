"""``quietformer lint``: a Q/DQ graph against the rules of its profile and of TensorRT's parser."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from quietformer.commands.profile_option import Profile


def lint(
    model: Annotated[Path, typer.Argument(metavar="MODEL.onnx", help="A quantized graph.")],
    *,
    profile: Annotated[Profile, typer.Option("--profile", help="Whose rules.")] = Profile.TENSORRT,
) -> None:
    """Check a quantized graph against its rules.

    Says which node breaks which rule, and what to do. Exits 1 when there are findings.

    Example: quietformer lint model.int8.onnx --profile tensorrt
    """
    from deploy.quantization.lint import lint as find
    from quietformer.gate import GateFailedError

    findings = find(model, profile.value)
    for finding in findings:
        typer.echo(str(finding))
    if findings:
        raise GateFailedError(f"{model} has {len(findings)} findings for profile '{profile.value}'")
    typer.echo(f"{model}: no findings for profile '{profile.value}'")
