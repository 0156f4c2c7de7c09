"""``quietformer build``: engines from a graph."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from quietformer.commands.site_options import Bmms, GatePath, ResidualAdds, SwitchChoice, SwitchSeconds, site_choice


class EngineBackend(StrEnum):
    """What engines are built for."""

    TENSORRT = "tensorrt"
    TENSORRT_RTX = "tensorrt-rtx"


class HardwareLevel(StrEnum):
    """Devices beside the one that an engine is built on."""

    NONE = "none"
    AMPERE_PLUS = "ampere+"
    SAME_COMPUTE_CAPABILITY = "same-compute-capability"


class Verbosity(StrEnum):
    """What a plan tells of its layers."""

    NAMES = "names"
    DETAILED = "detailed"
    NONE = "none"


def build(
    model: Annotated[
        Path, typer.Argument(metavar="MODEL.onnx", help="Graph of profile 'tensorrt' or 'fp8', or a float one.")
    ],
    *,
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Folder for the engine and engine.json.")],
    backend: Annotated[
        EngineBackend, typer.Option("--backend", help="What to build for; tensorrt needs the GPU at hand.")
    ] = EngineBackend.TENSORRT_RTX,
    calibration: Annotated[
        Path | None,
        typer.Option(
            "--calibration",
            metavar="CACHE",
            help="Of a float MODEL.onnx: build it, its INT8 and, where the GPU has it, its FP8 form, each in a folder of DIR.",
        ),
    ] = None,
    bmms: Bmms = SwitchChoice.PROFILE,
    residual_adds: ResidualAdds = SwitchChoice.PROFILE,
    gate_path: GatePath = SwitchChoice.PROFILE,
    seconds: SwitchSeconds = 1.0,
    min_shapes: Annotated[
        str | None, typer.Option("--min-shapes", metavar="SHAPES", help="Smallest shapes: 1x1, or 1 image.")
    ] = None,
    opt_shapes: Annotated[
        str | None,
        typer.Option(
            "--opt-shapes", metavar="SHAPES", help="Shapes it is fastest at, for all inputs or per input: 1x128, or 1."
        ),
    ] = None,
    max_shapes: Annotated[
        str | None, typer.Option("--max-shapes", metavar="SHAPES", help="Largest shapes: 8x512, or 8 images.")
    ] = None,
    compute_capabilities: Annotated[
        list[str] | None,
        typer.Option(
            "--compute-capability",
            metavar="SM",
            help="Target of tensorrt-rtx, repeatable; 7.5, 8.0, 8.6, 8.9 and 12.0 where the graph allows.",
        ),
    ] = None,
    optimization_level: Annotated[
        int | None, typer.Option("--optimization-level", metavar="0..5", help="5 searches longest; 3 by default.")
    ] = None,
    workspace: Annotated[
        int | None, typer.Option("--workspace", metavar="MIB", help="Memory beside the tensors; all by default.")
    ] = None,
    timing_cache: Annotated[
        Path | None, typer.Option("--timing-cache", metavar="FILE", help="Kernel timings, read and written (tensorrt).")
    ] = None,
    hardware_compatibility: Annotated[
        HardwareLevel, typer.Option("--hardware-compatibility", help="Devices beside this one (tensorrt).")
    ] = HardwareLevel.NONE,
    version_compatible: Annotated[
        bool, typer.Option("--version-compatible", help="Runs on later minor versions too (tensorrt).")
    ] = False,
    strip_plan: Annotated[bool, typer.Option("--strip-plan", help="Leave the weights out of the engine.")] = False,
    verbosity: Annotated[
        Verbosity, typer.Option("--profiling-verbosity", help="What the engine tells of its layers.")
    ] = Verbosity.DETAILED,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing engine.")] = False,
) -> None:
    """Build an engine from a graph, or several: float, INT8 and FP8.

    TensorRT-RTX parses and builds without a GPU; TensorRT builds on the GPU that it is for. Running needs one.

    Shapes are BATCHxLENGTH, of images BATCH, or input_ids:1x128,attention_mask:1x128,...
    With --calibration, a switch of sites that is 'auto' is decided by building both engines and timing them on the GPU.

    Example: quietformer build model.fp16.onnx --calibration calibration.json --out engines --opt-shapes 1x128
    """
    from deploy.backends.engine_settings import EngineSettings
    from deploy.graphs.site_choice import SiteChoice
    from quietformer.engine_build import EngineWishes, build_from_texts
    from quietformer.engine_forms import build_forms
    from quietformer.progress import progress

    choice = site_choice(exclude=None, include=None, bmms=bmms, residual_adds=residual_adds, gate_path=gate_path)
    if calibration is None and choice != SiteChoice():
        raise ValueError("--bmms, --residual-adds and --gate-path take --calibration: other graphs have their sites")
    wishes = EngineWishes(
        backend=backend.value,
        compute_capabilities=compute_capabilities,
        smallest=min_shapes,
        usual=opt_shapes,
        largest=max_shapes,
        settings=EngineSettings(
            optimization_level=optimization_level,
            workspace_mib=workspace,
            timing_cache=timing_cache,
            hardware_compatibility=hardware_compatibility.value,
            version_compatible=version_compatible,
            strip_plan=strip_plan,
            verbosity=verbosity.value,
        ),
    )
    with progress("build") as job:
        if calibration is None:
            reports = {"": build_from_texts(model, out, wishes, force=force, job=job)}
        else:
            reports = build_forms(model, calibration, out, wishes, choice=choice, seconds=seconds, force=force, job=job)
    for folder, report in reports.items():
        for warning in report.warnings:
            typer.echo(f"warning: {warning}", err=True)
        for target, reason in report.left_out.items():
            typer.echo(f"warning: not built for SM {target}: {reason}", err=True)
        typer.echo(f"{out / folder / report.engine}: {report.summary()}")
    typer.echo(next(iter(reports.values())).not_done)
