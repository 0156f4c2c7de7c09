"""What do clipped softmax and gates cost a training step? Interleaved steps of one masked language model per variant.

    python benchmarks/training_step.py --threads 2

Every round makes one step (forward, backward, AdamW) of each variant on the same batch, in turns, so that a busy machine slows all of
them alike. ``eager`` and ``sdpa`` are transformers' own attention. With ``--long`` it measures clipped attention alone on long rows,
whole and in blocks of queries: time of forward and backward, and memory. Prints a table, then one JSON line with hardware and versions.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile
from transformers import BertConfig, BertForMaskedLM

from deploy.machine import machine_facts
from deploy.measuring.latency_statistics import bootstrap_speed_up
from train.attention.explicit_attention import clipped_context
from train.attention.settings import AttentionSettings
from train.conversion.convert import convert

SETTINGS: dict[str, AttentionSettings | None] = {
    "eager": None,
    "sdpa": None,
    "vanilla": AttentionSettings(),
    "gate linear": AttentionSettings(gate="linear", gate_init=0.25),
    "gate mlp": AttentionSettings(gate="mlp", gate_hidden=16, gate_init=0.25),
    "gate all heads": AttentionSettings(gate="all_heads_linear", gate_init=0.25),
    "off by one": AttentionSettings(softmax="off_by_one"),
    "clipped": AttentionSettings(softmax="clipped", gamma=-0.025),
    "clipped per row": AttentionSettings(softmax="clipped_per_row", alpha=3.2),
    "clipped, gate linear": AttentionSettings(softmax="clipped", gamma=-0.025, gate="linear", gate_init=0.25),
}
Step = Callable[[], None]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--hidden", type=int, default=768)
    parser.add_argument("--shape", default="8x128", help="batch and length")
    parser.add_argument(
        "--dropout", type=float, default=0.1, help="as the recipes have it; 0 lets kernels fuse on a CPU"
    )
    parser.add_argument("--variants", nargs="+", choices=list(SETTINGS), default=list(SETTINGS))
    parser.add_argument(
        "--long", type=int, nargs="*", help="lengths of rows of clipped attention, for example 512 1024 2048"
    )
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    rows = long_rows(arguments.long) if arguments.long else step_rows(arguments)
    print_table(rows)
    print(
        json.dumps({"benchmark": "training_step", **vars(arguments), "rows": rows, "machine": asdict(machine_facts())})
    )


def step_rows(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """One row per variant: median step, and its ratio to both baselines with a bootstrap interval."""
    batch, length = (int(size) for size in arguments.shape.split("x"))
    steps = {
        name: training_step(
            name,
            layers=arguments.layers,
            hidden=arguments.hidden,
            batch=batch,
            length=length,
            dropout=arguments.dropout,
        )
        for name in arguments.variants
    }
    seconds: dict[str, list[list[float]]] = {name: [] for name in steps}
    for turn in range(-1, arguments.rounds):
        for name, step in steps.items():
            start = time.perf_counter()
            step()
            if turn >= 0:  # the first round warms up
                seconds[name].append([1000 * (time.perf_counter() - start)])
    rows = []
    for name, rounds in seconds.items():
        row: dict[str, Any] = {"variant": name, "step_ms": statistics.median(r[0] for r in rounds)}
        for baseline in ("eager", "sdpa"):
            if baseline in seconds and baseline != name:
                ratio = bootstrap_speed_up(rounds, seconds[baseline])
                row[f"against_{baseline}"] = ratio.ratio
                row[f"against_{baseline}_95"] = f"{ratio.low:.3f} to {ratio.high:.3f}"
        rows.append(row)
    return rows


def training_step(name: str, *, layers: int, hidden: int, batch: int, length: int, dropout: float) -> Step:
    """One optimizer step of a model with this attention, as a function."""
    torch.manual_seed(0)
    backend: dict[str, Any] = {"attn_implementation": name if SETTINGS[name] is None else "eager"}
    config = BertConfig(
        vocab_size=1000,
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=hidden // 64,
        intermediate_size=4 * hidden,
        hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=dropout,
        **backend,
    )
    model = BertForMaskedLM(config).train()
    if (settings := SETTINGS[name]) is not None:
        convert(model, settings)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    ids = torch.randint(0, 1000, (batch, length), generator=torch.Generator().manual_seed(0))
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids}
    inputs["attention_mask"][0, length // 2 :] = 0  # a batch with padding, as real ones are

    def step() -> None:
        model(**inputs).loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def long_rows(lengths: list[int]) -> list[dict[str, Any]]:
    """Clipped attention of 4 heads of 64 features: kept whole, and in blocks."""
    settings = AttentionSettings(softmax="clipped", gamma=-0.001)
    rows = []
    for length in lengths:
        leaves = [torch.randn(1, 4, length, 64, requires_grad=True) for _ in range(3)]
        query, key, value = leaves

        def run(kept: int, query: torch.Tensor = query, key: torch.Tensor = key, value: torch.Tensor = value) -> None:
            total = clipped_context(query, key, value, None, scale=0.125, settings=settings, kept=kept).sum()
            torch.autograd.backward(total)

        row: dict[str, Any] = {"length": length}
        for form, kept in (("whole", 2**62), ("blocks", 0)):
            run(kept)
            times = []
            for _ in range(5):
                start = time.perf_counter()
                run(kept)
                times.append(1000 * (time.perf_counter() - start))
            row[f"{form}_ms"] = statistics.median(times)
            row[f"{form}_peak_mib"] = peak_mib(partial(run, kept))
        rows.append(row)
    return rows


def peak_mib(work: Step) -> float:
    """Most memory that tensors made by ``work`` held at once."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        work()
    held = peak = 0
    for event in sorted(profiler.profiler.kineto_results.events(), key=lambda event: event.start_ns()):
        if event.name() == "[memory]":
            held += event.nbytes()
            peak = max(peak, held)
    return peak / 2**20


def print_table(rows: list[dict[str, Any]]) -> None:
    """One line per row."""
    columns = list(dict.fromkeys(column for row in rows for column in row))
    print("  ".join(f"{column:>20}" for column in columns))
    for row in rows:
        cells = (row.get(column, "") for column in columns)
        print("  ".join(f"{cell:>20.3f}" if isinstance(cell, float) else f"{cell:>20}" for cell in cells))


if __name__ == "__main__":
    main()
