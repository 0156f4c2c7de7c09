"""What a served model takes and gives: names, element types and sizes, found by running it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from deploy.backends.base import IDS_NAME, Backend, Feeds
from deploy.graphs.feed_types import MASK_NAME
from deploy.serving.wire_types import datatype_of

FREE = -1
"""A size that a request chooses."""
_BATCHES = (1, 2)
_OTHER_SIZES = (8, 12)
"""Sizes that the two probes give to free axes other than the batch."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TensorSpec:
    """One input or output."""

    name: str
    datatype: str
    """As on the wire."""
    shape: tuple[int, ...]
    """Without the batch axis where the model has one; -1 for a free size."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelSignature:
    """Inputs and outputs of a model."""

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    max_batch_size: int
    """Rows of one request; 0 for a model without a batch axis, whose requests run one by one."""

    def full_shape(self, spec: TensorSpec) -> tuple[int, ...]:
        """Sizes with the batch axis."""
        return (FREE, *spec.shape) if self.max_batch_size else spec.shape

    @property
    def output_names(self) -> tuple[str, ...]:
        """Outputs, in the graph's order."""
        return tuple(spec.name for spec in self.outputs)


@dataclass(frozen=True, kw_only=True, slots=True)
class ProbedGraph:
    """A backend's signature and how its requests may share a run."""

    signature: ModelSignature
    pads_length: bool
    """Rows of different lengths may be padded to one: there is a mask, and the length is free."""
    length_axes: dict[str, int]
    """Outputs that keep the input's length, and the axis where."""


def probe(backend: Backend, *, max_batch_size: int, max_length: int | None = None) -> ProbedGraph:
    """Run a backend on one row and on two rows of another length, and compare the shapes of its outputs.

    Args:
        backend: opened.
        max_batch_size: rows of a request, at least 1; kept only where the graph has a batch axis.
        max_length: longest row that may be probed with; None where nothing bounds it.

    Raises:
        ValueError: the backend does not run on zeros, or a tensor has a type that the protocol lacks.
    """
    shapes = backend.input_shapes
    heads = {shape[0] if shape else 0 for shape in shapes.values()}
    head = next(iter(heads)) if len(heads) == 1 else 0
    batched = isinstance(head, str) and max_batch_size > 1
    batch_name = head if isinstance(head, str) else None
    found: list[tuple[Feeds, dict[str, np.ndarray]]] = []
    for batch, other in zip(_BATCHES, _OTHER_SIZES, strict=True):
        size = other if max_length is None else min(other, max_length)
        feeds = probe_feeds(backend, batch=batch if batched else 1, batch_name=batch_name, size=size)
        found.append((feeds, backend.infer(feeds)))
    (small, first), (large, second) = found
    if batch_name is not None and any(
        array.ndim == 0 or array.shape[0] != batch
        for batch, outputs in zip((1, 2 if batched else 1), (first, second), strict=True)
        for array in outputs.values()
    ):
        batch_name, batched = None, False
    has_batch = batch_name is not None
    inputs = tuple(
        TensorSpec(
            name=name,
            datatype=datatype_of(np.dtype(backend.input_types[name])),
            shape=tuple(FREE if isinstance(size, str) else size for size in shape[1 if has_batch else 0 :]),
        )
        for name, shape in shapes.items()
    )
    outputs = tuple(
        TensorSpec(name=name, datatype=datatype_of(array.dtype), shape=_free_sizes(array, second[name], has_batch))
        for name, array in first.items()
    )
    signature = ModelSignature(inputs=inputs, outputs=outputs, max_batch_size=max_batch_size if has_batch else 0)
    pads = has_batch and {IDS_NAME, MASK_NAME} <= set(shapes) and all(spec.shape == (FREE,) for spec in inputs)
    lengths = (small[IDS_NAME].shape[1], large[IDS_NAME].shape[1]) if pads else (0, 0)
    axes = {
        name: axis
        for name, array in first.items()
        for axis in range(array.ndim - 1, 0, -1)
        if pads and (array.shape[axis], second[name].shape[axis]) == lengths and lengths[0] != lengths[1]
    }
    return ProbedGraph(signature=signature, pads_length=pads and bool(lengths[0] != lengths[1]), length_axes=axes)


def _free_sizes(first: np.ndarray, second: np.ndarray, has_batch: bool) -> tuple[int, ...]:
    sizes = tuple(one if one == other else FREE for one, other in zip(first.shape, second.shape, strict=True))
    return sizes[1:] if has_batch else sizes


def probe_feeds(backend: Backend, *, batch: int, batch_name: str | None, size: int) -> Feeds:
    """Zeros, with every token marked as one, for a backend's inputs.

    Args:
        backend: whose inputs.
        batch: rows.
        batch_name: name of the free size that is the batch.
        size: every other free size.
    """
    feeds: Feeds = {}
    for name, shape in backend.input_shapes.items():
        sizes = [part if isinstance(part, int) else batch if part == batch_name else size for part in shape]
        fill = 1 if name == MASK_NAME else 0
        feeds[name] = np.full(sizes, fill, backend.input_types[name])
    return feeds
