"""Texts as token ids and as the padded feeds of a graph, by the ``tokenizer.json`` that travels with it.

Legend: B rows of a batch, T tokens of a row with padding.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from deploy.files import sha256_file

TokenRow = NDArray[np.int64]

INPUT_NAMES = ("input_ids", "attention_mask", "token_type_ids")
"""Inputs of a BERT-family graph that :meth:`TextEncoder.feeds` can make."""
_PAD_TOKENS = ("[PAD]", "<pad>", "<|pad|>")


class TextEncoder:
    """One tokenizer with its own truncation and padding switched off, cut to ``max_length`` tokens.

    Args:
        tokenizer_file: a ``tokenizer.json``.
        max_length: longest row in tokens, special tokens included; a cut row keeps its closing special token.
        pad_token_id: id of padded positions; by default the tokenizer's own.

    Raises:
        FileNotFoundError: no such file.
        ValueError: not a tokenizer file, no padding token, or no room for a token beside the special ones.
    """

    def __init__(self, tokenizer_file: Path, *, max_length: int, pad_token_id: int | None = None) -> None:
        if not tokenizer_file.is_file():
            raise FileNotFoundError(f"no tokenizer at {tokenizer_file}")
        try:
            self._tokenizer = Tokenizer.from_file(str(tokenizer_file))
        except Exception as error:  # the library raises bare Exception
            raise ValueError(f"{tokenizer_file} is not a tokenizer.json: {error}") from error
        self._tokenizer.no_truncation()
        own_padding = self._tokenizer.padding
        self._tokenizer.no_padding()
        special = self._tokenizer.num_special_tokens_to_add(is_pair=False)
        if max_length <= special:
            raise ValueError(
                f"max_length is {max_length}; {tokenizer_file.name} adds {special} special tokens to each text"
            )
        self._tokenizer.enable_truncation(max_length)
        self.max_length = max_length
        self.pad_token_id = self._find_pad_id(own_padding, tokenizer_file) if pad_token_id is None else pad_token_id
        self.tokenizer_sha256 = sha256_file(tokenizer_file)

    def _find_pad_id(self, padding: dict[str, int] | None, tokenizer_file: Path) -> int:
        if padding is not None:
            return int(padding["pad_id"])
        for token in _PAD_TOKENS:
            if (found := self._tokenizer.token_to_id(token)) is not None:
                return int(found)
        raise ValueError(f"{tokenizer_file} names no padding token; pass pad_token_id")

    def encode(self, texts: Iterable[str]) -> list[TokenRow]:
        """Ids of each text with special tokens, at most ``max_length`` of them, as (tokens,) arrays."""
        found = list(texts)
        # A batch is handed to other threads, which one text does not need.
        encodings = self._tokenizer.encode_batch(found) if len(found) != 1 else [self._tokenizer.encode(found[0])]
        return [np.asarray(encoding.ids, dtype=np.int64) for encoding in encodings]

    def encode_document(self, text: str) -> TokenRow:
        """Every id of a text, however long, without special tokens: (tokens,)."""
        self._tokenizer.no_truncation()
        try:
            return np.asarray(self._tokenizer.encode(text, add_special_tokens=False).ids, dtype=np.int64)
        finally:
            self._tokenizer.enable_truncation(self.max_length)

    def feeds(
        self, token_rows: Sequence[TokenRow], *, length: int | None = None, input_names: Iterable[str] = INPUT_NAMES
    ) -> dict[str, NDArray[np.int64]]:
        """Padded feeds of one batch, padding behind the tokens.

        Args:
            token_rows: ids of each row, at least one row.
            length: pad to so many tokens; by default to the longest row.
            input_names: the graph's inputs; all must be among :data:`INPUT_NAMES`.

        Returns:
            int64 arrays (B, T): ids, mask (1 on tokens, 0 on padding), token types (0).

        Raises:
            ValueError: no rows, a row longer than ``length``, or an input that is not one of text.
        """
        if not token_rows:
            raise ValueError("no rows to feed; expected at least one")
        longest = max(len(row) for row in token_rows)
        length = longest if length is None else length
        if longest > length:
            raise ValueError(f"a row has {longest} tokens; the length is {length}")
        ids_BT = np.full((len(token_rows), length), self.pad_token_id, dtype=np.int64)
        mask_BT = np.zeros_like(ids_BT)
        for index, row in enumerate(token_rows):
            ids_BT[index, : len(row)] = row
            mask_BT[index, : len(row)] = 1
        made = dict(zip(INPUT_NAMES, (ids_BT, mask_BT, np.zeros_like(ids_BT)), strict=True))
        wanted = list(input_names)
        if unknown := [name for name in wanted if name not in made]:
            raise ValueError(f"cannot make input '{unknown[0]}' from text; text gives {', '.join(made)}")
        return {name: made[name] for name in wanted}
