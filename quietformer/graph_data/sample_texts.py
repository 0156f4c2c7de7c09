"""Texts for a measurement that does not depend on them: the user's, or the sample that ships with the program."""

from __future__ import annotations

from pathlib import Path

from deploy.data.text_data import read_texts

_ENOUGH = 64


def texts_or_sample(data: Path | str | None) -> list[str]:
    """A few dozen texts.

    Args:
        data: file, folder or ``hf:`` name; ``None`` takes the shipped sample.

    Raises:
        FileNotFoundError: no such path.
        ImportError: no data is given, and the sample is not installed: a runtime image has none.
        ValueError: nothing to read there.
    """
    if data is not None:
        return read_texts(data, limit=_ENOUGH, allow_evaluation_split=True)
    try:
        from calibration_data.sets import SAMPLE_FILE  # noqa: PLC0415  # not in a runtime image
    except ModuleNotFoundError as error:
        raise ImportError("this installation has no sample texts; give --data with texts of your own") from error
    return read_texts(SAMPLE_FILE, limit=_ENOUGH)
