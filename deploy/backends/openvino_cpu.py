"""OpenVINO on the CPU: the default, because it runs the Q/DQ graph that goes to TensorRT in integers, and fast.

x86 processors without an 8-bit dot product multiply unsigned by signed bytes with sums that saturate in 16 bits, which
changes results. There a graph whose weights can get that far (all but those of ``quantize --reduce-range``) runs as it is written: every value
on its 8-bit grid, the products in float32.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal, get_args

import numpy as np
import onnx

from deploy.backends.artifact import CpuArtifact, read_artifact
from deploy.backends.base import Backend, Feeds
from deploy.backends.exact_weights import may_saturate
from deploy.backends.unsigned_activations import use_unsigned_activations
from deploy.machine import machine_facts

try:
    import openvino
except ImportError as error:
    raise ImportError("openvino is not installed: pip install 'quietformer[cpu]'") from error

Precision = Literal["f32", "default"]
_NAMES = {"f32": "float32", "bf16": "bfloat16", "f16": "float16", "dynamic": "float32"}
_PRODUCTS = ("FullyConnected", "MatMul", "Convolution")


class OpenVinoBackend(Backend):
    """An ONNX graph in OpenVINO, tuned for latency.

    Args:
        path: ONNX file.
        threads: None lets the runtime choose.
        precision: of everything that is not integer. ``default`` is the runtime's own choice: bfloat16 where the
            processor has it. None takes ``f32`` for a quantized graph, so that its accuracy does not depend on the
            processor, and ``default`` for a float graph, whose 16-bit form is the honest baseline.

    Raises:
        FileNotFoundError: no such file.
        ValueError: unknown precision, or not a model that the runtime accepts.
    """

    name = "openvino"

    def __init__(self, path: Path, *, threads: int | None = None, precision: Precision | None = None) -> None:
        if precision is not None and precision not in get_args(Precision):
            raise ValueError(f"unknown precision '{precision}'; known are {', '.join(get_args(Precision))}")
        self.rounds_in_float = False
        artifact = read_artifact(path, rewrite=self._rewrite)
        if artifact.is_float8:
            # Its results differ from the graph's own by half as much as the graph's from float (2026.4, measured).
            raise ValueError(
                f"{path} is in FP8, which OpenVINO does not compute as written; --backend onnxruntime does"
            )
        self.input_shapes, self.info = artifact.input_shapes, artifact.info
        self._config: dict[str, Any] = {"PERFORMANCE_HINT": "LATENCY"}
        if threads is not None:
            self._config["INFERENCE_NUM_THREADS"] = threads
        if (precision or ("f32" if artifact.is_quantized else "default")) == "f32":
            self._config["INFERENCE_PRECISION_HINT"] = "f32"
        if self.rounds_in_float:
            self._config["LP_TRANSFORMS_MODE"] = "NO"
        self._core = openvino.Core()
        self._folder = TemporaryDirectory(prefix="quietformer-")
        self._source = _in_folder(artifact, Path(self._folder.name))
        try:
            compiled = self._compile()
        except RuntimeError as error:
            self._folder.cleanup()
            raise ValueError(f"OpenVINO does not accept {path}: {_last_line(error)}") from error
        self.input_types = {port.any_name: np.dtype(port.element_type.to_dtype()) for port in compiled.inputs}
        # In the graph's order; a port may carry other names too, of tensors that optimization found to be the same.
        self._outputs = artifact.output_names
        assert all(name in port.names for name, port in zip(self._outputs, compiled.outputs, strict=True))
        self._threads = str(compiled.get_property("INFERENCE_NUM_THREADS"))
        rest = _NAMES[compiled.get_property("INFERENCE_PRECISION_HINT").to_string()]
        integer, total = _integer_products(compiled)
        self._integer_products = f"{integer} of {total}"
        self.precision = f"int8 + {rest}" if integer else f"int8 grid in {rest}" if self.rounds_in_float else rest
        self._request: Any = compiled.create_infer_request()
        self._fixed: dict[tuple[tuple[int, ...], ...], Any] = {}

    def _rewrite(self, model: onnx.ModelProto) -> bool:
        """Bring a quantized graph into the form that OpenVINO is fast on, and see whether it can compute it in integers."""
        self.rounds_in_float = machine_facts(versions={}).saturates_in_16_bits and may_saturate(model)
        return use_unsigned_activations(model) > 0

    def _compile(self, shapes: dict[str, tuple[int, ...]] | None = None) -> Any:
        model = self._core.read_model(self._source)
        if shapes is not None:
            model.reshape({name: list(shape) for name, shape in shapes.items()})
        return self._core.compile_model(model, "CPU", self._config)

    def fix_shapes(self, feeds: Feeds) -> None:
        """Compile once more with static shapes, about a tenth faster at batch 1; only the latest shapes are kept."""
        shapes = {name: array.shape for name, array in self._checked(feeds).items()}
        try:
            compiled = self._compile(shapes)
        except RuntimeError as error:
            raise ValueError(f"OpenVINO does not take these shapes: {_last_line(error)}") from error
        self._fixed = {tuple(shapes.values()): compiled.create_infer_request()}

    def _run(self, feeds: Feeds) -> dict[str, np.ndarray]:
        request = self._fixed.get(tuple(array.shape for array in feeds.values()), self._request)
        # Alive until the request is done. Memory that cannot be written, as a network's, is not shared.
        arrays = [np.require(array, requirements=["C", "W"]) for array in feeds.values()]
        try:
            for name, array in zip(feeds, arrays, strict=True):
                request.set_tensor(name, openvino.Tensor(array, shared_memory=True))
            request.start_async()  # with wait(), a few percent faster than infer() at batch 1: no dictionaries in between
            request.wait()
        except RuntimeError as error:
            raise ValueError(f"OpenVINO cannot run these feeds: {_last_line(error)}") from error
        return {name: np.array(request.get_output_tensor(place).data) for place, name in enumerate(self._outputs)}

    def describe(self) -> dict[str, str]:
        """See :meth:`Backend.describe`."""
        return {
            "backend": self.name,
            "version": str(openvino.__version__),
            "device": str(self._core.get_property("CPU", "FULL_DEVICE_NAME")),
            "precision": self.precision,
            "integer_products": self._integer_products,
            "threads": self._threads,
        }

    def close(self) -> None:
        """Free the compiled models."""
        self._request = None
        self._fixed = {}
        self._folder.cleanup()


def _in_folder(artifact: CpuArtifact, folder: Path) -> str | bytes:
    """What OpenVINO reads: weights in other files must lie in the graph's folder, so bytes are written beside them.

    Symbolic links are followed and refused there; a hard link costs nothing, a copy is made where the disk is another.
    """
    if not artifact.weights or isinstance(artifact.source, str):
        return artifact.source
    for file in artifact.weights:
        try:
            (folder / file.name).hardlink_to(file.resolve())
        except OSError:
            shutil.copyfile(file, folder / file.name)
    graph = folder / "model.onnx"
    graph.write_bytes(artifact.source)
    return str(graph)


def _integer_products(compiled: Any) -> tuple[int, int]:
    """How many matrix products of the executed graph run in integers, and how many there are (attention kernels aside)."""
    kinds = []
    for node in compiled.get_runtime_model().get_ordered_ops():
        facts = node.get_rt_info()
        if facts["layerType"].astype(str).startswith(_PRODUCTS):
            kinds.append(facts["primitiveType"].astype(str))
    return sum(kind.upper().endswith("I8") for kind in kinds), len(kinds)


def _last_line(error: Exception) -> str:
    return str(error).strip().splitlines()[-1]
