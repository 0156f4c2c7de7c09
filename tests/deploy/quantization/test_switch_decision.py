"""Which combination of switches timing chooses, and what a graph and its engine keep of it."""

from __future__ import annotations

import json
from pathlib import Path

import onnx
import pytest

from deploy.graphs.site_choice import SiteChoice
from deploy.quantization.lint import lint
from deploy.quantization.quantize import quantize
from deploy.quantization.site_selection import CHOICE_KEY, RecordedChoice
from deploy.quantization.switch_decision import SwitchDecision, SwitchTiming, fastest
from tests.deploy.calibrated import calibrated
from tests.deploy.encoder_graph import EncoderRecipe


def _timing(bmms: str, adds: str, speed_up: tuple[float, float, float] | None) -> SwitchTiming:
    return SwitchTiming(
        switches={"bmms": bmms, "residual_adds": adds},  # type: ignore[dict-item]
        median_ms=2.0,
        precision="int8 + float16",
        speed_up=speed_up,
    )


OFF = _timing("off", "off", None)


def _decision(*timings: SwitchTiming) -> SwitchDecision:
    return SwitchDecision(
        switches=fastest(timings),
        backend="tensorrt",
        device="NVIDIA L4, SM 8.9",
        measured="batch 1, length 128, per request, CUDA graph",
        is_simulated=False,
        timings=timings,
    )


@pytest.mark.parametrize(
    ("others", "chosen"),
    [
        ([_timing("off", "on", (1.3, 0.99, 1.6)), _timing("on", "off", (0.9, 0.8, 0.95))], ("off", "off")),
        ([_timing("off", "on", (1.1, 1.05, 1.2)), _timing("on", "off", (1.2, 1.1, 1.3))], ("on", "off")),
        ([_timing("off", "on", (1.1, 1.05, 1.2)), _timing("on", "on", (1.4, 1.0, 1.8))], ("off", "on")),
    ],
)
def test_all_off_stays_unless_a_combination_is_faster_beyond_doubt(
    others: list[SwitchTiming], chosen: tuple[str, str]
) -> None:
    assert tuple(fastest((OFF, *others)).values()) == chosen


def test_the_decision_lies_in_the_graph_whose_sites_are_the_decided_ones(tmp_path: Path) -> None:
    path, cache = calibrated(tmp_path, EncoderRecipe())
    decision = _decision(OFF, _timing("on", "off", (1.2, 1.1, 1.3)))
    choice = SiteChoice(bmms="auto", residual_adds="auto", exclude=("kind:context",)).decided(decision.switches)
    out = tmp_path / "q.onnx"
    quantize(path, cache, out, choice=choice, decision=decision)
    recorded = RecordedChoice.read(onnx.load(out))
    assert recorded.decision == decision
    assert recorded.choice == SiteChoice(bmms="on", residual_adds="off", exclude=("kind:context",))
    assert lint(out, "tensorrt") == []


def test_damaged_metadata_is_an_error_of_its_own() -> None:
    model = onnx.ModelProto()
    value = {"choice": {}, "excluded": [], "included": [], "decision": {"timings": [{"speed_up": 1}]}}
    model.metadata_props.add(key=CHOICE_KEY, value=json.dumps(value))
    with pytest.raises(ValueError, match="damaged metadata"):
        RecordedChoice.read(model)


def test_a_line_tells_what_was_chosen_by_which_times() -> None:
    assert _decision(OFF, _timing("on", "off", (1.25, 1.1, 1.3))).summary() == (
        "bmms=on residual_adds=off: timed on tensorrt (NVIDIA L4, SM 8.9), batch 1, length 128, per request, CUDA graph: "
        "bmms=off residual_adds=off 2 ms, bmms=on residual_adds=off 2 ms (1.25 times as fast)"
    )
