"""Which arm of a retrofit is worth its cost? Runs the demo's recipe once per arm and compares them in integers.

    python benchmarks/retrofit_arms.py --task-data sts-dev.csv --data texts/ --out runs/arms

Each arm is a run directory of its own, so a killed benchmark resumes. Prints a table, then one JSON line with hardware and versions.
With ``--report`` the run of the first arm is then finished, and its report shows the figures of the others.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from deploy.machine import machine_facts
from quietformer.pipeline import run_stages
from quietformer.recipe.recipe import demo_recipe_path, load_recipe
from quietformer.stages.layout import COMPARISON, RETROFIT_RESULT, outliers
from quietformer.stages.other_arms import record_arm, write_other_arms
from quietformer.stages.write_report import REPORT_PAGE
from quietformer.whole_run import all_stages

VANILLA = ("attention.gate=none", "attention.gate_scale=1.0")
NO_PENALTY = ("retrofit.penalty_weight=0.0", "retrofit.penalty_ramp_steps=0")
ARMS: dict[str, tuple[str, ...]] = {
    "gates + penalty": (),
    "penalty": VANILLA,
    "gates": NO_PENALTY,
    "distillation only": (*VANILLA, *NO_PENALTY),
}
LAST_STAGE = "compare"


def main() -> None:
    """Run the arms and print what came out."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task-data", required=True, help="scored sentence pairs")
    parser.add_argument("--data", help="texts to distil from; documentation strings by default")
    parser.add_argument("--out", type=Path, default=Path("runs/arms"))
    parser.add_argument("--arms", nargs="+", choices=list(ARMS), default=list(ARMS))
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="further overrides of the recipe"
    )
    parser.add_argument(
        "--report", action="store_true", help="finish the first arm's run, with the others in its report"
    )
    arguments = parser.parse_args()
    overrides = [f"compare.sts.data={json.dumps(arguments.task_data)}", *arguments.set]
    if arguments.data:
        overrides.append(f"data.texts={json.dumps(arguments.data)}")
    folders = {arm: arguments.out / arm.replace(" + ", "-and-").replace(" ", "-") for arm in arguments.arms}
    rows = [run_arm(arm, [*overrides, *ARMS[arm]], folder) for arm, folder in folders.items()]
    print_table(rows)
    print(json.dumps({"benchmark": "retrofit_arms", "rows": rows, "machine": asdict(machine_facts())}))
    if arguments.report:
        first, *others = arguments.arms
        write_other_arms(folders[first], [record_arm(folders[arm]) for arm in others])
        recipe = load_recipe(demo_recipe_path(), [*overrides, *ARMS[first]])
        run_stages(recipe, folders[first], all_stages(recipe))
        print(f"report: {folders[first] / REPORT_PAGE}")


def run_arm(arm: str, overrides: list[str], folder: Path) -> dict[str, Any]:
    """Everything up to the comparison in integers; accuracy on OpenVINO."""
    recipe = load_recipe(demo_recipe_path(), overrides)
    stages = all_stages(recipe)
    names = [stage.name for stage in stages]
    run_stages(recipe, folder, stages[: names.index(LAST_STAGE) + 1])
    report = json.loads((folder / COMPARISON).read_text(encoding="utf-8"))["sts"]
    largest = json.loads((folder / outliers("retrofitted")).read_text(encoding="utf-8"))
    training = json.loads((folder / RETROFIT_RESULT).read_text(encoding="utf-8"))
    scores = {
        f"{row['arm']} {row['profile'] or 'float'}": row["mean"]
        for row in report["rows"]
        if row["evidence"] == "measured" and (row["backend"] == "openvino" or row["profile"] is None)
    }
    return {
        "arm": arm,
        **scores,
        "largest_ffn_output": max(tensor["largest"] for tensor in largest["tensors"] if tensor["kind"] == "ffn_output"),
        "seconds": round(training["seconds"]),
    }


def print_table(rows: list[dict[str, Any]]) -> None:
    """One line per arm."""
    columns = list(rows[0])
    print("  ".join(f"{column:>22}" for column in columns))
    for row in rows:
        print("  ".join(f"{value:>22.4f}" if isinstance(value, float) else f"{value:>22}" for value in row.values()))


if __name__ == "__main__":
    main()
