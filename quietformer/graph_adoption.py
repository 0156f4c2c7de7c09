"""Take a graph of another tool over: brought into form, checked against itself, with what later stages must know of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import onnx

from deploy.data.encoding import INPUT_NAMES, TextEncoder
from deploy.data.image_encoding import PIXEL_INPUT
from deploy.data.image_preprocessing import PREPROCESSOR_FILE, preprocessor_file, read_preprocessing
from deploy.files import refuse_existing, refuse_own_input, write_atomically
from deploy.graphs.foreign_facts import attention_layers, foreign_facts
from deploy.graphs.foreign_graph import normalise
from deploy.graphs.graph_info import METADATA_KEY, TOKENIZER_FILE, GraphInfo, Pooling, Task
from deploy.graphs.graph_refusal import check_onnx
from deploy.graphs.graph_structure import load_graph
from deploy.graphs.graph_writing import checked_before_replacing
from deploy.graphs.model_hash import model_sha256
from deploy.graphs.watched_graph import Feeds, WatchedGraph
from deploy.tasks.sentence_vectors import FEATURES
from quietformer.rename_advice import rename_option, renamed_output, renamed_texts

TextTask = Literal["feature-extraction", "fill-mask", "text-classification", "text-generation"]
_IDS, _MASK, _TYPES = INPUT_NAMES
_TOLERANCE = 1e-4
"""Of the largest output: folding constants moves roundings, nothing else."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Adoption:
    """What became of a graph."""

    info: GraphInfo
    changes: dict[str, int]
    """How often each change was made."""
    largest_difference: float
    """Between the outputs of both graphs, relative to the largest output."""


def adopt(
    source: Path,
    out: Path,
    *,
    tokenizer: Path | None = None,
    task: TextTask = "feature-extraction",
    pooling: Pooling | None = None,
    max_length: int | None = None,
    preprocessing: Path | None = None,
    rename: Mapping[str, str] | None = None,
    force: bool = False,
    progress: Callable[[str], None] | None = None,
) -> Adoption:
    """Write ``source`` as a graph that every later stage takes.

    Args:
        source: float32 ONNX graph of opset 13 to 23, external data included.
        out: graph to write; tokenizer or preprocessing go beside it, by the names of their formats.
        tokenizer: ``tokenizer.json`` of a graph that reads texts.
        task: what the output of such a graph means.
        pooling: how its token features become one embedding.
        max_length: its positions, where the graph does not show them.
        preprocessing: what ``preprocessor_config.json`` holds, of a graph that reads images. With neither, a graph reads arrays.
        rename: new names of inputs and outputs.
        force: replace ``out``.
        progress: told what is happening, one line at a time.

    Raises:
        FileExistsError: ``out`` exists, or another tokenizer or preprocessing beside it, and ``force`` is not set.
        FileNotFoundError: a file is missing.
        ValueError: the graph cannot be taken (the reason is named), or the rest does not fit it.
        ImportError: ONNX Runtime is not installed.
    """
    report = progress or (lambda line: None)
    refuse_own_input(out, [source, tokenizer, preprocessing])
    refuse_existing(out, force=force)
    for given, beside in ((tokenizer, TOKENIZER_FILE), (preprocessing, PREPROCESSOR_FILE)):
        if given is not None and given.is_file() and not _is_said(given, out.parent / beside):
            refuse_existing(out.parent / beside, force=force)
    report(f"reading {source}")
    model = load_graph(source)
    if any(entry.key == METADATA_KEY for entry in model.metadata_props):
        raise ValueError(f"{source} is a graph of quietformer already; there is nothing to take over")
    report("bringing the graph into form")
    changes = normalise(model, name=str(source), rename=rename)
    facts: dict[str, Any] = {"family": "foreign", "checkpoint_sha256": model_sha256(source)}
    if tokenizer is not None and preprocessing is not None:
        raise ValueError("a graph reads texts or images: give --tokenizer or --preprocessing")
    if tokenizer is not None:
        facts |= _text_facts(model, tokenizer, task=task, pooling=pooling, max_length=max_length, name=str(source))
    else:
        _refuse_text_settings(task=task, pooling=pooling, max_length=max_length)
        layers = attention_layers(model)
        facts |= {"max_length": 0, "vocab_size": 0, "pad_token_id": 0, "num_layers": layers, "task": "arrays"}
        if preprocessing is not None:
            facts |= _image_facts(model, preprocessing, name=str(source))
    info = GraphInfo(**facts)
    info.write(model)
    report("checking it against the source")
    with checked_before_replacing(model, out) as written:
        check_onnx(written, name=str(source))
        difference = _largest_difference(source, written, rename or {})
        if not difference <= _TOLERANCE:
            raise ValueError(
                f"{source} gives other outputs once it is in form: they differ by {difference:.2g} of the largest; "
                "it may be random, or a bug: please report it"
            )
    for given, beside in ((tokenizer, TOKENIZER_FILE), (preprocessing, PREPROCESSOR_FILE)):
        if given is not None and not _is_said(given, out.parent / beside):
            write_atomically(out.parent / beside, _companion(given, beside))
    return Adoption(info=info, changes=changes, largest_difference=difference)


def _companion(given: Path, name: str) -> bytes:
    """What is written beside the graph under the name of its format."""
    return given.read_bytes() if name == TOKENIZER_FILE else preprocessor_file(read_preprocessing(given)).encode()


