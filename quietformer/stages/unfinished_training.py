"""Unfinished training belongs to one set of settings and data: it is gone on with, refused, or thrown away by ``--force``."""

from __future__ import annotations

import json
import shutil

from deploy.files import write_atomically
from quietformer.manifest import describe_change, hash_paths
from quietformer.stages.layout import TRAINING
from quietformer.stages.stage import Run, Stage

_MADE_FOR = f"{TRAINING}/made-for.json"


def claim_training(run: Run, stage: Stage) -> None:
    """Go on with what lies in ``training/`` only if it is this stage's, for these settings.

    Raises:
        FileExistsError: it belongs to other settings or other data, and ``--force`` is not set.
    """
    made_for = {
        "settings": stage.settings(run.recipe),
        "made_from": stage.sources(run.recipe) | hash_paths(run.folder, stage.inputs(run.recipe)),
    }
    marker = run.path(_MADE_FOR)
    if marker.is_file():
        change = describe_change(json.loads(marker.read_text(encoding="utf-8")), made_for)
        if change and not run.force:
            raise FileExistsError(
                f"{marker.parent} holds an unfinished stage '{stage.name}' with other settings: {change}.\n"
                "Pass --force to throw it away, or another --out."
            )
        if change:
            shutil.rmtree(marker.parent)
    write_atomically(marker, json.dumps(made_for, indent=1) + "\n")
