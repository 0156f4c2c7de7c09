"""Token ids as people read them, and which of them delimit rather than mean something."""

from __future__ import annotations

from pathlib import Path

from tokenizers import Tokenizer

_PUNCTUATION = frozenset(".,;:!?\N{HORIZONTAL ELLIPSIS}")
_UNDECODABLE = "\N{REPLACEMENT CHARACTER}"


class TokenTexts:
    """The vocabulary of one ``tokenizer.json``."""

    def __init__(self, tokenizer_file: Path) -> None:
        """Read the file.

        Raises:
            FileNotFoundError: no such file.
        """
        if not tokenizer_file.is_file():
            raise FileNotFoundError(f"no tokenizer at {tokenizer_file}")
        self._tokenizer = Tokenizer.from_file(str(tokenizer_file))
        self._tokenizer.no_padding()
        added = self._tokenizer.get_added_tokens_decoder()
        self._special = {token_id for token_id, token in added.items() if token.special}
        self._special.update(self._tokenizer.encode("").ids)  # what is put around every text

    def text(self, token_id: int) -> str:
        """The token without the space before it; line breaks and spaces alone as signs."""
        decoded = str(self._tokenizer.decode([token_id], skip_special_tokens=False))
        text = decoded.replace("\n", "\N{DOWNWARDS ARROW WITH CORNER LEFTWARDS}").strip()
        if text and _UNDECODABLE not in text:
            return text
        if decoded.isspace():
            return "\N{OPEN BOX}"
        return str(self._tokenizer.id_to_token(token_id) or token_id)

    def is_delimiter(self, token_id: int) -> bool:
        """Special tokens, punctuation that ends or separates, and line breaks (PAPER section 6)."""
        if token_id in self._special:
            return True
        decoded = str(self._tokenizer.decode([token_id], skip_special_tokens=False))
        text = decoded.strip()
        return set(text) <= _PUNCTUATION if text else "\n" in decoded

    def delimiters(self) -> list[int]:
        """Every id of the vocabulary that delimits, ascending."""
        return [token_id for token_id in range(self._tokenizer.get_vocab_size()) if self.is_delimiter(token_id)]
