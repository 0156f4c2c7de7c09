"""Stage ``report``: everything the stages left, as ``report.json``, Markdown and one HTML page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from deploy.files import write_atomically
from quietformer.progress import Job
from quietformer.recipe.recipe import Recipe
from quietformer.stages.layout import OTHER_ARMS, REPORT
from quietformer.stages.stage import Run, Stage

REPORT_JSON = f"{REPORT}/report.json"
REPORT_PAGE = f"{REPORT}/index.html"
_REPORT_TEXT = f"{REPORT}/report.md"


class WriteReport(Stage):
    """The report of a run, from what its stages left behind."""

    name = "report"
    title = "report"
    tools = ("matplotlib", "Jinja2")

    def __init__(self, stages_before: Sequence[Stage]) -> None:
        self._stages_before = tuple(stages_before)

    def settings(self, recipe: Recipe) -> dict[str, Any]:
        """The whole recipe is shown."""
        return recipe.values()

    def inputs(self, recipe: Recipe) -> Sequence[str]:
        """Whatever the stages that were not skipped leave, and records of other arms where there are any."""
        left = [
            name
            for stage in self._stages_before
            if stage.reason_to_skip(recipe) is None
            for name in stage.outputs(recipe)
        ]
        return [*left, f"{OTHER_ARMS}/*.json"]

    def outputs(self, recipe: Recipe) -> Sequence[str]:
        """Three files."""
        return (REPORT_JSON, _REPORT_TEXT, REPORT_PAGE)

    def work(self, run: Run, job: Job) -> str:
        """Gather and write."""
        from quietformer.report.content import save_report
        from quietformer.report.markdown import to_markdown
        from quietformer.report.page import to_html
        from quietformer.stages.other_arms import with_other_arms
        from quietformer.stages.report_gathering import gather_report

        job.tell("gathering")
        report = with_other_arms(gather_report(run), run.folder)
        save_report(report, run.path(REPORT_JSON))
        write_atomically(run.path(_REPORT_TEXT), to_markdown(report))
        job.tell("drawing")
        write_atomically(run.path(REPORT_PAGE), to_html(report))
        return str(run.path(REPORT_PAGE))
