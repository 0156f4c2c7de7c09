"""Recipes with ``[train]``: what they refuse, and a whole run from texts to a report."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from deploy.graphs.graph_info import read_info
from quietformer.pipeline import run_stages
from quietformer.recipe.recipe import load_recipe
from quietformer.report.content import load_report
from quietformer.stages.train_model import open_training, train_seed
from quietformer.whole_run import all_stages, learning_stages
from tests.quietformer.tiny_run import random_sentences
from train.checkpoints.checkpoint import load
from train.conversion.convert import settings_of
from train.loop.progress import StepReport

RECIPE = """
name = "tiny-bert"

[model]
architecture = "bert"
tokenizer = "bpe:400"
[model.config]
hidden_size = 32
num_hidden_layers = 2
num_attention_heads = 2
intermediate_size = 64
max_position_embeddings = 32

[attention]
gate = "linear"
gate_init = 0.25

[data]
texts = {texts}
held_out = 40
validation = 40

[train]
objective = "masked_lm"
steps = 6
batch_size = 4
length = 16
learning_rate = 1e-3
warmup_steps = 1
evaluate_every = 3
validation_batches = 2
calibration_batches = 1
checkpoint_every = 2
log_every = 1

[calibrate]
batches = 2
batch_size = 4
length = 16
seeds = [0, 1]

[quantize]
profiles = ["tensorrt", "paper", "ort"]

[compare.mlm]
data = {task}
max_drop = {{ paper = 10000.0 }}

