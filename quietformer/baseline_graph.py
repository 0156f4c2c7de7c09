"""A baseline as what can be run: a float graph, a float engine, or a checkpoint exported for the occasion."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from deploy.backends.artifact_facts import is_engine
from deploy.graphs.graph_info import GraphInfo
from quietformer.progress import Job


@contextmanager
def float_graph_of(baseline: Path, *, job: Job) -> Iterator[Path]:
    """The graph or engine of a baseline; of a checkpoint folder a temporary graph, removed afterwards.

    Raises:
        FileNotFoundError: no such file or folder.
        ValueError: the checkpoint cannot be exported.
    """
    if not baseline.exists():
        raise FileNotFoundError(f"no graph or checkpoint at {baseline}")
    if not baseline.is_dir() or is_engine(baseline):
        yield baseline
        return
    # Only a checkpoint needs torch.
    from export.to_onnx import export_checkpoint  # noqa: PLC0415

    with TemporaryDirectory() as scratch:
        graph = Path(scratch) / "model.onnx"
        export_checkpoint(baseline, graph, progress=job.tell)
        yield graph


def check_comparable(baseline: Path, info: GraphInfo, candidates: Mapping[Path, GraphInfo]) -> None:
    """Refuse a comparison whose figures would not mean what they say.

    Args:
        baseline: as the user named it.
        info: metadata of its graph.
        candidates: metadata of what is compared with it.

    Raises:
        ValueError: the baseline is quantized, or a candidate reads texts or answers in another way than it does.
    """
    if info.profile is not None:
        raise ValueError(f"baseline {baseline} is quantized (profile '{info.profile}'); expected the float model")
    for path, other in candidates.items():
        for what, own, its in (
            ("tokenizer", info.tokenizer_sha256[:12], other.tokenizer_sha256[:12]),
            ("task", info.task, other.task),
            ("preprocessing of images", info.image, other.image),
            ("static length", info.length, other.length if other.length is not None else info.length),
        ):
            if own != its:
                raise ValueError(f"{path} and baseline {baseline} differ in {what}: {its} and {own}")
