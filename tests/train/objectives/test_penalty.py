"""The outlier penalty: its formula, its gradient far out, what it counts."""

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from train.objectives.penalty import PenaltySettings, largest_magnitude, outlier_penalty

PLAIN = PenaltySettings(knee=math.inf, relative_widths={"ffn_output": 1.0})


def test_without_a_knee_it_is_the_mean_of_the_power() -> None:
    x_BTD = torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(0)) * 20
    penalty = outlier_penalty({"layer.0.ffn_output": x_BTD}, None, PLAIN)
    torch.testing.assert_close(penalty, (x_BTD.abs() / 5.0).pow(4).mean())


@given(power=st.floats(2, 8), knee=st.floats(1, 20), width=st.floats(0.5, 10))
def test_value_and_slope_are_continuous_at_the_knee(power: float, knee: float, width: float) -> None:
    settings = PenaltySettings(power=power, knee=knee, width=width, relative_widths={"ffn_output": 1.0})
    values, slopes = [], []
    for distance in (1 - 1e-4, 1 + 1e-4):
        x = torch.full((1, 1, 1), knee * width * distance, requires_grad=True)
        cost = outlier_penalty({"layer.0.ffn_output": x}, None, settings)
        (slope,) = torch.autograd.grad(cost, x)
        values.append(float(cost.detach()))
        slopes.append(float(slope))
    assert values[0] == pytest.approx(values[1], rel=1e-2)
    assert slopes[0] == pytest.approx(slopes[1], rel=1e-2)
    assert slopes[0] == pytest.approx(power * knee ** (power - 1) / width, rel=1e-2)


def test_far_out_the_gradient_is_proportional_to_the_value() -> None:
    x = torch.tensor([[[100.0, 200.0, -300.0]]], requires_grad=True)
    (gradient,) = torch.autograd.grad(outlier_penalty({"layer.0.ffn_output": x}, None, PenaltySettings()), x)
    assert torch.isfinite(gradient).all()
    torch.testing.assert_close(gradient / x.detach(), (gradient / x.detach())[..., :1].expand(1, 1, 3))


def test_half_precision_outliers_do_not_overflow() -> None:
    x = torch.full((1, 2, 2), 3e4, dtype=torch.float16, requires_grad=True)
    cost = outlier_penalty({"layer.0.ffn_output": x}, None, PenaltySettings())
    assert cost.dtype == torch.float32
    assert torch.isfinite(cost)


def test_padding_counts_neither_in_the_sum_nor_in_the_mean() -> None:
    x_BTD = torch.ones(1, 4, 3) * 5.0
    x_BTD[0, 2:] = 1e3
    mask_BT = torch.tensor([[1, 1, 0, 0]])
    assert float(outlier_penalty({"layer.0.ffn_output": x_BTD}, mask_BT, PLAIN)) == pytest.approx(1.0)
    assert float(largest_magnitude({"layer.0.ffn_output": x_BTD}, mask_BT)) == 5.0


def test_layers_are_averaged_kinds_are_added_and_others_are_left_alone() -> None:
    tensors = {
        "layer.0.ffn_output": torch.full((1, 1, 2), 5.0),
        "layer.1.ffn_output": torch.full((1, 1, 2), 0.0),
        "layer.0.ln_output.ffn": torch.full((1, 1, 2), 10.0),
        "layer.0.residual_sum.ffn": torch.full((1, 1, 2), 100.0),
    }
    assert float(outlier_penalty(tensors, None, replace(PLAIN, relative_widths={"ffn_output": 1.0}))) == 0.5
    assert float(outlier_penalty(tensors, None, PenaltySettings())) == pytest.approx(0.5 + 1.0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"width": 0.0}, "penalty width is 0"),
        ({"power": 1.0}, "penalty power is 1"),
        ({"knee": 0.5}, "penalty knee is 0"),
        ({"relative_widths": {}}, "names no tensor"),
        ({"relative_widths": {"ffn": 1.0}}, "unknown tensor 'ffn'"),
        ({"relative_widths": {"ffn_output": -1.0}}, "relative width of 'ffn_output' is -1"),
    ],
)
def test_settings_out_of_range_are_refused(change: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        PenaltySettings(**change)  # type: ignore[arg-type]
