"""Batch and length of token inputs as people write them: ``1x128``."""

from __future__ import annotations

MAX_TOKENS = 2**24
"""Tokens in one batch; beyond, a shape is a slip of the pen and no memory would hold its activations."""


def parse_shape(text: str) -> tuple[int, int]:
    """Batch and length of ``BxT``.

    Raises:
        ValueError: the text has another form, or asks for more than :data:`MAX_TOKENS`.
    """
    batch, separator, length = text.partition("x")
    if not (separator and batch.isdecimal() and length.isdecimal() and int(batch) and int(length)):
        raise ValueError(f"shape '{text}' is not BATCHxLENGTH, for example 1x128")
    if int(batch) * int(length) > MAX_TOKENS:
        raise ValueError(f"shape '{text}' is too large: expected at most {MAX_TOKENS} tokens")
    return int(batch), int(length)
