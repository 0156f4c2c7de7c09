"""What do clipped softmax and gates do to models trained from scratch? Three small ones, three arms, two seeds, from real data.

    python benchmarks/train_small.py --texts wikipedia/train.txt --task-texts wikipedia/valid.txt --images cifar10/ --out runs/small

Each run is a run directory of ``recipes/FAMILY-small.toml``, so finished ones are skipped and a killed one resumes. All are trained first, every
family in turn, then their graphs are compared in integers. Prints a table, then one JSON line with learning curves, hardware and versions, and
writes both to a record.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from deploy.files import write_atomically
from deploy.machine import machine_facts
from quietformer.pipeline import run_stages
from quietformer.recipe.recipe import Recipe, demo_recipe_path, load_recipe
from quietformer.stages.layout import COMPARISON, TRAIN_LOG, TRAIN_RESULT
from quietformer.whole_run import all_stages, learning_stages

LAST_STAGE = "compare"
CURVE_POINTS = 24
QUIET_KURTOSIS = 10.0
"""Average kurtosis below which a model has no outliers to speak of (a Gaussian has 3, the paper's vanilla models 1,000 and more)."""


@dataclass(frozen=True, kw_only=True)
class Family:
    """One of the three models."""

    metric: str
    """Of the validation: ``perplexity`` or ``top1``."""
    task: str
    """Of the comparison in integers."""
    arms: dict[str, tuple[str, ...]]
    """Overrides by arm."""


FAMILIES = {
    "bert": Family(
        metric="perplexity",
        task="mlm",
        arms={
            "vanilla": (),
            "clipped": ("attention.softmax=clipped", "attention.alpha=3.2", "attention.length=64"),
            "gated": ("attention.gate=linear", "attention.gate_init=0.5"),
        },
    ),
    "opt": Family(
        metric="perplexity",
        task="clm",
        arms={
            "vanilla": (),
            "clipped": ("attention.softmax=clipped", "attention.alpha=3.2", "attention.length=64"),
            "gated": ("attention.gate=linear", "attention.gate_init=0.25"),
        },
    ),
    "vit": Family(
        metric="top1",
        task="image",
        arms={
            "vanilla": (),
            "clipped": ("attention.softmax=clipped", "attention.gamma=-0.0003"),
            "gated": ("attention.gate=linear", "attention.gate_init=0.5"),
        },
    ),
}
ARMS = ("vanilla", "clipped", "gated")


def main() -> None:
    """Train what is not trained yet, compare, print and record."""
    arguments = _arguments()
    os.environ["OMP_NUM_THREADS"] = str(arguments.threads)
    import torch

    torch.set_num_threads(arguments.threads)
    runs = [
        (family, arm, seed, _recipe(arguments, family, arm, seed), arguments.out / f"{family}-{arm}-{seed}")
        for seed in arguments.seeds
        for arm in arguments.arms
        for family in arguments.families
    ]
    for _, _, _, recipe, folder in runs:
        run_stages(recipe, folder, learning_stages(recipe))
    if not arguments.no_integers:
        for family, _, _, recipe, folder in runs:
            if _has_task(arguments, family):
                _compare_in_integers(recipe, folder)
    results = [_result(family, arm, seed, folder) for family, arm, seed, _, folder in runs]
    table = "\n".join(_table(results))
    print(table)
    line = json.dumps({"benchmark": "train_small", "runs": results, "machine": asdict(machine_facts())})
    print(line)
    record = arguments.record or Path(__file__).parent / "records" / f"train-small_{datetime.now(UTC):%Y-%m-%d}.md"
    write_atomically(record, _record(results, table, line))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--texts", help="texts to learn from; needed for bert and opt")
    parser.add_argument(
        "--task-texts", help="held-out texts for perplexity in integers; without, bert and opt have none"
    )
    parser.add_argument("--images", help="labelled images with a training and an evaluation split; needed for vit")
    parser.add_argument("--families", nargs="+", choices=list(FAMILIES), default=list(FAMILIES))
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=list(ARMS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("runs/small"))
    parser.add_argument("--record", type=Path, help="where to write; a dated file in benchmarks/records by default")
    parser.add_argument("--no-integers", action="store_true", help="training and simulation alone")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="further overrides")
    arguments = parser.parse_args()
    for family in arguments.families:
        needed = "images" if family == "vit" else "texts"
        if getattr(arguments, needed) is None:
            parser.error(f"--{needed} is needed for {family}")
    return arguments


def _recipe(arguments: argparse.Namespace, family: str, arm: str, seed: int) -> Recipe:
    overrides = [*FAMILIES[family].arms[arm], f"train.seeds=[{seed}]"]
    if family == "vit":
        overrides.append(f"data.images={json.dumps(arguments.images)}")
    else:
        overrides.append(f"data.texts={json.dumps(arguments.texts)}")
        if arguments.task_texts is not None:
            overrides.append(f"compare.{FAMILIES[family].task}.data={json.dumps(arguments.task_texts)}")
    return load_recipe(demo_recipe_path().parent / f"{family}-small.toml", [*overrides, *arguments.set])


def _has_task(arguments: argparse.Namespace, family: str) -> bool:
    return family == "vit" or arguments.task_texts is not None


def _compare_in_integers(recipe: Recipe, folder: Path) -> None:
    """Every stage up to the comparison; what cannot be compared leaves its column empty and does not cost the others theirs."""
    stages = all_stages(recipe)
    names = [stage.name for stage in stages]
    try:
        run_stages(recipe, folder, stages[: names.index(LAST_STAGE) + 1])
    except (ValueError, OSError) as error:
        print(f"{folder}: not compared in integers: {error}", file=sys.stderr)


