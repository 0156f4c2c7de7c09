"""A run small enough for a test: a random BERT of two layers, a vocabulary of words, texts of those words."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from tests.export.tiny_checkpoints import VOCAB_SIZE, tiny_model, write_checkpoint, write_pooling

RECIPE = """
name = "tiny"

[model]
checkpoint = {checkpoint}

[attention]
gate = "linear"
gate_scale = 2.0

[data]
texts = {texts}
held_out = 40
validation = 8

[retrofit]
steps = 6
batch_size = 8
max_length = 16
warmup_steps = 1
penalty_ramp_steps = 2
evaluate_every = 3
checkpoint_every = 1
calibration_rows = 16

[export]
float16 = true

[calibrate]
batches = 2
batch_size = 8
length = 16
seeds = [0, 1]

[quantize]
profiles = ["tensorrt", "paper", "ort"]

[engine]
compute_capabilities = ["8.9"]
opt_shape = "1x16"
max_shape = "4x32"

[compare.sts]
data = {pairs}

[compare.fidelity]
limit = 20

[bench]
shapes = ["1x16"]
seconds = 0.02
"""


def write_tiny_run(folder: Path) -> Path:
    """Checkpoint, texts, pairs and recipe below ``folder``; the recipe's path."""
    checkpoint = write_checkpoint(tiny_model(), folder / "tiny-bert")
    write_pooling(checkpoint, "mean_tokens")
    texts, pairs = folder / "texts.txt", folder / "pairs.jsonl"
    sentences = random_sentences(300)
    texts.write_text("\n".join(sentences) + "\n", encoding="utf-8")
    rows = zip(sentences[:60:2], sentences[1:60:2], range(30), strict=True)
    pairs.write_text(
        "".join(json.dumps({"sentence1": a, "sentence2": b, "score": score % 6}) + "\n" for a, b, score in rows),
        encoding="utf-8",
    )
    places = {"checkpoint": checkpoint, "texts": texts, "pairs": pairs}
    recipe = folder / "tiny.toml"
    recipe.write_text(RECIPE.format(**{name: json.dumps(str(path)) for name, path in places.items()}), encoding="utf-8")
    return recipe


def random_sentences(count: int, *, seed: int = 0) -> list[str]:
    """Distinct texts of 3 to 12 words."""
    generator = np.random.default_rng(seed)
    words = [f"w{number}" for number in range(VOCAB_SIZE - 4)]
    return [" ".join(generator.choice(words, size=generator.integers(3, 13))) for _ in range(count)]
