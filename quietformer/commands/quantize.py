"""``quietformer quantize``: a float graph and its ranges to a W8A8 Q/DQ graph."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from quietformer.commands.backend_options import BenchBackend
from quietformer.commands.quantization_options import (
    USUAL_WIDTHS,
    Calibration,
    Profile,
    ProfileToWrite,
    WeightRanges,
    Weights,
    Widths,
)
from quietformer.commands.site_options import (
    Bmms,
    Exclude,
    GatePath,
    Include,
    ResidualAdds,
    SwitchChoice,
    SwitchSeconds,
    listed_files,
    site_choice,
)

if TYPE_CHECKING:
    from deploy.graphs.site_choice import SiteChoice


def quantize(
    model: Annotated[Path, typer.Argument(metavar="MODEL.onnx", help="Float graph, as exported.")],
    *,
    calibration: Calibration,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="MODEL.int8.onnx", help="The graph to write; only --list-sites goes without."),
    ] = None,
    profile: ProfileToWrite = Profile.TENSORRT,
    weights: WeightRanges = Weights.MINMAX,
    bits: Widths = USUAL_WIDTHS,
    reduce_range: Annotated[
        bool,
        typer.Option(
            "--reduce-range",
            help="Weights whose neighbours' products fit into 16 bits: exact in the fastest kernels of x86 without VNNI.",
        ),
    ] = False,
    exclude: Exclude = None,
    include: Include = None,
    bmms: Bmms = SwitchChoice.PROFILE,
    residual_adds: ResidualAdds = SwitchChoice.PROFILE,
    gate_path: GatePath = SwitchChoice.PROFILE,
    timed_on: Annotated[
        BenchBackend | None,
        typer.Option(
            "--timed-on",
            help="Where a switch that is 'auto' is timed: by default tensorrt, for profiles 'ort' and 'paper' onnxruntime.",
        ),
    ] = None,
    seconds: SwitchSeconds = 1.0,
    method_of: Annotated[
        list[str] | None,
        typer.Option(
            "--method-of",
            metavar="PATTERN=METHOD",
            help="Another method for some tensors: kind:context=mse, 'x*=percentile:99.9', kind:probabilities=known-range.",
        ),
    ] = None,
    list_sites: Annotated[
        bool,
        typer.Option(
            "--list-sites",
            help="Print every site that the graph has: integers, or float and why. Writes nothing without --out.",
        ),
    ] = False,
    data: Annotated[
        str | None, typer.Option("--data", metavar="PATH", help="Refuse ranges that come from other texts or images.")
    ] = None,
    method: Annotated[
        str | None,
        typer.Option(
            "--method",
            metavar="METHOD[:VALUE]",
            help="Refuse ranges of another method, or with another value of its parameter.",
        ),
    ] = None,
    allow_stale_cache: Annotated[
        bool, typer.Option("--allow-stale-cache", help="Take ranges of another graph, other texts, another method.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing file.")] = False,
) -> None:
    """Write W8A8 integers into a graph.

    Static and per tensor, as QuantizeLinear and DequantizeLinear nodes.

    Kinds of sites: linear_output, scores, probabilities, gate_probability, values_mixed, context, residual_sum,
    layernorm_output, activation_output, embedding_sum, linear_input, product_operand, sum_operand; of weights: linear, embedding,
    layernorm_gain. What is both included and excluded stays float.

    A switch that is 'auto' is decided by timing every combination in turns; the decision stays in the graph's metadata.

    Example: quietformer quantize model.onnx --calibration calibration.json --out model.int8.onnx --bmms auto --timed-on openvino

    Example: quietformer quantize model.onnx --calibration calibration.json --out model.int8.onnx --exclude 'kind:context' --bmms on

    Example: quietformer quantize model.onnx --calibration calibration.json --list-sites
    """
    from deploy.calibration.calibration_cache import CalibrationCache
    from deploy.calibration.method_choice import parse_choices
    from deploy.calibration.ranges import parse_method
    from deploy.files import refuse_existing, refuse_own_input
    from deploy.machine import machine_facts
    from deploy.quantization.bits import Bits
    from deploy.quantization.quantize import quantize as write_integers
    from quietformer.engine_build import EngineWishes
    from quietformer.graph_data.graph_inputs import graph_data_identity
    from quietformer.progress import progress, say
    from quietformer.switch_timing import TimedOn, check_auto, decide_switches, usual_backend

    choice = site_choice(exclude=exclude, include=include, bmms=bmms, residual_adds=residual_adds, gate_path=gate_path)
    if out is None:
        if not list_sites:
            raise ValueError("give --out with the graph to write, or --list-sites to see the sites alone")
        _print_sites(model, profile.value, choice)
        return
    if timed_on is not None and not choice.open_switches:
        raise ValueError(f"--timed-on {timed_on.value} has no effect: no switch is 'auto'")
    backend = timed_on.value if timed_on is not None else usual_backend(profile.value)
    check_auto(choice, profile=profile.value, backend=backend, bits=bits)
    if allow_stale_cache and (data is not None or method is not None):
        raise ValueError("--data and --method have no effect with --allow-stale-cache")
    lists = listed_files(exclude, include)
    refuse_own_input(out, [model, calibration, *lists, data])
    refuse_existing(out, force=force)
    cache = CalibrationCache.load(calibration)
    expected, parameters = (None, None) if method is None else parse_method(method)
    if not allow_stale_cache:  # that the ranges are the graph's own is checked where it is read
        cache.check(
            None,
            data=graph_data_identity(model, data) if data is not None else None,
            method=expected,
            parameters=parameters if method is not None and ":" in method else None,
        )
    write = partial(
        write_integers,
        model,
        cache,
        profile=profile.value,
        weights=weights.value,
        bits=Bits.parse(bits),
        reduce_range=reduce_range,
        methods=parse_choices(method_of or ()),
        allow_stale=allow_stale_cache,
        force=force,
    )
    decision = None
    with progress("quantize") as job:
        if choice.open_switches:
            out.parent.mkdir(parents=True, exist_ok=True)
            decision = decide_switches(
                model,
                choice,
                lambda tried, path: write(path, choice=tried),
                TimedOn(engines=EngineWishes(backend=backend), seconds=seconds),
                scratch=out.parent,
                job=job,
            )
            choice = choice.decided(decision.switches)
        summary = write(out, choice=choice, decision=decision, progress=job.tell)
    typer.echo(
        f"{out}: profile {summary.profile}, {summary.bits}, {sum(summary.activations.values())} activations and "
        f"{sum(summary.weights.values())} weights quantized ({weights.value}{', reduced range' if reduce_range else ''}), "
        f"{summary.float_bytes / 1e6:.1f} MB to {summary.quantized_bytes / 1e6:.1f} MB"
    )
    if (
        not (reduce_range or profile is Profile.FP8 or summary.is_simulated)
        and machine_facts(versions={}).saturates_in_16_bits
    ):
        say(
            "this processor adds 8-bit products in 16 bits, which saturate in other sessions than quietformer's; "
            "--reduce-range makes linear layers exact in all"
        )
    if decision is not None:
        typer.echo(f"  {decision.summary()}")
        if decision.is_simulated:
            typer.echo("  this processor computes those integers in float: the times say nothing of other devices")
    if summary.is_simulated:
        typer.echo(f"  simulated: no integer kernel has the widths {summary.bits}; speed means nothing here")
    for node, reason in summary.float_linears.items():
        typer.echo(f"  float: {node} ({reason})")
    if list_sites:
        _print_sites(model, profile.value, choice)


def _print_sites(model: Path, profile: str, choice: SiteChoice) -> None:
    from deploy.graphs.graph_refusal import refuse_quantized
    from deploy.graphs.graph_structure import read_outline
    from deploy.graphs.profiles import profile_named
    from deploy.quantization.site_listing import list_sites

    outline = read_outline(model)
    refuse_quantized(outline, name=str(model))
    sites = list_sites(outline, profile_named(profile), choice)
    for site in sites:
        typer.echo(f"  {site.kind}: {site.name}: {'integers' if site.reason is None else f'float ({site.reason})'}")
    typer.echo(f"{sum(site.reason is None for site in sites)} of {len(sites)} sites in integers, profile {profile}")
