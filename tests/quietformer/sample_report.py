"""A complete report with invented figures in the shape of a six-layer encoder, for tests and for looking at the page."""

from __future__ import annotations

from typing import Any

import numpy as np

from deploy.machine import MachineFacts
from deploy.measuring.bench_report import BenchReport, CandidateTiming
from deploy.measuring.compare import CompareReport, compare_row
from deploy.measuring.latency_statistics import bootstrap_speed_up, summarize
from quietformer.report.content import (
    Arm,
    ArtifactFacts,
    EngineFacts,
    ExportFacts,
    ModelFacts,
    ParityRow,
    RunReport,
    SiteRange,
)

KINDS = (
    "attention_output",
    "residual_sum.attention",
    "ln_output.attention",
    "ffn_output",
    "residual_sum.ffn",
    "ln_output.ffn",
)
MACHINE = MachineFacts(
    cpu="Invented Processor",
    num_cores=2,
    instruction_sets=("avx2", "avx512_vnni"),
    memory_bytes=8 * 2**30,
    system="Linux 6.1 x86_64",
    python="3.11.9",
    versions={"numpy": "2.3.0", "openvino": "2026.4.0"},
)


def sample_outliers(*, largest: float, num_layers: int = 6, width: int = 384) -> dict[str, Any]:
    """In the shape of ``OutlierReport.to_dict()``."""
    generator = np.random.default_rng(int(largest))
    tensors = []
    for layer in range(num_layers):
        for kind in KINDS:
            peak = largest * (0.3 + 0.7 * generator.random()) if "ffn" in kind and "ln" not in kind else 4 + layer
            by_feature = np.abs(generator.standard_normal(width)) * min(2.0, peak / 3)
            by_feature[[99, 223]] = peak, peak * 0.6
            tensors.append(
                {
                    "name": f"layer.{layer}.{kind}",
                    "kind": kind,
                    "inf_norm": float(peak * 0.9),
                    "kurtosis": float(3 + peak**2 / 4),
                    "token_inf_norm": float(peak * 0.7),
                    "token_kurtosis": float(3 + peak**2 / 8),
                    "largest": float(by_feature.max()),
                    "num_values": 100_000,
                    "num_outliers": 40,
                    "outliers_by_feature": [0] * width,
                    "outliers_by_token": {"102": 40},
                    "largest_by_feature": by_feature.tolist(),
                }
            )
    summary = {}
    for scope in ("all", *KINDS):
        chosen = [tensor for tensor in tensors if scope in ("all", tensor["kind"])]
        summary[scope] = {
            "max_inf_norm": max(tensor["inf_norm"] for tensor in chosen),
            "max_inf_norm_tensor": chosen[0]["name"],
            "average_kurtosis": float(np.mean([tensor["kurtosis"] for tensor in chosen])),
            "largest": max(tensor["largest"] for tensor in chosen),
        }
    return {"num_sequences": 256, "num_tokens": 9_000, "summary": summary, "tensors": tensors}


def sample_history(steps: int = 400, *, speed: float = 90.0) -> tuple[dict[str, float], ...]:
    """Curves that fall as training would have them."""
    points: list[dict[str, float]] = []
    for step in range(0, steps + 1, 4):
        decay = float(np.exp(-step / speed))
        noise = float(1 + 0.1 * np.sin(step))
        distillation, penalty = 0.02 + 0.3 * decay * noise, 0.01 + 40 * decay**2 * noise
        points.append(
            {
                "step": float(step),
                "loss": distillation + 0.01 * penalty,
                "distillation": distillation,
                "penalty": penalty,
                "largest_activation": 9.5 + 190 * decay * noise,
            }
        )
        if step % 100 == 0:
            points.append({"step": float(step), "simulated": 0.818 - 0.05 * decay})
    return tuple(points)


def sample_comparison() -> CompareReport:
    """Float, vanilla and retrofitted, two profiles, two backends, one simulated row."""
    metric, baseline = "Spearman", 0.8225
    scores = (
        ("original", "onnxruntime", "float32", None, [0.8225], "measured"),
        ("gates + penalty", "onnxruntime", "float32", None, [0.8231], "measured"),
        ("original", "openvino", "W8A8", "paper", [0.7612, 0.7590, 0.7655], "measured"),
        ("gates + penalty", "openvino", "W8A8", "paper", [0.8197, 0.8191, 0.8202], "measured"),
        ("gates + penalty", "pytorch", "W8A8", "paper", [0.8195], "simulated"),
        ("original", "openvino", "W8A8", "tensorrt", [0.8213, 0.8209, 0.8216], "measured"),
        ("gates + penalty", "openvino", "W8A8", "tensorrt", [0.8230, 0.8228, 0.8231], "measured"),
    )
    rows = tuple(
        compare_row(
            values,
            arm=arm,
            backend=backend,
            precision=precision,
            profile=profile,
            baseline=baseline,
            metric=metric,
            higher_is_better=True,
            max_drop=0.004 if arm != "original" and profile and evidence == "measured" else None,
            evidence="simulated" if evidence == "simulated" else "measured",
        )
        for arm, backend, precision, profile, values, evidence in scores
    )
    return CompareReport(
        task="sts",
        metric=metric,
        higher_is_better=True,
        num_examples=1500,
        max_drop=0.004,
        rows=rows,
        data="STS-B dev",
    )


