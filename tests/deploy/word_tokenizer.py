"""A ``tokenizer.json`` that knows the words ``w0`` to ``w39``, with BERT's special tokens."""

from __future__ import annotations

from pathlib import Path

from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from tokenizers.processors import TemplateProcessing

PAD, CLS, SEP, UNKNOWN = 0, 1, 2, 3
FIRST_WORD = 4


def write_tokenizer(path: Path, *, pads: bool = True, words: int = 40) -> Path:
    """Write the tokenizer; with ``pads`` its own truncation and padding are switched on, as in published files."""
    names = ["[PAD]" if pads else "[NOTHING]", "[CLS]", "[SEP]", "[UNK]", *(f"w{number}" for number in range(words))]
    tokenizer = Tokenizer(WordLevel({name: index for index, name in enumerate(names)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.post_processor = TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B [SEP]", special_tokens=[("[CLS]", CLS), ("[SEP]", SEP)]
    )
    if pads:
        tokenizer.enable_truncation(4)
        tokenizer.enable_padding(length=4)
    tokenizer.save(str(path))
    return path
