"""Simulated quantization: where it acts, that it equals a hand-written reference, that it leaves no trace."""

import contextlib
from typing import Any

import pytest
import torch
from torch import nn
from transformers import BertConfig, BertForMaskedLM, BertForSequenceClassification, BertModel, PreTrainedModel

from train.attention.settings import AttentionSettings
from train.batches.text_batches import Batch
from train.conversion.convert import convert
from train.simulation.fake_quant import simulated
from train.simulation.quantization_places import ProfileName

GATED = AttentionSettings(gate="linear", gate_init=0.5, gate_scale=2.0)


def _config(**changes: Any) -> BertConfig:
    values = {
        "vocab_size": 60,
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 48,
        "max_position_embeddings": 20,
        "initializer_range": 0.3,
    }
    return BertConfig(**(values | changes))


def _model(
    settings: AttentionSettings | None = None, kind: type[PreTrainedModel] = BertModel, **changes: Any
) -> PreTrainedModel:
    torch.manual_seed(0)
    model = kind(_config(**changes))
    model.eval()  # type: ignore[no-untyped-call]
    convert(model, settings or AttentionSettings())
    return model


def _batches(count: int = 3, *, seed: int = 0) -> list[Batch]:
    generator = torch.Generator().manual_seed(seed)
    batches = []
    for _ in range(count):
        ids = torch.randint(1, 60, (4, 9), generator=generator)
        mask = torch.ones_like(ids)
        mask[1, 5:], mask[3, 2:] = 0, 0
        batches.append({"input_ids": ids, "attention_mask": mask})
    return batches


@torch.no_grad()
def _run(model: nn.Module, batch: Batch) -> torch.Tensor:
    output = model(**batch)
    return output.last_hidden_state if hasattr(output, "last_hidden_state") else output.logits  # type: ignore[no-any-return]


