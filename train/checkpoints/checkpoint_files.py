"""The files of a checkpoint folder: which there are, what they hash to, which travel along.

A checkpoint is a folder with ``config.json`` and ``model.safetensors`` (or shards named by
``model.safetensors.index.json``), often with tokenizer files and the folders of a sentence-transformers model.
Pickle weights are refused: reading them can run code. A single GGUF file is a checkpoint too, for reading
(:mod:`train.checkpoints.gguf_checkpoint`).
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

CONFIG_FILE = "config.json"
WEIGHTS_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
TOKENIZER_FILE = "tokenizer.json"
GGUF_SUFFIX = ".gguf"

_PICKLE_PATTERNS = ("pytorch_model*.bin", "*.pt", "*.pth", "*.ckpt")
_COMPANIONS = (
    TOKENIZER_FILE,
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "added_tokens.json",
    "vocab.txt",
    "vocab.json",
    "merges.txt",
    "sentencepiece.bpe.model",
    "spiece.model",
    "modules.json",
    "sentence_bert_config.json",
    "config_sentence_transformers.json",
    "preprocessor_config.json",
)
_OFFSET_POSITIONS = frozenset({"roberta", "xlm-roberta", "camembert"})
"""Model types whose positions start after the padding id."""
_COMPANION_FOLDERS = "[0-9]*_*"
"""Modules of a sentence-transformers model: ``1_Pooling``, ``2_Normalize``, ..."""


def is_gguf(path: Path) -> bool:
    """Whether a checkpoint is a single GGUF file."""
    return path.suffix == GGUF_SUFFIX and path.is_file()


def read_config_file(path: Path) -> dict[str, Any]:
    """The checkpoint's ``config.json`` as plain values; the same of a GGUF file.

    Raises:
        FileNotFoundError: the folder or the file is missing.
        NotADirectoryError: ``path`` is a file.
        ValueError: it is not a JSON object.
    """
    if is_gguf(path):
        from train.checkpoints.gguf_checkpoint import read_gguf_config  # noqa: PLC0415  # imports transformers

        return dict(read_gguf_config(path).to_dict())
    return _read_json_object(_existing_file(existing_folder(path) / CONFIG_FILE))


def weight_files(path: Path) -> list[Path]:
    """The safetensors files of a checkpoint, sorted by name; the GGUF file of one that is that.

    Raises:
        FileNotFoundError: no weights, or a shard that the index names is missing.
        ValueError: the only weights are pickle files, or the index is malformed.
    """
    if is_gguf(path):
        return [path]
    folder = existing_folder(path)
    if (folder / WEIGHTS_FILE).is_file():
        return [folder / WEIGHTS_FILE]
    if (folder / INDEX_FILE).is_file():
        weight_map = _read_json_object(folder / INDEX_FILE).get("weight_map")
        if not isinstance(weight_map, dict) or not weight_map:
            raise ValueError(f"{folder / INDEX_FILE} has no 'weight_map'; expected the index of a sharded checkpoint")
        return [_existing_file(folder / Path(name).name) for name in sorted(set(weight_map.values()))]
    if pickles := sorted(file.name for pattern in _PICKLE_PATTERNS for file in folder.glob(pattern)):
        raise ValueError(
            f"{folder} holds its weights as pickle only ({pickles[0]}), and reading pickle can run code; "
            f"expected {WEIGHTS_FILE}: save the model with safe_serialization first"
        )
    raise FileNotFoundError(f"{folder} holds no {WEIGHTS_FILE}")


def checkpoint_sha256(path: Path) -> str:
    """One hex sha256 over names and bytes of the config, the weights and the weights' index, or of the GGUF file."""
    files = weight_files(path)
    if not is_gguf(path):
        files = [_existing_file(path / CONFIG_FILE), *files]
        if files[-1].name != WEIGHTS_FILE:
            files.append(path / INDEX_FILE)
    digest = hashlib.sha256()
    for file in sorted(files):
        with file.open("rb") as stream:
            digest.update(f"{file.name} {hashlib.file_digest(stream, 'sha256').hexdigest()}\n".encode())
    return digest.hexdigest()