def sample_latency(*, batch_size: int = 1) -> BenchReport:
    """Three candidates with invented latencies."""
    generator = np.random.default_rng(batch_size)
    medians = {
        "ONNX Runtime float32": ("float32", 24.0),
        "OpenVINO float": ("bfloat16", 14.5),
        "OpenVINO W8A8": ("int8", 6.3),
    }
    rounds = {
        name: [(batch_size * median * (1 + generator.gamma(2.0, 0.02, size=12))).tolist() for _ in range(30)]
        for name, (_, median) in medians.items()
    }
    baseline = next(iter(rounds))
    timings = []
    for name, (precision, _) in medians.items():
        samples = [sample for one in rounds[name] for sample in one]
        timings.append(
            CandidateTiming(
                name=name,
                precision=precision,
                throughput_qps=len(samples) / sum(samples) * 1000,
                throughput_samples=batch_size * len(samples) / sum(samples) * 1000,
                latency_ms=summarize(samples),
                total_host_walltime_s=sum(samples) / 1000,
                num_queries=len(samples),
                speed_up=None if name == baseline else bootstrap_speed_up(rounds[baseline], rounds[name]),
                rounds_ms=tuple(tuple(one) for one in rounds[name]),
            )
        )
    return BenchReport(
        batch_size=batch_size,
        length=128,
        baseline=baseline,
        timings=tuple(timings),
        warnings=("OpenVINO float: 3 of 360 samples took over 3 times the median, the longest 80.1 ms",),
        repeats=3,
        seconds=3.0,
        warmup_seconds=0.5,
        machine=MACHINE,
    )


def sample_ranges(*, largest: float) -> tuple[SiteRange, ...]:
    """Twelve sites per layer."""
    generator = np.random.default_rng(int(largest))
    return tuple(
        SiteRange(
            site=f"/layer.{layer}/site_{site}",
            low=-float(generator.random() * (largest if site == 7 else 6) + 0.2),
            high=float(generator.random() * (largest if site == 7 else 6) + 0.2),
        )
        for layer in range(6)
        for site in range(12)
    )


def sample_report() -> RunReport:
    """Every part filled."""
    attention = {"softmax": "vanilla", "gate": "linear", "gate_init": 0.5, "gate_scale": 2.0}
    return RunReport(
        model=ModelFacts(
            name="all-MiniLM-L6-v2",
            family="bert",
            num_layers=6,
            hidden_size=384,
            num_parameters=22_713_216,
            checkpoint_sha256="ab" * 32,
        ),
        created="2026-11-29T12:00:00+00:00",
        machine=MACHINE,
        arms=(
            Arm(
                name="penalty",
                chosen=False,
                attention={},
                steps=200,
                seconds=124.0,
                history=sample_history(200, speed=60.0),
            ),
            Arm(
                name="gates + penalty",
                chosen=True,
                attention=attention,
                steps=400,
                seconds=268.0,
                history=sample_history(),
                outliers=sample_outliers(largest=9.5),
            ),
        ),
        outliers_before=sample_outliers(largest=196.0),
        comparisons=(sample_comparison(),),
        latency=(sample_latency(batch_size=1), sample_latency(batch_size=8)),
        ranges_before=sample_ranges(largest=220.0),
        ranges_after=sample_ranges(largest=12.0),
        calibration={"data": "train sentences", "method": "running-minmax", "samples": 256},
        export=ExportFacts(
            opset=20,
            lowering="folded",
            only_standard_operators=True,
            attention_patterns=6,
            parity=(
                ParityRow(batch=1, length=7, largest_difference=2.1e-6),
                ParityRow(batch=3, length=64, largest_difference=3.4e-6),
                ParityRow(batch=8, length=128, largest_difference=4.0e-6),
            ),
        ),
        artifacts=(
            ArtifactFacts(role="float graph", file="model.onnx", num_bytes=90_700_000, sha256="12" * 32),
            ArtifactFacts(
                role="int8 graph", file="model.int8.onnx", num_bytes=58_000_000, sha256="34" * 32, note="tensorrt"
            ),
        ),
        engines=(
            EngineFacts(
                backend="tensorrt-rtx",
                num_bytes=24_000_000,
                compute_capabilities=("8.0", "8.9"),
                version="1.7.1",
                evidence="unverified",
                note="Built here; running it needs an NVIDIA GPU.",
                facts={
                    "precision": "int8 + float16",
                    "eight_bit_share": 0.463,
                    "parse_seconds": 0.42,
                    "build_seconds": 11.07,
                    "left_out": {"7.5": "no float32 products"},
                },
            ),
        ),
        recipe={"retrofit": {"steps": 400}},
    )
