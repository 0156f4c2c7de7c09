"""The ``tokenizer.json`` of a checkpoint as a file, also where the checkpoint is one GGUF file that holds it inside."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from train.checkpoints.checkpoint_files import TOKENIZER_FILE, copy_companions, is_gguf, load_tokenizer_file


@contextmanager
def tokenizer_file(checkpoint: Path) -> Iterator[Path]:
    """Path of a checkpoint's ``tokenizer.json`` for the length of a ``with`` block.

    It is the checkpoint's own file; for a GGUF checkpoint it lies in a temporary folder that is gone afterwards.

    Raises:
        FileNotFoundError: the checkpoint or the file is missing.
        ImportError: a GGUF file and no package ``gguf``.
        ValueError: the GGUF file is damaged, or its kind of tokenizer is unknown.
    """
    if not is_gguf(checkpoint):
        yield load_tokenizer_file(checkpoint)
        return
    with tempfile.TemporaryDirectory(prefix="quietformer-tokenizer-") as temporary:
        copy_companions(checkpoint, Path(temporary))
        yield Path(temporary) / TOKENIZER_FILE
