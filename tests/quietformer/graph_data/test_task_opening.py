"""A task with a limit holds a random sample of an ordered file, and says which; windows of a document are the first ones."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from deploy.data.example_draw import ExamplesUsed
from deploy.data.image_data import read_images
from deploy.graphs.graph_info import GraphInfo, read_info
from deploy.tasks.task import Feeds
from quietformer.graph_data.task_opening import TaskName, open_task
from tests.deploy.encoder_graph import D, V, encoder
from tests.deploy.vit_graph import vit
from tests.deploy.word_tokenizer import FIRST_WORD, write_tokenizer
from tests.quietformer.test_image_commands import write_images

ROWS, LIMIT = 60, 12


def _graph(folder: Path, **facts: Any) -> Path:
    model = encoder()
    info = GraphInfo.read(model, name="test")
    del model.metadata_props[:]
    replace(info, **facts).write(model)
    path = folder / "model.onnx"
    onnx.save(model, path)
    write_tokenizer(folder / "tokenizer.json", words=V - FIRST_WORD, pads=False)
    return path


def _table(folder: Path) -> str:
    """Ordered: the number of words says which row it is, and so do score and label."""
    path = folder / "rows.jsonl"
    lines = [
        {"sentence1": _words(row), "sentence2": _words(row), "score": row, "sentence": _words(row), "label": row}
        for row in range(ROWS)
    ]
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return str(path)


def _words(row: int) -> str:
    return " ".join(f"w{(row // 30**place) % 30}" for place in range(3))


def _features(batch: Feeds) -> dict[str, np.ndarray]:
    ids = batch["input_ids"]
    return {"last_hidden_state": np.random.default_rng(0).standard_normal((*ids.shape, D)).astype(np.float32)}


@pytest.mark.parametrize(
    ("name", "facts"),
    [
        ("sts", {"task": "feature-extraction", "pooling": "mean"}),
        ("classify", {"task": "text-classification"}),
        ("fidelity", {"task": "feature-extraction", "pooling": "mean"}),
    ],
)
def test_texts_pairs_and_labelled_texts_are_drawn_from_all_of_the_file(
    tmp_path: Path, name: TaskName, facts: dict[str, Any]
) -> None:
    graph, data = _graph(tmp_path, **facts), _table(tmp_path)
    seen = [open_task(name, graph, data, float_infer=_features, limit=LIMIT, seed=seed) for seed in (None, 0, 1)]
    rows = [_rows(opened.task) for opened in seen]
    assert np.array_equal(rows[0], rows[1])
    assert not np.array_equal(rows[0], rows[2])
    assert rows[0].max() > 2 * LIMIT
    available = 2 * ROWS if name == "fidelity" else ROWS  # both sentences of a pair are texts
    assert seen[0].examples == ExamplesUsed(used=LIMIT, available=available, chosen="drawn", seed=0)
    assert open_task(name, graph, data, float_infer=_features).examples.chosen == "all"


def _rows(task: Any) -> np.ndarray:
    """Which rows of the table a task holds, ascending."""
    if task.name == "sts":
        return np.sort(task.gold.astype(int))
    return np.sort(np.concatenate([batch.feeds["input_ids"][:, 1] for batch in task.batches]))


def test_images_are_drawn_from_all_of_the_evaluation_split(tmp_path: Path) -> None:
    pytest.importorskip("PIL")
    pytest.importorskip("pyarrow")
    graph = tmp_path / "model.onnx"
    onnx.save(vit(), graph)
    folder = write_images(tmp_path / "images", {"train": 5, "test": 40})
    task, used = open_task("image", graph, str(folder), float_infer=_features, limit=6)
    everything = [image.where for image in read_images(folder, purpose="evaluation")]
    places = [everything.index(image.where) for image in task.images]  # type: ignore[attr-defined]
    assert places == sorted(places)
    assert max(places) > 12
    assert used == ExamplesUsed(used=6, available=40, chosen="drawn", seed=0)


def test_arrays_are_drawn_too(tmp_path: Path) -> None:
    graph = tmp_path / "model.onnx"
    onnx.save(vit(), graph)
    arrays = np.zeros((30, 3, 16, 16), np.float32) + np.arange(30, dtype=np.float32)[:, None, None, None]
    np.savez(tmp_path / "arrays.npz", pixel_values=arrays)
    task, used = open_task(
        "outputs",
        graph,
        str(tmp_path / "arrays.npz"),
        float_infer=lambda batch: {"logits": batch["pixel_values"].reshape(len(batch["pixel_values"]), -1)},
        limit=5,
        seed=3,
    )
    taken = [float(row[0, 0, 0]) for batch in task.batches for row in batch["pixel_values"]]  # type: ignore[attr-defined]
    assert len(set(taken)) == 5
    assert max(taken) > 10
    assert used == ExamplesUsed(used=5, available=30, chosen="drawn", seed=3)


def test_windows_of_a_document_are_the_first_ones(tmp_path: Path) -> None:
    graph = _graph(tmp_path, task="text-generation")
    (tmp_path / "text.txt").write_text(" ".join(_words(row) for row in range(ROWS)))
    document = str(tmp_path / "text.txt")
    task, used = open_task("clm", graph, document, float_infer=_features, limit=4, window=10)
    assert len(task.windows) == 4  # type: ignore[attr-defined]
    assert used == ExamplesUsed(used=4, available=18, chosen="first")
    with pytest.raises(ValueError, match="seed 1 has no effect on task 'clm'"):
        open_task("clm", graph, document, float_infer=_features, limit=4, seed=1, window=10)


def test_a_seed_without_a_limit_is_refused(tmp_path: Path) -> None:
    graph = _graph(tmp_path, task="feature-extraction", pooling="mean")
    assert read_info(graph).pooling == "mean"
    with pytest.raises(ValueError, match="seed 1 has no effect without a limit"):
        open_task("sts", graph, _table(tmp_path), float_infer=_features, seed=1)


def test_outputs_at_padding_and_of_rows_that_are_padding_alone_do_not_count(tmp_path: Path) -> None:
    graph = tmp_path / "model.onnx"
    onnx.save(encoder(), graph)
    ids = np.random.default_rng(0).integers(1, V, (4, 6))
    mask = np.array([[1] * 6, [1] * 4 + [0] * 2, [0] * 3 + [1] * 3, [0] * 6])
    np.savez(tmp_path / "arrays.npz", input_ids=ids, attention_mask=mask, token_type_ids=0 * ids)
    exact = np.random.default_rng(1).standard_normal((4, 6, D)).astype(np.float32)

    def padded_with(value: float, *, shift: float = 0.0) -> dict[str, np.ndarray]:
        return {"hidden": np.where(mask[..., None] > 0, exact + np.float32(shift), np.float32(value))}

    task, _ = open_task("outputs", graph, str(tmp_path / "arrays.npz"), float_infer=lambda _: padded_with(np.nan))
    assert task.evaluate(lambda _: padded_with(1e6)).score == float("inf")
    expected = 10 * np.log10(np.square(exact[mask > 0]).mean() / 0.01)
    assert task.evaluate(lambda _: padded_with(1e6, shift=0.1)).score == pytest.approx(expected, rel=1e-4)
    with pytest.raises(ValueError, match=r"output 'hidden' has [0-9]+ non-finite values"):
        task.evaluate(lambda _: {"hidden": exact * np.nan})
