"""An explanation finds a planted bad site, the same one every time, and its list is what ``quantize`` needs."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
import onnx
import pytest

from deploy.calibration.calibrate import calibrate
from deploy.calibration.calibration_cache import CalibrationCache
from deploy.explanation.explain import ExplainSettings, explain
from deploy.explanation.explanation import Explanation
from deploy.explanation.literal_session import literal_session
from deploy.explanation.probe import open_probe, probe_feeds
from deploy.explanation.site_figures import RoundingFigures, decibels
from deploy.explanation.switched_graph import switchables
from deploy.graphs.profiles import PROFILES, ProfileName
from deploy.graphs.site_choice import SiteChoice
from deploy.quantization.quantize import quantize, quantize_model
from deploy.quantization.site_selection import select_sites
from deploy.tasks.task import Feeds, Infer, TaskResult
from tests.deploy.calibrated import calibrated, run_literally
from tests.deploy.encoder_graph import EncoderRecipe, feeds
from tests.deploy.vit_graph import VitRecipe, images, vit

RECIPE = EncoderRecipe(gate="linear", softmax="folded", num_layers=2)
BATCHES = [feeds(batch=6, length=length, seed=length) for length in (5, 9, 13)]
PICTURES = [images(batch=6, seed=seed) for seed in range(3)]
Family = Literal["encoder", "vit"]


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """How closely outputs follow the float model's on real positions: 1 minus the relative error."""

    batches: list[Feeds]
    reference: tuple[np.ndarray, ...]
    name: str = "agreement"
    metric: str = "agreement"
    higher_is_better: bool = True
    num_examples: int = 18

    def evaluate(self, infer: Infer) -> TaskResult:
        pairs = []
        for batch, exact in zip(self.batches, self.reference, strict=True):
            real = batch["attention_mask"] > 0 if "attention_mask" in batch else np.ones(exact.shape[:2], bool)
            pairs.append((infer(batch)["hidden"][real], exact[real]))
        noise = sum(float(np.square(found - exact).sum()) for found, exact in pairs)
        return TaskResult(score=1 - np.sqrt(noise / sum(float(np.square(exact).sum()) for _, exact in pairs)))


def _planted(folder: Path, *tensors: str, family: Family = "encoder") -> tuple[Path, CalibrationCache, Agreement]:
    """A small model with ranges in which single outliers, far beyond everything else, were seen in some tensors."""
    if family == "encoder":
        path, cache = calibrated(folder, RECIPE)
        batches = BATCHES
    else:
        path, batches = folder / "model.onnx", PICTURES
        onnx.save(vit(VitRecipe(head=False, fused=True)), path)
        cache = calibrate(path, batches[:2], method="minmax", data={"kind": "test"}, seed=0, threads=1)
    for name in tensors:
        cache.tensors[name].high = 60 * cache.tensors[name].amax
    reference = tuple(run_literally(path, batch)["hidden"] for batch in batches)
    return path, cache, Agreement(batches=batches, reference=reference)


def _explained(
    folder: Path,
    profile: ProfileName,
    *planted: str,
    max_drop: float | None = None,
    family: Family = "encoder",
    **more: object,
) -> Explanation:
    path, cache, task = _planted(folder, *planted, family=family)
    settings = ExplainSettings(evaluated=2, max_drop=max_drop, threads=1, **more)  # type: ignore[arg-type]
    return explain(path, cache, task, profile=profile, data="test", settings=settings)


@pytest.mark.parametrize(
    ("family", "profile", "planted"),
    [
        ("encoder", "paper", "f2_0"),
        ("encoder", "tensorrt", "act_1"),
        ("encoder", "ort", "ctx_0"),
        ("vit", "paper", "f2_0"),
        ("vit", "tensorrt", "act_1"),
        ("vit", "ort", "n_0"),
    ],
)
def test_exactly_the_planted_site_is_found_twice_in_a_row(
    tmp_path: Path, family: Family, profile: ProfileName, planted: str
) -> None:
    found = _explained(tmp_path, profile, planted, max_drop=0.08, family=family)
    assert found.sites[0].name == planted
    assert found.float_sites == (planted,)
    assert bool(found.taken_along) == (profile != "paper")  # the weight of the layer that reads it
    assert found.drop(found.quantized_score) > 0.08
    assert found.float_sites_score is not None
    assert found.drop(found.float_sites_score) <= 0.08
    assert found.sites[0].zeroed > 0.3
    again = _explained(tmp_path, profile, planted, max_drop=0.08, family=family)
    assert json.dumps(again.to_dict()) == json.dumps(found.to_dict())


def test_two_planted_sites_are_both_needed(tmp_path: Path) -> None:
    found = _explained(tmp_path, "paper", "f2_0", "o_1", max_drop=0.1)
    assert set(found.float_sites or ()) == {"f2_0", "o_1"}
    assert {site.name for site in found.sites[:2]} == {"f2_0", "o_1"}


def test_quantize_reads_the_list_and_gives_the_score_that_was_told(tmp_path: Path) -> None:
    found = _explained(tmp_path, "paper", "f2_0", max_drop=0.08)
    path, cache, task = _planted(tmp_path, "f2_0")
    patterns = [line for line in found.exclusion_list().splitlines() if not line.startswith("#")]
    quantize(path, cache, tmp_path / "q.onnx", profile="paper", choice=SiteChoice(exclude=tuple(patterns)))
    score = task.evaluate(lambda batch: run_literally(tmp_path / "q.onnx", batch)).score
    assert score == pytest.approx(
        found.float_sites_score, abs=1e-3
    )  # a value on the edge of a step may fall either way