def _fq(x: torch.Tensor, low_high: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    low, high = low_high[0].clamp(max=0), low_high[1].clamp(min=0)
    scale = (high - low) / 255
    zero = torch.round(-low / scale)
    return scale * (torch.clamp(torch.round(x / scale) + zero, 0, 255) - zero)


def _fw(weight: torch.Tensor) -> torch.Tensor:
    scale = weight.abs().max() / 127
    return scale * torch.round(weight / scale)


def test_the_paper_profile_equals_a_hand_written_encoder_that_rounds_at_every_site() -> None:
    model = _model(GATED, num_hidden_layers=1)
    gate = model.encoder.layer[0].attention.self.gate  # type: ignore[union-attr,index]
    nn.init.normal_(gate.weight, generator=torch.Generator().manual_seed(1))
    batch = {name: tensor[:1] for name, tensor in _batches(1)[0].items()}  # the first row has no padding
    weights = model.state_dict()

    def encoder(rounded: bool, ranges: dict[str, tuple[torch.Tensor, torch.Tensor]]) -> torch.Tensor:
        def site(name: str, x: torch.Tensor) -> torch.Tensor:
            """Round ``x``, or note its range."""
            if rounded:
                return _fq(x, ranges[name])
            ranges[name] = x.min(), x.max()
            return x

        def w(name: str) -> torch.Tensor:
            return _fw(weights[name]) if rounded else weights[name]

        def linear(name: str, x: torch.Tensor) -> torch.Tensor:
            return nn.functional.linear(x, w(f"{name}.weight"), weights[f"{name}.bias"])

        def norm(name: str, x: torch.Tensor) -> torch.Tensor:
            return nn.functional.layer_norm(x, (32,), w(f"{name}.weight"), weights[f"{name}.bias"], 1e-12)

        T, e, a = 9, "embeddings", "encoder.layer.0.attention"
        x = w(f"{e}.word_embeddings.weight")[batch["input_ids"]]
        x = x + w(f"{e}.position_embeddings.weight")[:T] + w(f"{e}.token_type_embeddings.weight")[0]
        x = site("h0", norm(f"{e}.LayerNorm", site("embedding_sum", x)))
        q, k, v = (
            site(name, linear(f"{a}.self.{name}", x)).view(1, T, 2, 16).transpose(1, 2)
            for name in ("query", "key", "value")
        )
        p = site("probabilities", site("scores", q @ k.transpose(2, 3) / 4).softmax(-1))
        logits = torch.einsum("bthd,hd->bth", x.view(1, T, 2, 16), w(f"{a}.self.gate.weight")[:, 0])
        g = site("gate", 2 * torch.sigmoid(logits + weights[f"{a}.self.gate.bias"]))
        mixed = site("values_mixed", (p @ v).transpose(1, 2))
        context = site("context", mixed * g[..., None]).reshape(1, T, 32)
        x = site("attention_sum", x + site("attention", linear(f"{a}.output.dense", context)))
        x = site("h1", norm(f"{a}.output.LayerNorm", x))
        u = site("gelu", nn.functional.gelu(linear("encoder.layer.0.intermediate.dense", x)))
        x = site("ffn_sum", x + site("ffn", linear("encoder.layer.0.output.dense", u)))
        return norm("encoder.layer.0.output.LayerNorm", x)

    ranges: dict[str, tuple[torch.Tensor, torch.Tensor]] = {}
    torch.testing.assert_close(encoder(False, ranges), _run(model, batch))
    with simulated(model, [batch]) as simulation:
        mine = _run(model, batch)
    assert len(ranges) == len([name for name in simulation.activations if "pooler" not in name])
    expected = encoder(True, ranges)
    step = max(float(high - low) / 255 for low, high in ranges.values())
    # Another order of summation moves a value by 1e-6 at most, and across a rounding border in a rare element.
    difference = (mine - expected).abs()
    assert float(difference.median()) < 1e-5, f"max {difference.max()}, mean {difference.mean()}"
    assert float(difference.max()) < step, f"max {difference.max()}, mean {difference.mean()}"
    assert float((mine - _run(model, batch)).abs().median()) > 1e-3, "nothing was rounded"


def _interrupted_simulation(model: PreTrainedModel, profile: ProfileName) -> dict[str, torch.Tensor]:
    """Weights inside a simulation that ends in an error."""
    inside: dict[str, torch.Tensor] = {}
    with contextlib.suppress(KeyboardInterrupt), simulated(model, _batches(), profile=profile, weights="mse"):
        inside = dict(model.state_dict())
        raise KeyboardInterrupt
    return inside


@pytest.mark.parametrize("settings", [AttentionSettings(), GATED])
@pytest.mark.parametrize("profile", ["paper", "tensorrt"])
def test_the_model_is_restored_bit_for_bit(settings: AttentionSettings, profile: ProfileName) -> None:
    model = _model(settings)
    model.encoder.layer[0].train()  # type: ignore[union-attr,index]
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    parameters = [id(parameter) for parameter in model.parameters()]
    modes = [module.training for module in model.modules()]
    model_hooks = [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules()]
    inside = _interrupted_simulation(model, profile)
    name = "encoder.layer.0.output.dense.weight"
    assert not torch.equal(inside[name], before[name])
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert [id(parameter) for parameter in model.parameters()] == parameters
    assert all(parameter.requires_grad for parameter in model.parameters())
    assert [module.training for module in model.modules()] == modes
    assert [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules()] == model_hooks


def test_a_tied_language_model_head_stays_float_while_the_table_is_rounded() -> None:
    model = _model(kind=BertForMaskedLM, tie_word_embeddings=True)
    head, table = model.get_submodule("cls.predictions.decoder"), model.get_submodule("bert.embeddings.word_embeddings")
    assert isinstance(head, nn.Linear)
    assert isinstance(table, nn.Embedding)
    assert head.weight is table.weight
    original = table.weight.detach().clone()
    with simulated(model, _batches()) as simulation:
        assert torch.equal(head.weight, original)
        assert not torch.equal(table.weight, original)
        assert "cls.predictions.decoder.weight" not in simulation.weights
        assert "cls.predictions.transform.dense.weight" in simulation.weights
        assert "cls.predictions.transform.transform_act_fn.output" in simulation.activations
        assert "cls.predictions.transform.dense.output" not in simulation.activations
    assert head.weight is table.weight


def test_a_classifier_stays_float_and_the_pooler_does_not() -> None:
    model = _model(kind=BertForSequenceClassification)
    with simulated(model, _batches()) as simulation:
        assert "classifier.weight" not in simulation.weights
        assert not [name for name in simulation.activations if name.startswith("classifier")]
        assert "bert.pooler.dense.weight" in simulation.weights
        assert "bert.pooler.activation.output" in simulation.activations


def test_the_paper_profile_covers_each_site_once_per_layer() -> None:
    with simulated(_model(GATED), _batches()) as simulation:
        of_layer = {name.removeprefix("encoder.layer.0.") for name in simulation.activations if "layer.0" in name}
    inside = {f"attention.self.{site}" for site in ("gate", "scores", "probabilities", "values_mixed", "context")}
    assert of_layer == inside | {
        "attention.self.query.output",
        "attention.self.key.output",
        "attention.self.value.output",
        "attention.output.dense.output",
        "attention.output.LayerNorm.input",
        "attention.output.LayerNorm.output",
        "intermediate.intermediate_act_fn.output",
        "output.dense.output",
        "output.LayerNorm.input",
        "output.LayerNorm.output",
    }


def test_the_models_own_output_is_not_rounded() -> None:
    with simulated(_model(), _batches()) as simulation:
        assert "encoder.layer.0.output.LayerNorm.output" in simulation.activations
        assert "encoder.layer.1.output.LayerNorm.output" not in simulation.activations


def test_the_tensorrt_profile_rounds_inputs_and_weights_of_linear_layers_only() -> None:
    with simulated(_model(GATED), _batches(), profile="tensorrt") as simulation:
        assert all(name.endswith(".input") for name in simulation.activations)
        assert all(grid.zero_point == 0 for grid in simulation.activations.values())
        assert not [name for name in simulation.weights if "gate" in name or "mbeddings" in name or "Norm" in name]
        assert len(simulation.activations) == len(simulation.weights) == 2 * 6 + 1  # the pooler


def test_padding_does_not_influence_the_ranges() -> None:
    model = _model(GATED)
    clean = _batches()
    dirty = [dict(batch) for batch in clean]
    for batch in dirty:
        batch["input_ids"] = torch.where(batch["attention_mask"].bool(), batch["input_ids"], 7)
    with simulated(model, clean) as one:
        first = dict(one.activations)
    with simulated(model, dirty) as two:
        assert first == dict(two.activations)


def test_sixteen_bits_are_close_to_float_and_fewer_bits_are_further() -> None:
    model = _model(GATED)
    batch = _batches(1, seed=5)[0]
    keep = batch["attention_mask"].bool()
    reference = _run(model, batch)[keep]
    errors = []
    for bits in (16, 8, 4):
        with simulated(model, [batch], weight_bits=bits, activation_bits=bits):
            errors.append(float((_run(model, batch)[keep] - reference).square().mean().sqrt()))
    assert errors[0] < 1e-3 < errors[1] < errors[2]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"weights": "max"}, "unknown weights 'max'"),
        ({"method": "entropy"}, "unknown method 'entropy'"),
        ({"profile": "ort"}, "unknown profile 'ort'"),
        ({"weight_bits": 1}, "weight_bits is 1"),
    ],
)
def test_unknown_choices_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message), simulated(_model(), _batches(), **change):
        pass


def test_no_calibration_data_and_unconverted_models_are_refused() -> None:
    with pytest.raises(ValueError, match="no calibration batch"), simulated(_model(), []):
        pass
    with pytest.raises(ValueError, match="not converted"), simulated(BertModel(_config()), _batches()):
        pass
