"""Load and save checkpoints: Hugging Face folders whose config may carry attention settings.

``load`` builds the architecture named in the config, gives it the attention of its settings, and copies every weight
by name: a weight that is missing, left over or of another shape is an error, never a fresh initialisation. ``save``
writes a folder that ``load`` reproduces bit for bit, with the files of tokenizer, image preprocessing and pooling beside the weights.
Folders as timm writes them are read too: a ``config.json`` with ``architecture`` instead of ``model_type``.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Literal, cast

import torch
import transformers
from transformers import CONFIG_MAPPING, PreTrainedConfig, PreTrainedModel
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING,
    MODEL_FOR_MASKED_LM_MAPPING,
    MODEL_MAPPING,
)
from transformers.utils import logging as transformers_logging

from train.attention.gates import Gate
from train.attention.settings import AttentionSettings
from train.attention.timm_attention import TIMM_MODEL_TYPE, require_timm
from train.checkpoints.checkpoint_files import (
    CONFIG_FILE,
    checkpoint_sha256,
    copy_companions,
    is_gguf,
    load_tokenizer_file,
    read_config_file,
    read_pooling,
    weight_files,
)
from train.checkpoints.checkpoint_location import resolve_checkpoint
from train.checkpoints.checkpoint_weights import fit_weights, read_weights
from train.checkpoints.gguf_checkpoint import read_gguf_config, read_gguf_weights
from train.conversion.convert import attach_settings, check_convertible, settings_in_config
from train.families.known_families import family_of_type, layers_of

__all__ = [
    "Head",
    "checkpoint_sha256",
    "load",
    "load_tokenizer_file",
    "read_pooling",
    "resolve_checkpoint",
    "save",
]

Head = Literal["auto", "none", "masked-lm", "causal-lm"]

_MODELS_BY_HEAD = {
    "none": MODEL_MAPPING,
    "masked-lm": MODEL_FOR_MASKED_LM_MAPPING,
    "causal-lm": MODEL_FOR_CAUSAL_LM_MAPPING,
}


def load(path: Path, *, head: Head = "auto") -> PreTrainedModel:
    """Read a checkpoint into a float32 model in evaluation mode, on the CPU.

    Attention goes through ``train.attention`` in every case; without settings in the config it is the vanilla one.

    Args:
        path: checkpoint folder or GGUF file; see ``resolve_checkpoint`` for other spellings.
        head: ``auto``: the architecture that the config names (where it names none: of timm's folders the classifier that they
            have, else the bare model); ``none``: the bare model; ``masked-lm``, ``causal-lm``: the model with that language-model head.

    Raises:
        FileNotFoundError: the folder, its config or its weights are missing.
        ImportError: a GGUF file and no package ``gguf``.
        NotADirectoryError: ``path`` is a file other than GGUF.
        ValueError: pickle weights, a truncated or foreign file, an unsupported model, wrong settings, or weights that
            do not fit the architecture.
    """
    files = weight_files(path)
    config, settings = _read_config(path)
    architecture = _architecture(config, head, path)
    weights = read_gguf_weights(path, architecture, config) if is_gguf(path) else read_weights(files)
    model = _build(architecture, config, path)
    model.float()  # type: ignore[no-untyped-call]
    try:
        attach_settings(model, settings)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    fit_weights(model, weights, path, task_weights_unread=head != "auto")
    _check_gate_scales(model, settings, path)
    model.eval()  # type: ignore[no-untyped-call]
    return model


def save(model: PreTrainedModel, path: Path, *, source: Path | None, force: bool = False) -> None:
    """Write a checkpoint folder: config with settings, safetensors weights, and the companions of ``source``.

    The folder appears complete or not at all.

    Args:
        model: what to write.
        path: the new folder.
        source: checkpoint whose tokenizer and pooling files travel along; ``None``: none do.
        force: replace an existing checkpoint folder.

    Raises:
        FileExistsError: ``path`` exists and ``force`` is not set, or what exists there is not a checkpoint folder.
    """
    if path.exists() and not force:
        raise FileExistsError(f"{path} exists; pass --force to replace it")
    if path.exists() and not (path / CONFIG_FILE).is_file() and not (path.is_dir() and not any(path.iterdir())):
        raise FileExistsError(f"{path} exists and is not a checkpoint folder; it is not replaced")
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=f".{path.name}.") as temporary:
        written, replaced = Path(temporary) / "written", Path(temporary) / "replaced"
        written.mkdir()
        _save_pretrained(model, written)
        if source is not None:
            copy_companions(source, written)
        if path.exists():
            path.rename(replaced)
        written.rename(path)


def _save_pretrained(model: PreTrainedModel, folder: Path) -> None:
    bars = transformers_logging.is_progress_bar_enabled()
    transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        model.save_pretrained(folder, max_shard_size="1TB")
    finally:
        if bars:
            transformers_logging.enable_progress_bar()  # type: ignore[no-untyped-call]


def _read_config(path: Path) -> tuple[PreTrainedConfig, AttentionSettings]:
    file = path if is_gguf(path) else path / CONFIG_FILE
    values = read_config_file(path)
    model_type = values.get("model_type", TIMM_MODEL_TYPE if "architecture" in values else None)
    if not isinstance(model_type, str):
        raise ValueError(f"{file} names no 'model_type' that is a string")  # noqa: TRY004
    try:
        if family_of_type(model_type).replaced_attention == "timm":
            require_timm()
        config = read_gguf_config(path) if is_gguf(path) else _parse_config(path, model_type)
        check_convertible(config)
        return config, settings_in_config(config) or AttentionSettings()
    except (ValueError, TypeError) as error:
        raise ValueError(f"{file}: {error}") from error


def _parse_config(path: Path, model_type: str) -> PreTrainedConfig:
    try:
        return CONFIG_MAPPING[model_type].from_pretrained(path, local_files_only=True)
    except Exception as error:  # a wrong value fails wherever the library first uses it, with any type
        raise ValueError(_in_one_line(error)) from error


def _build(architecture: type[PreTrainedModel], config: PreTrainedConfig, path: Path) -> PreTrainedModel:
    """The architecture with initial values, all of which are overwritten: the caller's generator is left alone."""
    try:
        with torch.random.fork_rng(devices=[]):
            return architecture(config)
    except Exception as error:  # as above: KeyError for an activation, ZeroDivisionError for no heads, ...
        raise ValueError(f"{path / CONFIG_FILE} describes no model that can be built: {_in_one_line(error)}") from error


