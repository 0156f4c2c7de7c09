"""English sentences out of documentation text, without code, signatures, tables, lists of parameters and markup."""

from __future__ import annotations

import re
from collections.abc import Iterator

from calibration_data.sentence_split import LONGEST, SHORTEST, split_sentences

# Markup of prose that carries no meaning of its own: *emphasis*, ``literals``, :role:`targets`.
_ROLE = re.compile(r":[a-z:]+:`~?([^`<>]*)`")
_MARKS = re.compile(r"``([^`]*)``|`([^`]*)`|\*\*?([A-Za-z][^*]*)\*\*?")
_PROSE = re.compile(r"[A-Z][A-Za-z0-9 ,.;:'\"()/%!?&+-]*[.!?]")
_WORD = re.compile(r"[A-Za-z]+(?:['-][A-Za-z]+)*")
# Names of code: snake_case and calls are refused by _PROSE; these are camelCase and dotted names.
_CODE_NAME = re.compile(r"[a-z][A-Z]|[A-Za-z]\.[A-Za-z]|\(\)|\b[A-Za-z]\d+\b")
_LIST_ITEM = re.compile(r"([-*+•]|\d+[.)]|\(?[a-z]\)|:[a-z]+|\.\.|>>>|@|\|)\s?")
_FUNCTION_WORDS = frozenset(
    re.findall(
        r"\w+",
        "a an and are as at be been but by can do does for from has have if in into is it its may must no not of on or "
        "should so such than that the their them then there these they this to used uses was we when where which while "
        "will with would you your",
    )
)


def sentences_of(text: str) -> Iterator[str]:
    """Sentences of a documentation string whose common indentation has been removed."""
    for paragraph in _paragraphs(text):
        plain = _MARKS.sub(lambda match: next(group for group in match.groups() if group is not None), paragraph)
        yield from filter(is_english_sentence, split_sentences(plain))


def is_english_sentence(text: str) -> bool:
    """Whether ``text`` is one sentence of prose: its length, its characters, and enough English function words."""
    if not SHORTEST <= len(text) <= LONGEST or not _PROSE.fullmatch(text) or _CODE_NAME.search(text):
        return False
    tokens = text.split(" ")
    words = _WORD.findall(text)
    if len(words) < 5 or len(words) < 0.8 * len(tokens) or max(map(len, words)) > 24:
        return False
    # Two capitals and more in a row are constants or shouting when they are many.
    if sum(word.isupper() and len(word) > 1 for word in words) > len(words) / 5:
        return False
    function_words = sum(word.lower() in _FUNCTION_WORDS for word in words)
    return function_words >= max(2, len(words) // 6)


def _paragraphs(text: str) -> Iterator[str]:
    """Runs of lines at the left margin, joined; indented ones are code, parameters or lists, and so is what ``::`` opens."""
    lines: list[str] = []
    for line in [*text.splitlines(), ""]:
        if line.strip() and not line[0].isspace() and not (not lines and _LIST_ITEM.match(line)):
            lines.append(line.strip())
            continue
        if lines:
            paragraph = _ROLE.sub(r"\1", " ".join(lines))
            if not _is_listing(lines):
                yield re.sub(r"\s+", " ", paragraph)
        lines = []


def _is_listing(lines: list[str]) -> bool:
    """Whether a paragraph is a heading with its underline, a table, a list or an example."""
    return any(_LIST_ITEM.match(line) or re.fullmatch(r"[=\-~^#*+ |]{3,}", line) for line in lines) or " : " in lines[0]
