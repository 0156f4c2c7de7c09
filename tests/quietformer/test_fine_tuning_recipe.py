"""Recipes that fine-tune a checkpoint: on classes with a verdict in integers, and on scored pairs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from deploy.graphs.graph_info import read_info
from quietformer.pipeline import run_stages
from quietformer.recipe.recipe import load_recipe
from quietformer.whole_run import all_stages, learning_stages
from tests.export.tiny_checkpoints import tiny_model, write_checkpoint, write_pooling
from tests.quietformer.tiny_run import random_sentences
from train.checkpoints.checkpoint import load, read_pooling

RECIPE = """
name = "tiny-classifier"

[model]
checkpoint = {checkpoint}

[attention]
gate = "linear"
gate_scale = 2.0

[data]
texts = {texts}
held_out = 40
validation = 24

[train]
objective = "text_classification"
steps = 60
batch_size = 8
length = 16
learning_rate = 5e-3
warmup_steps = 5
evaluate_every = 30
validation_batches = 3
calibration_batches = 1
checkpoint_every = 20

[calibrate]
batches = 2
batch_size = 8
length = 16
seeds = [0]

[quantize]
profiles = ["tensorrt", "paper"]

[compare.classify]
data = {held_out}
max_drop = {{ tensorrt = 1.0 }}
"""


@pytest.fixture(scope="module")
def recipe_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sentences whose class is told by the word that they begin with, three times over."""
    folder = tmp_path_factory.mktemp("classes")
    checkpoint = write_checkpoint(tiny_model(), folder / "tiny-bert")
    write_pooling(checkpoint, "mean_tokens")
    for name, seed, count in (("train.jsonl", 0, 300), ("dev.jsonl", 1, 40)):
        lines = [
            json.dumps({"sentence": f"{f'w{number % 2} ' * 3}{text}", "label": number % 2})
            for number, text in enumerate(random_sentences(count, seed=seed))
        ]
        (folder / name).write_text("\n".join(lines) + "\n", encoding="utf-8")
    pairs = zip(random_sentences(120, seed=2), random_sentences(120, seed=3), strict=True)
    lines = [
        json.dumps({"sentence1": first, "sentence2": second, "score": number % 6})
        for number, (first, second) in enumerate(pairs)
    ]
    (folder / "pairs.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    places = {"checkpoint": checkpoint, "texts": folder / "train.jsonl", "held_out": folder / "dev.jsonl"}
    path = folder / "tiny-classifier.toml"
    path.write_text(RECIPE.format(**{name: json.dumps(str(place)) for name, place in places.items()}), encoding="utf-8")
    return path


@pytest.mark.slow
def test_a_checkpoint_becomes_a_classifier_that_is_judged_in_integers(recipe_file: Path, tmp_path: Path) -> None:
    recipe = load_recipe(recipe_file)
    stages = all_stages(recipe)
    names = [stage.name for stage in stages]
    run_stages(recipe, tmp_path, stages[: names.index("compare") + 1])
    assert type(load(tmp_path / "checkpoint")).__name__ == "BertForSequenceClassification"
    assert read_info(tmp_path / "model.onnx").task == "text-classification"
    report = json.loads((tmp_path / "comparison.json").read_text(encoding="utf-8"))["classify"]
    assert {row["arm"] for row in report["rows"]} == {"trained"}
    rows = {(row["profile"], row["evidence"]): row for row in report["rows"]}
    assert rows["tensorrt", "measured"]["passed"] is True
    (result,) = json.loads((tmp_path / "train.json").read_text(encoding="utf-8"))
    assert result["best_score"] > 0.7, "the word is not found"


def test_a_sentence_encoder_learns_scored_pairs_and_keeps_its_pooling(recipe_file: Path, tmp_path: Path) -> None:
    pairs = recipe_file.parent / "pairs.jsonl"
    recipe = load_recipe(
        recipe_file,
        ["train.objective=sentence_similarity", f"data.texts={json.dumps(str(pairs))}", "train.steps=6", "compare={}"],
    )
    run_stages(recipe, tmp_path, learning_stages(recipe))
    (result,) = json.loads((tmp_path / "train.json").read_text(encoding="utf-8"))
    assert {"float_spearman", "paper_spearman", "tensorrt_spearman"} <= result["history"][-1].keys()
    assert type(load(tmp_path / "checkpoint")).__name__ == "BertModel"
    assert read_pooling(tmp_path / "checkpoint") == "mean"


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["train.objective=masked_lm"], "objective 'masked_lm' needs an architecture"),
        (["train.mask_share=0.2"], "mask_share has no effect with objective = 'text_classification'"),
        (["train.length=10000"], r"train\.length: length 10000 is above the"),
    ],
)
def test_recipes_that_make_no_sense_are_refused(
    recipe_file: Path, tmp_path: Path, overrides: list[str], message: str
) -> None:
    def start() -> None:
        recipe = load_recipe(recipe_file, overrides)
        run_stages(recipe, tmp_path, learning_stages(recipe))

    with pytest.raises(ValueError, match=message):
        start()


def test_data_without_labels_is_refused(recipe_file: Path, tmp_path: Path) -> None:
    texts = tmp_path / "texts.jsonl"
    texts.write_text("\n".join(json.dumps({"text": text}) for text in random_sentences(300)) + "\n", encoding="utf-8")
    recipe = load_recipe(recipe_file, [f"data.texts={json.dumps(str(texts))}"])
    with pytest.raises(ValueError, match="label"):
        run_stages(recipe, tmp_path / "run", learning_stages(recipe))
