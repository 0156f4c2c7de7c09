"""Sentences are taken out of documentation text; code, lists, tables and parameters are not."""

from __future__ import annotations

import inspect

import pytest

from calibration_data.prose import is_english_sentence, sentences_of

DOCSTRING = inspect.cleandoc(
    """Return the nearest neighbour of each point in the tree.

    The tree is searched from the root, and branches that cannot hold a nearer
    point are skipped. See ``query`` for a version that returns *all* of them!
    Use this with care, e.g. in loops that run for a very long time.

    Parameters
    ----------
    points : array_like
        An array of points that is searched for in the whole tree.
    k : int
        The number of neighbours to return for each of the points.

    Args:
        other: The description of an argument is not prose of its own.

    - This item of a list is not taken although it is a sentence.
    1. Neither is this item of a numbered list of the same kind.

    >>> tree.query([1, 2]) # This is an example and not a sentence at all.

    .. note:: This is a directive, and what it says is not taken either.

    The value x_max = tree.max() is what the call returns to its caller.
    """
)


def test_prose_is_taken_and_everything_else_left() -> None:
    assert list(sentences_of(DOCSTRING)) == [
        "Return the nearest neighbour of each point in the tree.",
        "The tree is searched from the root, and branches that cannot hold a nearer point are skipped.",
        "See query for a version that returns all of them!",
    ]


def test_an_abbreviation_does_not_end_a_sentence() -> None:
    text = "The rule holds for most of the cases, cf. The note that is at the end of the page. It is short."
    assert list(sentences_of(text)) == [
        "The rule holds for most of the cases, cf. The note that is at the end of the page."
    ]


@pytest.mark.parametrize(
    "text",
    [
        "Too short to be of use.",
        "Word after word is added to this sentence until it is far too long to be of any use, " * 4 + "and it ends.",
        "This one has no end and so it is a heading or the first half of something",
        "this one does not begin with a capital letter and is not taken for that reason.",
        "This calls the_function_of_that_name with what the user has given it.",
        "This is the camelCase name of a thing that the user has given to it.",
        "This is the os.path of a thing that the user has given to it before.",
        "Ein Satz in einer anderen Sprache wird nicht genommen, obwohl er ein Satz ist.",
        "Größe and naïveté are words that a plain tokenizer would split apart in it.",
        "THIS IS WARNING TEXT IN CAPITALS AND IT IS NOT TAKEN FOR THAT REASON.",
        "Numbers 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 are the content of this one.",
    ],
)
def test_what_is_no_plain_english_sentence_is_refused(text: str) -> None:
    assert not is_english_sentence(text)


def test_punctuation_of_prose_is_welcome() -> None:
    assert is_english_sentence('If it isn\'t there (and it may not be), the value of 3 is used; see "Notes".')