def read_positions(path: Path) -> int | None:
    """As :func:`positions_of`, from a checkpoint folder.

    Raises:
        FileNotFoundError: the folder or its config is missing.
        ValueError: the config is not a JSON object.
    """
    return positions_of(read_config_file(path))


def positions_of(config: Mapping[str, Any]) -> int | None:
    """Longest input in tokens by the plain values of a config; ``None`` where it does not say.

    The first positions of RoBERTa's table, up to its padding id, hold no token.
    """
    table, padding = config.get("max_position_embeddings"), config.get("pad_token_id", 1)
    if not isinstance(table, int):
        return None
    if config.get("model_type") not in _OFFSET_POSITIONS:
        return table
    return table - padding - 1 if isinstance(padding, int) else None


def load_tokenizer_file(path: Path) -> Path:
    """The checkpoint's ``tokenizer.json``; :func:`train.checkpoints.tokenizer_file.tokenizer_file` serves GGUF files as well.

    Raises:
        FileNotFoundError: the folder or the file is missing.
        ValueError: the checkpoint is a GGUF file, whose tokenizer is no file of its own.
    """
    if is_gguf(path):
        raise ValueError(
            f"{path} holds its tokenizer inside; save it as a checkpoint folder, which holds {TOKENIZER_FILE}"
        )
    file = existing_folder(path) / TOKENIZER_FILE
    if not file.is_file():
        raise FileNotFoundError(
            f"{path} holds no {TOKENIZER_FILE}; save the model's fast tokenizer there (tokenizer.save_pretrained)"
        )
    return file


def read_pooling(path: Path) -> Literal["mean", "cls"] | None:
    """How a sentence-transformers checkpoint pools token vectors; ``None`` where it does not say.

    Raises:
        ValueError: it pools in another way, or the file is malformed.
    """
    if is_gguf(path):
        return None
    file = existing_folder(path) / "1_Pooling" / CONFIG_FILE
    if not file.is_file():
        return None
    values = _read_json_object(file)
    modes = {
        key.removeprefix("pooling_mode_") for key, value in values.items() if key.startswith("pooling_mode_") and value
    }
    if isinstance(values.get("pooling_mode"), str):
        modes.add(values["pooling_mode"])
    if modes in ({"mean_tokens"}, {"mean"}):
        return "mean"
    if modes in ({"cls_token"}, {"cls"}):
        return "cls"
    raise ValueError(f"{file} asks for pooling {', '.join(sorted(modes)) or 'none'}; supported are mean and cls")


def copy_companions(source: Path, target: Path) -> None:
    """Put the files of tokenizer, image preprocessing and sentence-transformers that ``source`` has into the folder ``target``.

    Raises:
        ImportError: ``source`` is a GGUF file and the package ``gguf`` is missing.
        ValueError: its tokenizer cannot be converted.
    """
    if is_gguf(source):
        from train.checkpoints.gguf_checkpoint import write_gguf_tokenizer  # noqa: PLC0415  # imports transformers

        write_gguf_tokenizer(source, target)
        return
    for name in _COMPANIONS:
        if (source / name).is_file():
            shutil.copyfile(source / name, target / name)
    for folder in sorted(source.glob(_COMPANION_FOLDERS)):
        if folder.is_dir():
            shutil.copytree(folder, target / folder.name, copy_function=shutil.copyfile)


def existing_folder(path: Path) -> Path:
    """``path``, where it is a folder.

    Raises:
        FileNotFoundError: there is none.
        NotADirectoryError: it is a file.
    """
    if path.is_file():
        raise NotADirectoryError(
            f"checkpoint {path} is a file; expected a folder with {CONFIG_FILE} and {WEIGHTS_FILE}"
        )
    if not path.is_dir():
        raise FileNotFoundError(f"checkpoint folder {path} does not exist")
    return path


def _existing_file(path: Path) -> Path:
    if not path.is_file():
        raise FileNotFoundError(f"checkpoint {path.parent} holds no {path.name}")
    return path


def _read_json_object(path: Path) -> dict[str, Any]:
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise ValueError(f"{path} is not JSON: {error}") from error
    if not isinstance(values, dict):
        raise ValueError(f"{path} holds a JSON {type(values).__name__}; expected an object")  # noqa: TRY004
    return values
