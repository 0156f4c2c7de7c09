"""A task by its name, ready to judge: its data read, encoded and batched for one graph."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

from deploy.calibration.real_outputs import RealOutputs
from deploy.data.example_draw import ExamplesUsed, draw
from deploy.data.image_data import each_image
from deploy.data.text_data import each_text, read_labelled, read_pairs
from deploy.data.text_document import read_document
from deploy.graphs.feed_types import MASK_NAME
from deploy.graphs.graph_info import GraphInfo, Pooling, read_info
from deploy.graphs.watched_graph import WatchedGraph
from deploy.tasks.classify import classify_task
from deploy.tasks.clm import USUAL_WINDOW, clm_task
from deploy.tasks.fidelity import fidelity_task
from deploy.tasks.image import image_task
from deploy.tasks.mlm import masking_tokens, mlm_task
from deploy.tasks.outputs import outputs_task
from deploy.tasks.sts import sts_task
from deploy.tasks.task import Infer, Task
from quietformer.graph_data.graph_arrays import graph_arrays
from quietformer.graph_data.graph_images import GraphImages
from quietformer.graph_data.graph_inputs import graph_inputs
from quietformer.graph_data.graph_text import graph_text

TaskName = Literal["fidelity", "sts", "mlm", "clm", "classify", "image", "outputs"]
_ROWS_OF_ARRAYS = 16
TASK_NAMES: tuple[TaskName, ...] = get_args(TaskName)


class OpenedTask(NamedTuple):
    """A task, and which examples of the data it holds."""

    task: Task
    examples: ExamplesUsed


def open_task(
    name: TaskName,
    graph: Path,
    data: str,
    *,
    float_infer: Infer,
    limit: int | None = None,
    seed: int | None = None,
    length: int | None = None,
    window: int | None = None,
) -> OpenedTask:
    """Read and encode a task's data.

    Args:
        name: which task.
        graph: float graph whose tokenizer, inputs and pooling are used; every candidate shares them.
        data: file, folder or ``hf:`` name.
        float_infer: the float model, which ``fidelity`` compares with.
        limit: use so many examples, drawn at random from all of the data: a file may be ordered. Of ``clm``, whose windows follow one
            another in one document, the first so many.
        seed: of the draw, 0 by default.
        length: texts are cut to so many tokens; by default to what the graph takes.
        window: tokens of a window of ``clm``; by default 512, or what the graph takes where that is less.

    Raises:
        FileNotFoundError: graph, tokenizer or data are missing.
        ValueError: the graph does not have what the task needs, the data does not fit, or a setting has no effect.
    """
    if window is not None and name != "clm":
        raise ValueError(
            f"a window of {window} tokens has no effect on task '{name}'; only clm cuts its text into windows"
        )
    if seed is not None and limit is None:
        raise ValueError(f"seed {seed} has no effect without a limit: all examples are used")
    if name == "clm":
        return _clm_task(graph, data, limit=limit, seed=seed, window=window)
    if name == "image":
        return _image_task(graph, data, limit=limit, seed=seed, length=length)
    if name == "outputs":
        return _outputs_task(graph, data, float_infer, limit=limit, seed=seed, length=length)
    text = graph_text(graph, length=length)
    batching: dict[str, Any] = {"input_names": text.input_names, "length": text.length}
    if name == "sts":
        pairs = draw(read_pairs(data), limit=limit, seed=seed)
        pooling = _pooling(name, text.info, graph)
        return OpenedTask(sts_task(pairs.examples, text.encoder, pooling=pooling, **batching), pairs.used)
    if name == "classify":
        if text.info.task != "text-classification":
            raise ValueError(f"task 'classify' needs a classifier of texts; {graph} does {text.info.task}")
        labelled = draw(read_labelled(data), limit=limit, seed=seed)
        return OpenedTask(classify_task(labelled.examples, text.encoder, **batching), labelled.used)
    texts = draw(each_text(data, allow_evaluation_split=True), limit=limit, seed=seed)
    if name == "fidelity":
        pooling = _pooling(name, text.info, graph)
        agreement = fidelity_task(texts.examples, text.encoder, float_infer, pooling=pooling, **batching)
        return OpenedTask(agreement, texts.used)
    if text.info.task != "fill-mask":
        raise ValueError(f"task 'mlm' needs a masked language model; {graph} does {text.info.task}")
    tokens = masking_tokens(text.tokenizer_file)
    masked = mlm_task(texts.examples, text.encoder, tokens=tokens, vocab_size=text.info.vocab_size, **batching)
    return OpenedTask(masked, texts.used)


def _clm_task(graph: Path, data: str, *, limit: int | None, seed: int | None, window: int | None) -> OpenedTask:
    text = graph_text(graph, length=window)
    if text.info.task != "text-generation":
        raise ValueError(f"task 'clm' needs a causal language model; {graph} does {text.info.task}")
    if text.length is not None and window not in (None, text.length):
        raise ValueError(f"windows of {window} tokens; {graph} takes exactly {text.length}")
    if seed is not None:
        raise ValueError(f"seed {seed} has no effect on task 'clm': it takes the first windows of a document")
    size = window or text.length or min(USUAL_WINDOW, text.info.max_length)
    task = clm_task(read_document(data), text.encoder, input_names=text.input_names, window=size, limit=limit)
    used = len(task.windows)
    chosen: Literal["all", "first"] = "all" if used == task.available else "first"
    return OpenedTask(task, ExamplesUsed(used=used, available=task.available, chosen=chosen))


def _image_task(graph: Path, data: str, *, limit: int | None, seed: int | None, length: int | None) -> OpenedTask:
    inputs = graph_inputs(graph, length=length)
    if not isinstance(inputs, GraphImages) or inputs.info.task != "image-classification":
        raise ValueError(f"task 'image' needs a classifier of images; {graph} does {inputs.info.task}")
    images = draw(each_image(data, purpose="evaluation"), limit=limit, seed=seed)
    return OpenedTask(image_task(images.examples, inputs.encoder, labels=inputs.info.labels), images.used)


def _outputs_task(
    graph: Path, data: str, float_infer: Infer, *, limit: int | None, seed: int | None, length: int | None
) -> OpenedTask:
    """Arrays of any graph: what it was taken over as does not matter."""
    if length is not None:
        raise ValueError(f"length {length} has no effect on task 'outputs': arrays are taken as they come")
    watched = WatchedGraph(graph)
    arrays = graph_arrays(read_info(graph), watched.inputs, name=str(graph))
    rows = watched.fixed_rows
    if rows is not None and limit is not None and limit % rows:
        raise ValueError(f"limit {limit}: {graph} takes exactly {rows} rows at once; give a multiple of {rows}")
    batches, used = arrays.drawn_batches(data, batch_size=rows or _ROWS_OF_ARRAYS, limit=limit, seed=seed)
    if rows is not None and (left := used.used % rows):
        raise ValueError(f"{data} has {used.used} samples; {graph} takes exactly {rows} at once: leave {left} out")
    has_mask = MASK_NAME in {entry.name for entry in watched.inputs}
    real = RealOutputs(graph, [value.name for value in watched.outline().graph.output]) if has_mask else None
    return OpenedTask(outputs_task(batches, float_infer, real=None if real is None else real.parts), used)


def _pooling(task: TaskName, info: GraphInfo, graph: Path) -> Pooling:
    if info.task != "feature-extraction" or info.pooling is None:
        raise ValueError(f"task '{task}' needs a sentence encoder that says how it pools; {graph} does {info.task}")
    return info.pooling


def task_named(name: str) -> TaskName:
    """Look a task's name up.

    Raises:
        ValueError: no such task.
    """
    for known in TASK_NAMES:
        if known == name:
            return known
    raise ValueError(f"unknown task '{name}'; known are {', '.join(TASK_NAMES)}")
