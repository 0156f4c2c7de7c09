"""Measures everything that a diagnosis shows, part by part, and puts it into plain values for ``--json`` and the page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from quietformer.diagnosis.subject import Subject
from quietformer.progress import Job
from train.families.known_families import family_of
from train.observation.attention_statistics import measure_attention
from train.observation.diagnostic_losses import next_token_loss, projection_loss
from train.observation.head_pictures import check_heads, picture_sequence
from train.observation.outlier_report import OutlierReport
from train.observation.outliers import measure_outliers
from train.observation.softmax_gradient import LossFunction, softmax_gradients

NUM_HEADS_SHOWN = 4
_TOKENS_NAMED = 40
"""Token ids with most outliers, per tensor, whose texts are kept."""


def parse_heads(text: str) -> list[tuple[int, int]]:
    """``3.5,4.1`` as (layer, head).

    Raises:
        ValueError: something else.
    """
    heads = []
    for part in text.split(","):
        layer, _, head = part.strip().partition(".")
        if not (layer.isdecimal() and head.isdecimal()):
            raise ValueError(f"'{part.strip()}' is no head; expected LAYER.HEAD, such as 3.5, several with commas")
        heads.append((int(layer), int(head)))
    return list(dict.fromkeys(heads))


def diagnose(subject: Subject, *, heads: Sequence[tuple[int, int]] | None, gradients: bool, job: Job) -> dict[str, Any]:
    """Run the model over the batches, once per part.

    Args:
        subject: model and data.
        heads: shown in full; ``None``: those whose attention rests most where it moves least.
        gradients: also measure the gradient through each softmax, which takes a backward pass per layer.
        job: told of every batch.

    Returns:
        JSON-ready: ``outliers``, ``token_texts``, ``delimiters``, ``attention``, ``sequence``, ``patches`` and ``gradients``; see
        ``quietformer.report.diagnosis_content``.

    Raises:
        ValueError: a head that the model does not have, or a model without gradients to measure.
    """
    if heads is not None:
        check_heads(subject.model, heads)
    count = 3 if gradients else 2
    outliers = measure_outliers(subject.model, _told(subject, job, "outliers", 0, count))
    statistics = measure_attention(
        subject.model, _told(subject, job, "attention", 1, count), delimiters=subject.delimiters
    )
    shown = list(heads) if heads is not None else statistics.idlest_heads(NUM_HEADS_SHOWN)
    picture = picture_sequence(subject.model, subject.shown, shown)
    return {
        "outliers": outliers.to_dict(),
        "token_texts": _token_texts(subject, outliers),
        "delimiters": list(subject.delimiters),
        "attention": statistics.to_dict(),
        "sequence": {
            "tokens": None if subject.shown_tokens is None else [token.text for token in subject.shown_tokens],
            "is_delimiter": None
            if subject.shown_tokens is None
            else [token.delimits for token in subject.shown_tokens],
            **picture.to_dict(),
        },
        "patches": None if subject.patches is None else list(subject.patches),
        "gradients": _gradients(subject, job, count) if gradients else None,
    }


def _told(subject: Subject, job: Job, part: str, number: int, count: int) -> Iterator[Mapping[str, torch.Tensor]]:
    total = len(subject.batches)
    for done, batch in enumerate(subject.batches):
        job.advance(number * total + done, count * total, part)
        yield batch


def _token_texts(subject: Subject, outliers: OutlierReport) -> dict[str, str]:
    if subject.token_texts is None:
        return {}
    ids = {token for tensor in outliers.tensors for token in list(tensor.outliers_by_token)[:_TOKENS_NAMED]}
    return {str(token): subject.token_texts.text(token) for token in sorted(ids)}


def _gradients(subject: Subject, job: Job, count: int) -> dict[str, Any]:
    name, loss = _loss(subject)
    layers = softmax_gradients(subject.model, _told(subject, job, "gradients", count - 1, count), loss)
    return {"loss": name, "layers": [layer.to_dict() for layer in layers]}


def _loss(subject: Subject) -> tuple[str, LossFunction]:
    """The model's own loss where it needs no labels beside the text itself."""
    architectures = subject.model.config.architectures or []
    has_head = bool(architectures) and not str(architectures[0]).endswith("Model")
    if family_of(subject.model).causal and has_head:
        return "cross-entropy of the next token", next_token_loss
    return "a fixed random reading of the output", projection_loss
