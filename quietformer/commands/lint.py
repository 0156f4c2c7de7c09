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
    json_file: Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write the findings.")] = None,
    html_file: Annotated[Path | None, typer.Option("--html", metavar="FILE", help="Write them as a page.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace existing files.")] = False,
) -> None:
    """Check a quantized graph against its rules.

    Says which node breaks which rule, and what to do. Exits 1 when there are findings.

    Example: quietformer lint model.int8.onnx --profile tensorrt --html lint.html
    """
    import json

    from deploy.files import refuse_existing, refuse_own_input, write_atomically
    from deploy.graphs.model_hash import model_sha256
    from deploy.quantization.lint import lint as find
    from quietformer.gate import GateFailedError
    from quietformer.report.lint_page import lint_headline, lint_to_dict, lint_to_html

    for file in filter(None, (json_file, html_file)):
        refuse_own_input(file, [model])
        refuse_existing(file, force=force)
    findings = find(model, profile.value)
    for finding in findings:
        typer.echo(str(finding))
    if json_file is not None or html_file is not None:
        sha256 = model_sha256(model)
        if json_file is not None:
            content = lint_to_dict(findings, profile=profile.value, graph_sha256=sha256)
            write_atomically(json_file, json.dumps(content, indent=1) + "\n")
        if html_file is not None:
            page = lint_to_html(findings, name=model.name, profile=profile.value, graph_sha256=sha256)
            write_atomically(html_file, page)
    if findings:
        raise GateFailedError(f"{model}: {lint_headline(findings, profile=profile.value)}")
    typer.echo(f"{model}: no findings for profile '{profile.value}'")
