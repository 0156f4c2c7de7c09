"""``quietformer inspect`` on a tiny model with a planted resting head, and on logs of training runs."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import PreTrainedModel
from typer.testing import CliRunner, Result

from deploy.data.image_encoding import ImageEncoder
from deploy.data.image_preprocessing import preprocessor_file
from quietformer.cli import app
from tests.export.tiny_checkpoints import VOCAB_SIZE, tiny_model, write_checkpoint, write_tokenizer
from tests.quietformer.tiny_run import random_sentences
from tests.train.decoders import tiny_llama, tiny_opt
from tests.train.vision import tiny_vision
from train.attention.settings import AttentionSettings
from train.checkpoints.checkpoint import load, save
from train.conversion.convert import convert
from train.families.known_families import layers_of

PLANTED = slice(10, 20)
"""Token ids."""


def invoke(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def succeed(*arguments: object) -> str:
    done = invoke(*arguments)
    assert done.exit_code == 0, done.output
    return done.stdout


def refuse(*arguments: object) -> str:
    done = invoke(*arguments)
    assert done.exit_code == 2, done.output
    return done.stderr


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("texts") / "texts.txt"
    path.write_text("\n".join(random_sentences(40)) + "\n", encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The FFN of layer 0 writes an outlier in dimension 5 of ten tokens; the values of head 0 above it are all zero."""
    folder = tmp_path_factory.mktemp("planted")
    model = load(write_checkpoint(tiny_model(), folder / "plain"))
    size = model.config.hidden_size // model.config.num_attention_heads
    lower, upper = layers_of(model)
    with torch.no_grad():
        model.get_parameter("embeddings.word_embeddings.weight")[PLANTED, 5] = 100.0
        lower.ffn_in[0].weight[0] = 0.0
        lower.ffn_in[0].weight[0, 5] = 10.0
        lower.ffn_in[0].bias[0] = -30.0  # closed on every other token
        lower.ffn_out.weight[:, 0] = 0.0
        lower.ffn_out.weight[5, 0] = 30.0
        for linear in (upper.query.linear, upper.key.linear, upper.value.linear):
            linear.weight[:size] = 0.0
            linear.bias[:size] = 0.0
        upper.query.linear.bias[0] = 30.0
        upper.key.linear.weight[0, 7] = 5.0
    save(model, folder / "planted", source=folder / "plain")
    return folder / "planted"


@pytest.fixture(scope="module")
def gated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("gated")
    write_checkpoint(tiny_model(), folder / "plain")
    model = tiny_model()
    convert(model, AttentionSettings(softmax="clipped", gamma=-0.2, gate="linear", gate_init=0.05))
    save(model, folder / "gated", source=folder / "plain")
    return folder / "gated"


@pytest.fixture(scope="module")
def inspected(
    planted: Path, texts: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, dict[str, Any], str, Path]:
    folder = tmp_path_factory.mktemp("inspected")
    told = succeed(
        *("inspect", planted, "--data", texts, "--gradients", "--json", folder / "o.json", "--html", folder / "o.html"),
        *("--plots", folder / "plots"),
    )
    return (
        told,
        json.loads((folder / "o.json").read_text(encoding="utf-8")),
        (folder / "o.html").read_text(encoding="utf-8"),
        folder / "plots",
    )


def test_the_planted_outlier_is_told_with_its_dimension(inspected: tuple[str, dict[str, Any], str, Path]) -> None:
    told, found, page, _ = inspected
    assert found["schema_version"] == 1
    ffn = next(tensor for tensor in found["outliers"]["tensors"] if tensor["name"] == "layer.0.ffn_output")
    assert int(np.argmax(ffn["outliers_by_feature"])) == 5
    assert sum(ffn["outliers_by_position"]) == sum(ffn["outliers_by_token"].values()) == ffn["num_outliers"] > 0
    assert {int(token) for token in ffn["outliers_by_token"]} <= set(range(PLANTED.start, PLANTED.stop))
    assert "5 (100%)" in told
    assert "in dimension 5" in page


def test_the_planted_head_is_shown_first(inspected: tuple[str, dict[str, Any], str, Path]) -> None:
    told, found, page, _ = inspected
    first = found["sequence"]["heads"][0]
    assert (first["layer"], first["head"]) == (1, 0)
    assert not any(first["value_norm"])
    tokens = found["sequence"]["tokens"]
    assert len(first["probabilities"]) == len(tokens)
    assert found["sequence"]["is_delimiter"] == [token.startswith("[") for token in tokens]
    assert "Head 1.0: probabilities" in page
    heads = told[told.index("Attention on its sink") :].splitlines()[2]
    assert heads.startswith("1.0 ")


