"""Run directories and engine folders to make repositories from."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx

from deploy.backends.artifact import input_shapes
from deploy.backends.engine_report import ENGINE_FILE, FORMAT, REPORT_FILE, EngineReport
from deploy.files import sha256_file
from deploy.graphs.graph_info import GraphInfo
from deploy.graphs.model_hash import model_sha256
from tests.deploy.calibrated import quantized
from tests.deploy.encoder_graph import EncoderRecipe, from_text
from tests.deploy.word_tokenizer import write_tokenizer

INPUTS = ("input_ids", "attention_mask", "token_type_ids")


def run_folder(folder: Path) -> Path:
    """The small encoder with integers of profile ``tensorrt``, its tokenizer and mean pooling."""
    folder.mkdir(exist_ok=True)
    made = quantized(folder, "tensorrt", EncoderRecipe())
    model = onnx.load(made)
    made.unlink()
    for values in (model.graph.output, *(node.output for node in model.graph.node)):
        for place, value in enumerate(values):
            if value == "hidden":
                values[place] = "last_hidden_state"
            elif getattr(value, "name", None) == "hidden":
                value.name = "last_hidden_state"
    tokenizer = write_tokenizer(folder / "tokenizer.json")
    info = GraphInfo.read(model, name="encoder")
    replace(info, pooling="mean", tokenizer_sha256=sha256_file(tokenizer)).write(model)
    onnx.save(model, folder / "model.int8.onnx")
    return folder


def classifier_folder(folder: Path) -> Path:
    """A small classifier of three classes, first token only, with a tokenizer."""
    folder.mkdir(exist_ok=True)
    model = from_text(
        """classifier (int64[B,T] input_ids, int64[B,T] attention_mask) => (float[B,3] logits)
        <float[50,3] table, int64[1] first = {1}> {
            rows = Gather<axis=0>(table, input_ids) mask = Cast<to=1>(attention_mask)
            weights = Unsqueeze(mask, last) kept = Mul(rows, weights) logits = ReduceSum<keepdims=0>(kept, first)
        }""".replace("first = {1}>", "first = {1}, int64[1] last = {2}>")
    )
    tokenizer = write_tokenizer(folder / "tokenizer.json")
    GraphInfo(
        task="text-classification", family="bert", max_length=24, vocab_size=50, pad_token_id=0, num_layers=1,
        labels=("bad", "fair", "good"), tokenizer_sha256=sha256_file(tokenizer),
    ).write(model)  # fmt: skip
    onnx.save(model, folder / "model.onnx")
    return folder


def engine_folder(
    folder: Path, graph: Path, *, capability: str = "8.9", backend: str = "tensorrt", batch: int = 8, length: int = 24
) -> Path:
    """What ``quietformer build`` leaves; TensorRT builds on a GPU only, so the plan holds bytes that nothing here reads."""
    folder.mkdir()
    plan = folder / ENGINE_FILE
    plan.write_bytes(f"plan of {graph.name} for {capability}".encode())
    shapes = {"min": [1, 1], "opt": [batch // 2, length // 2], "max": [batch, length]}
    values: dict[str, Any] = {
        "format": FORMAT, "backend": backend, "version": "10.16.1.11", "tools": {}, "compute_capabilities": [capability],
        "left_out": {}, "device": None, "driver": None, "settings": {}, "timing_cache": None,
        "profile": dict.fromkeys(input_shapes(onnx.load(graph)), shapes),
        "inputs": {name: list(sizes) for name, sizes in input_shapes(onnx.load(graph)).items()},
        "graph_info": None, "onnx": graph.name, "onnx_sha256": model_sha256(graph), "onnx_bytes": graph.stat().st_size,
        "precision": "int8 + float32", "weights": {}, "eight_bit_share": 0.5, "products": {}, "layers": {},
        "switch_decision": None,
        "engine": plan.name, "engine_sha256": sha256_file(plan), "engine_bytes": plan.stat().st_size, "num_layers": 1,
        "parse_seconds": 0.0, "build_seconds": 0.0, "warnings": [], "not_done": "",
    }  # fmt: skip
    (folder / REPORT_FILE).write_text(EngineReport(**values).to_json())
    return folder
