"""Float ONNX and a calibration cache in, W8A8 Q/DQ ONNX out.

sites of the profile and the user's choice -> scales from the cache, integers from the weights -> Q/DQ nodes
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Protocol, get_args

import numpy as np
import onnx

from deploy.calibration.calibration_cache import CalibrationCache
from deploy.calibration.ranges import QuantParams
from deploy.files import refuse_existing
from deploy.graphs.float16 import check_float16, float16_tensors, float32_name
from deploy.graphs.graph_index import GraphIndex
from deploy.graphs.graph_info import TOKENIZER_FILE, GraphInfo
from deploy.graphs.graph_refusal import refuse_quantized
from deploy.graphs.graph_structure import read_outline, stored_bytes
from deploy.graphs.graph_writing import checked_before_replacing
from deploy.graphs.model_hash import model_sha256
from deploy.graphs.op_precision import OpPrecision, op_precisions
from deploy.graphs.profiles import Profile, profile_named
from deploy.graphs.site_choice import SiteChoice
from deploy.graphs.sites import calibrated_kinds
from deploy.quantization.bits import WIDE_OPSET, Bits, storage
from deploy.quantization.float8 import float8_scale
from deploy.quantization.qdq_nodes import QdqWriter, ScaledTensor
from deploy.quantization.site_selection import Selection, select_sites
from deploy.quantization.stored_weights import WeightRanges, check_float8, check_reduced_range, stored_weight
from deploy.quantization.switch_decision import SwitchDecision

Progress = Callable[[str], None]
OLDEST_RAISED_OPSET = 18
"""Graphs of this opset and newer can be declared to be of :data:`deploy.quantization.bits.WIDE_OPSET`."""


class Ranges(Protocol):
    """What writing Q/DQ asks of a calibration cache."""

    def range_of(self, tensor: str, *, bits: int = 8, symmetric: bool = True) -> QuantParams:
        """Parameters of one tensor; a ``ValueError`` when it was not calibrated."""


@dataclass(frozen=True, kw_only=True, slots=True)
class QuantizeSummary:
    """What was quantized and what was not."""

    profile: str
    bits: str
    activations: dict[str, int]
    """Number of quantized tensors by kind."""
    weights: dict[str, int]
    """Number of integer constants by kind."""
    sites: dict[str, str]
    """Kind of every quantized tensor and weight, by name, tensors first."""
    float_linears: dict[str, str]
    """Linear layers left in float, by node name, with the reason."""
    operations: tuple[OpPrecision, ...]
    """Precision of every matrix product of the result."""
    float_bytes: int
    quantized_bytes: int
    """Size of the ONNX files, with the weights beside them."""

    @property
    def is_simulated(self) -> bool:
        """Whether no integer kernel has these widths."""
        return Bits.parse(self.bits).is_simulated


def quantize_model(
    model: onnx.ModelProto,
    ranges: Ranges,
    *,
    profile: Profile,
    weights: WeightRanges,
    choice: SiteChoice | None = None,
    bits: Bits | None = None,
    reduce_range: bool = False,
    source: Path | None = None,
) -> tuple[onnx.ModelProto, Selection]:
    """Write Q/DQ into ``model`` (in place) and return it with the sites that were used.

    Where ``model`` is an outline, ``source`` is its file, which holds the weights; what stays float stays a reference to it.

    Raises:
        ValueError: the graph is already quantized, nothing in it can be, a tensor was not calibrated, a weight is not
            finite, a pattern of the choice matches nothing, the profile or the graph's opset does not have such widths, or a
            reduced range has no effect on them.
    """
    if weights not in get_args(WeightRanges):
        raise ValueError(f"unknown weight ranges '{weights}'; known are {', '.join(get_args(WeightRanges))}")
    refuse_quantized(model, name="the graph")
    bits = bits or Bits()
    bits.check(profile)
    if reduce_range:
        check_reduced_range(profile, bits)
    selection = select_sites(model, profile, choice or SiteChoice())
    sites = selection.sites
    if not sites.weights:
        raise ValueError(f"the graph has no linear layer that profile '{profile.name}' quantizes")
    if bits.is_wide:
        _raise_opset(model)
    if profile.is_float8:
        check_float8(model, weights)
    writer = QdqWriter(model)
    index = GraphIndex(model.graph, source=source)
    halves = float16_tensors(model)
    for site in sites.activations:
        parameters = ranges.range_of(float32_name(site.measured), bits=bits.activations, symmetric=profile.symmetric)
        scale = parameters.scale
        if profile.is_float8:
            scale = float8_scale(scale * parameters.qmax)
        is_whole = bits.activations == storage(bits.activations)
        writer.add_activation(
            ScaledTensor(
                site=site,
                scale=scale,
                zero_point=parameters.zero_point,
                dtype=bits.activation_type(profile),
                bounds=None if is_whole else (parameters.qmin, parameters.qmax),
                scale_type=np.float16 if site.tensor in halves else np.float32,
            )
        )
    for _, group in groupby(sorted(sites.weights, key=lambda site: site.tensor), key=lambda site: site.tensor):
        weight = stored_weight(
            index, list(group), profile=profile, weights=weights, bits=bits, reduce_range=reduce_range
        )
        writer.add_weight(weight)
    writer.apply()
    return model, selection


def _raise_opset(model: onnx.ModelProto) -> None:
    """Declare the opset with 16-bit integers; from 18 on, the operators of exported graphs mean the same in it."""
    entry = next(entry for entry in model.opset_import if entry.domain in ("", "ai.onnx"))
    if entry.version < OLDEST_RAISED_OPSET:
        raise ValueError(f"more than 8 bits need opset {OLDEST_RAISED_OPSET} or newer; the graph has {entry.version}")
    entry.version = max(entry.version, WIDE_OPSET)


def quantize(
    model_path: Path,
    cache: CalibrationCache,
    out: Path,
    *,
    profile: str = "tensorrt",
    weights: WeightRanges = "minmax",
    choice: SiteChoice | None = None,
    decision: SwitchDecision | None = None,
    bits: Bits | None = None,
    reduce_range: bool = False,
    methods: Mapping[str, str] | None = None,
    allow_stale: bool = False,
    force: bool = False,
    progress: Progress | None = None,
) -> QuantizeSummary:
    """Quantize an exported graph.

    The tokenizer beside the float graph is copied beside the result when that lies in another folder.

    Args:
        model_path: float ONNX with quietformer metadata. In a float16 graph the scales are float16 as well.
        cache: ranges of its tensors; those of the float32 graph that a float16 graph was made with fit it too.
        out: ONNX file to write.
        profile: ``tensorrt``, ``ort``, ``paper`` or ``fp8``.
        weights: how the weights' ranges are chosen.
        choice: what is changed about the profile's sites.
        decision: how switches of the choice were decided, for the metadata.
        bits: widths of the integers; others than 8 in profile ``paper`` only, and simulated.
        reduce_range: weights of linear layers whose neighbours' products fit into 16 bits, which makes the fastest kernels of x86
            processors without an 8-bit dot product exact.
        methods: how ranges are chosen where that differs from the cache's method: method by pattern of tensors.
        allow_stale: accept a cache that was made from another graph with the same tensors.
        force: replace ``out``.
        progress: told what is happening, one line at a time.

    Raises:
        FileExistsError: ``out`` exists and ``force`` is not set.
        FileNotFoundError: no such model.
        ValueError: see :func:`quantize_model`; no metadata; a method that matches no tensor or that the cache cannot serve;
            a cache that belongs to another graph; or a float16 graph with a profile that is not for GPUs or an opset
            without float16 scales.
    """
    report = progress or (lambda line: None)
    policy = profile_named(profile)
    refuse_existing(out, force=force)
    report(f"reading {model_path}")
    model = read_outline(model_path)
    info = GraphInfo.read(model, name=str(model_path))
    refuse_quantized(model, name=str(model_path))
    float_sha256 = model_sha256(model_path)
    if not allow_stale:
        cache.check(model_path, sha256=float_sha256)
    if info.dtype == "float16":
        check_float16(model, policy, name=str(model_path))
    report(f"quantizing for profile {policy.name}")
    try:
        if methods:
            kinds = {float32_name(name): kind for name, kind in calibrated_kinds(model).items()}
            cache = cache.with_methods(methods, kinds=kinds)
        model, selection = quantize_model(
            model,
            cache,
            profile=policy,
            weights=weights,
            choice=choice,
            bits=bits,
            reduce_range=reduce_range,
            source=model_path,
        )
    except ValueError as error:
        raise ValueError(f"{model_path}: {error}") from error
    sites = selection.sites
    replace(
        info,
        profile=policy.name,
        bits=str(bits or Bits()),
        float_sha256=float_sha256,
        not_for_accuracy=info.not_for_accuracy or cache.not_for_accuracy,
    ).write(model)
    if selection.recorded.choice != SiteChoice():
        replace(selection.recorded, decision=decision).write(model)
    report(f"writing {out}")
    operations = tuple(op_precisions(model))
    with checked_before_replacing(model, out, source=model_path) as written:
        onnx.checker.check_model(written)
    tokenizer = model_path.parent / TOKENIZER_FILE
    if tokenizer.is_file() and out.parent.resolve() != model_path.parent.resolve():
        shutil.copyfile(tokenizer, out.parent / TOKENIZER_FILE)
    return QuantizeSummary(
        profile=policy.name,
        bits=str(bits or Bits()),
        activations=dict(Counter(site.kind for site in sites.activations)),
        weights=dict(Counter(site.kind for site in sites.weights)),
        sites={site.tensor: site.kind for site in sites.activations}
        | {site.tensor: site.kind for site in sites.weights},
        float_linears={left.node.name: left.reason for left in sites.float_linears},
        operations=operations,
        float_bytes=stored_bytes(model_path),
        quantized_bytes=stored_bytes(out),
    )