def _is_said(given: Path, beside: Path) -> bool:
    """Whether the file beside the graph says already what was given."""
    if not beside.is_file():
        return False
    return beside.samefile(given) or beside.read_bytes() == _companion(given, beside.name)


def _text_facts(
    model: onnx.ModelProto,
    tokenizer: Path,
    *,
    task: Task,
    pooling: Pooling | None,
    max_length: int | None,
    name: str,
) -> dict[str, Any]:
    inputs = [value.name for value in model.graph.input]
    if odd := [entry for entry in inputs if entry not in INPUT_NAMES]:
        way = renamed_texts(inputs) or rename_option(odd[0], "NEW")
        raise ValueError(
            f"{name} has input '{odd[0]}', which texts do not give ({', '.join(INPUT_NAMES)}); give {way}, or leave "
            "--tokenizer out and give arrays"
        )
    if _IDS not in inputs or _MASK not in inputs:
        raise ValueError(
            f"{name} takes {', '.join(inputs)}; a graph of texts takes {_IDS} and {_MASK}: leave --tokenizer out and give arrays"
        )
    outputs = [value.name for value in model.graph.output]
    wanted = FEATURES if task == "feature-extraction" else "logits"
    if wanted not in outputs:
        way = renamed_output(model.graph, wanted, rank=2 if task == "text-classification" else 3)
        raise ValueError(
            f"{name} gives {', '.join(outputs)}; task '{task}' reads '{wanted}': give {way}, or another --task"
        )
    if pooling is not None and task != "feature-extraction":
        raise ValueError(f"pooling has no effect on task '{task}'")
    found = foreign_facts(model, ids_name=_IDS, types_name=_TYPES)
    positions = max_length or found.length or found.max_length
    if positions is None:
        raise ValueError(f"{name} does not show how many positions its model has; give --max-length")
    if found.vocab_size is None:
        raise ValueError(f"{name} looks no table up by {_IDS}; it cannot be a graph of texts")
    encoder = TextEncoder(tokenizer, max_length=positions)
    return {
        "task": task,
        "pooling": pooling,
        "max_length": positions,
        "vocab_size": found.vocab_size,
        "pad_token_id": encoder.pad_token_id,
        "num_layers": found.num_layers,
        "length": found.length,
        "tokenizer_sha256": encoder.tokenizer_sha256,
    }


def _refuse_text_settings(*, task: str, pooling: Pooling | None, max_length: int | None) -> None:
    given = {
        "--task": task != "feature-extraction",
        "--pooling": pooling is not None,
        "--max-length": max_length is not None,
    }
    for option, is_given in given.items():
        if is_given:
            raise ValueError(f"{option} has no effect without --tokenizer")


def _image_facts(model: onnx.ModelProto, preprocessing: Path, *, name: str) -> dict[str, Any]:
    encoder = read_preprocessing(preprocessing)
    inputs = [value.name for value in model.graph.input]
    if inputs != [PIXEL_INPUT]:
        way = f"give {rename_option(inputs[0], PIXEL_INPUT)}"
        raise ValueError(
            f"{name} takes {', '.join(inputs)}; images give {PIXEL_INPUT} alone: "
            f"{way if len(inputs) == 1 else 'leave --preprocessing out and give arrays'}"
        )
    sizes = [dim.dim_value for dim in model.graph.input[0].type.tensor_type.shape.dim][1:]
    if sizes != [3, *encoder.size]:
        raise ValueError(f"{name} takes images of {sizes}; {preprocessing} makes {[3, *encoder.size]}")
    outputs = [value.name for value in model.graph.output]
    return {
        "image": encoder.identity(),
        "task": "image-classification" if outputs == ["logits"] else "image-feature-extraction",
    }


def _largest_difference(source: Path, written: Path, rename: Mapping[str, str]) -> float:
    """Largest difference of the outputs on one made-up batch, relative to the largest output."""
    old, new = WatchedGraph(source), WatchedGraph(written)
    feeds = _made_up(new)
    names = [value.name for value in old.outline().graph.output]
    back = {renamed: name for name, renamed in rename.items()}
    expected = old.open(names).run({back.get(name, name): value for name, value in feeds.items()})
    found = new.open([rename.get(name, name) for name in names]).run(feeds)
    largest = 0.0
    for name in names:
        ours, theirs = found[rename.get(name, name)].astype(np.float64), expected[name].astype(np.float64)
        scale = float(np.nanmax(np.abs(theirs), initial=0.0)) or 1.0
        if not np.array_equal(np.isfinite(ours), np.isfinite(theirs)):
            return float("inf")
        finite = np.isfinite(theirs)
        largest = max(largest, float(np.abs(ours - theirs)[finite].max(initial=0.0)) / scale)
    return largest


def _made_up(graph: WatchedGraph) -> Feeds:
    """Small ids, full masks and noise, two rows of seven where the graph leaves sizes open."""
    generator = np.random.default_rng(0)
    feeds: dict[str, Any] = {}
    for entry in graph.inputs:
        shape = [size or (2 if axis == 0 else 7) for axis, size in enumerate(entry.shape)]
        if entry.dtype.kind == "f" and "mask" not in entry.name:
            feeds[entry.name] = generator.standard_normal(shape).astype(entry.dtype)
        elif entry.name == _IDS:
            feeds[entry.name] = generator.integers(0, 2, shape).astype(entry.dtype)
        else:
            feeds[entry.name] = np.full(shape, "mask" in entry.name, dtype=entry.dtype)
    return feeds
