"""What stage ``compare`` judges where a run has engines: float and INT8 of each model, on their backend."""

from __future__ import annotations

from functools import partial

from deploy.backends.task_runner import open_for_tasks
from deploy.measuring.compare import Contender
from quietformer.stages.layout import GPU_PROFILE, engine, float_engine, variants
from quietformer.stages.stage import Run


def engine_contenders(run: Run) -> list[Contender]:
    """The float engine of the original (or of the one model that there is) first; one calibration subset, that of the artifact."""
    backend = run.recipe.backend
    floats = "float16" if run.recipe.export.float16 else "float32"
    return [
        *(
            Contender(
                arm=variant,
                backend=backend,
                precision=floats,
                artifacts=(partial(open_for_tasks, backend, run.path(float_engine(variant))),),
                gated=False,
            )
            for variant in variants(run.recipe)
        ),
        *(
            Contender(
                arm=variant,
                backend=backend,
                profile=GPU_PROFILE,
                artifacts=(partial(open_for_tasks, backend, run.path(engine(variant))),),
                gated=False,
            )
            for variant in variants(run.recipe)
        ),
    ]
