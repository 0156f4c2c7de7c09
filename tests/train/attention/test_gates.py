"""Gates: where they start, what they compute, how many parameters they have."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from train.attention.attention_sites import SiteName
from train.attention.gates import Gate, build_gate, gate_start
from train.attention.settings import AttentionSettings, GateKind

HEADS, SIZE, HIDDEN_UNITS = 3, 12, 5
KINDS: tuple[GateKind, ...] = ("linear", "mlp", "all_heads_linear")


def _settings(kind: GateKind, *, init: float = 0.5, scale: float = 1.0) -> AttentionSettings:
    hidden = HIDDEN_UNITS if kind == "mlp" else None
    return AttentionSettings(gate=kind, gate_hidden=hidden, gate_init=init, gate_scale=scale)


def _gate(kind: GateKind, *, init: float = 0.5, scale: float = 1.0, random: bool = False) -> Gate:
    gate = build_gate(_settings(kind, init=init, scale=scale), num_heads=HEADS, hidden_size=SIZE)
    assert gate is not None
    if random:
        generator = torch.Generator().manual_seed(1)
        for parameter in gate.parameters():
            torch.nn.init.normal_(parameter, generator=generator)
    return gate


def _hidden(seed: int = 0) -> torch.Tensor:
    return torch.randn(2, 7, SIZE, generator=torch.Generator().manual_seed(seed)) * 10


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return np.asarray(1 / (1 + np.exp(-x)))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("init", [0.1, 0.25, 0.5, 0.9])
def test_a_gate_starts_at_gate_init_for_every_token_and_head(kind: GateKind, init: float) -> None:
    gate_BTH = _gate(kind, init=init)(_hidden())
    assert gate_BTH.shape == (2, 7, HEADS)
    np.testing.assert_allclose(gate_BTH.detach().numpy(), init, rtol=1e-6)


@example(init=0.7070529675391769)  # the nearest reciprocal misses 1 all around it
@given(init=st.floats(0.01, 0.99))
@settings(max_examples=60, deadline=None)
def test_the_product_is_exactly_one_when_the_scale_is_the_inverse_of_the_start(init: float) -> None:
    for kind in KINDS:
        assert bool((_gate(kind, init=init, scale=1 / init)(_hidden()) == 1.0).all())


def test_the_exact_start_is_within_float_rounding_of_the_asked_one() -> None:
    for init in np.linspace(0.02, 0.98, 49):
        bias, scale = gate_start(_settings("linear", init=float(init), scale=float(1 / init)))
        assert float(_sigmoid(np.asarray(bias))) == pytest.approx(init, rel=1e-5)
        assert scale == pytest.approx(1 / init, rel=1e-5)


def test_a_start_of_one_half_is_scaled_by_exactly_two() -> None:
    assert gate_start(_settings("linear", scale=2.0)) == (0.0, 2.0)


def test_a_scale_of_its_own_is_kept() -> None:
    assert gate_start(_settings("linear", init=0.5, scale=1.5)) == (0.0, 1.5)


def test_the_linear_gate_reads_each_heads_own_features() -> None:
    gate, hidden = _gate("linear", scale=1.5, random=True), _hidden()
    weight = gate.get_parameter("weight").detach().double().numpy()[:, 0]
    by_head = hidden.double().numpy().reshape(2, 7, HEADS, SIZE // HEADS)
    logits = (by_head * weight).sum(-1) + gate.bias.detach().double().numpy()
    np.testing.assert_allclose(gate(hidden).detach().numpy(), 1.5 * _sigmoid(logits), rtol=1e-5, atol=1e-7)


def test_the_mlp_gate_is_a_small_network_per_head() -> None:
    gate, hidden = _gate("mlp", random=True), _hidden()
    weights = {name: parameter.detach().double().numpy() for name, parameter in gate.named_parameters()}
    by_head = hidden.double().numpy().reshape(2, 7, HEADS, SIZE // HEADS)
    biases = weights["hidden_bias"].reshape(HEADS, HIDDEN_UNITS)
    units = np.maximum(np.einsum("bthd,hmd->bthm", by_head, weights["hidden_weight"]) + biases, 0)
    logits = np.einsum("bthm,hm->bth", units, weights["weight"][:, 0]) + weights["bias"]
    np.testing.assert_allclose(gate(hidden).detach().numpy(), _sigmoid(logits), rtol=1e-4, atol=1e-7)


def test_the_all_heads_gate_reads_all_features() -> None:
    gate, hidden = _gate("all_heads_linear", random=True), _hidden()
    weight = gate.get_parameter("weight").detach().double().numpy()
    logits = hidden.double().numpy() @ weight.T + gate.bias.detach().double().numpy()
    np.testing.assert_allclose(gate(hidden).detach().numpy(), _sigmoid(logits), rtol=1e-5, atol=1e-7)


def test_gates_have_the_papers_number_of_parameters() -> None:
    head_size = SIZE // HEADS
    expected = {
        "linear": HEADS * (head_size + 1),
        "mlp": HEADS * (HIDDEN_UNITS * (head_size + 2) + 1),
        "all_heads_linear": HEADS * (SIZE + 1),
    }
    assert {kind: sum(p.numel() for p in _gate(kind).parameters()) for kind in KINDS} == expected


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_equal_finite_differences(kind: GateKind) -> None:
    gate = _gate(kind, random=True).double()
    assert torch.autograd.gradcheck(gate, _hidden()[:1, :2].double().div(10).requires_grad_())


def test_every_parameter_of_a_fresh_gate_learns_within_two_steps() -> None:
    for kind in KINDS:
        gate = _gate(kind)
        start = {name: parameter.detach().clone() for name, parameter in gate.named_parameters()}
        optimizer = torch.optim.SGD(gate.parameters(), lr=0.1)
        for _ in range(2):
            gate(_hidden()).square().mean().backward()
            optimizer.step()
        assert all(not torch.equal(parameter, start[name]) for name, parameter in gate.named_parameters())


def test_hidden_weights_depend_on_the_generator_alone() -> None:
    torch.manual_seed(5)
    first = _gate("mlp").get_parameter("hidden_weight")
    torch.manual_seed(6)
    second = _gate("mlp").get_parameter("hidden_weight")
    assert torch.equal(first, second)


def test_a_site_function_replaces_the_tensors_of_the_gate_path() -> None:
    gate, seen = _gate("mlp", random=True), []

    def replace(site: SiteName, tensor: torch.Tensor) -> torch.Tensor:
        seen.append((site, tuple(tensor.shape)))
        return torch.zeros_like(tensor) if site == "gate_logits" else tensor

    gate_BTH = gate(_hidden(), replace)
    assert seen == [
        ("gate_hidden", (2, 7, HEADS * HIDDEN_UNITS)),
        ("gate_logits", (2, 7, HEADS)),
        ("gate", (2, 7, HEADS)),
    ]
    assert bool((gate_BTH == 0.5).all())
