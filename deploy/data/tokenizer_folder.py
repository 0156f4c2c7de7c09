"""A tokenizer from the files of a folder, as one ``tokenizer.json``: the form that travels with checkpoints and graphs.

Read are, in this order: ``tokenizer.json``; ``vocab.json`` with ``merges.txt`` (byte-level BPE, as GPT-2's); ``vocab.txt`` (WordPiece, as
BERT's, lower-casing unless ``tokenizer_config.json`` says otherwise). Byte-level BPE gets its end-of-text token in front of every text, so that
texts in one row are told apart, and a padding token, which it lacks.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers
from tokenizers.processors import BertProcessing, TemplateProcessing

PAD_TOKEN = "<|pad|>"
_TEXT_STARTS = ("<|endoftext|>", "</s>", "<s>")
_WORD_PIECE_SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
_TEXTS_AT_ONCE = 1000


def read_tokenizer(folder: Path) -> Tokenizer:
    """Open a tokenizer, without truncation and padding.

    Raises:
        FileNotFoundError: no such folder, or none of the files in it.
        ValueError: a file is damaged, or a BPE vocabulary has no token to begin a text with.
    """
    if not folder.is_dir():
        raise FileNotFoundError(f"no tokenizer folder at {folder}")
    known = (
        (("tokenizer.json",), _ready_made),
        (("vocab.json", "merges.txt"), _byte_level),
        (("vocab.txt",), _word_piece),
    )
    make = next((make for names, make in known if all((folder / name).is_file() for name in names)), None)
    if make is None:
        raise FileNotFoundError(
            f"{folder} holds no tokenizer.json, vocab.json with merges.txt, or vocab.txt; one of them is needed"
        )
    try:
        tokenizer = make(folder)
    except Exception as error:  # the library raises bare Exception
        raise ValueError(f"{folder} holds no tokenizer that can be read: {error}") from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def encode_stream(tokenizer: Tokenizer, texts: Iterable[str]) -> Iterator[list[int]]:
    """Ids of each text with its special tokens; only some texts are in memory at a time."""
    waiting = iter(texts)
    while group := list(islice(waiting, _TEXTS_AT_ONCE)):
        for encoding in tokenizer.encode_batch_fast(group):
            yield encoding.ids


def begins_with(token: str, token_id: int) -> TemplateProcessing:
    """Puts a token in front of every text."""
    return TemplateProcessing(single=f"{token} $A", pair=f"{token} $A {token} $B", special_tokens=[(token, token_id)])


def _ready_made(folder: Path) -> Tokenizer:
    return Tokenizer.from_file(str(folder / "tokenizer.json"))


def _byte_level(folder: Path) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE.from_file(str(folder / "vocab.json"), str(folder / "merges.txt")))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    start = next((token for token in _TEXT_STARTS if tokenizer.token_to_id(token) is not None), None)
    if start is None:
        raise ValueError(f"none of {', '.join(_TEXT_STARTS)} is in vocab.json to begin a text with")
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in (start, PAD_TOKEN)])
    tokenizer.post_processor = begins_with(start, _id_of(tokenizer, start))
    return tokenizer


def _word_piece(folder: Path) -> Tokenizer:
    config = folder / "tokenizer_config.json"
    values = json.loads(config.read_text(encoding="utf-8")) if config.is_file() else {}
    tokenizer = Tokenizer(models.WordPiece.from_file(str(folder / "vocab.txt"), unk_token="[UNK]"))
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in _WORD_PIECE_SPECIAL])
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=bool(values.get("do_lower_case", True)))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    separator, start = ((token, _id_of(tokenizer, token)) for token in ("[SEP]", "[CLS]"))
    tokenizer.post_processor = BertProcessing(separator, start)
    return tokenizer


def _id_of(tokenizer: Tokenizer, token: str) -> int:
    token_id = tokenizer.token_to_id(token)
    assert token_id is not None
    return token_id