def _result(family: str, arm: str, seed: int, folder: Path) -> dict[str, Any]:
    """Figures at the end of one run, its curves, and its comparison in integers where there is one."""
    (trained,) = json.loads((folder / TRAIN_RESULT).read_text(encoding="utf-8"))
    metric = FAMILIES[family].metric
    last = trained["history"][-1]
    figures = {name: last[f"{name}_{metric}"] for name in ("float", "paper", "tensorrt")}
    figures |= {
        "max_inf_norm": last["max_inf_norm"],
        "average_kurtosis": last["average_kurtosis"],
        "ffn_inf_norm": last["ffn_output.max_inf_norm"],
    }
    return {
        "family": family,
        "arm": arm,
        "seed": seed,
        "metric": metric,
        "steps": trained["steps"],
        "seconds": round(trained["seconds"]),
        "figures": figures,
        "integers": _integers(folder / COMPARISON, FAMILIES[family].task),
        "loss_curve": list(_loss_curve(folder / TRAIN_LOG)),
        "evaluations": [
            {key: value for key, value in point.items() if "." not in key and key != "score"}
            for point in trained["history"]
        ],
    }


def _integers(file: Path, task: str) -> dict[str, float]:
    """Mean score by profile and backend, measured in integers; ``float`` too."""
    if not file.is_file():
        return {}
    rows = json.loads(file.read_text(encoding="utf-8"))[task]["rows"]
    return {
        f"{row['profile']} on {row['backend']}" if row["profile"] else "float": row["mean"]
        for row in rows
        if row["evidence"] == "measured"
    }


def _loss_curve(log: Path) -> Iterator[tuple[int, float]]:
    """Training loss, averaged over as many stretches as a curve has points."""
    steps = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
    steps = [entry for entry in steps if entry["kind"] == "step"]
    stretch = math.ceil(len(steps) / CURVE_POINTS)
    for start in range(0, len(steps), stretch):
        part = steps[start : start + stretch]
        yield part[-1]["step"], round(mean(entry["loss"] for entry in part), 4)


def _table(results: Sequence[dict[str, Any]]) -> Iterator[str]:
    """A markdown table: one line per family and arm, mean ± standard deviation over seeds."""
    yield "| model | arm | metric | float | W8A8 `paper` | W8A8 `tensorrt` | integers `paper` | integers `tensorrt` | max inf norm | kurtosis |"
    yield "|---|---|---|---|---|---|---|---|---|---|"
    for family, arm in dict.fromkeys((result["family"], result["arm"]) for result in results):
        mine = [result for result in results if (result["family"], result["arm"]) == (family, arm)]
        simulated = [
            _spread([run["figures"][name] for run in mine])
            for name in ("float", "paper", "tensorrt", "max_inf_norm", "average_kurtosis")
        ]
        integers = [
            _spread([run["integers"][key] for run in mine if key in run["integers"]])
            for key in ("paper on openvino", "tensorrt on openvino")
        ]
        cells = [family, arm, mine[0]["metric"], *simulated[:3], *integers, *simulated[3:]]
        yield f"| {' | '.join(cells)} |"


def _spread(values: Sequence[float]) -> str:
    if not values:
        return "\N{EN DASH}"
    deviation = f" ± {stdev(values):.2g}" if len(values) > 1 else ""
    return f"{mean(values):.4g}{deviation}"


def _record(results: Sequence[dict[str, Any]], table: str, line: str) -> str:
    machine = machine_facts()
    seeds = sorted({result["seed"] for result in results})
    longest = max(result["seconds"] for result in results)
    verdicts = "\n".join(f"- {_verdict(family, results)}" for family in dict.fromkeys(r["family"] for r in results))
    return (
        "# Small models from scratch, vanilla, clipped and gated\n\n"
        f"`benchmarks/train_small.py`, seeds {', '.join(map(str, seeds))}; {machine.cpu}, {machine.num_cores} cores; a run took up to {longest} s.\n"
        "Float and W8A8 on the validation of the training, simulated in PyTorch; integers on OpenVINO, on the task's data. Mean ± standard\n"
        f"deviation over seeds; outliers over all named tensors on a fixed validation batch.\n\n{table}\n\n"
        f"## What it shows\n\n{verdicts}\n\n## Curves and figures\n\n```json\n{line}\n```\n"
    )


def _verdict(family: str, results: Sequence[dict[str, Any]]) -> str:
    """One honest sentence: whether it learnt, and whether there was anything to cure."""
    mine = [result for result in results if result["family"] == family]
    first, last = (mean(run["loss_curve"][index][1] for run in mine) for index in (0, -1))
    vanilla = [run["figures"] for run in mine if run["arm"] == "vanilla"]
    text = f"{family}: training loss {first:.2f} → {last:.2f} over all runs"
    if not vanilla:
        return f"{text}."
    kurtosis = mean(figures["average_kurtosis"] for figures in vanilla)
    if kurtosis < QUIET_KURTOSIS:
        return (
            f"{text}. The vanilla model has no outliers (average kurtosis {kurtosis:.1f}): too small and too young for the paper's effect, "
            "so the arms can only show that they learn as well."
        )
    return f"{text}. The vanilla model has outliers (average kurtosis {kurtosis:.1f})."


if __name__ == "__main__":
    main()
