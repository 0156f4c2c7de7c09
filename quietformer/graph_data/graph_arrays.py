"""The feeds of a graph that nobody described: arrays of an ``.npz`` file as they come, one per input, samples on the first axis."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from deploy.calibration.calibration_subset import Batch
from deploy.data.array_sets import load_set
from deploy.data.example_draw import ExamplesUsed, draw
from deploy.graphs.graph_info import GraphInfo
from deploy.graphs.shapes import joined_sizes, parse_shapes
from deploy.graphs.watched_graph import GraphInput

_USUAL_LENGTH = 128


@dataclass(frozen=True, kw_only=True, slots=True)
class GraphArrays:
    """What turns arrays into feeds of one graph."""

    info: GraphInfo
    inputs: tuple[GraphInput, ...]
    name: str
    length: int | None = None
    """Of made-up arrays, where the graph leaves it open."""

    @property
    def input_names(self) -> tuple[str, ...]:
        """Inputs of the graph, in order."""
        return tuple(entry.name for entry in self.inputs)

    @property
    def usual_shape(self) -> str:
        """One row; of a graph of open length, 128 long."""
        is_open = any(len(entry.shape) == 2 and entry.shape[1] is None for entry in self.inputs)
        return f"1x{_USUAL_LENGTH}" if is_open else "1"

    def calibration_batches(
        self, data: Path | str, *, batches: int, batch_size: int, seed: int, column: str | None = None
    ) -> tuple[Sequence[Batch], list[int]]:
        """A random subset of the samples, and their indices.

        Raises:
            FileNotFoundError: no such file.
            ValueError: no ``.npz`` file, too few samples, or a column.
        """
        arrays = self._arrays(data, column=column)
        available = len(next(iter(arrays.values())))
        if available < batches * batch_size:
            raise ValueError(f"{available} samples; {batches} batches of {batch_size} need {batches * batch_size}")
        indices = np.random.default_rng(seed).permutation(available)[: batches * batch_size].tolist()
        starts = range(0, len(indices), batch_size)
        made = [
            {name: array[indices[start : start + batch_size]] for name, array in arrays.items()} for start in starts
        ]
        return made, indices

    def data_identity(self, data: Path | str, *, column: str | None = None) -> dict[str, Any]:
        """What a calibration cache says of the arrays; raises as :meth:`calibration_batches`."""
        self._refuse(data, column=column)
        return load_set(Path(data))[1]

    def preprocessing(self) -> dict[str, Any]:
        """Nothing is done to the arrays."""
        return {}

    def random_batches(self, *, batches: int, batch_size: int, seed: int) -> Sequence[Batch]:
        """Noise for floats, ones for masks and zeros for other integers, whose meaning nobody knows."""
        generator = np.random.default_rng(seed)
        return [self._made_up(generator, rows=batch_size, length=self.length or _USUAL_LENGTH) for _ in range(batches)]

    def full_batch(self, data: Path | str | None, shape: str) -> Batch:
        """One batch to measure latency with.

        Args:
            data: an ``.npz`` file, whose samples are repeated where it has fewer; made-up arrays by default.
            shape: rows, or the whole shape of an input; axes that the graph leaves open are cut to it.

        Raises:
            FileNotFoundError: no such file.
            ValueError: a shape that the graph or the arrays do not have.
        """
        free: dict[str, tuple[int | str, ...]] = {
            entry.name: tuple(f"size{axis}" if size is None else size for axis, size in enumerate(entry.shape))
            for entry in self.inputs
        }
        sizes = parse_shapes(shape, free)
        for name, expected in free.items():
            fits = len(sizes[name]) == len(expected) and all(
                isinstance(size, str) or size == asked for size, asked in zip(expected, sizes[name], strict=True)
            )
            if not fits:
                raise ValueError(
                    f"shape '{shape}' does not fit input '{name}' of {self.name}: {joined_sizes(expected)}"
                )
        if data is None:
            rows, *rest = next((s for s in sizes.values() if len(s) == 2), next(iter(sizes.values())))
            return self._made_up(np.random.default_rng(0), rows=rows, length=rest[0] if rest else 1)
        batch = {}
        for name, array in self._arrays(data).items():
            rows, *rest = sizes[name]
            if any(have < want for have, want in zip(array.shape[1:], rest, strict=True)):
                raise ValueError(
                    f"input '{name}' has samples of {joined_sizes(array.shape[1:])}; shape '{shape}' asks for more"
                )
            taken = array[np.arange(rows) % len(array)]
            batch[name] = np.ascontiguousarray(taken[(slice(None), *(slice(size) for size in rest))])
        return batch

    def drawn_batches(
        self, data: Path | str, *, batch_size: int, limit: int | None = None, seed: int | None = None
    ) -> tuple[list[Batch], ExamplesUsed]:
        """All samples, or so many drawn at random, in order; and which."""
        arrays = self._arrays(data)
        chosen = draw(range(len(next(iter(arrays.values())))), limit=limit, seed=seed)
        groups = [chosen.examples[start : start + batch_size] for start in range(0, len(chosen.examples), batch_size)]
        return [{name: array[rows] for name, array in arrays.items()} for rows in groups], chosen.used

    def _arrays(self, data: Path | str, *, column: str | None = None) -> dict[str, np.ndarray[Any, Any]]:
        self._refuse(data, column=column)
        (arrays,), _ = load_set(Path(data), batch_size=2**31)
        if odd := sorted(set(arrays) ^ set(self.input_names)):
            raise ValueError(
                f"'{odd[0]}' is not in both {data} and the inputs of {self.name}: {', '.join(self.input_names)}"
            )
        return dict(arrays)

    def _refuse(self, data: Path | str, *, column: str | None) -> None:
        if column is not None:
            raise ValueError(f"column '{column}' has no effect on arrays")
        if Path(data).suffix != ".npz":
            raise ValueError(
                f"{self.name} reads arrays: give an .npz file with one array per input ({', '.join(self.input_names)}), "
                f"not {data}; 'quietformer adopt' with --tokenizer or --preprocessing makes it read texts or images"
            )

    def _made_up(self, generator: np.random.Generator, *, rows: int, length: int) -> Batch:
        batch: Batch = {}
        for entry in self.inputs:
            shape = [rows if axis == 0 else (length if size is None else size) for axis, size in enumerate(entry.shape)]
            if np.issubdtype(entry.dtype, np.floating):
                batch[entry.name] = generator.standard_normal(shape).astype(entry.dtype)
            else:
                batch[entry.name] = np.full(shape, "mask" in entry.name, dtype=entry.dtype)
        return batch


def graph_arrays(info: GraphInfo, inputs: Sequence[GraphInput], *, name: str, length: int | None = None) -> GraphArrays:
    """Open what belongs to a graph that reads arrays."""
    return GraphArrays(info=info, inputs=tuple(inputs), name=name, length=length)
