"""``quietformer lint``: a Q/DQ graph against the rules of its profile and of TensorRT's parser."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from quietformer.commands.quantization_options import Profile


def lint(
    model: Annotated[Path, typer.Argument(metavar="MODEL.onnx", help="A quantized graph.")],
    *,
    profile: Annotated[
        Profile | None,
        typer.Option("--profile", help="Whose rules; by default the graph's own, of another tool's graph tensorrt's."),
    ] = None,
    every_place: Annotated[
        bool, typer.Option("--all", help="Show every place, not the first few of each cause.")
    ] = False,
    json_file: Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write the findings.")] = None,
    html_file: Annotated[Path | None, typer.Option("--html", metavar="FILE", help="Write them as a page.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace existing files.")] = False,
) -> None:
    """Check a quantized graph against its rules.

    Says which rule is broken how often, what to do and the first nodes; files have all. Exits 1 when there are findings.

    Example: quietformer lint model.int8.onnx --html lint.html
    """
    import json

    from deploy.files import refuse_existing, refuse_own_input, write_atomically
    from deploy.graphs.model_hash import model_sha256
    from deploy.quantization.lint import lint as find
    from deploy.quantization.lint import own_profile
    from quietformer.gate import GateFailedError
    from quietformer.report.lint_page import lint_headline, lint_to_dict, lint_to_html
    from quietformer.report.lint_text import lint_lines

    for file in filter(None, (json_file, html_file)):
        refuse_own_input(file, [model])
        refuse_existing(file, force=force)
    if profile is not None:
        rules, why = profile.value, "as asked for"
    elif (own := own_profile(model)) is not None:
        rules, why = own, "its own"
    else:
        rules, why = Profile.TENSORRT.value, "as its metadata names none"
    findings = find(model, rules)
    for line in lint_lines(findings, every_place=every_place):
        typer.echo(line)
    if json_file is not None or html_file is not None:
        sha256 = model_sha256(model)
        if json_file is not None:
            content = lint_to_dict(findings, profile=rules, graph_sha256=sha256)
            write_atomically(json_file, json.dumps(content, indent=1) + "\n")
        if html_file is not None:
            page = lint_to_html(findings, name=model.name, profile=rules, graph_sha256=sha256)
            write_atomically(html_file, page)
    if findings:
        raise GateFailedError(f"{model}: {lint_headline(findings, profile=f'{rules}, {why}')}")
    typer.echo(f"{model}: no findings for profile '{rules}', {why}")