def test_gradients_cover_every_softmax_above_an_ffn(inspected: tuple[str, dict[str, Any], str, Path]) -> None:
    told, found, page, _ = inspected
    (layer,) = found["gradients"]["layers"]
    assert layer["tensor"] == "layer.0.ffn_output"
    assert int(np.argmax(layer["largest"])) == 5
    assert len(layer["through_softmax"]) == len(layer["total"]) == len(layer["largest"])
    assert "Softmax of layer" in told
    assert "Who asks for outliers?" in page


def test_the_plots_are_files_of_their_own(inspected: tuple[str, dict[str, Any], str, Path]) -> None:
    *_, folder = inspected
    files = sorted(path.name for path in folder.iterdir())
    assert {name.split("-")[0] for name in files} == {"outliers", "places", "attention", "heads", "pull"}
    assert len([name for name in files if name.startswith("heads")]) == 12
    for path in folder.iterdir():
        text = path.read_text(encoding="utf-8")
        assert "var(--" not in text
        ET.fromstring(text)


def test_the_page_needs_nothing_from_outside_and_has_no_gates(inspected: tuple[str, dict[str, Any], str, Path]) -> None:
    page = inspected[2]
    assert "<script" not in page
    assert "http" not in page
    assert 'id="gates"' not in page


def test_gates_and_exact_zeros_are_shown_for_a_model_that_has_them(gated: Path, texts: Path, tmp_path: Path) -> None:
    out, page = tmp_path / "o.json", tmp_path / "o.html"
    succeed("inspect", gated, "--data", texts, "--heads", "0.1,1.0", "--json", out, "--html", page)
    found = json.loads(out.read_text(encoding="utf-8"))
    assert [(head["layer"], head["head"]) for head in found["sequence"]["heads"]] == [(0, 1), (1, 0)]
    np.testing.assert_allclose(found["attention"]["gate_mean"], 0.05, rtol=1e-4)
    assert np.asarray(found["attention"]["gate_low_share"]).min() == 1.0
    assert np.asarray(found["attention"]["zero_share"]).max() > 0
    assert found["gradients"] is None
    text = page.read_text(encoding="utf-8")
    assert 'id="gates"' in text
    assert "Exact zeros" in text
    assert 'id="pull"' not in text


@pytest.mark.parametrize("make", [tiny_opt, tiny_llama])
def test_a_causal_model_is_asked_for_its_next_token(
    make: Callable[..., PreTrainedModel], texts: Path, tmp_path: Path
) -> None:
    model = make(vocab_size=VOCAB_SIZE)
    convert(model, AttentionSettings(gate="linear"))
    save(model, tmp_path / "decoder", source=None)
    write_tokenizer(tmp_path / "decoder" / "tokenizer.json")
    out, page = tmp_path / "o.json", tmp_path / "o.html"
    options = ("--limit", 8, "--length", 16, "--gradients", "--json", out, "--html", page)
    succeed("inspect", tmp_path / "decoder", "--data", texts, *options)
    found = json.loads(out.read_text(encoding="utf-8"))
    assert found["gradients"]["loss"] == "cross-entropy of the next token"
    probabilities = np.asarray(found["sequence"]["heads"][0]["probabilities"])
    assert not np.triu(probabilities, k=1).any()
    np.testing.assert_allclose(probabilities.sum(axis=1), 1.0, atol=1e-3)
    assert np.shape(found["attention"]["gate_mean"]) == (2, model.config.num_attention_heads)
    assert 'id="gates"' in page.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ["vit", "timm"])