def test_nothing_has_to_stay_float_where_nothing_is_lost(tmp_path: Path) -> None:
    found = _explained(tmp_path, "tensorrt", max_drop=0.5)
    assert (found.float_sites, found.float_sites_score) == ((), found.quantized_score)
    with pytest.raises(ValueError, match="no set of float sites to write"):
        found.exclusion_list()


def test_an_impossible_bound_ends_with_what_was_tried(tmp_path: Path) -> None:
    found = _explained(tmp_path, "paper", "f2_0", max_drop=0.0, largest=3)
    assert found.float_sites is None
    assert [len(step.float_sites) for step in found.steps] == [1, 2, 3]


def test_scores_without_a_site_are_those_of_the_graph_without_it(tmp_path: Path) -> None:
    found = _explained(tmp_path, "tensorrt", "act_1")
    path, cache, task = _planted(tmp_path, "act_1")
    assert found.float_score == pytest.approx(1.0)
    assert [site.score_without is not None for site in found.sites] == [True, True] + [False] * (len(found.sites) - 2)
    model, _ = quantize_model(
        onnx.load(path),
        cache,
        profile=PROFILES["tensorrt"],
        weights="minmax",
        choice=SiteChoice(exclude=(found.sites[1].name,)),
    )
    with literal_session(model, threads=1) as infer:
        assert found.sites[1].score_without == task.evaluate(infer).score


@pytest.mark.parametrize("profile", PROFILES)
def test_switches_give_exactly_the_graphs_that_they_stand_for(tmp_path: Path, profile: ProfileName) -> None:
    path, cache, _ = _planted(tmp_path)
    policy = PROFILES[profile]
    model = onnx.load(path)
    sites = switchables(select_sites(model, policy, SiteChoice()).sites)
    quantized, _ = quantize_model(onnx.load(path), cache, profile=policy, weights="minmax")
    literal = onnx.ModelProto.FromString(quantized.SerializeToString())
    batch = BATCHES[1]
    exact = run_literally(path, batch)["hidden"]
    real = batch["attention_mask"] > 0
    with literal_session(literal, threads=1) as infer:
        expected = float(np.square((infer(batch)["hidden"] - exact)[real], dtype=np.float64).sum())
    with open_probe(path, model, quantized, sites, [batch], threads=1) as probe:
        assert probe.noise(()) == 0
        assert probe.noise(probe.places) == pytest.approx(expected, rel=1e-3)
        assert all(probe.noise(site.places) > 0 for site in sites if site.kind != "gate_probability")


def test_figures_of_a_tensor_count_what_rounding_does() -> None:
    from deploy.calibration.quant_params import QuantParams

    params = QuantParams(scale=0.5, zero_point=0, qmin=-4, qmax=3)
    figures = RoundingFigures()
    figures.add([np.array([0.0, 0.2, -0.2, 0.6, 9.0]), np.array([[-9.0, 1.0]])], params)
    assert (figures.count, figures.saturated, figures.zeroed) == (7, 2, 2)
    errors = np.array([0, 0.2, 0.2, 0.1, 7.5, 7.0, 0.0])
    assert figures.noise == pytest.approx(float(np.square(errors).sum()))
    assert decibels(100.0, 1.0) == pytest.approx(20.0)
    assert decibels(1.0, 0.0) is None


def test_sites_are_screened_on_rows_drawn_from_batches_all_over_the_task() -> None:
    batches = [{"x": np.arange(32.0) + 100 * number} for number in range(90)]

    class Lengths:
        name, metric, higher_is_better, num_examples = "lengths", "rows", True, 90 * 32

        def evaluate(self, infer: Infer) -> TaskResult:
            return TaskResult(score=sum(len(infer(batch)) for batch in batches))

    taken, kept, score = probe_feeds(Lengths(), lambda batch: batch)
    assert (score, taken.available, len(kept)) == (90, 90, 4)
    assert [number // 23 for number in taken.batches] == [0, 1, 2, 3]
    assert [feeds["x"].tolist() for feeds in kept] == [
        [100 * number + row for row in rows] for number, rows in zip(taken.batches, taken.rows, strict=True)
    ]
    assert max(max(rows) for rows in taken.rows) > 16
    again, _, _ = probe_feeds(Lengths(), lambda batch: batch)
    assert again == taken
    batches[1:] = []
    alone, (one,), _ = probe_feeds(Lengths(), lambda batch: batch)
    assert (alone.batches, len(one["x"])) == ((0,), 16)


def test_a_cache_of_another_graph_and_a_bad_bound_are_refused(tmp_path: Path) -> None:
    path, cache, task = _planted(tmp_path)
    with pytest.raises(ValueError, match="model_sha256"):
        explain(path, replace(cache, model_sha256="0" * 64), task)
    with pytest.raises(ValueError, match="max_drop is -1; expected a finite loss"):
        explain(path, cache, task, settings=ExplainSettings(max_drop=-1))


def test_models_above_the_limit_of_one_file_are_explained_alike(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = _explained(tmp_path, "paper", "f2_0").to_dict()
    monkeypatch.setattr("deploy.explanation.literal_session._INLINE_BYTES", 1000)
    assert _explained(tmp_path, "paper", "f2_0").to_dict() == expected
    monkeypatch.setattr("deploy.graphs.graph_outline._SMALLEST_LEFT_OUT", 256)
    assert _explained(tmp_path, "paper", "f2_0").to_dict() == expected


def test_weights_left_out_of_the_outline_change_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = _explained(tmp_path, "tensorrt", "act_1").to_dict()
    monkeypatch.setattr("deploy.graphs.graph_outline._SMALLEST_LEFT_OUT", 256)
    assert _explained(tmp_path, "tensorrt", "act_1").to_dict() == expected