[bench]
shapes = ["1x16"]
seconds = 0.02
"""


@pytest.fixture(scope="module")
def recipe_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("recipe")
    texts, task = folder / "texts.txt", folder / "held-out.txt"
    texts.write_text("\n".join(random_sentences(300)) + "\n", encoding="utf-8")
    task.write_text("\n".join(random_sentences(30, seed=1)) + "\n", encoding="utf-8")
    path = folder / "tiny-bert.toml"
    path.write_text(RECIPE.format(texts=json.dumps(str(texts)), task=json.dumps(str(task))), encoding="utf-8")
    return path


@pytest.mark.slow
def test_a_whole_run_trains_quantizes_compares_and_reports_one_model(recipe_file: Path, tmp_path: Path) -> None:
    recipe = load_recipe(recipe_file)
    run_stages(recipe, tmp_path, all_stages(recipe))
    assert not (tmp_path / "original").exists()
    assert not (tmp_path / "training").exists()
    model = load(tmp_path / "checkpoint")
    assert type(model).__name__ == "BertForMaskedLM"
    assert settings_of(model) == recipe.attention.settings()
    assert read_info(tmp_path / "model.onnx").task == "fill-mask"
    report = load_report(tmp_path / "report" / "report.json")
    assert report.chosen_arm is not None
    assert [point["step"] for point in report.chosen_arm.history if "float_perplexity" in point] == [3, 6]
    (comparison,) = report.comparisons
    assert comparison.task == "mlm"
    assert {row.arm for row in comparison.rows} == {"trained"}
    verdicts = {row.profile: row.passed for row in comparison.rows if row.backend != "pytorch"}
    assert verdicts["paper"] is True
    simulated = next(row for row in comparison.rows if row.backend == "pytorch")
    measured = next(row for row in comparison.rows if row.profile == "paper" and row.evidence == "measured")
    assert simulated.mean == pytest.approx(measured.scores[0], rel=0.02)
    assert (tmp_path / "report" / "index.html").is_file()


def test_every_seed_is_trained_and_the_first_is_the_runs_model(recipe_file: Path, tmp_path: Path) -> None:
    recipe = load_recipe(recipe_file, ["train.seeds=[3, 4]", "train.evaluation_profiles=['tensorrt']"])
    run_stages(recipe, tmp_path / "run", learning_stages(recipe))
    results = json.loads((tmp_path / "run" / "train.json").read_text(encoding="utf-8"))
    assert [result["seed"] for result in results] == [3, 4]
    assert results[0]["history"] != results[1]["history"]
    assert {"float_perplexity", "tensorrt_perplexity", "max_inf_norm"} <= results[0]["history"][-1].keys()
    assert "paper_perplexity" not in results[0]["history"][-1]

    run_stages(recipe, tmp_path / "data", learning_stages(recipe)[:1])
    setup = open_training(recipe, tmp_path / "data")
    model, _ = train_seed(recipe, setup, tmp_path / "data", seed=3)
    stored = load(tmp_path / "run" / "checkpoint").state_dict()
    for name, tensor in model.state_dict().items():
        assert tensor.equal(stored[name]), name


def test_training_that_was_killed_goes_on_and_other_settings_are_refused(recipe_file: Path, tmp_path: Path) -> None:
    recipe = load_recipe(recipe_file)
    stages = learning_stages(recipe)
    run_stages(recipe, tmp_path, stages[:1])
    short = load_recipe(recipe_file, ["train.steps=4"])

    class StoppedError(Exception):
        """In the middle of training."""

    from quietformer.training import training_job

    real = training_job.TrainingJob.on_step

    def stop(self: training_job.TrainingJob, report: StepReport) -> None:
        if report.step == 3:
            raise StoppedError
        real(self, report)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(training_job.TrainingJob, "on_step", stop)
        with pytest.raises(StoppedError):
            run_stages(recipe, tmp_path, stages)
    with pytest.raises(FileExistsError, match=r"unfinished stage 'train' with other settings: settings\.train\.steps"):
        run_stages(short, tmp_path, learning_stages(short))
    run_stages(recipe, tmp_path, stages)
    log = [json.loads(line) for line in (tmp_path / "train.log.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [entry["step"] for entry in log if entry["kind"] == "step"] == [1, 2, 3, 4, 5, 6]


@pytest.mark.slow
def test_two_processes_of_a_launcher_train_one_run_with_the_curve_of_one(recipe_file: Path, tmp_path: Path) -> None:
    overrides = ["model.config.hidden_dropout_prob=0.0", "model.config.attention_probs_dropout_prob=0.0"]
    options = [option for override in overrides for option in ("--set", override)]
    # On a CPU `accelerate launch` wants MPI; torchrun sets the same variables as it does for GPUs.
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2", "-m", "quietformer", "train"]
    for _ in range(2):  # the second time there is nothing to train
        done = subprocess.run(
            [sys.executable, *launcher, str(recipe_file), "--out", str(tmp_path / "two"), *options],
            env=os.environ | {"OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "true"},
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )
        assert done.returncode == 0, done.stderr[-3000:]
    recipe = load_recipe(recipe_file, overrides)
    run_stages(recipe, tmp_path / "one", learning_stages(recipe))
    one, two = (
        [json.loads(line) for line in (tmp_path / name / "train.log.jsonl").read_text(encoding="utf-8").splitlines()]
        for name in ("one", "two")
    )
    assert [entry["step"] for entry in one] == [entry["step"] for entry in two]
    for alone, shared in zip(one, two, strict=True):
        key = "loss" if alone["kind"] == "step" else "float_loss"
        assert shared[key] == pytest.approx(alone[key], abs=2e-5)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("model.checkpoint='somewhere'", "give either checkpoint, or architecture"),
        ("retrofit.steps=3", r"\[train\] and \[retrofit\] exclude each other"),
        ("train.flip=true", "flip has no effect with objective = 'masked_lm'"),
        ("train.stesp=3", r"unknown key 'train\.stesp'; did you mean 'train\.steps'"),
        ("train.seeds=[1, 1]", "repeat one another"),
        ("train.warmup_steps=7", "more than the run's 6 steps"),
    ],
)
def test_a_recipe_that_makes_no_sense_is_refused(recipe_file: Path, override: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        load_recipe(recipe_file, [override])


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("model.config.hiden_size=3", "has no 'hiden_size'; did you mean 'hidden_size'"),
        ("model.config.vocab_size=262", r"vocab_size is 262; the tokenizer has \d+ ids"),
        ("model.config.vocab_size='all'", r"model\.config\.vocab_size is 'all'; expected a whole number"),
        ("model.config.max_position_embeddings='many'", r"model\.config\.max_position_embeddings is 'many'"),
        ("train.objective='causal_lm'", "sees the tokens it is to predict"),
        ("train.length=64", r"train\.length is 64; the model has 32 positions"),
        ("model.tokenizer='nowhere'", "no tokenizer folder at nowhere"),
        ("model.architecture='brt'", "unknown architecture 'brt'; did you mean 'bert'"),
    ],
)
def test_a_model_that_cannot_be_made_is_refused(recipe_file: Path, tmp_path: Path, override: str, message: str) -> None:
    recipe = load_recipe(recipe_file, [override])
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        run_stages(recipe, tmp_path, learning_stages(recipe))