def test_a_model_of_images_is_shown_by_patch(name: str, tmp_path: Path) -> None:
    model = tiny_vision(name)
    convert(model, AttentionSettings(softmax="clipped", gamma=-0.1))
    save(model, tmp_path / "model", source=None)
    encoder = ImageEncoder(size=(12, 8), mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5))
    (tmp_path / "model" / "preprocessor_config.json").write_text(preprocessor_file(encoder), encoding="utf-8")
    images = tmp_path / "images"
    images.mkdir()
    generator = np.random.default_rng(0)
    for number in range(5):
        Image.fromarray(generator.integers(0, 256, (12, 8, 3), dtype=np.uint8)).save(images / f"{number}.png")
    out, page = tmp_path / "o.json", tmp_path / "o.html"
    succeed("inspect", tmp_path / "model", "--data", images, "--gradients", "--json", out, "--html", page)
    found = json.loads(out.read_text(encoding="utf-8"))
    assert found["patches"] == [3, 2]
    assert found["data"]["examples"] == 5
    tensor = next(tensor for tensor in found["outliers"]["tensors"] if tensor["name"] == "layer.0.ffn_output")
    assert len(tensor["largest_by_position"]) == 7  # the class token stands before the patches
    assert found["sequence"]["tokens"] is None
    assert np.shape(found["sequence"]["heads"][0]["probabilities"]) == (7, 7)
    assert "Norm of values, by patch" in page.read_text(encoding="utf-8")
    assert "reads images" in refuse("inspect", tmp_path / "model", "--data", images, "--length", 8)


def test_the_same_model_and_texts_give_the_same_figures_and_page(gated: Path, texts: Path, tmp_path: Path) -> None:
    found = []
    for name in ("a", "b"):
        succeed("inspect", gated, "--data", texts, "--limit", 8, "--json", tmp_path / name)
        values = json.loads((tmp_path / name).read_text(encoding="utf-8"))
        found.append({key: value for key, value in values.items() if key not in ("created", "machine")})
    assert found[0] == found[1]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--heads", "9.0"), "no head 9.0; the model has layers 0 to 1"),
        (("--heads", "one"), "'one' is no head; expected LAYER.HEAD"),
        (("--plots", "{texts}"), "expected a folder"),
    ],
)
def test_wrong_options_are_refused_in_one_line(
    gated: Path, texts: Path, options: tuple[str, str], message: str
) -> None:
    name, value = options
    assert message in refuse("inspect", gated, "--data", texts, name, value.format(texts=texts))


def test_a_checkpoint_without_data_is_refused(gated: Path) -> None:
    assert "pass --data PATH" in refuse("inspect", gated)


def _write_log(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    lines: list[dict[str, Any]] = []
    for step in range(1, 41):
        lines.append({"kind": "step", "step": step, "loss": 8.0 / step, "parts": {}, "largest_activation": 4.0 + step})
        if step % 10 == 0:
            figures = {"float_loss": 5.0 / step, "float_perplexity": 90.0 / step, "paper_perplexity": 95.0 / step}
            outliers = {
                "max_inf_norm": 3.0 + step,
                "ffn_output.max_inf_norm": 2.0 + step,
                "average_kurtosis": 3.0 * step,
            }
            lines.append({"kind": "evaluation", "step": step, "score": -1.0, **figures, **outliers})
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")


@pytest.mark.parametrize(
    "place", ["train.log.jsonl", "retrofit.log.jsonl", "training/log.jsonl", "training/seed-0/log.jsonl"]
)
def test_the_log_of_a_finished_and_of_a_running_training_is_found(place: str, tmp_path: Path) -> None:
    _write_log(tmp_path / place)
    assert "40 steps in" in succeed("inspect", tmp_path)


def test_a_run_directory_shows_its_curves(tmp_path: Path) -> None:
    _write_log(tmp_path / "run" / "train.log.jsonl")
    out, page = tmp_path / "o.json", tmp_path / "o.html"
    told = succeed("inspect", tmp_path / "run", "--json", out, "--html", page, "--plots", tmp_path / "plots")
    assert "40 steps in" in told
    assert "ffn_output.max_inf_norm" in told
    assert len(json.loads(out.read_text(encoding="utf-8"))["history"]) == 44
    text = page.read_text(encoding="utf-8")
    for title in ("Loss", "Validation perplexity", "Infinity norm", "Kurtosis", "Largest activation"):
        assert title in text
    assert "Score in simulated W8A8" not in text
    assert len(list((tmp_path / "plots").iterdir())) == 6


def test_a_damaged_or_empty_log_is_refused_by_name(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    log.write_text("", encoding="utf-8")
    assert f"{log} is empty" in refuse("inspect", tmp_path)
    log.write_text('{"kind": "step"}\n', encoding="utf-8")
    assert f"line 1 of {log}" in refuse("inspect", tmp_path)
