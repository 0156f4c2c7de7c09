"""Quantize one ONNX graph with one tool, in a process of its own, and tell how long it took and how much memory it needed.

Imports nothing of this project but for its own rows, so that it runs in any rival's environment:

python benchmarks/rival_quantizers.py ROW model.onnx samples.npz out.onnx [--batch-size 16]
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

Batches = list[dict[str, np.ndarray]]


def has_vnni() -> bool:
    """Whether products of unsigned and signed bytes add up without saturating in 16 bits."""
    flags = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    return "avx512_vnni" in flags or "avx_vnni" in flags


class Reader:
    """Batches as ONNX Runtime's quantization asks for them."""

    def __init__(self, batches: Batches) -> None:
        self._left: Iterator[dict[str, np.ndarray]] = iter(batches)

    def get_next(self) -> dict[str, np.ndarray] | None:
        """The next batch, None at the end."""
        return next(self._left, None)


def ort_default(model: Path, batches: Batches, out: Path) -> None:
    """``quantize_static`` as it comes."""
    from onnxruntime.quantization import quantize_static

    quantize_static(_prepared(model, out), out, Reader(batches))


def ort_best(model: Path, batches: Batches, out: Path) -> None:
    """Linear layers alone, weights per channel, seven bits of them where the processor saturates."""
    from onnxruntime.quantization import QuantType, quantize_static

    quantize_static(
        _prepared(model, out),
        out,
        Reader(batches),
        op_types_to_quantize=["MatMul", "Gemm", "Conv"],
        per_channel=True,
        reduce_range=not has_vnni(),
        activation_type=QuantType.QUInt8,
        weight_type=QuantType.QInt8,
        extra_options={"MatMulConstBOnly": True, "OpTypesToExcludeOutputQuantization": ["MatMul", "Gemm", "Conv"]},
    )


def _prepared(model: Path, out: Path) -> str:
    from onnxruntime.quantization.shape_inference import quant_pre_process

    prepared = str(out.with_suffix(".prepared.onnx"))
    quant_pre_process(str(model), prepared, skip_symbolic_shape=True)
    return prepared


def nncf_plain(model: Path, batches: Batches, out: Path) -> None:
    """NNCF for transformers without SmoothQuant."""
    import nncf

    off = nncf.AdvancedQuantizationParameters(
        smooth_quant_alphas=nncf.AdvancedSmoothQuantParameters(matmul=-1, convolution=-1)
    )
    _nncf(model, batches, out, advanced_parameters=off)


def nncf_smooth(model: Path, batches: Batches, out: Path) -> None:
    """NNCF for transformers as it comes: SmoothQuant first."""
    _nncf(model, batches, out)


def _nncf(model: Path, batches: Batches, out: Path, **settings: Any) -> None:
    import nncf
    import onnx

    quantized = nncf.quantize(
        onnx.load(model),
        nncf.Dataset(batches),
        model_type=nncf.ModelType.TRANSFORMER,
        subset_size=len(batches),
        **settings,
    )
    onnx.save(quantized, out)


def nncf_accuracy(model: Path, batches: Batches, out: Path) -> None:
    """NNCF puts layers back into float until the outputs on the calibration data lose at most one percent."""
    import nncf
    import onnx
    import onnxruntime

    proto = onnx.load(model)

    def outputs(graph: onnx.ModelProto) -> list[np.ndarray]:
        session = onnxruntime.InferenceSession(graph.SerializeToString(), providers=["CPUExecutionProvider"])
        return [session.run(None, batch)[0] for batch in batches[:2]]

    reference = outputs(proto)

    def validate(graph: onnx.ModelProto, _: Any) -> tuple[float, None]:
        found = outputs(graph)
        noise = sum(float(np.square(a - b).sum()) for a, b in zip(reference, found, strict=True))
        return 1 - (noise / sum(float(np.square(a).sum()) for a in reference)) ** 0.5, None

    data = nncf.Dataset(batches)
    quantized = nncf.quantize_with_accuracy_control(
        proto, data, nncf.Dataset(batches[:2]), validate, max_drop=0.1, model_type=nncf.ModelType.TRANSFORMER
    )
    onnx.save(quantized, out)


def modelopt(model: Path, batches: Batches, out: Path) -> None:
    """NVIDIA ModelOpt's ONNX quantization, min-max, the rest in float32."""
    from modelopt.onnx.quantization import quantize

    joined = {name: np.concatenate([batch[name] for batch in batches]) for name in batches[0]}
    quantize(
        str(model),
        quantize_mode="int8",
        calibration_data=joined,
        calibration_method="max",
        calibration_eps=["cpu"],
        high_precision_dtype="fp32",
        output_path=str(out),
    )


