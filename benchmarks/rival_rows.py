"""What each tool does to one float graph. Runs in the environment of its tool: imports this project only in its own rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

Batches = list[dict[str, np.ndarray]]
Work = Callable[[Path, Batches, Path], None]
_LINEAR = ["MatMul", "Gemm", "Conv"]
_MASK = "attention_mask"


@dataclass(frozen=True, kw_only=True)
class Row:
    """One way to quantize."""

    package: str
    """That it needs."""
    work: Work
    all_sites: bool = False
    """Whether it is told to put every operator into integers that it can, and not only what integer kernels gain from."""


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
    """``quantize_static`` as it comes: every operator it knows, the mask among them."""
    from onnxruntime.quantization import quantize_static

    quantize_static(_prepared(model, out), out, Reader(batches))


def ort_all(model: Path, batches: Batches, out: Path) -> None:
    """``quantize_static`` on every operator it knows but those that make and add the mask; weights per channel."""
    import onnx
    from onnxruntime.quantization import QuantType, quantize_static

    prepared = _prepared(model, out)
    quantize_static(
        prepared,
        out,
        Reader(batches),
        per_channel=True,
        reduce_range=not has_vnni(),
        activation_type=QuantType.QUInt8,
        weight_type=QuantType.QInt8,
        nodes_to_exclude=mask_nodes(onnx.load(prepared, load_external_data=False)),
    )


def mask_nodes(model: Any) -> list[str]:
    """Names of the nodes from the mask to the scores that it is added to, these included."""
    made, names = {_MASK}, []
    constants = {tensor.name for tensor in model.graph.initializer}
    constants |= {node.output[0] for node in model.graph.node if node.op_type == "Constant"}
    for node in model.graph.node:
        if made & set(node.input):
            names.append(node.name)
            if all(name in made | constants for name in node.input if name):
                made.update(node.output)
    return names


def ort_best(model: Path, batches: Batches, out: Path) -> None:
    """Linear layers alone, weights per channel, seven bits of them where the processor saturates."""
    import onnx
    from onnxruntime.quantization import QuantType, quantize_static

    prepared = _prepared(model, out)
    graph = onnx.load(prepared, load_external_data=False).graph
    constants = {tensor.name for tensor in graph.initializer}
    quantize_static(
        prepared,
        out,
        Reader(batches),
        op_types_to_quantize=_LINEAR,
        per_channel=True,
        reduce_range=not has_vnni(),
        activation_type=QuantType.QUInt8,
        weight_type=QuantType.QInt8,
        nodes_to_exclude=[
            node.name for node in graph.node if node.op_type == "MatMul" and node.input[1] not in constants
        ],
        extra_options={"OpTypesToExcludeOutputQuantization": _LINEAR},
    )


def _prepared(model: Path, out: Path) -> str:
    from onnxruntime.quantization.shape_inference import quant_pre_process

    prepared = str(out.with_suffix(".prepared.onnx"))
    quant_pre_process(str(model), prepared, skip_symbolic_shape=True)
    return prepared


def nncf(model: Path, batches: Batches, out: Path, *, smooth: bool = True, transformer: bool = True) -> None:
    """NNCF as it comes, or without its SmoothQuant, or not told that it is a transformer (then the mask's sum counts too)."""
    import nncf
    import onnx

    settings: dict[str, Any] = {"model_type": nncf.ModelType.TRANSFORMER} if transformer else {}
    if not smooth:
        off = nncf.AdvancedSmoothQuantParameters(matmul=-1, convolution=-1)
        settings["advanced_parameters"] = nncf.AdvancedQuantizationParameters(smooth_quant_alphas=off)
    data = nncf.Dataset(batches)
    onnx.save(nncf.quantize(onnx.load(model), data, subset_size=len(batches), **settings), out)


def nncf_accuracy(model: Path, batches: Batches, out: Path) -> None:
    """NNCF puts layers back into float until the relative error of the outputs on two calibration batches is at most a tenth."""
    import nncf
    import onnx
    import onnxruntime

    def outputs(graph: onnx.ModelProto) -> list[np.ndarray]:
        session = onnxruntime.InferenceSession(graph.SerializeToString(), providers=["CPUExecutionProvider"])
        return [session.run(None, batch)[0] for batch in checked]

    proto, checked = onnx.load(model), batches[:2]
    reference = outputs(proto)

    def validate(graph: onnx.ModelProto, _: Any) -> tuple[float, list[float]]:
        pairs = zip(reference, outputs(graph), strict=True)
        scores = [1 - float(np.linalg.norm(a - b) / np.linalg.norm(a)) for a, b in pairs]
        return sum(scores) / len(scores), scores

    quantized = nncf.quantize_with_accuracy_control(
        proto,
        nncf.Dataset(batches),
        nncf.Dataset(checked),
        validate,
        max_drop=0.1,
        subset_size=len(batches),
        model_type=nncf.ModelType.TRANSFORMER,
    )
    onnx.save(quantized, out)


def modelopt(model: Path, batches: Batches, out: Path, *, operators: list[str] | None = None) -> None:
    """NVIDIA ModelOpt's ONNX quantization, min-max, the rest in float32; its own choice of operators, or these."""
    from modelopt.onnx.quantization import quantize

    quantize(
        str(model),
        quantize_mode="int8",
        calibration_data={name: np.concatenate([batch[name] for batch in batches]) for name in batches[0]},
        calibration_method="max",
        calibration_eps=["cpu"],
        high_precision_dtype="fp32",
        op_types_to_quantize=operators,
        output_path=str(out),
    )


def ours(
    model: Path,
    batches: Batches,
    out: Path,
    *,
    profile: str,
    weights: str = "minmax",
    tables: bool = False,
    exclude: tuple[str, ...] = (),
    reduce_range: bool = False,
) -> None:
    """This project's commands, min-max ranges; with ``tables``, embedding tables in integers where the graph has any.

    A reduced range is taken only where the processor saturates.
    """
    from deploy.calibration.calibrate import calibrate
    from deploy.graphs.graph_index import GraphIndex
    from deploy.graphs.graph_patterns import embedding_tables
    from deploy.graphs.graph_structure import load_graph
    from deploy.graphs.site_choice import SiteChoice
    from deploy.quantization.quantize import quantize

    has_tables = tables and bool(embedding_tables(GraphIndex(load_graph(model).graph)))
    choice = SiteChoice(include=("kind:embedding",) if has_tables else (), exclude=exclude)
    cache = calibrate(model, batches, method="minmax", data={"kind": "npz"}, seed=0)
    reduced = reduce_range and not has_vnni()
    quantize(model, cache, out, profile=profile, weights=weights, choice=choice, reduce_range=reduced, force=True)  # type: ignore[arg-type]


def fused(model: Path, batches: Batches, out: Path) -> None:
    """The float graph with ONNX Runtime's own fused operators; those of attention only where the graph says its heads and width."""
    del batches
    import onnx
    from onnxruntime.transformers.optimizer import optimize_model

    stated = {entry.key: entry.value for entry in onnx.load(model, load_external_data=False).metadata_props}
    sizes = {name: int(stated.get(name, 0)) for name in ("num_heads", "hidden_size")}
    optimize_model(str(model), model_type="bert", **sizes).save_model_to_file(str(out))


_OPERATORS = [*_LINEAR, "Add", "Mul", "Softmax", "LayerNormalization", "Gather"]
ROWS: dict[str, Row] = {
    "ort-fused": Row(package="onnxruntime", work=fused),
    "quietformer-tensorrt": Row(package="onnxruntime", work=partial(ours, profile="tensorrt")),
    "quietformer-ort": Row(package="onnxruntime", work=partial(ours, profile="ort")),
    "quietformer-ort-table": Row(package="onnxruntime", work=partial(ours, profile="ort", tables=True)),
    "quietformer-ort-per-channel": Row(
        package="onnxruntime", work=partial(ours, profile="ort", weights="per-channel", tables=True)
    ),
    "quietformer-ort-reduced": Row(
        package="onnxruntime",
        work=partial(ours, profile="ort", weights="per-channel", tables=True, reduce_range=True),
    ),
    "ort-best": Row(package="onnxruntime", work=ort_best),
    "nncf": Row(package="nncf", work=partial(nncf, smooth=False)),
    "nncf-smoothquant": Row(package="nncf", work=nncf),
    "nncf-accuracy": Row(package="nncf", work=nncf_accuracy),
    "modelopt": Row(package="modelopt", work=modelopt),
    "quietformer-paper": Row(package="onnxruntime", work=partial(ours, profile="paper"), all_sites=True),
    "quietformer-float-sums": Row(
        package="onnxruntime",
        work=partial(ours, profile="paper", weights="per-channel", exclude=("kind:residual_sum",)),
        all_sites=True,
    ),
    "ort-default": Row(package="onnxruntime", work=ort_default, all_sites=True),
    "ort-all": Row(package="onnxruntime", work=ort_all, all_sites=True),
    "nncf-all": Row(package="nncf", work=partial(nncf, smooth=False, transformer=False), all_sites=True),
    "modelopt-all": Row(package="modelopt", work=partial(modelopt, operators=_OPERATORS), all_sites=True),
}
"""By name. ``quietformer-ort-table``, ``-per-channel`` and ``-reduced`` also store the embedding tables in integers, as most rivals' graphs do;
``quietformer-float-sums`` leaves residual sums in float and takes weights per channel, as NNCF does when it takes every operator."""
