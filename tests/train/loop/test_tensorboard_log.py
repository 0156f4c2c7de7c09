"""TensorBoard scalars, read back."""

from pathlib import Path

import pytest

from train.loop.progress import Evaluation, StepReport
from train.loop.tensorboard_log import TensorBoardLog, Watchers


def _report(step: int, loss: float) -> StepReport:
    return StepReport(
        step=step,
        steps=9,
        loss=loss,
        parts={"penalty": 0.5},
        largest_activation=None,
        learning_rate=0.1,
        gradient_norm=1.0,
        rows_per_second=10.0,
    )


def test_scalars_of_a_resumed_run_replace_those_beyond_its_checkpoint(tmp_path: Path) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    first = Watchers([TensorBoardLog(tmp_path)])
    first.on_start(step=0, steps=9)
    for step in range(1, 5):
        first.on_step(_report(step, loss=float(step)))
    first.on_evaluation(Evaluation(score=-1.0, figures={"float_perplexity": 7.0}), step=4, is_best=True)
    again = TensorBoardLog(tmp_path)
    again.on_start(step=2, steps=9)
    again.on_step(_report(3, loss=30.0))

    events = accumulator.EventAccumulator(str(tmp_path))
    events.Reload()
    assert [(event.step, event.value) for event in events.Scalars("train/loss")] == [(1, 1.0), (2, 2.0), (3, 30.0)]
    assert events.Scalars("train/penalty")[0].value == 0.5
    assert "train/largest_activation" not in events.Tags()["scalars"]