def ours(profile: str, weights: str) -> Callable[[Path, Batches, Path], None]:
    """This project's commands, min-max ranges."""

    def run(model: Path, batches: Batches, out: Path) -> None:
        from deploy.calibration.calibrate import calibrate
        from deploy.quantization.quantize import quantize

        cache = calibrate(model, batches, method="minmax", data={"kind": "npz"}, seed=0)
        quantize(model, cache, out, profile=profile, weights=weights, force=True)  # type: ignore[arg-type]

    return run


def fused(kind: str) -> Callable[[Path, Batches, Path], None]:
    """The float graph with ONNX Runtime's own fused operators."""

    def run(model: Path, batches: Batches, out: Path) -> None:
        del batches
        from onnxruntime.transformers.optimizer import optimize_model

        optimize_model(str(model), model_type=kind).save_model_to_file(str(out))

    return run


ROWS: dict[str, tuple[str, Callable[[Path, Batches, Path], None]]] = {
    "ort-fused": ("onnxruntime", fused("bert")),
    "quietformer-tensorrt": ("onnxruntime", ours("tensorrt", "mse")),
    "quietformer-ort": ("onnxruntime", ours("ort", "mse")),
    "quietformer-ort-per-channel": ("onnxruntime", ours("ort", "per-channel")),
    "ort-default": ("onnxruntime", ort_default),
    "ort-best": ("onnxruntime", ort_best),
    "nncf": ("nncf", nncf_plain),
    "nncf-smoothquant": ("nncf", nncf_smooth),
    "nncf-accuracy": ("nncf", nncf_accuracy),
    "modelopt": ("modelopt", modelopt),
}
"""Package that a row needs, and what it does."""


def run_apart(
    row: str, model: Path, samples: Path, out: Path, *, python: str = sys.executable, seconds: float = 600
) -> dict[str, Any]:
    """Run a row in a process of its own.

    Args:
        row: one of :data:`ROWS`.
        model: float ONNX graph.
        samples: ``.npz`` with an array per input.
        out: ONNX file to write.
        python: interpreter that has the row's package.
        seconds: after which it is given up.

    Returns:
        ``seconds`` and ``peak_mb`` of calibration and quantization, or ``skipped`` with the reason.
    """
    package = ROWS[row][0]
    probe = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({package!r}) is None)"
    if subprocess.run([python, "-c", probe], check=False).returncode:
        return {"skipped": f"needs the package {package}, which {python} has not"}
    with tempfile.TemporaryFile("w+") as told:
        arguments = [python, str(Path(__file__).resolve()), row, str(model), str(samples), str(out)]
        try:
            done = subprocess.run(
                arguments, stdout=subprocess.PIPE, stderr=told, text=True, check=False, timeout=seconds
            )
        except subprocess.TimeoutExpired:
            return {"skipped": f"not done after {seconds:.0f} s"}
        told.seek(0)
        last = ["", *told.read().strip().splitlines()][-1]
    if done.returncode or not done.stdout.strip():
        return {"skipped": f"failed: {last[:160]}"}
    return dict(json.loads(done.stdout.strip().splitlines()[-1]))


def main() -> None:
    """Run one row here."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("row", choices=ROWS)
    parser.add_argument("model", type=Path)
    parser.add_argument("samples", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--batch-size", type=int, default=16)
    given = parser.parse_args()
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    with np.load(given.samples, allow_pickle=False) as stored:
        arrays = {name: stored[name] for name in stored.files}
    total = len(next(iter(arrays.values())))
    batches = [
        {name: array[start : start + given.batch_size] for name, array in arrays.items()}
        for start in range(0, total, given.batch_size)
    ]
    started = time.perf_counter()
    ROWS[given.row][1](given.model, batches, given.out)
    seconds = time.perf_counter() - started
    print(json.dumps({"seconds": round(seconds, 1), "peak_mb": _peak_megabytes(), "mb": _megabytes(given.out)}))


def _peak_megabytes() -> int:
    """Largest resident memory of this process; ``getrusage`` would count that of the process it was forked from."""
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    kilobytes = next(line for line in status.splitlines() if line.startswith("VmHWM:")).split()[1]
    return round(int(kilobytes) * 1024 / 1e6)


def _megabytes(graph: Path) -> float:
    beside = list(graph.parent.glob(f"{graph.name}*data"))
    return round(sum(part.stat().st_size for part in (graph, *beside)) / 1e6, 1)


if __name__ == "__main__":
    main()
