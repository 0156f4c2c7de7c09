"""GGUF files as read-only checkpoints: one file with config, weights and tokenizer, converted by transformers.

Packed weights are unpacked to float32. Reading is slow, tens of seconds of text tables for a large vocabulary, so what is
worked on is saved as a checkpoint folder first; within a process a file's config is parsed once.
"""

from __future__ import annotations

import copy
import importlib.util
import io
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from functools import lru_cache
from pathlib import Path
from typing import Any, cast

import torch
from transformers import AutoConfig, AutoTokenizer, PreTrainedConfig, PreTrainedModel
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

_DROPPED_VALUES = ("_model_name_or_path", "quantization_config")
"""What transformers notes of the file in its config; a saved checkpoint is neither that file nor packed."""


def read_gguf_config(path: Path) -> PreTrainedConfig:
    """Config of the model in a GGUF file; its architecture is the causal language model.

    Raises:
        ImportError: the package ``gguf`` is missing.
        ValueError: the file is damaged or holds what transformers cannot convert.
    """
    status = path.stat()
    return copy.deepcopy(_parse_config(path, status.st_mtime_ns, status.st_size))


@lru_cache(maxsize=4)
def _parse_config(path: Path, _modified: int, _size: int) -> PreTrainedConfig:
    with _reading(path):
        config = AutoConfig.from_pretrained(path.parent, gguf_file=path.name, local_files_only=True)
    for name in _DROPPED_VALUES:
        if hasattr(config, name):
            delattr(config, name)
    assert isinstance(config, PreTrainedConfig)
    if type(config) in MODEL_FOR_CAUSAL_LM_MAPPING:
        config.architectures = [cast("type[PreTrainedModel]", MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]).__name__]
    return config


def read_gguf_weights(
    path: Path, architecture: type[PreTrainedModel], config: PreTrainedConfig
) -> dict[str, torch.Tensor]:
    """Every weight of ``architecture`` in float32, by its name there; tied ones appear under both names.

    Raises:
        ImportError: the package ``gguf`` is missing.
        ValueError: the file is damaged, or lacks weights of the architecture.
    """
    with _reading(path), torch.random.fork_rng(devices=[]):
        loaded: Any = architecture.from_pretrained(
            path.parent,
            gguf_file=path.name,
            config=copy.deepcopy(config),
            dtype=torch.float32,
            local_files_only=True,
            output_loading_info=True,
        )
    model, found = loaded
    if missing := sorted(found["missing_keys"]):
        raise ValueError(f"{path} lacks {len(missing)} weights of {architecture.__name__}, the first is '{missing[0]}'")
    return dict(model.state_dict())


def gguf_tensor_shapes(path: Path) -> dict[str, list[int]]:
    """Shape of each tensor by its name in the file, as torch orders the dimensions.

    Raises:
        ImportError: the package ``gguf`` is missing.
        ValueError: the file is damaged.
    """
    with _reading(path):
        import gguf  # noqa: PLC0415  # optional

        return {
            str(tensor.name): [int(size) for size in tensor.shape[::-1]] for tensor in gguf.GGUFReader(path).tensors
        }


def write_gguf_tokenizer(path: Path, folder: Path) -> None:
    """Write the tokenizer of a GGUF file into an existing folder: ``tokenizer.json`` and its settings.

    Raises:
        ImportError: the package ``gguf`` is missing.
        ValueError: the file is damaged, or its kind of tokenizer is unknown to transformers.
    """
    with _reading(path):
        AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name, local_files_only=True).save_pretrained(folder)


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    if importlib.util.find_spec("gguf") is None:
        raise ImportError(f"{path} is a GGUF file, which needs the package gguf: pip install 'quietformer[gguf]'")
    try:
        with redirect_stderr(io.StringIO()):  # where the library draws bars that no setting turns off
            yield
    except ImportError:
        raise
    except Exception as error:  # a damaged file fails wherever the library first trips over it, with any type
        text = " ".join(str(error).split())
        raise ValueError(f"{path} is not a GGUF file that can be read: {type(error).__name__}: {text}") from error
