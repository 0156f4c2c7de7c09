"""The comparison of fixes writes, judges and times every row of a small encoder, and goes on where it was stopped."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import onnx
import pytest

from benchmarks import rival_fixes
from deploy.graphs.graph_info import GraphInfo
from tests.deploy.encoder_graph import V, encoder
from tests.deploy.word_tokenizer import FIRST_WORD, write_tokenizer


def _sentence_encoder(path: Path) -> None:
    model = encoder()
    for node in model.graph.node:
        node.output[:] = ["last_hidden_state" if name == "hidden" else name for name in node.output]
    model.graph.output[0].name = "last_hidden_state"
    info = GraphInfo.read(model, name="test")
    del model.metadata_props[:]
    replace(info, task="feature-extraction", pooling="mean").write(model)
    onnx.save(model, path)
    write_tokenizer(path.parent / "tokenizer.json", words=V - FIRST_WORD, pads=False)


def test_every_fix_gives_a_row_with_score_sites_and_latency(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _sentence_encoder(tmp_path / "model.onnx")
    generator = np.random.default_rng(0)
    texts = [" ".join(f"w{word}" for word in generator.integers(0, 40, 6)) for _ in range(80)]
    (tmp_path / "texts.txt").write_text("\n".join(texts[:40]))
    pairs = [{"sentence1": a, "sentence2": b, "score": float(generator.random())} for a, b in pairwise(texts)]
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(pair) + "\n" for pair in pairs))
    (tmp_path / "float-sites.txt").write_text("# one site\nact_0\n")
    given = ["--model", f"vanilla={tmp_path / 'model.onnx'}", "--calibration", str(tmp_path / "texts.txt")]
    given += ["--task-data", str(tmp_path / "pairs.jsonl"), "--float-sites", str(tmp_path / "float-sites.txt")]
    given += ["--batches", "2", "--limit", "20", "--threads", "1", "--shapes", "1x8", "--seconds", "0.02"]
    given += ["--out", str(tmp_path / "out")]

    def run(*more: str) -> tuple[list[dict[str, object]], str]:
        monkeypatch.setattr(sys, "argv", ["rival_fixes.py", *given, *more])
        rival_fixes.main()
        return json.loads((tmp_path / "out" / "rival-fixes.json").read_text())["rows"], capsys.readouterr().err

    rows, _ = run("--stage", "judge", "--fix", "none")
    assert [row["fix"] for row in rows] == ["float32", "none"]
    rows, told = run()
    assert "'none'" not in told  # judged already
    assert [row["fix"] for row in rows] == ["float32", *rival_fixes.FIXES, rival_fixes.FALLBACK]
    assert all(row["median_ms"] for row in rows)
    assert [row["float_sites"] for row in rows[1:]] == [0] * len(rival_fixes.FIXES) + [1]
    plain = {row["fix"]: row["score"] for row in rows}
    assert len({plain["none"], plain["bias correction"], plain["per-channel weights"], plain["mse ranges"]}) > 1