def _in_one_line(error: Exception) -> str:
    """A library's message without line breaks; with its type where it is no sentence, such as ``KeyError: 'nope'``."""
    text = " ".join(str(error).split())
    return text if isinstance(error, ValueError) else f"{type(error).__name__}: {text}"


def _architecture(config: PreTrainedConfig, head: Head, path: Path) -> type[PreTrainedModel]:
    names = config.architectures or []
    if head == "auto" and not names and config.model_type == TIMM_MODEL_TYPE and config.num_labels:
        return cast("type[PreTrainedModel]", MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING[type(config)])
    if head != "auto" or not names:
        models = _MODELS_BY_HEAD["none" if head == "auto" else head]
        if type(config) not in models:
            raise ValueError(f"{path}: model type '{config.model_type}' has no head '{head}' in transformers")
        return cast("type[PreTrainedModel]", models[type(config)])
    found = getattr(transformers, str(names[0]), None)
    if not (isinstance(found, type) and issubclass(found, PreTrainedModel)) or found.config_class is not type(config):
        raise ValueError(
            f"{path / CONFIG_FILE} names the architecture '{names[0]}', which transformers does not have "
            f"for model type '{config.model_type}'"
        )
    return found


def _check_gate_scales(model: PreTrainedModel, settings: AttentionSettings, path: Path) -> None:
    for index, layer in enumerate(layers_of(model)):
        gate = layer.attention.gate if settings.gate != "none" else None
        if isinstance(gate, Gate) and abs(float(gate.scale) / settings.gate_scale - 1.0) > 1e-5:
            raise ValueError(
                f"{path}: the gate of layer {index} is stored with scale {float(gate.scale):.6g}, "
                f"but the config says gate_scale = {settings.gate_scale:.6g}"
            )
