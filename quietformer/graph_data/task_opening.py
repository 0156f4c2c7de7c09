"""A task by its name, ready to judge: its data read, encoded and batched for one graph."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, get_args

from deploy.data.image_data import read_images
from deploy.data.text_data import read_labelled, read_pairs, read_texts
from deploy.data.text_document import read_document
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


def open_task(
    name: TaskName,
    graph: Path,
    data: str,
    *,
    float_infer: Infer,
    limit: int | None = None,
    length: int | None = None,
    window: int | None = None,
) -> Task:
    """Read and encode a task's data.

    Args:
        name: which task.
        graph: float graph whose tokenizer, inputs and pooling are used; every candidate shares them.
        data: file, folder or ``hf:`` name.
        float_infer: the float model, which ``fidelity`` compares with.
        limit: use the first so many examples; of ``clm``, windows.
        length: texts are cut to so many tokens; by default to what the graph takes.
        window: tokens of a window of ``clm``; by default 512, or what the graph takes where that is less.

    Raises:
        FileNotFoundError: graph, tokenizer or data are missing.
        ValueError: the graph does not have what the task needs, or the data does not fit.
    """
    if window is not None and name != "clm":
        raise ValueError(
            f"a window of {window} tokens has no effect on task '{name}'; only clm cuts its text into windows"
        )
    if name == "clm":
        return _clm_task(graph, data, limit=limit, window=window)
    if name == "image":
        return _image_task(graph, data, limit=limit, length=length)
    if name == "outputs":
        return _outputs_task(graph, data, float_infer, limit=limit, length=length)
    text = graph_text(graph, length=length)
    batching: dict[str, Any] = {"input_names": text.input_names, "length": text.length}
    if name == "sts":
        pairs = read_pairs(data)[:limit]
        return sts_task(pairs, text.encoder, pooling=_pooling(name, text.info, graph), **batching)
    if name == "classify":
        if text.info.task != "text-classification":
            raise ValueError(f"task 'classify' needs a classifier of texts; {graph} does {text.info.task}")
        return classify_task(read_labelled(data)[:limit], text.encoder, **batching)
    texts = read_texts(data, limit=limit, allow_evaluation_split=True)
    if name == "fidelity":
        pooling = _pooling(name, text.info, graph)
        return fidelity_task(texts, text.encoder, float_infer, pooling=pooling, **batching)
    if text.info.task != "fill-mask":
        raise ValueError(f"task 'mlm' needs a masked language model; {graph} does {text.info.task}")
    return mlm_task(
        texts, text.encoder, tokens=masking_tokens(text.tokenizer_file), vocab_size=text.info.vocab_size, **batching
    )


def _clm_task(graph: Path, data: str, *, limit: int | None, window: int | None) -> Task:
    text = graph_text(graph, length=window)
    if text.info.task != "text-generation":
        raise ValueError(f"task 'clm' needs a causal language model; {graph} does {text.info.task}")
    if text.length is not None and window not in (None, text.length):
        raise ValueError(f"windows of {window} tokens; {graph} takes exactly {text.length}")
    size = window or text.length or min(USUAL_WINDOW, text.info.max_length)
    return clm_task(read_document(data), text.encoder, input_names=text.input_names, window=size, limit=limit)


def _image_task(graph: Path, data: str, *, limit: int | None, length: int | None) -> Task:
    inputs = graph_inputs(graph, length=length)
    if not isinstance(inputs, GraphImages) or inputs.info.task != "image-classification":
        raise ValueError(f"task 'image' needs a classifier of images; {graph} does {inputs.info.task}")
    images = read_images(data, purpose="evaluation", limit=limit)
    return image_task(images, inputs.encoder, labels=inputs.info.labels)


def _outputs_task(graph: Path, data: str, float_infer: Infer, *, limit: int | None, length: int | None) -> Task:
    """Arrays of any graph: what it was taken over as does not matter."""
    if length is not None:
        raise ValueError(f"length {length} has no effect on task 'outputs': arrays are taken as they come")
    arrays = graph_arrays(read_info(graph), WatchedGraph(graph).inputs, name=str(graph))
    return outputs_task(arrays.batches(data, batch_size=_ROWS_OF_ARRAYS, limit=limit), float_infer)


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
