"""What a graph reads, tokens of texts, pixels of images or arrays as they come, behind one interface: nobody else needs to tell them apart."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from deploy.backends.artifact_facts import artifact_facts
from deploy.calibration.calibration_subset import Batch
from deploy.data.array_sets import load_set
from deploy.data.image_data import image_data_identity
from deploy.data.text_data import data_identity
from deploy.graphs.graph_info import GraphInfo, read_info
from deploy.graphs.watched_graph import WatchedGraph
from quietformer.graph_data.graph_arrays import graph_arrays
from quietformer.graph_data.graph_images import graph_images
from quietformer.graph_data.graph_text import graph_text


class GraphInputs(Protocol):
    """What turns data into feeds of one graph.

    :class:`~quietformer.graph_data.graph_text.GraphText`, :class:`~quietformer.graph_data.graph_images.GraphImages` or
    :class:`~quietformer.graph_data.graph_arrays.GraphArrays`.
    """

    @property
    def info(self) -> GraphInfo:
        """Metadata of the graph."""

    @property
    def input_names(self) -> tuple[str, ...]:
        """Inputs of the graph, in order."""

    @property
    def usual_shape(self) -> str:
        """Shape of one input as people write it, where nobody says otherwise: ``1x128`` or ``1``."""

    def calibration_batches(
        self, data: Path | str, *, batches: int, batch_size: int, seed: int, column: str | None = None
    ) -> tuple[Sequence[Batch], list[int]]:
        """A random subset of the data as feeds, and the indices of what was drawn."""

    def data_identity(self, data: Path | str, *, column: str | None = None) -> dict[str, Any]:
        """What a calibration cache says of the data."""

    def preprocessing(self) -> dict[str, Any]:
        """What a calibration cache says of how data became feeds."""

    def random_batches(self, *, batches: int, batch_size: int, seed: int) -> Sequence[Batch]:
        """Feeds that mean nothing."""

    def full_batch(self, data: Path | str | None, shape: str) -> Batch:
        """One batch of a shape to measure latency with."""


def graph_data_identity(graph: Path, data: Path | str) -> dict[str, Any]:
    """What a calibration cache of a graph says of data that the graph reads; the tokenizer is not needed.

    Raises:
        FileNotFoundError: graph or data are missing.
        ValueError: not such a graph, or not such data.
    """
    info = read_info(graph)
    if info.reads == "arrays" or str(data).endswith(".npz"):
        return load_set(Path(data))[1]
    if info.reads == "tokens":
        return data_identity(data)
    return image_data_identity(data, labelled=False)


def graph_inputs(graph: Path, *, length: int | None = None) -> GraphInputs:
    """Open what belongs to a graph.

    Args:
        graph: ONNX file with quietformer metadata, of texts with its ``tokenizer.json`` beside it; or the folder of an engine.
        length: texts are cut to so many tokens; by default to what the graph takes. Made-up arrays have it.

    Raises:
        FileNotFoundError: graph or tokenizer are missing.
        ValueError: not such a graph, or a length that it does not take; images have none.
    """
    facts = artifact_facts(graph)
    if facts.info.reads == "tokens":
        return graph_text(graph, length=length)
    if facts.info.reads == "arrays":
        if facts.engine_backend is not None:
            raise ValueError(
                f"{graph} is an engine of a graph that nobody described; only its graph tells what to feed"
            )
        return graph_arrays(facts.info, WatchedGraph(graph).inputs, name=str(graph), length=length)
    if length is not None:
        raise ValueError(f"length {length} has no effect on {graph}: it reads images")
    return graph_images(facts.info, facts.input_names, name=str(graph))
