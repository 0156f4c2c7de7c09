"""What a person chooses about a repository: where the model runs, and how its requests queue."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from deploy.serving.artifact_choice import check_name

Runtime = Literal["onnxruntime", "onnxruntime-cuda", "onnxruntime-tensorrt", "openvino", "tensorrt"]
"""What runs the model inside Triton."""
RUNTIMES: tuple[Runtime, ...] = get_args(Runtime)
GPU_RUNTIMES = ("onnxruntime-cuda", "onnxruntime-tensorrt", "tensorrt")
ENGINE_CACHE = "/cache"
"""Where ONNX Runtime's TensorRT keeps the engines that it builds, in the server's file system."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RepositorySettings:
    """One repository."""

    name: str
    """Of the model; its companions are NAME-tokenizer, NAME-answer and NAME-text."""
    runtime: Runtime
    max_batch_size: int = 16
    """Rows of one run; an engine's own bound where that is lower."""
    preferred_batch_sizes: tuple[int, ...] = ()
    queue_delay: float = 0.0
    """Seconds that a request waits for a fuller batch."""
    queue_timeout: float = 10.0
    """Seconds that a request waits at most."""
    max_queue_size: int = 256
    instances: int = 1
    """Of each GPU, or in all on a CPU."""
    gpus: tuple[int, ...] = ()
    """Empty takes all."""
    threads: int | None = None
    """Of each instance on a CPU; None lets the runtime choose."""
    version: int = 1
    """Folder that the model is written to."""
    version_policy: str = "latest:1"
    """``latest:N``, ``all`` or ``specific:1,3``."""
    warm_up: bool = True
    response_cache: bool = False
    cuda_graphs: bool = False
    """For the TensorRT plan: record a CUDA graph for each power of two of rows at the profile's usual length."""
    engine_cache: str = ENGINE_CACHE
    texts: bool = True
    """Add the models that take texts, where the graph can be served for them."""

    def __post_init__(self) -> None:
        check_name(self.name)
        if self.runtime not in RUNTIMES:
            raise ValueError(f"unknown runtime '{self.runtime}'; known are {', '.join(RUNTIMES)}")
        for what in ("max_batch_size", "max_queue_size", "instances", "version", "queue_timeout"):
            if getattr(self, what) <= 0:
                raise ValueError(f"{what} is {getattr(self, what)}; expected a positive number")
        if self.queue_delay < 0:
            raise ValueError(f"queue_delay is {self.queue_delay}; expected 0 or more seconds")
        if self.gpus and self.runtime not in GPU_RUNTIMES:
            raise ValueError(f"gpus have no effect on '{self.runtime}', which runs on the CPU")
        if self.threads is not None and self.runtime in GPU_RUNTIMES:
            raise ValueError(f"threads have no effect on '{self.runtime}', which runs on the GPU")
        if self.cuda_graphs and self.runtime != "tensorrt":
            raise ValueError(f"CUDA graphs are recorded of TensorRT plans; '{self.runtime}' has none")
        if self.runtime == "openvino" and self.preferred_batch_sizes:
            raise ValueError("preferred batch sizes have no effect on 'openvino', which Triton does not batch for")
        parse_version_policy(self.version_policy)


def parse_version_policy(text: str) -> tuple[str, tuple[int, ...]]:
    """``latest:N`` as ("latest", (N,)), ``specific:1,3`` as ("specific", (1, 3)), ``all`` as ("all", ()).

    Raises:
        ValueError: none of these.
    """
    kind, _, rest = text.partition(":")
    numbers = tuple(int(part) for part in rest.split(",") if part.isdecimal() and int(part))
    whole = bool(rest) and len(numbers) == len(rest.split(","))
    if (
        (kind == "all" and not rest)
        or (kind == "specific" and whole)
        or (kind == "latest" and whole and len(numbers) == 1)
    ):
        return kind, numbers
    raise ValueError(f"'{text}' is no version policy; expected latest:1, all or specific:1,3")
