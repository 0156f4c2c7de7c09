"""The one page layout: what any report or diagnosis fills in, and the HTML that needs nothing else.

Only this module imports jinja2.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources

from deploy.machine import MachineFacts
from quietformer.report.content import ModelFacts
from quietformer.report.figures.plot import Plot
from quietformer.report.highlights import Highlight
from quietformer.report.number_text import TIMES
from quietformer.report.story import NOTHING, StoryRow, Verdict
from quietformer.report.tables import Table


@dataclass(frozen=True, kw_only=True, slots=True)
class Section:
    """One part of the page; tables that only some readers want are folded."""

    anchor: str
    title: str
    lead: str = ""
    plots: Sequence[Plot] = ()
    table: Table | None = None
    folded: Table | None = None
    folded_title: str = ""
    warnings: Sequence[str] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Page:
    """Everything a page shows."""

    kind: str
    """``report`` or ``diagnosis``."""
    name: str
    """Of the model, or of the run."""
    facts: Sequence[str]
    """One line below the headline."""
    created: str
    headline: str
    verdict: Verdict | None = None
    """Its outcome stands before the headline."""
    notes: Sequence[str] = ()
    highlights: Sequence[Highlight] = ()
    story: Sequence[StoryRow] = ()
    sections: Sequence[Section]
    machine: Table
    settings: str = ""
    """As JSON, folded."""


def model_line(model: ModelFacts, machine: MachineFacts) -> list[str]:
    """The usual facts below a headline."""
    return [
        model.family,
        f"{model.num_layers} layers {TIMES} {model.hidden_size}",
        f"{model.num_parameters:,} parameters",
        f"{machine.cpu}, {machine.num_cores} cores",
    ]


def render(page: Page) -> str:
    """The page as HTML.

    Raises:
        ImportError: jinja2 is not installed.
    """
    try:
        import jinja2  # noqa: PLC0415
    except ImportError as error:
        raise ImportError("the HTML report needs jinja2: pip install 'quietformer[report]'") from error
    environment = jinja2.Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    folder = resources.files("quietformer.report")
    template = environment.from_string((folder / "page.html.j2").read_text(encoding="utf-8"))
    return template.render(page=page, style=(folder / "page.css").read_text(encoding="utf-8"), nothing=NOTHING)
