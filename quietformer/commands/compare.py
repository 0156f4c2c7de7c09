"""``quietformer compare``: a candidate against a baseline on a task, with a verdict."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from quietformer.commands.backend_options import BenchBackend, usual_backend_told
from quietformer.commands.task_options import Limit, MaxDrop, MinScore, Seed, Task, TaskData, Window, check_bounds


def compare(
    *,
    baseline: Annotated[
        Path,
        typer.Option(
            "--baseline", metavar="ARTIFACT|CHECKPOINT", help="Float graph or engine, or a checkpoint folder."
        ),
    ],
    candidates: Annotated[
        list[Path], typer.Option("--candidate", metavar="ARTIFACT", help="What is judged; repeat for several.")
    ],
    task: Task,
    data: TaskData,
    max_drop: MaxDrop = None,
    min_score: MinScore = None,
    backend: Annotated[
        BenchBackend | None,
        typer.Option(
            "--backend",
            help="Where candidates run: openvino by default, onnxruntime for integers on x86 without VNNI. The baseline runs on onnxruntime, an engine on its own.",
        ),
    ] = None,
    limit: Limit = None,
    seed: Seed = None,
    window: Window = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Also write the report here.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing file.")] = False,
) -> None:
    """Judge candidates against a float model.

    Exits 1 when a candidate loses more than --max-drop, or scores less than --min-score.

    Example: quietformer compare --baseline model.onnx --candidate model.int8.onnx --task sts --data sts-dev.csv --max-drop 0.004

    Example: quietformer compare --baseline engines/float16 --candidate engines/int8 --backend tensorrt --task sts --data sts-dev.csv

    Example: quietformer compare --baseline vit.onnx --candidate vit.int8.onnx --task outputs --data pixels.npz --min-score 30
    """
    import json
    from functools import partial

    from deploy.backends.artifact_facts import artifact_facts
    from deploy.backends.opening import require_devices
    from deploy.backends.task_runner import open_for_tasks
    from deploy.files import refuse_existing, refuse_own_input, write_atomically
    from deploy.measuring.compare import Contender
    from deploy.measuring.compare import compare as evaluate
    from quietformer.baseline_graph import check_comparable, float_graph_of
    from quietformer.gate import GateFailedError
    from quietformer.graph_data.task_opening import open_task
    from quietformer.progress import progress
    from quietformer.report.tables import accuracy_table
    from quietformer.terminal_table import terminal_table

    check_bounds(task, max_drop=max_drop, min_score=min_score)
    runtime = backend.value if backend is not None else usual_backend_told(candidates)
    require_devices([runtime])
    if json_file is not None:
        refuse_own_input(json_file, [baseline, *candidates, data])
        refuse_existing(json_file, force=force)
    with progress("compare") as job, float_graph_of(baseline, job=job) as graph:
        facts = {candidate: artifact_facts(candidate) for candidate in candidates}
        own = artifact_facts(graph)
        check_comparable(baseline, own.info, {path: its.info for path, its in facts.items()})
        place = own.engine_backend or "onnxruntime"
        require_devices([place])
        with open_for_tasks(place, graph) as float_model:
            opened, examples = open_task(
                task.value, graph, data, float_infer=float_model.infer, limit=limit, seed=seed, window=window
            )
        report = evaluate(
            Contender(
                arm=baseline.name,
                backend=place,
                precision=own.precision or own.info.dtype,
                artifacts=(partial(open_for_tasks, place, graph),),
            ),
            [
                Contender(
                    arm=candidate.name,
                    backend=runtime,
                    precision=its.precision or (its.info.bits or "W8A8" if its.info.profile else "float"),
                    profile=its.info.profile,
                    artifacts=(partial(open_for_tasks, runtime, candidate),),
                )
                for candidate, its in facts.items()
            ],
            opened,
            max_drop=max_drop,
            min_score=min_score,
            data=data,
            examples=examples,
            progress=job.tell,
        )
    typer.echo(terminal_table(accuracy_table(report)))
    if json_file is not None:
        write_atomically(json_file, json.dumps(report.to_dict(), indent=1) + "\n")
    if not report.passed:
        failed = [row.arm for row in report.rows if row.passed is False]
        bound = (
            f"has less {report.metric} than {min_score:g}"
            if min_score is not None
            else f"lost more {report.metric} than {max_drop}"
        )
        raise GateFailedError(f"{', '.join(failed)} {bound}")
