"""Curves of a training run from the log of scalars that the loop leaves behind (``{"kind": "step", ...}`` lines)."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

MAX_POINTS = 300
"""Steps kept for a report; evaluations are all kept."""


def read_history(log: Path, *, score: str = "simulated") -> tuple[dict[str, float], ...]:
    """Points for :attr:`Arm.history`, in the order of the log, at most ``MAX_POINTS`` of them steps.

    A step gives ``step``, ``loss``, its parts by name and ``largest_activation``; an evaluation gives ``step``,
    its score and its further figures. Values that were not finite are left out.

    Args:
        log: the log.
        score: what an evaluation's score is called: of a retrofit it is the simulated integer model's.

    Raises:
        FileNotFoundError: no such log.
        ValueError: a line is not a JSON object with a step; its number is named.
    """
    if not log.is_file():
        raise FileNotFoundError(f"no training log at {log}")
    steps, points = [], []
    for number, line in enumerate(log.read_text(encoding="utf-8").splitlines(), start=1):
        try:
            entry = json.loads(line)
            kind, step = entry["kind"], float(entry["step"])
        except (json.JSONDecodeError, KeyError, TypeError) as error:
            raise ValueError(f"line {number} of {log} is not an entry of a training log") from error
        if kind == "step":
            steps.append(_finite({"step": step, "loss": entry.get("loss"), **entry.get("parts", {}), **_peak(entry)}))
        elif kind == "evaluation":
            figures = {key: value for key, value in entry.items() if key not in {"kind", "step", "score"}}
            points.append(_finite({"step": step, score: entry.get("score"), **figures}))
    return tuple(sorted([*_thinned(steps), *points], key=lambda point: point["step"]))


def _peak(entry: dict[str, Any]) -> dict[str, Any]:
    return {"largest_activation": entry.get("largest_activation")}


def _finite(values: dict[str, Any]) -> dict[str, float]:
    return {key: float(value) for key, value in values.items() if isinstance(value, int | float)}


def _thinned(steps: list[dict[str, float]]) -> Iterable[dict[str, float]]:
    """Every n-th step and the last one."""
    stride = -(-len(steps) // MAX_POINTS) or 1
    kept = steps[::stride]
    return kept if not steps or kept[-1] is steps[-1] else [*kept, steps[-1]]
