"""Options of a task that several commands share: what accuracy is, on which data, and on how much of it."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer


class TaskChoice(StrEnum):
    """Tasks; ``quietformer.graph_data.task_opening`` opens them."""

    FIDELITY = "fidelity"
    STS = "sts"
    MLM = "mlm"
    CLM = "clm"
    CLASSIFY = "classify"
    IMAGE = "image"
    OUTPUTS = "outputs"


Task = Annotated[TaskChoice, typer.Option("--task", help="How accuracy is judged.")]
TaskData = Annotated[str, typer.Option("--data", metavar="PATH", help="The task's data.")]
Limit = Annotated[
    int | None,
    typer.Option(
        "--limit", min=1, help="Use so many examples, drawn at random from all; of task clm the first so many windows."
    ),
]
MaxDrop = Annotated[
    float | None,
    typer.Option(
        "--max-drop",
        metavar="D",
        help="Largest loss that passes: of sts and fidelity in Spearman's correlation (0.004), of classify and image in accuracy from 0 to 1 (0.01), of mlm and clm in perplexity; not for outputs.",
    ),
]
MinScore = Annotated[
    float | None,
    typer.Option(
        "--min-score",
        metavar="S",
        help="Lowest score that passes, instead of --max-drop: of task outputs in dB (40); not for mlm and clm.",
    ),
]
Seed = Annotated[int | None, typer.Option("--seed", min=0, help="Of the draw of --limit; 0 by default.")]
Window = Annotated[int | None, typer.Option("--window", min=2, help="Tokens of a window of task clm; 512 by default.")]


def check_bounds(task: TaskChoice, *, max_drop: float | None, min_score: float | None) -> None:
    """Refuse a bound that means nothing for a task, before anything is opened.

    Raises:
        ValueError: both bounds, or one that the task has no use for.
    """
    if max_drop is not None and min_score is not None:
        raise ValueError("give --max-drop or --min-score, not both")
    if max_drop is not None and task is TaskChoice.OUTPUTS:
        raise ValueError(
            "--max-drop has no meaning for task outputs: the float graph follows itself exactly; "
            "give --min-score, the lowest SQNR in dB that passes"
        )
    if min_score is not None and task in (TaskChoice.MLM, TaskChoice.CLM):
        raise ValueError(
            f"--min-score has no meaning for task {task.value}: less perplexity is better; give --max-drop"
        )
