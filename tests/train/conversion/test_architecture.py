"""Models from a description."""

import pytest
import torch

from train.attention.settings import AttentionSettings
from train.conversion.architecture import ModelDescription, build_model
from train.conversion.convert import settings_of

TINY = {"vocab_size": 50, "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 40}


def test_a_described_model_is_converted_and_a_function_of_its_seed() -> None:
    description = ModelDescription(architecture="bert", config=TINY, head="masked-lm")
    settings = AttentionSettings(gate="linear", gate_init=0.25)
    one, same, other = (build_model(description, settings, seed=seed) for seed in (0, 0, 1))
    assert settings_of(one) == settings
    assert type(one).__name__ == "BertForMaskedLM"
    for (name, a), (_, b) in zip(one.state_dict().items(), same.state_dict().items(), strict=True):
        assert torch.equal(a, b), name
    differ = [name for name, a in one.state_dict().items() if not torch.equal(a, other.state_dict()[name])]
    assert "bert.embeddings.word_embeddings.weight" in differ


def test_building_leaves_the_callers_generator_alone() -> None:
    torch.manual_seed(3)
    expected = torch.rand(3)
    torch.manual_seed(3)
    build_model(ModelDescription(architecture="bert", config=TINY, head="masked-lm"), AttentionSettings(), seed=9)
    assert torch.equal(torch.rand(3), expected)


@pytest.mark.parametrize(
    ("architecture", "config", "head", "message"),
    [
        ("brt", {}, "masked-lm", "unknown architecture 'brt'; did you mean 'bert'"),
        ("bert", {"hiden_size": 24}, "masked-lm", "has no 'hiden_size'; did you mean 'hidden_size'"),
        ("bert", {"hidden_size": "wide"}, "masked-lm", "config of architecture 'bert'"),
        ("bert", TINY | {"hidden_size": 25}, "masked-lm", "25"),
        ("t5", {}, "masked-lm", "model type 't5' is not supported"),
        ("bert", TINY, "image-classification", "has no image-classification head; transformers gives it masked-lm"),
        ("bert", TINY, "causal-lm", "'bert' sees the tokens it is to predict"),
        ("bert", TINY | {"num_hidden_layers": 0}, "masked-lm", "has no layers"),
        ("opt", {}, "masked-lm", "has no masked-lm head; transformers gives it causal-lm"),
        ("timm:vit_tiny_patch16_224", {"num_labels": "ten"}, "image-classification", "num_labels is 'ten'"),
    ],
)
def test_what_cannot_be_built_is_refused_by_name(
    architecture: str, config: dict[str, object], head: str, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        build_model(
            ModelDescription(architecture=architecture, config=config, head=head),  # type: ignore[arg-type]
            AttentionSettings(),
            seed=0,
        )


def test_the_number_of_classes_is_part_of_a_description() -> None:
    config = {"image_size": 8, "patch_size": 4, "hidden_size": 24, "num_hidden_layers": 1, "num_attention_heads": 3}
    description = ModelDescription(architecture="vit", config=config | {"num_labels": 7}, head="image-classification")
    model = build_model(description, AttentionSettings(), seed=0)
    assert model(pixel_values=torch.zeros(2, 3, 8, 8)).logits.shape == (2, 7)
