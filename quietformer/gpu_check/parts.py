"""What a check of a GPU runs: graphs of one checkpoint, and engines of them where a library builds any."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from calibration_data.sets import SAMPLE_FILE
from deploy.backends.cuda_devices import CudaDevice, cuda_devices
from deploy.backends.tensorrt_dialect import MODULES
from deploy.calibration.calibration_cache import CalibrationCache
from deploy.graphs.graph_info import read_info
from deploy.quantization.quantize import quantize
from quietformer.engine_build import EngineWishes
from quietformer.engine_forms import build_forms
from quietformer.extras import is_installed
from quietformer.gpu_check.findings import Findings
from quietformer.graph_data.calibration import CalibrationPlan, calibrate_on_data
from quietformer.progress import Job

CUDA_PROVIDER = "onnxruntime-cuda"
BATCHES = (1, 8, 32)
_LENGTH = 128
_WARNINGS = 3
"""Of the builder, per engine, that the report shows."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """One artifact on the GPU, and the graph that it stands for."""

    name: str
    artifact: Path
    graph: Path
    precision: str


def gpu_of_this_machine() -> CudaDevice:
    """The first GPU.

    Raises:
        ValueError: there is none; the message says why.
    """
    devices, why_none = cuda_devices()
    if not devices:
        raise ValueError(f"gpu-check needs an NVIDIA GPU: {why_none}")
    return devices[0]


def gpu_backend() -> tuple[str, list[str]]:
    """The best of what is installed for the GPU, and what is said of the rest.

    Raises:
        ImportError: nothing is.
    """
    for backend, module in MODULES.items():
        if sys.modules.get(module) is not None or is_installed(module):
            missing = [] if backend == "tensorrt" else ["TensorRT is not installed: engines are those of TensorRT-RTX"]
            return backend, missing
    if is_installed("onnxruntime"):
        import onnxruntime  # noqa: PLC0415 - optional, and slow to import

        if "CUDAExecutionProvider" in onnxruntime.get_available_providers():
            note = "TensorRT is not installed: graphs run on ONNX Runtime's CUDA provider"
            return CUDA_PROVIDER, [f"{note}, whose 8-bit speed says nothing of TensorRT's"]
    raise ImportError(
        "nothing here runs on the GPU: pip install 'quietformer[tensorrt]', 'quietformer[tensorrt-rtx]' or 'quietformer[gpu]'"
    )


def usual_length(graph: Path) -> int:
    """Tokens that are measured at: 128, or as many as the model has positions."""
    return min(_LENGTH, read_info(graph).max_length)


def make_graphs(checkpoint: Path, data: Path | str | None, out: Path, *, job: Job) -> dict[str, Path]:
    """Float32 and float16 graph, and ``calibration.json``; earlier ones are replaced.

    Raises:
        ValueError: a checkpoint that cannot be exported, or too few texts.
        FileNotFoundError, ImportError: as the export and the calibration.
    """
    from export.to_onnx import export_checkpoint  # noqa: PLC0415 - torch, only for the export

    graphs = {"float32": out / "model.onnx", "float16": out / "model.fp16.onnx"}
    export_checkpoint(checkpoint, graphs["float32"], force=True, progress=job.tell)
    export_checkpoint(checkpoint, graphs["float16"], dtype="float16", force=True, progress=job.tell)
    plan = CalibrationPlan(method="running-minmax", batches=8, batch_size=16)
    cache = calibrate_on_data(graphs["float32"], data or SAMPLE_FILE, plan, seed=0, job=job)
    cache.save(out / "calibration.json", force=True)
    return graphs


def make_parts(
    graphs: dict[str, Path], out: Path, *, backend: str, capability: str, findings: Findings, job: Job
) -> list[Part]:
    """Engines for the GPU, or graphs where ONNX Runtime runs them.

    Raises:
        ValueError: what quantizing or building refuses.
    """
    calibration = out / "calibration.json"
    if backend == CUDA_PROVIDER:
        int8 = out / "model.int8.onnx"
        quantize(graphs["float32"], CalibrationCache.load(calibration), int8, force=True)
        return [
            Part(name=name, artifact=graph, graph=graph, precision=name)
            for name, graph in (*graphs.items(), ("int8", int8))
        ]
    length = usual_length(graphs["float32"])
    reports = build_forms(
        graphs["float16"],
        calibration,
        out / "engines",
        EngineWishes(
            backend=backend,
            compute_capabilities=None if backend == "tensorrt" else [capability],
            smallest="1x1",
            usual=f"{BATCHES[1]}x{length}",
            largest=f"{BATCHES[-1]}x{length}",
        ),
        force=True,
        job=job,
    )
    findings.engines = {name: f"{report.version}: {report.summary()}" for name, report in reports.items()}
    findings.notes += [
        f"{name}: {warning}" for name, report in reports.items() for warning in report.warnings[:_WARNINGS]
    ]
    forms = {name: out / "engines" / name / f"model.{name}.onnx" for name in reports}
    return [
        Part(
            name=name,
            artifact=out / "engines" / name,
            graph=forms[name] if forms[name].is_file() else graphs["float16"],
            precision=report.precision,
        )
        for name, report in reports.items()
    ]
