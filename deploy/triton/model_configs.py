"""The configurations of a repository's models: the graph, and around it those that take texts."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from deploy.graphs.feed_types import MASK_NAME
from deploy.graphs.graph_info import GraphInfo
from deploy.serving.batch_assembly import LENGTHS
from deploy.serving.model_signature import FREE, ModelSignature
from deploy.serving.text_model import LOGITS, TEXT, text_signature
from deploy.serving.wire_types import config_type
from deploy.tasks.sentence_vectors import FEATURES
from deploy.triton.config_text import KINDS, TYPES, ModelConfig, new_config
from deploy.triton.repository_settings import RepositorySettings, parse_version_policy

TOKENIZER, ANSWER, TEXTS = "-tokenizer", "-answer", "-text"
"""Companions of a model, by what is added to its name."""
_WARM_UP_LENGTHS = (16, 64, 128)


@dataclass(frozen=True, kw_only=True, slots=True)
class TextFacts:
    """How texts become rows of the graph and its outputs become answers."""

    info: GraphInfo
    longest: int
    """Tokens of a row at most; of every row where the graph's length is fixed."""
    shortest: int = 1
    """Tokens that a row is padded to at least."""

    @property
    def is_classifier(self) -> bool:
        """Labels, or embeddings."""
        return self.info.task == "text-classification"


def graph_config(
    signature: ModelSignature,
    settings: RepositorySettings,
    *,
    longest: int | None,
    smallest: Mapping[str, Sequence[int]] | None = None,
) -> ModelConfig:
    """Tensors, queue, versions and warm-up of the graph's own model; its runtime is set elsewhere.

    Args:
        signature: of the graph; its ``max_batch_size`` counts.
        settings: what was chosen.
        longest: greatest free size, in tokens; None where nothing bounds it.
        smallest: least shape of each input that an engine takes, batch included.
    """
    config = _model(settings.name, signature, settings)
    _set_queue(config, settings)
    if settings.response_cache:
        config.response_cache.enable = True
    if settings.warm_up:
        _set_warm_up(config, signature, longest, smallest or {})
    return config


def text_configs(signature: ModelSignature, settings: RepositorySettings, facts: TextFacts) -> list[ModelConfig]:
    """Tokenizer, answer and the ensemble of all three.

    Args:
        signature: of the graph.
        settings: what was chosen.
        facts: of its texts.
    """
    batch = signature.max_batch_size
    whole = text_signature(signature, facts.info, max_batch_size=batch)
    read = next(spec for spec in signature.outputs if spec.name == (LOGITS if facts.is_classifier else FEATURES))
    mask = next(spec for spec in signature.inputs if spec.name == MASK_NAME)
    tokenizer = _python_model(
        settings.name + TOKENIZER,
        ModelSignature(inputs=whole.inputs, outputs=signature.inputs, max_batch_size=batch),
        settings,
    )
    steps = (
        [facts.info.length]
        if facts.info.length
        else [step for step in LENGTHS if facts.shortest <= step < facts.longest]
    )
    _parameters(
        tokenizer,
        max_length=facts.longest,
        pad_token_id=facts.info.pad_token_id,
        lengths=",".join(map(str, sorted({*steps, facts.longest}))),
    )
    needed = (read,) if facts.is_classifier else (read, mask)
    answer = _python_model(
        settings.name + ANSWER, ModelSignature(inputs=needed, outputs=whole.outputs, max_batch_size=batch), settings
    )
    _parameters(answer, labels=json.dumps(facts.info.labels))
    if facts.info.pooling:
        _parameters(answer, pooling=facts.info.pooling)
    ensemble = _model(settings.name + TEXTS, whole, settings)
    ensemble.platform = "ensemble"
    inner = [spec.name for spec in signature.inputs]
    _step(ensemble, tokenizer.name, inputs=[TEXT], outputs=inner)
    _step(ensemble, settings.name, inputs=inner, outputs=[read.name])
    _step(ensemble, answer.name, inputs=[spec.name for spec in needed], outputs=[spec.name for spec in whole.outputs])
    return [tokenizer, answer, ensemble]


def _model(name: str, signature: ModelSignature, settings: RepositorySettings) -> ModelConfig:
    config = new_config(name=name, max_batch_size=signature.max_batch_size)
    for side, specs in ((config.input, signature.inputs), (config.output, signature.outputs)):
        for spec in specs:
            side.add(name=spec.name, data_type=TYPES[config_type(spec.datatype)], dims=list(spec.shape))
    kind, numbers = parse_version_policy(settings.version_policy)
    if kind == "all":
        config.version_policy.all.SetInParent()
    elif kind == "specific":
        config.version_policy.specific.versions.extend(numbers)
    else:
        config.version_policy.latest.num_versions = numbers[0]
    return config


def _set_queue(config: ModelConfig, settings: RepositorySettings) -> None:
    """Dynamic batching with a bounded queue; Triton has it only for models with a batch axis."""
    if not config.max_batch_size:
        return
    batching = config.dynamic_batching
    batching.preferred_batch_size.extend(settings.preferred_batch_sizes)
    batching.max_queue_delay_microseconds = round(settings.queue_delay * 1e6)
    policy = batching.default_queue_policy
    policy.timeout_action = policy.REJECT
    policy.default_timeout_microseconds = round(settings.queue_timeout * 1e6)
    policy.allow_timeout_override = True
    policy.max_queue_size = settings.max_queue_size


def _set_warm_up(
    config: ModelConfig, signature: ModelSignature, longest: int | None, smallest: Mapping[str, Sequence[int]]
) -> None:
    """Rows of zeros at a few lengths, alone and as many as fit, so that first requests do not wait."""
    is_free = any(FREE in spec.shape[0 if signature.max_batch_size else 1 :] for spec in signature.inputs)
    least = max((sizes[1] for sizes in smallest.values() if len(sizes) > 1), default=1) if is_free else 0
    bound = longest or _WARM_UP_LENGTHS[-1]
    lengths = sorted({max(least, min(length, bound)) for length in _WARM_UP_LENGTHS}) if is_free else [0]
    for length in lengths:
        for rows in sorted({1, signature.max_batch_size or 1}):
            sample = config.model_warmup.add(name=f"{rows}x{length}" if length else f"{rows}", batch_size=rows)
            for spec in signature.inputs:
                entry = sample.inputs[spec.name]
                entry.data_type = TYPES[config_type(spec.datatype)]
                sizes = list(spec.shape) if signature.max_batch_size else [rows, *spec.shape[1:]]
                entry.dims.extend(length if size == FREE else size for size in sizes)
                entry.zero_data = True


def _python_model(name: str, signature: ModelSignature, settings: RepositorySettings) -> ModelConfig:
    config = _model(name, signature, settings)
    config.backend = "python"
    config.instance_group.add(count=settings.instances).kind = KINDS["KIND_CPU"]
    return config


def _parameters(config: ModelConfig, **values: object) -> None:
    for key, value in values.items():
        config.parameters[key].string_value = str(value)


def _step(ensemble: ModelConfig, model: str, *, inputs: Iterable[str], outputs: Iterable[str]) -> None:
    """A step whose tensors keep their names in the ensemble."""
    step = ensemble.ensemble_scheduling.step.add(model_name=model, model_version=-1)
    for name in inputs:
        step.input_map[name] = name
    for name in outputs:
        step.output_map[name] = name
