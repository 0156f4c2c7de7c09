"""Small byte-level BPE tokenizers made from a run's own texts: a model trained for minutes cannot afford 30,000 words."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from tokenizers.processors import TemplateProcessing

from deploy.data.tokenizer_folder import PAD_TOKEN, begins_with

TokenizerUse = Literal["masked", "causal"]

_PREFIX = "bpe:"
_MASKED_SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
_CAUSAL_SPECIAL = ["<|endoftext|>", PAD_TOKEN]
_FEWEST_IDS = 300
"""The bytes, the special tokens, and something to learn."""


def trained_size(text: str) -> int | None:
    """Number of ids of ``bpe:8192``; ``None`` for the path of a folder.

    Raises:
        ValueError: the number is missing or too small.
    """
    if not text.startswith(_PREFIX):
        return None
    size = text.removeprefix(_PREFIX)
    if not size.isdecimal() or int(size) < _FEWEST_IDS:
        raise ValueError(f"tokenizer '{text}' needs a size of at least {_FEWEST_IDS}, for example bpe:8192")
    return int(size)


def train_tokenizer(texts: Iterable[str], *, vocab_size: int, use: TokenizerUse) -> Tokenizer:
    """Make a tokenizer from texts, special tokens and template included; the same texts give the same one.

    Args:
        texts: read once.
        vocab_size: ids, special ones included; fewer where the texts give no more.
        use: ``masked``: lower case, ``[CLS] text [SEP]``, with ``[MASK]``; ``causal``: ``<|endoftext|> text``.
    """
    tokenizer = Tokenizer(models.BPE())
    if use == "masked":
        tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=use == "masked")
    tokenizer.decoder = decoders.ByteLevel()
    special = _MASKED_SPECIAL if use == "masked" else _CAUSAL_SPECIAL
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    if use == "causal":
        tokenizer.post_processor = begins_with(special[0], 0)
        return tokenizer
    ids = [(token, tokenizer.token_to_id(token)) for token in ("[CLS]", "[SEP]")]
    tokenizer.post_processor = TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=ids
    )
    return tokenizer
