"""Stage ``lint``: the made model's W8A8 graphs against the rules of their profiles."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from deploy.files import write_atomically
from deploy.lint import lint
from quietformer.progress import Job
from quietformer.recipe import Recipe
from quietformer.stages.layout import LINT, int8_graph, made
from quietformer.stages.stage import Run, Stage


class LintGraphs(Stage):
    """Findings per profile; any finding fails the run at its end."""

    name = "lint"
    title = "rules of every profile"
    tools = ("onnx",)

    def settings(self, recipe: Recipe) -> dict[str, Any]:
        """The profiles."""
        return {"profiles": list(recipe.quantize.profiles)}

    def inputs(self, recipe: Recipe) -> Sequence[str]:
        """The W8A8 graphs."""
        return tuple(int8_graph(made(recipe), recipe, profile) for profile in recipe.quantize.profiles)

    def outputs(self, recipe: Recipe) -> Sequence[str]:
        """One JSON file."""
        return (LINT,)

    def work(self, run: Run, job: Job) -> str:
        """Lint each graph for its own profile."""
        findings = {
            profile: [
                asdict(finding)
                for finding in lint(run.path(int8_graph(made(run.recipe), run.recipe, profile)), profile)
            ]
            for profile in run.recipe.quantize.profiles
        }
        write_atomically(run.path(LINT), json.dumps(findings, indent=1) + "\n")
        return ", ".join(f"{profile} {len(found) or 'clean'}" for profile, found in findings.items())
