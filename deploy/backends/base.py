"""What every backend answers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self

import numpy as np

from deploy.graphs.feed_types import MASK_NAME, as_input_type
from deploy.graphs.graph_info import GraphInfo
from deploy.quantization.bits import Bits

Feeds = dict[str, np.ndarray]

IDS_NAME = "input_ids"
"""Input that holds token ids."""


class Backend(ABC):
    """An opened artifact. A context manager; after ``close`` it answers no more."""

    name: str
    """As in ``--backend``."""
    precision: str
    """What its matrix products run in: ``float32``, ``bfloat16``, ``int8 + float32`` with what runs beside them, or
    ``int8 grid in float32`` where integers would not be exact."""
    input_types: dict[str, np.dtype]
    """Element type of each input."""
    input_shapes: dict[str, tuple[int | str, ...]]
    """Sizes of each input; a name stands for a size that is free but the same wherever the name stands."""
    info: GraphInfo | None
    """What the graph says of its model: positions and vocabulary bound the feeds. None where it says nothing."""

    rounds_in_float: bool = False
    """Whether it puts values on the grid of their integers and multiplies in float."""
    largest_batch: int | None = None
    """Rows that are taken at once; None for any number."""

    @property
    def is_simulated(self) -> bool:
        """Whether the graph's integers are computed in float, here or because no kernel has their widths."""
        bits = self.info.bits if self.info is not None else None
        return self.rounds_in_float or (bits is not None and Bits.parse(bits).is_simulated)

    @property
    def input_names(self) -> tuple[str, ...]:
        """Inputs, in the graph's order."""
        return tuple(self.input_types)

    def infer(self, feeds: Feeds, /) -> dict[str, np.ndarray]:
        """Run once.

        Args:
            feeds: one array per input; integers of another width are converted.

        Returns:
            Outputs by name, in arrays of their own.

        Raises:
            ValueError: an input is missing or unknown, its shape or type does not fit, it is longer than the model's
                positions, holds an id outside its vocabulary, a mark that is not 0 or 1, or a number that is not finite.
        """
        return self._run(self._checked(feeds))

    def _checked(self, feeds: Feeds) -> Feeds:
        if unknown := sorted(set(feeds) - set(self.input_types)):
            raise ValueError(f"unknown input '{unknown[0]}'; the graph takes {', '.join(self.input_types)}")
        if missing := [name for name in self.input_types if name not in feeds]:
            raise ValueError(f"input '{missing[0]}' is missing; the graph takes {', '.join(self.input_types)}")
        check_shapes(feeds, self.input_shapes)
        if self.info is not None and self.info.reads == "tokens" and IDS_NAME in feeds:
            check_ids(feeds[IDS_NAME], self.info)
        if self.info is not None and MASK_NAME in feeds:
            check_mask(feeds[MASK_NAME])
        check_finite(feeds)
        return {name: as_input_type(feeds[name], kind, name) for name, kind in self.input_types.items()}

    @abstractmethod
    def _run(self, feeds: Feeds) -> dict[str, np.ndarray]:
        """Run once on checked feeds."""

    def fix_shapes(self, feeds: Feeds) -> None:
        """Prepare for many calls with exactly the shapes of ``feeds``, where that makes them faster.

        May take a second. Other shapes keep working. Call it before warming up. Raises as ``infer``.
        """
        self._checked(feeds)

    @abstractmethod
    def describe(self) -> dict[str, str]:
        """Facts for a report: backend, version, device, precision, threads."""

    @abstractmethod
    def close(self) -> None:
        """Free what the runtime holds."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def check_shapes(feeds: Feeds, shapes: dict[str, tuple[int | str, ...]]) -> None:
    """Refuse feeds that do not fit each other; some runtimes would read past the end of the shorter one.

    Raises:
        ValueError: a wrong rank, a wrong fixed size, or two inputs that disagree on a named size.
    """
    sizes: dict[str, tuple[str, int]] = {}
    for name, expected in shapes.items():
        shape = feeds[name].shape
        text = f"({', '.join(str(size) for size in expected)})"
        if len(shape) != len(expected):
            raise ValueError(f"input '{name}' has shape {shape}; expected {text}")
        for size, wanted in zip(shape, expected, strict=True):
            if isinstance(wanted, int):
                if size != wanted:
                    raise ValueError(f"input '{name}' has shape {shape}; expected {text}")
            elif (known := sizes.setdefault(wanted, (name, size)))[1] != size:
                raise ValueError(f"'{wanted}' is {size} in input '{name}' and {known[1]} in input '{known[0]}'")


def check_ids(ids_BT: np.ndarray, info: GraphInfo) -> None:
    """Refuse rows that a model has no positions or no embeddings for; some runtimes answer with nonsense.

    Args:
        ids_BT: token ids (batch, tokens).
        info: of the graph that is to take them.

    Raises:
        ValueError: too long, or an id outside the vocabulary.
    """
    if ids_BT.shape[-1] > info.max_length:
        raise ValueError(f"length {ids_BT.shape[-1]} is above the model's {info.max_length} positions")
    if ids_BT.size and not (ids_BT.min() >= 0 and ids_BT.max() < info.vocab_size):
        raise ValueError(
            f"input '{IDS_NAME}' holds ids from {ids_BT.min()} to {ids_BT.max()}; expected 0 to {info.vocab_size - 1}"
        )


def check_mask(mask_BT: np.ndarray) -> None:
    """Refuse marks other than 0 and 1: a decoder counts its positions with them, and some runtimes would read past its table.

    Raises:
        ValueError: names the range of the marks.
    """
    if mask_BT.size and not (mask_BT.min() >= 0 and mask_BT.max() <= 1):
        raise ValueError(
            f"input '{MASK_NAME}' holds {mask_BT.min()} to {mask_BT.max()}; expected 1 on tokens and 0 on padding"
        )


def check_finite(feeds: Feeds) -> None:
    """Refuse numbers that no model answers sensibly, such as pixels that are NaN.

    Raises:
        ValueError: names the input, and how many of its numbers are not finite.
    """
    for name, array in feeds.items():
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise ValueError(f"input '{name}' holds {int((~np.isfinite(array)).sum())} numbers that are not finite")
