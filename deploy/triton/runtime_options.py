"""What each runtime of Triton reads from a model's configuration besides its tensors.

ONNX Runtime: https://github.com/triton-inference-server/onnxruntime_backend, OpenVINO: …/openvino_backend, TensorRT:
…/tensorrt_backend and Triton's model_config.proto.
"""

from __future__ import annotations

from collections.abc import Sequence

from deploy.triton.config_text import KINDS, ModelConfig
from deploy.triton.repository_settings import GPU_RUNTIMES, RepositorySettings
from deploy.triton.sources import Engine

GRAPH_FILE = "model.onnx"
_WORKSPACE_BYTES = 4 << 30


def backend_of(runtime: str) -> str:
    """The backend's name in the configuration."""
    return "onnxruntime" if runtime.startswith("onnxruntime") else runtime


def plan_file(capability: str) -> str:
    """Name of the plan for one compute capability."""
    return f"model.sm{capability.replace('.', '')}.plan"


def set_runtime(
    config: ModelConfig, settings: RepositorySettings, *, is_quantized: bool, engines: Sequence[Engine]
) -> None:
    """Backend, files, instances and options.

    Args:
        config: changed in place.
        settings: what was chosen.
        is_quantized: whether the graph holds integers, which TensorRT inside ONNX Runtime must be told.
        engines: of the TensorRT plan.
    """
    config.backend = backend_of(settings.runtime)
    group = config.instance_group.add(count=settings.instances)
    group.kind = KINDS["KIND_GPU" if settings.runtime in GPU_RUNTIMES else "KIND_CPU"]
    group.gpus.extend(settings.gpus)
    if settings.runtime == "tensorrt":
        _set_plan(config, settings, engines)
        return
    config.default_model_filename = GRAPH_FILE
    if settings.runtime == "openvino":
        config.parameters["PERFORMANCE_HINT"].string_value = "LATENCY"
        config.parameters["NUM_STREAMS"].string_value = "1"
        if settings.threads is not None:
            config.parameters["INFERENCE_NUM_THREADS"].string_value = str(settings.threads)
    elif settings.runtime == "onnxruntime":
        # One operator at a time; all cores where nothing is said.
        config.parameters["intra_op_thread_count"].string_value = str(settings.threads or 0)
        config.parameters["execution_mode"].string_value = "0"
    elif settings.runtime == "onnxruntime-tensorrt":
        accelerator = config.optimization.execution_accelerators.gpu_execution_accelerator.add(name="tensorrt")
        if is_quantized:
            accelerator.parameters["precision_mode"] = "INT8"
        accelerator.parameters["max_workspace_size_bytes"] = str(_WORKSPACE_BYTES)
        accelerator.parameters["trt_engine_cache_enable"] = "true"
        accelerator.parameters["trt_engine_cache_path"] = settings.engine_cache


def _set_plan(config: ModelConfig, settings: RepositorySettings, engines: Sequence[Engine]) -> None:
    for engine in engines:
        for capability in engine.report.compute_capabilities:
            config.cc_model_filenames[capability] = plan_file(capability)
    if any(engine.report.profile for engine in engines):
        config.instance_group[0].profile.append("0")
    cuda = config.optimization.cuda
    cuda.output_copy_stream = True
    if not settings.cuda_graphs:
        return
    cuda.graphs = True
    usual = engines[0].report.profile
    for rows in _powers_of_two(config.max_batch_size):
        spec = cuda.graph_spec.add(batch_size=rows)
        for tensor in config.input:
            sizes = usual[tensor.name]["opt"] if usual else list(tensor.dims)
            spec.input[tensor.name].dim.extend(sizes[1:] if usual and config.max_batch_size else sizes)


def _powers_of_two(most: int) -> list[int]:
    """1, 2, 4 … and ``most`` itself; [0] for a model without a batch axis."""
    rows = [1 << power for power in range(most.bit_length()) if 1 << power <= most]
    return sorted({*rows, most}) if rows else [0]
