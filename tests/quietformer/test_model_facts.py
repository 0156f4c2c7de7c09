"""Facts of checkpoints, whether their config states them or not."""

from __future__ import annotations

from pathlib import Path

import pytest

from quietformer.model_facts import model_facts
from tests.train.encoders import tiny_encoder
from tests.train.vision import HIDDEN, tiny_vision
from train.checkpoints.checkpoint import save


@pytest.mark.parametrize(
    ("name", "family", "hidden"),
    [("bert", "bert", 24), ("vit", "vit", HIDDEN), ("timm", "vit_small_patch16_224", HIDDEN)],
)
def test_layers_features_and_parameters_are_those_of_the_model(
    tmp_path: Path, name: str, family: str, hidden: int
) -> None:
    model = tiny_encoder() if name == "bert" else tiny_vision(name)
    save(model, tmp_path / "model", source=None)
    facts = model_facts(tmp_path / "model", source="some/model")
    assert (facts.family, facts.num_layers, facts.hidden_size) == (family, 2, hidden)
    assert facts.num_parameters == sum(parameter.numel() for parameter in model.parameters())
    assert facts.name == "model"


def test_a_file_that_is_no_safetensors_file_is_refused(tmp_path: Path) -> None:
    save(tiny_encoder(), tmp_path / "model", source=None)
    (tmp_path / "model" / "model.safetensors").write_bytes(b"12345678{}")
    with pytest.raises(ValueError, match="is not a safetensors file"):
        model_facts(tmp_path / "model", source="x")
