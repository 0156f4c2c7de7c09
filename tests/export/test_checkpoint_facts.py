"""What an export reads of a checkpoint beyond its weights."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from export.checkpoint_facts import integer_type, read_bare_tokenizer, read_facts
from tests.export.tiny_checkpoints import tiny_model, write_pooling, write_tokenizer
from tests.export.tiny_decoders import tiny_decoder


def test_positions_of_a_roberta_start_after_its_padding_index(tmp_path: Path) -> None:
    model = tiny_model(architecture="RobertaModel", pad_token_id=1, type_vocab_size=1)
    facts = read_facts(model, tmp_path)
    assert (facts.max_length, facts.pad_token_id, facts.token_types) == (46, 1, False)


@pytest.mark.parametrize(("mode", "pooling"), [("mean_tokens", "mean"), ("cls_token", "cls")])
def test_pooling_is_what_the_folder_says(tmp_path: Path, mode: str, pooling: str) -> None:
    write_pooling(tmp_path, mode)
    assert read_facts(tiny_model(num_layers=1), tmp_path).pooling == pooling


def test_a_head_that_cannot_be_exported_is_named(tmp_path: Path) -> None:
    model = tiny_model(architecture="BertForTokenClassification", num_layers=1)
    with pytest.raises(ValueError, match="is a BertForTokenClassification; expected one that ends in Model, ForMasked"):
        read_facts(model, tmp_path)


def test_a_decoder_is_causal_and_has_the_positions_of_its_config(tmp_path: Path) -> None:
    facts = read_facts(tiny_decoder("llama"), tmp_path)
    assert (facts.task, facts.causal, facts.max_length, facts.pad_token_id) == ("text-generation", True, 48, 1)
    assert not read_facts(tiny_model(num_layers=1), tmp_path).causal


def test_a_decoder_that_classifies_is_refused(tmp_path: Path) -> None:
    model = tiny_decoder("llama", architecture="LlamaForSequenceClassification")
    with pytest.raises(
        ValueError, match=r"LlamaForSequenceClassification; of decoders, the bare model and the language"
    ):
        read_facts(model, tmp_path)


def test_a_tokenizer_loses_truncation_and_padding_only(tmp_path: Path) -> None:
    write_tokenizer(tmp_path / "tokenizer.json")
    before = json.loads((tmp_path / "tokenizer.json").read_text())
    assert json.loads(read_bare_tokenizer(tmp_path)) == before | {"truncation": None, "padding": None}
    assert before["truncation"]
    assert before["padding"]


@pytest.mark.parametrize("content", ["{", "[]", "{}"])
def test_a_foreign_tokenizer_file_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(ValueError, match=r"tokenizer\.json is not"):
        read_bare_tokenizer(tmp_path)


def test_types_of_ids_are_int64_or_int32() -> None:
    assert integer_type("int32") == torch.int32
    with pytest.raises(ValueError, match="unknown type of ids 'int8'; known are int64, int32"):
        integer_type("int8")
