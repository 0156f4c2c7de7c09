"""What a diagnosis says: typed at the top, plain dictionaries of figures below, as the measuring code in ``train`` writes them.

Only the dictionaries are read: a page is rendered where no torch is installed.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from deploy.files import write_atomically
from deploy.machine import MachineFacts
from quietformer.report.content import ModelFacts

SCHEMA_VERSION = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Diagnosis:
    """Everything that ``quietformer inspect`` found."""

    model: ModelFacts
    created: str
    """UTC time in ISO 8601."""
    machine: MachineFacts
    data: dict[str, Any]
    """``source`` as the user called it, and ``examples``."""
    outliers: dict[str, Any]
    """``train.observation.outlier_report.OutlierReport.to_dict()``."""
    attention: dict[str, Any]
    """``train.observation.attention_statistics.AttentionStatistics.to_dict()``."""
    sequence: dict[str, Any]
    """``tokens`` of the shown sequence and which of them ``is_delimiter`` (``None`` for an image), and ``train.observation.head_pictures.SequencePicture.to_dict()``."""
    token_texts: dict[str, str] = field(default_factory=dict)
    """Of the token ids that hold outliers."""
    delimiters: list[int] = field(default_factory=list)
    """Token ids of special tokens, punctuation and line breaks."""
    patches: list[int] | None = None
    """Rows and columns of patches of an image."""
    gradients: dict[str, Any] | None = None
    """``loss`` in words, and ``layers``: ``train.observation.softmax_gradient.SoftmaxGradient.to_dict()`` each."""
    schema_version: int = SCHEMA_VERSION

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return asdict(self)


def save_diagnosis(diagnosis: Diagnosis, path: Path) -> None:
    """Write it as JSON; a value that JSON cannot hold (NaN, infinity) is a ``ValueError``."""
    write_atomically(path, json.dumps(diagnosis.to_dict(), indent=1, allow_nan=False) + "\n")
