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
Seed = Annotated[int | None, typer.Option("--seed", min=0, help="Of the draw of --limit; 0 by default.")]
Window = Annotated[int | None, typer.Option("--window", min=2, help="Tokens of a window of task clm; 512 by default.")]
