"""Training on text: tokenizer and packed tokens of a run, made once and kept on disk, and the language models' objectives."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from deploy.data.text_data import read_texts
from deploy.data.tokenizer_folder import PAD_TOKEN, encode_stream, read_tokenizer
from deploy.data.tokenizer_training import TokenizerUse, train_tokenizer, trained_size
from deploy.files import write_atomically
from deploy.tasks.mlm import masking_tokens
from quietformer.progress import Job
from quietformer.recipe.recipe import Recipe
from quietformer.training.training_setup import TrainingSetup, describe, whole_number
from train.batches.masking import MaskedWindows, Masking
from train.batches.text_batches import Batch
from train.batches.token_windows import TokenArray, TokenWindows, as_batch, pack_rows, spread_windows
from train.conversion.architecture import build_model
from train.loop.optimizer_update import BatchSource
from train.objectives.causal_lm import CausalLm
from train.objectives.learning_task import LearningTask
from train.objectives.masked_lm import MaskedLm

_TOKENIZER_TEXTS = 10_000
"""Texts that a small tokenizer is made from."""
_START_TOKENS = ("<|endoftext|>", "</s>", "<s>")
_VALIDATION_SEED = 0


def text_setup(
    recipe: Recipe, folder: Path, *, train_texts: Path, validation_texts: Path, job: Job | None = None
) -> TrainingSetup:
    """Set a language model's training up; what is in ``folder`` already is not made again.

    Args:
        recipe: with ``[train]`` and a model from scratch.
        folder: gets ``companions/tokenizer.json`` and the tokens of both files of texts.
        train_texts: to learn from.
        validation_texts: to measure by.
        job: told what is being done.

    Raises:
        FileNotFoundError: the tokenizer's folder, or a file of texts.
        ValueError: the vocabulary is larger than the model's, a window longer than its positions, or too little text.
    """
    settings = recipe.train
    assert settings is not None
    tell = job.tell if job is not None else _silent
    companions = folder / "companions"
    tokenizer = _tokenizer(recipe, companions / "tokenizer.json", train_texts, tell)
    config = _config(recipe, tokenizer)
    tokens = {
        name: _tokens(folder / f"{name}.tokens.npy", tokenizer, texts, vocab_size=config["vocab_size"], tell=tell)
        for name, texts in (("train", train_texts), ("validation", validation_texts))
    }
    count = settings.validation_batches * settings.batch_size
    held_out = spread_windows(tokens["validation"], length=settings.length, count=count)
    groups = np.split(held_out, settings.validation_batches)

    def windows(seed: int) -> TokenWindows:
        return TokenWindows(tokens["train"], length=settings.length, batch_size=settings.batch_size, seed=seed)

    task: Callable[[Any], LearningTask]
    batches: Callable[[int], BatchSource]
    validation_batches: list[Batch]
    if settings.objective == "masked_lm":
        masking = _masking(companions / "tokenizer.json", config["vocab_size"], share=settings.mask_share)
        generator = np.random.default_rng(_VALIDATION_SEED)
        task = MaskedLm
        batches = lambda seed: MaskedWindows(windows(seed), masking, seed=seed)  # noqa: E731
        validation_batches = [masking.apply(rows, generator) for rows in groups]
    else:
        task, batches = lambda _model: CausalLm(), windows
        validation_batches = [as_batch(rows) for rows in groups]
    return TrainingSetup(
        build=partial(build_model, describe(recipe, config), recipe.attention.settings()),
        task=task,
        batches=batches,
        validation_batches=validation_batches,
        companions=companions,
    )


def _silent(_text: str) -> None:
    """Tell nobody."""


def _tokenizer(recipe: Recipe, file: Path, texts: Path, tell: Callable[[str], None]) -> Tokenizer:
    if file.is_file():
        return read_tokenizer(file.parent)
    assert recipe.model.tokenizer is not None
    size = trained_size(recipe.model.tokenizer)
    if size is None:
        tokenizer = read_tokenizer(Path(recipe.model.tokenizer))
    else:
        tell(f"making a tokenizer of {size} ids")
        use: TokenizerUse = "masked" if recipe.train is not None and recipe.train.objective == "masked_lm" else "causal"
        sample = read_texts(texts, limit=_TOKENIZER_TEXTS)
        tokenizer = train_tokenizer(sample, vocab_size=size, use=use)
    file.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(file, tokenizer.to_str(pretty=True) + "\n")
    return tokenizer


def _config(recipe: Recipe, tokenizer: Tokenizer) -> dict[str, Any]:
    """The recipe's values, with what only the tokenizer knows."""
    num_ids = tokenizer.get_vocab_size()
    known = {"vocab_size": num_ids}
    for key, names in {
        "pad_token_id": ("[PAD]", PAD_TOKEN, "<pad>"),
        "bos_token_id": _START_TOKENS,
        "eos_token_id": _START_TOKENS,
    }.items():
        found = [token_id for name in names if (token_id := tokenizer.token_to_id(name)) is not None]
        if found:
            known[key] = found[0]
    config: dict[str, Any] = {**known, **recipe.model.config}
    if (whole_number(config, "vocab_size") or 0) < num_ids:
        raise ValueError(f"model.config.vocab_size is {config['vocab_size']}; the tokenizer has {num_ids} ids")
    positions = whole_number(config, "max_position_embeddings")
    assert recipe.train is not None
    if positions is not None and recipe.train.length > positions:
        raise ValueError(f"train.length is {recipe.train.length}; the model has {positions} positions")
    return config


def _tokens(
    file: Path, tokenizer: Tokenizer, texts: Path, *, vocab_size: int, tell: Callable[[str], None]
) -> TokenArray:
    """Packed tokens of a file of texts, memory-mapped."""
    if not file.is_file():
        tell(f"tokenising {texts.name}")
        packed = pack_rows(encode_stream(tokenizer, read_texts(texts)), vocab_size=vocab_size)
        file.parent.mkdir(parents=True, exist_ok=True)
        partial = file.with_suffix(f".{os.getpid()}.partial.npy")
        np.save(partial, packed)
        partial.replace(file)
    tokens: TokenArray = np.load(file, mmap_mode="r")
    return tokens


def _masking(tokenizer_file: Path, vocab_size: int, *, share: float) -> Masking:
    tokens = masking_tokens(tokenizer_file)
    return Masking(mask_id=tokens.mask, special_ids=tokens.special, vocab_size=vocab_size, share=share)
