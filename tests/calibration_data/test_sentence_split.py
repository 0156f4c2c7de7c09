from __future__ import annotations

from calibration_data.sentence_split import sentences_of_texts, split_sentences


def test_sentences_end_at_stops_before_a_capital_or_a_digit() -> None:
    text = 'He said "No." In 1990 it ended! (It did.) 3 men came? Yes.'
    assert list(split_sentences(text)) == ['He said "No."', "In 1990 it ended!", "(It did.)", "3 men came?", "Yes."]


def test_abbreviations_and_initials_end_no_sentence() -> None:
    text = "Then J. R. Smith left, e.g. Monday. Dr. No stayed at St. Ives."
    assert list(split_sentences(text)) == ["Then J. R. Smith left, e.g. Monday.", "Dr. No stayed at St. Ives."]


def test_joined_sentences_are_the_text() -> None:
    text = "One ends here. Two ends there! And a third one has no end"
    assert " ".join(split_sentences(text)) == text


def test_short_and_run_on_sentences_are_left_out() -> None:
    kept = "This sentence is neither short nor long."
    assert list(sentences_of_texts([f"Too short. {kept} {'Word ' * 80}end."])) == [kept]
