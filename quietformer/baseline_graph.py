"""A baseline as a float graph: itself, or a checkpoint exported for the occasion."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from quietformer.progress import Job


@contextmanager
def float_graph_of(baseline: Path, *, job: Job) -> Iterator[Path]:
    """The graph of a baseline; of a checkpoint folder a temporary one, removed afterwards.

    Raises:
        FileNotFoundError: no such file or folder.
        ValueError: the checkpoint cannot be exported.
    """
    if not baseline.exists():
        raise FileNotFoundError(f"no graph or checkpoint at {baseline}")
    if not baseline.is_dir():
        yield baseline
        return
    # Only a checkpoint needs torch.
    from export.to_onnx import export_checkpoint  # noqa: PLC0415

    with TemporaryDirectory() as scratch:
        graph = Path(scratch) / "model.onnx"
        export_checkpoint(baseline, graph, progress=job.tell)
        yield graph
