"""What a stage is, and the run directory it works in."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from quietformer.progress import Job
from quietformer.recipe.recipe import Recipe


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """A recipe and the directory that its artifacts go to."""

    recipe: Recipe
    folder: Path
    force: bool = False
    """Whether unfinished work for other settings may be thrown away."""

    def path(self, name: str) -> Path:
        """An artifact by its name, relative to the run directory."""
        return self.folder / name


class Stage(ABC):
    """One step of a run. Names of inputs and outputs are relative to the run directory; a folder means its files.

    A stage that is run again replaces its own outputs; whether it may is the pipeline's decision.
    """

    name: str
    """As in ``manifest.json`` and in messages."""
    title: str
    """What it does, for people."""
    tools: tuple[str, ...] = ()
    """Distributions whose versions are recorded."""

    @abstractmethod
    def settings(self, recipe: Recipe) -> dict[str, Any]:
        """What the recipe says to this stage, as plain values."""

    def sources(self, recipe: Recipe) -> dict[str, str]:
        """sha256 of what it reads from outside the run directory, by name."""
        return {}

    def inputs(self, recipe: Recipe) -> Sequence[str]:
        """Artifacts of earlier stages it reads."""
        return ()

    @abstractmethod
    def outputs(self, recipe: Recipe) -> Sequence[str]:
        """What it leaves in the run directory."""

    def reason_to_skip(self, recipe: Recipe) -> str | None:
        """Why there is nothing to do, None when there is."""
        return None

    @abstractmethod
    def work(self, run: Run, job: Job) -> str:
        """Do it; a few words on the outcome."""

    def clean_up(self, run: Run) -> None:  # noqa: B027 - most stages have nothing to remove
        """Remove what only an interrupted stage needs; called once the artifacts are recorded, and again on a skip."""
