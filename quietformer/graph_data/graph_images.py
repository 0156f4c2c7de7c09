"""From images to the feeds of a graph: its metadata says how they are resized, cut and normalised."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deploy.calibration.calibration_subset import Batch, image_calibration_batches, random_image_batches
from deploy.data.image_data import image_data_identity, read_images
from deploy.data.image_encoding import PIXEL_INPUT, ImageEncoder
from deploy.graphs.graph_info import GraphInfo
from deploy.graphs.shapes import parse_shapes


@dataclass(frozen=True, kw_only=True, slots=True)
class GraphImages:
    """What turns images into feeds of one graph."""

    info: GraphInfo
    encoder: ImageEncoder
    input_names: tuple[str, ...]
    usual_shape: str = "1"

    def calibration_batches(
        self, data: Path | str, *, batches: int, batch_size: int, seed: int, column: str | None = None
    ) -> tuple[Sequence[Batch], list[int]]:
        """A random subset of the images, and their indices.

        Raises:
            FileNotFoundError: no such data.
            ValueError: an evaluation split, too few images, or a column.
        """
        _refuse_column(column)
        images = read_images(data, labelled=False)
        return image_calibration_batches(images, self.encoder, batches=batches, batch_size=batch_size, seed=seed)

    def data_identity(self, data: Path | str, *, column: str | None = None) -> dict[str, Any]:
        """What a calibration cache says of the images; raises as :meth:`calibration_batches`."""
        _refuse_column(column)
        return image_data_identity(data, labelled=False)

    def preprocessing(self) -> dict[str, Any]:
        """What a calibration cache says of how images became feeds."""
        return self.encoder.identity()

    def random_batches(self, *, batches: int, batch_size: int, seed: int) -> Sequence[Batch]:
        """Images of noise."""
        return random_image_batches(self.encoder, batches=batches, batch_size=batch_size, seed=seed)

    def full_batch(self, data: Path | str | None, shape: str) -> Batch:
        """One batch to measure latency with.

        Args:
            data: images, repeated where there are fewer than the batch holds; noise by default.
            shape: ``8`` or ``8x3x224x224``.

        Raises:
            FileNotFoundError: no such data.
            ValueError: a shape that the graph does not take.
        """
        expected = (3, *self.encoder.size)
        sizes = parse_shapes(shape, {PIXEL_INPUT: ("batch", *expected)})[PIXEL_INPUT]
        if sizes[1:] != expected:
            raise ValueError(
                f"shape '{shape}' is not BATCH or BATCHx{'x'.join(map(str, expected))}, which the graph takes"
            )
        if data is None:
            return self.random_batches(batches=1, batch_size=sizes[0], seed=0)[0]
        images = read_images(data, labelled=False, limit=sizes[0], allow_evaluation_split=True)
        return dict(self.encoder.feeds([images[row % len(images)] for row in range(sizes[0])]))


def graph_images(info: GraphInfo, input_names: tuple[str, ...], *, name: str) -> GraphImages:
    """Open what belongs to a graph that reads pixels.

    Args:
        info: metadata of the graph.
        input_names: inputs of the graph.
        name: of the graph, for messages.

    Raises:
        ValueError: an input that images do not give, or metadata that describes no preprocessing.
    """
    if input_names != (PIXEL_INPUT,):
        raise ValueError(f"{name} takes {', '.join(input_names)}; images give {PIXEL_INPUT} alone")
    try:
        values: dict[str, Any] = {
            key: tuple(value) if isinstance(value, list) else value for key, value in (info.image or {}).items()
        }
        encoder = ImageEncoder(**values)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name} has damaged quietformer metadata: preprocessing of images, {error}") from error
    return GraphImages(info=info, encoder=encoder, input_names=input_names)


def _refuse_column(column: str | None) -> None:
    if column is not None:
        raise ValueError(f"column '{column}' has no effect on images; their columns are found by name")
