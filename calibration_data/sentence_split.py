"""Running text into sentences."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

SHORTEST, LONGEST = 30, 300
"""Bounds of a sentence in characters, for those who want sentences that say something and are no run-on."""

_END = re.compile(r"(?<=[.!?])[\"')\]]*\s+(?=[\"'(\[]?[A-Z0-9])")
_ABBREVIATION = re.compile(r"\b(e\.g|i\.e|etc|cf|vs|resp|Fig|No|al|approx|Dr|Mr|Mrs|Ms|St|Jr|Sr|[A-Z])\.$")


def split_sentences(text: str) -> Iterator[str]:
    """Sentences of one paragraph, in order; abbreviations and initials do not end one."""
    pieces: list[str] = []
    start = 0
    for match in _END.finditer(text):
        piece = text[start : match.end()].rstrip()
        if _ABBREVIATION.search(piece):
            continue
        pieces.append(piece)
        start = match.end()
    pieces.append(text[start:].strip())
    yield from (piece for piece in pieces if piece)


def sentences_of_texts(texts: Iterable[str]) -> Iterator[str]:
    """Every sentence of :data:`SHORTEST` to :data:`LONGEST` characters in some texts."""
    for text in texts:
        yield from (sentence for sentence in split_sentences(text) if SHORTEST <= len(sentence) <= LONGEST)
