"""Stage ``lint``: the made model's W8A8 graphs against the rules of their profiles."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from deploy.files import write_atomically
from deploy.quantization.lint import lint
from quietformer.progress import Job
from quietformer.recipe.recipe import Recipe
from quietformer.stages.layout import (
    LINT,
    float16_profiles,
    float16_quantized_graph,
    int8_graph,
    made,
)
from quietformer.stages.stage import Run, Stage


class LintGraphs(Stage):
    """Findings per profile; any finding fails the run at its end."""

    name = "lint"
    title = "rules of every profile"
    tools = ("onnx",)

    def settings(self, recipe: Recipe) -> dict[str, Any]:
        """What is looked at."""
        return {"profiles": list(_graphs(recipe))}

    def inputs(self, recipe: Recipe) -> Sequence[str]:
        """The W8A8 graphs."""
        return tuple(graph for graph, _ in _graphs(recipe).values())

    def outputs(self, recipe: Recipe) -> Sequence[str]:
        """One JSON file."""
        return (LINT,)

    def work(self, run: Run, job: Job) -> str:
        """Lint each graph for its own profile."""
        findings = {
            name: [asdict(finding) for finding in lint(run.path(graph), profile)]
            for name, (graph, profile) in _graphs(run.recipe).items()
        }
        write_atomically(run.path(LINT), json.dumps(findings, indent=1) + "\n")
        return ", ".join(f"{name} {len(found) or 'clean'}" for name, found in findings.items())


def _graphs(recipe: Recipe) -> dict[str, tuple[str, str]]:
    """Graph and profile of each look, by the name it has in the findings."""
    variant = made(recipe)
    graphs: dict[str, tuple[str, str]] = {
        profile: (int8_graph(variant, recipe, profile), profile) for profile in recipe.quantize.profiles
    }
    for profile in float16_profiles(recipe):
        graphs[f"{profile} in float16"] = (float16_quantized_graph(variant, profile), profile)
    return graphs
