"""Texts for a measurement that does not depend on them: the user's, or the sample that ships with the program."""

from __future__ import annotations

from pathlib import Path

from calibration_data.sets import SAMPLE_FILE
from deploy.data.text_data import read_texts

_ENOUGH = 64


def texts_or_sample(data: Path | str | None) -> list[str]:
    """A few dozen texts.

    Args:
        data: file, folder or ``hf:`` name; ``None`` takes the shipped sample.

    Raises:
        FileNotFoundError: no such path.
        ValueError: nothing to read there.
    """
    if data is not None:
        return read_texts(data, limit=_ENOUGH, allow_evaluation_split=True)
    return read_texts(SAMPLE_FILE, limit=_ENOUGH)
