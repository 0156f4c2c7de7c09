"""Build an engine from an ONNX graph with TensorRT 10 or 11, or with TensorRT-RTX.

The network is strongly typed and integers are explicit Q/DQ, which is the one form that all three take. TensorRT builds
for the GPU it runs on; TensorRT-RTX builds for named compute capabilities and needs no GPU, which makes it the real check
of a graph on a CPU machine. No ``Runtime`` object is ever made: without a device it crashes the process.
"""

from __future__ import annotations

import json
import platform
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import onnx

from deploy.backends.artifact import input_shapes
from deploy.backends.artifact_facts import copy_companions
from deploy.backends.engine_compilation import Compilation, Progress, Steps
from deploy.backends.engine_contents import graph_contents
from deploy.backends.engine_preflight import check_graph, check_shape_range
from deploy.backends.engine_report import ENGINE_FILE, FORMAT, REPORT_FILE, EngineReport
from deploy.backends.engine_settings import EngineSettings
from deploy.backends.engine_targets import building_device, engine_targets, without_float8
from deploy.backends.tensorrt_dialect import load_dialect
from deploy.files import atomic_path, refuse_existing, sha256_file, write_atomically
from deploy.graphs.graph_info import METADATA_KEY, GraphInfo
from deploy.graphs.graph_structure import read_structure, stored_bytes
from deploy.graphs.model_hash import model_sha256
from deploy.graphs.shapes import Shapes
from deploy.graphs.tensor_types import has_float8
from deploy.quantization.site_selection import RecordedChoice

NOT_RUN = "built, not run: speed and accuracy on the device need an NVIDIA GPU"


def build_engine(
    model_path: Path,
    out_dir: Path,
    *,
    backend: str = "tensorrt-rtx",
    compute_capabilities: Sequence[str] | None = None,
    min_shapes: Shapes | None = None,
    opt_shapes: Shapes | None = None,
    max_shapes: Shapes | None = None,
    settings: EngineSettings | None = None,
    force: bool = False,
    progress: Progress | None = None,
    steps: Steps | None = None,
) -> EngineReport:
    """Parse a graph and build an engine; write ``model.engine`` and ``engine.json``, and copy the graph's tokenizer beside them.

    Args:
        model_path: ONNX graph, float, of profile ``tensorrt`` or of ``fp8``.
        out_dir: folder, made when missing.
        backend: ``tensorrt`` or ``tensorrt-rtx``.
        compute_capabilities: GPUs to build for, such as ``8.9``; None takes those of ``engine_targets.USUAL_TARGETS`` that the builder
            accepts for this graph. TensorRT builds for the GPU at hand and takes none.
        min_shapes: least sizes of each input; left out, with the other two, for a graph of fixed sizes.
        opt_shapes: sizes to be fastest at.
        max_shapes: greatest sizes.
        settings: see :class:`EngineSettings`.
        force: replace an earlier engine.
        progress: told what is happening, one line at a time.
        steps: told steps done, steps in all and the phase, where the builder counts them.

    Raises:
        FileExistsError: an engine is there and ``force`` is not set.
        FileNotFoundError: no such graph.
        ImportError: the library is missing.
        ValueError: not a graph, one that TensorRT does not take, shapes that do not fit it, an unknown target, no GPU
            where one is needed, or the parser or builder refuses (with node, operator, reason and what to do).
    """
    settings = settings or EngineSettings()
    for name in (ENGINE_FILE, REPORT_FILE):
        refuse_existing(out_dir / name, force=force)
    structure = read_structure(model_path)
    has_range = check_shape_range(
        structure,
        input_shapes(structure),
        smallest=min_shapes,
        usual=opt_shapes,
        largest=max_shapes,
        name=str(model_path),
    )
    warnings = check_graph(structure, name=str(model_path))
    dialect = load_dialect(backend)
    settings.check(dialect)
    targets = engine_targets(dialect, compute_capabilities)
    device = None if dialect.takes_targets else building_device(dialect)
    lacking: dict[str, str] = {}
    if has_float8(structure):
        named = [device.compute_capability] if device is not None else targets
        lacking = without_float8(named, may_drop=device is None and compute_capabilities is None)
        targets = tuple(target for target in targets if target not in lacking)
    shape_range = (min_shapes, opt_shapes, max_shapes) if has_range else None
    work = Compilation(
        dialect=dialect,
        model_path=model_path,
        settings=settings,
        profile=shape_range,  # type: ignore[arg-type]  # none of them is None: checked above
        say=progress or (lambda line: None),
        steps=steps or (lambda done, total, phase: None),
    )
    built, left_out = work.for_most(targets, may_drop=compute_capabilities is None)
    with atomic_path(out_dir / ENGINE_FILE) as temporary:
        temporary.write_bytes(memoryview(built.plan))
    copy_companions(model_path, out_dir)
    contents = graph_contents(structure)
    decision = RecordedChoice.read(structure).decision
    is_ours = any(entry.key == METADATA_KEY for entry in structure.metadata_props)
    report = EngineReport(
        format=FORMAT,
        backend=backend,
        version=dialect.version,
        tools={"onnx": onnx.__version__, "python": platform.python_version()},
        compute_capabilities=list(built.targets) if device is None else [device.compute_capability],
        left_out=lacking | left_out,
        device=device.name if device is not None else None,
        driver=device.driver if device is not None else None,
        settings={key: value for key, value in asdict(settings).items() if key != "timing_cache"},
        timing_cache=built.timing_cache,
        profile=_profile_facts(*work.profile) if work.profile is not None else {},
        inputs={name: list(shape) for name, shape in input_shapes(structure).items()},
        graph_info=_plain(GraphInfo.read(structure, name=str(model_path))) if is_ours else None,
        onnx=model_path.name,
        onnx_sha256=model_sha256(model_path),
        onnx_bytes=stored_bytes(model_path),
        precision=contents.precision,
        weights=contents.weights,
        eight_bit_share=round(contents.eight_bit_share, 4),
        products=contents.products,
        layers=built.layers,
        switch_decision=decision.to_dict() if decision is not None else None,
        engine=ENGINE_FILE,
        engine_sha256=sha256_file(out_dir / ENGINE_FILE),
        engine_bytes=(out_dir / ENGINE_FILE).stat().st_size,
        num_layers=sum(built.layers.values()),
        parse_seconds=round(built.parse_seconds, 3),
        build_seconds=round(built.build_seconds, 3),
        warnings=[*warnings, *dict.fromkeys(built.warnings)],
        not_done=NOT_RUN,
    )
    write_atomically(out_dir / REPORT_FILE, report.to_json())
    return report


def _plain(info: GraphInfo) -> dict[str, Any]:
    values: dict[str, Any] = json.loads(json.dumps(asdict(info)))
    return values


def _profile_facts(smallest: Shapes, usual: Shapes, largest: Shapes) -> dict[str, dict[str, list[int]]]:
    return {name: {"min": list(smallest[name]), "opt": list(usual[name]), "max": list(largest[name])} for name in usual}
