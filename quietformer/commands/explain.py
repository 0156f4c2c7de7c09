"""``quietformer explain``: which sites of a graph cost accuracy, and the few that must stay float."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from quietformer.commands.quantization_options import (
    USUAL_WIDTHS,
    Calibration,
    Profile,
    ProfileToWrite,
    WeightRanges,
    Weights,
    Widths,
)
from quietformer.commands.site_options import (
    Bmms,
    Exclude,
    GatePath,
    Include,
    ResidualAdds,
    SwitchChoice,
    listed_files,
    site_choice,
)
from quietformer.commands.task_options import Limit, MaxDrop, MinScore, Seed, Task, TaskData, Window, check_bounds


def explain(
    model: Annotated[Path, typer.Argument(metavar="MODEL.onnx", help="Float graph, as exported.")],
    *,
    calibration: Calibration,
    task: Task,
    data: TaskData,
    profile: ProfileToWrite = Profile.TENSORRT,
    weights: WeightRanges = Weights.MINMAX,
    bits: Widths = USUAL_WIDTHS,
    exclude: Exclude = None,
    include: Include = None,
    bmms: Bmms = SwitchChoice.PROFILE,
    residual_adds: ResidualAdds = SwitchChoice.PROFILE,
    gate_path: GatePath = SwitchChoice.PROFILE,
    max_drop: MaxDrop = None,
    min_score: MinScore = None,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="Write these sites for 'quantize --exclude FILE'.")
    ] = None,
    evaluate: Annotated[
        int, typer.Option("--evaluate", min=0, help="Judge so many sites by the whole task, with only them in float.")
    ] = 8,
    largest: Annotated[int, typer.Option("--largest", min=1, help="Keep at most so many sites in float.")] = 32,
    limit: Limit = None,
    seed: Seed = None,
    window: Window = None,
    threads: Annotated[int | None, typer.Option("--threads", min=1, help="Of ONNX Runtime.")] = None,
    json_file: Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write everything found.")] = None,
    html_file: Annotated[Path | None, typer.Option("--html", metavar="FILE", help="Write it as a page.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace existing files.")] = False,
) -> None:
    """Find what integers do to each site, and which must stay float.

    Ranks all sites by what the outputs gain with only that one in float; scores are simulated. A list that was found on some of
    the examples may lose more on all of them: 'quietformer compare' judges it. With --max-drop or --min-score the few sites to keep
    in float are searched. It costs two runs of up to 16 examples per site, and the whole task once for each of --evaluate sites and
    for every step of the search: --limit, --evaluate and --largest make it shorter, --exclude leaves sites out. Exits 1 when no set within --largest passes.

    Example: quietformer explain model.onnx --calibration calibration.json --profile paper --task sts --data sts-dev.csv --max-drop 0.004 --out float-sites.txt
    """
    import json

    from deploy.backends.opening import open_backend
    from deploy.calibration.calibration_cache import CalibrationCache
    from deploy.explanation.explain import ExplainProgress, ExplainSettings
    from deploy.explanation.explain import explain as find
    from deploy.files import refuse_existing, refuse_own_input, write_atomically
    from deploy.quantization.bits import Bits
    from deploy.tasks.score_gate import Gate
    from quietformer.gate import GateFailedError
    from quietformer.graph_data.task_opening import open_task
    from quietformer.progress import progress
    from quietformer.report.explanation_page import explanation_to_html, headline, site_table
    from quietformer.terminal_table import terminal_table

    check_bounds(task, max_drop=max_drop, min_score=min_score)
    gate = Gate(max_drop=max_drop, min_score=min_score)
    if out is not None and gate.is_open:
        raise ValueError("--out has no effect without --max-drop or --min-score: no set of sites is searched")
    lists = listed_files(exclude, include)
    for file in filter(None, (out, json_file, html_file)):
        refuse_own_input(file, [model, calibration, data, *lists])
        refuse_existing(file, force=force)
    choice = site_choice(exclude=exclude, include=include, bmms=bmms, residual_adds=residual_adds, gate_path=gate_path)
    cache = CalibrationCache.load(calibration)
    with progress("explain") as job:
        with open_backend("onnxruntime", model, threads=threads) as float_model:
            opened, examples = open_task(
                task.value, model, data, float_infer=float_model.infer, limit=limit, seed=seed, window=window
            )
        found = find(
            model,
            cache,
            opened,
            profile=profile.value,
            weights=weights.value,
            choice=choice,
            bits=Bits.parse(bits),
            data=data,
            examples=examples,
            settings=ExplainSettings(
                evaluated=evaluate, max_drop=max_drop, min_score=min_score, largest=largest, threads=threads
            ),
            progress=ExplainProgress(tell=job.tell, advance=lambda done, total: job.advance(done, total, "sites")),
        )
    typer.echo(terminal_table(site_table(found)))
    typer.echo(headline(found))
    if examples.used < examples.available:
        typer.echo(
            f"warning: found on {examples.in_words()}; on all of them more may be lost: judge it with 'quietformer compare'",
            err=True,
        )
    if json_file is not None:
        write_atomically(json_file, json.dumps(found.to_dict(), indent=1, allow_nan=False) + "\n")
    if html_file is not None:
        write_atomically(html_file, explanation_to_html(found, name=model.name))
    if not gate.is_open and found.float_sites is None:
        bound = f"loses at most {max_drop}" if min_score is None else f"reaches {min_score:g}"
        raise GateFailedError(f"no set of up to {largest} sites in float {bound} {found.metric}")
    if out is not None:
        if not found.float_sites:
            typer.echo(f"{out} is not written: nothing has to stay float")
        else:
            write_atomically(out, found.exclusion_list())
