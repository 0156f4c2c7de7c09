"""Texts in, embeddings or labels out: the tokenizer before a served graph, pooling or class names behind it."""

from __future__ import annotations

import asyncio
import time

import numpy as np

from deploy.data.encoding import INPUT_NAMES, TextEncoder, TokenRow
from deploy.graphs.feed_types import MASK_NAME
from deploy.graphs.graph_info import GraphInfo
from deploy.serving.faults import RequestFaultError, invalid
from deploy.serving.graph_model import GraphModel
from deploy.serving.inference_messages import InferAnswer, InferRequest
from deploy.serving.inference_statistics import InferenceStatistics, Stages
from deploy.serving.model_signature import FREE, ModelSignature, TensorSpec
from deploy.serving.request_checks import check_request
from deploy.serving.wire_types import BYTES
from deploy.tasks.embedding import normalise, pool
from deploy.tasks.sentence_vectors import FEATURES

TEXT = "TEXT"
EMBEDDING = "EMBEDDING"
LABEL = "LABEL"
SCORES = "SCORES"
LOGITS = "logits"
_INLINE_BYTES = 4_000
"""Longer texts are tokenized in a thread, so that the event loop goes on."""


class TextModel:
    """A second model in front of a graph that reads tokens.

    ``TEXT`` (BYTES, one text a row, cut to what the graph takes) becomes ``EMBEDDING`` (L2-normalised) for a graph that
    gives token features, or ``LABEL`` and ``SCORES`` (probabilities) for a classifier.

    Args:
        graph: where rows run; they share its batches with everybody else's.
        info: of the graph.
        encoder: of the tokenizer that belongs to it.
        name: as clients call it.
    """

    def __init__(self, graph: GraphModel, *, info: GraphInfo, encoder: TextEncoder, name: str) -> None:
        self.name, self.version = name, graph.version
        self.platform = "quietformer_text"
        self.statistics = InferenceStatistics()
        self.facts = {"tensors": graph.name, "tokenizer_sha256": encoder.tokenizer_sha256}
        self._graph, self._info, self._encoder = graph, info, encoder
        # A graph without a batch axis is served for texts only where it takes one row: one text a request.
        self.signature = text_signature(graph.signature, info, max_batch_size=graph.signature.max_batch_size or 1)

    async def infer(self, request: InferRequest) -> InferAnswer:
        """See :meth:`deploy.serving.served_model.ServedModel.infer`."""
        start = time.perf_counter_ns()
        try:
            rows = check_request(request, self.signature, self.name)
            texts = _decoded(request.inputs[TEXT])
            token_rows = await self._tokens(texts)
            tokenized = time.perf_counter_ns()
            features, queue_ns = await self._run(token_rows, request.timeout)
        except RequestFaultError as error:
            self.statistics.refused(error.fault.reason, time.perf_counter_ns() - start)
            raise
        except asyncio.CancelledError:
            self.statistics.refused("CANCELED", time.perf_counter_ns() - start)
            raise
        ran = time.perf_counter_ns()
        outputs = self._answer(np.stack(features))
        done = time.perf_counter_ns()
        stages = Stages(
            compute_input=tokenized - start, compute_infer=max(0, ran - tokenized - queue_ns), compute_output=done - ran
        )
        self.statistics.ran(rows, stages)
        self.statistics.answered(rows=rows, total_ns=done - start, queue_ns=queue_ns, stages=stages)
        return InferAnswer(
            model=self.name,
            version=self.version,
            id=request.id,
            outputs=outputs,
            wanted=request.wanted(self.signature.output_names),
        )

    async def _tokens(self, texts: list[str]) -> list[TokenRow]:
        if sum(map(len, texts)) <= _INLINE_BYTES:
            return self._encoder.encode(texts)
        return await asyncio.get_running_loop().run_in_executor(None, self._encoder.encode, texts)

    async def _run(self, token_rows: list[TokenRow], timeout: float | None) -> tuple[list[np.ndarray], int]:
        """One vector per text, and the longest wait in the queue; each text is a row of its own in the graph's queue."""
        if len(token_rows) == 1:
            vector, queue_ns = await self._run_row(token_rows[0], timeout)
            return [vector], queue_ns
        runs = [asyncio.create_task(self._run_row(row, timeout)) for row in token_rows]
        try:
            done = await asyncio.gather(*runs)
        finally:
            for run in runs:
                run.cancel()
        return [vector for vector, _ in done], max(queue_ns for _, queue_ns in done)

    async def _run_row(self, row: TokenRow, timeout: float | None) -> tuple[np.ndarray, int]:
        feeds = dict(self._encoder.feeds([row], length=self._info.length, input_names=self._graph.input_names))
        kinds = self._graph.input_types
        feeds = {name: array.astype(kinds[name], copy=False) for name, array in feeds.items()}
        ran = await self._graph.run(feeds, rows=1, timeout=timeout)
        if self._info.task == "text-classification":
            return ran.outputs[LOGITS][0], ran.queue_ns
        assert self._info.pooling is not None
        return pool(ran.outputs[FEATURES], feeds[MASK_NAME], self._info.pooling)[0], ran.queue_ns

    def _answer(self, rows_BD: np.ndarray) -> dict[str, np.ndarray]:
        """Shapes: B texts, D features or classes."""
        if self._info.task != "text-classification":
            return {EMBEDDING: normalise(rows_BD).astype(np.float32)}
        shifted_BD = np.exp(rows_BD.astype(np.float32) - rows_BD.max(axis=1, keepdims=True))
        scores_BD = shifted_BD / shifted_BD.sum(axis=1, keepdims=True)
        names = self._info.labels or tuple(str(number) for number in range(scores_BD.shape[1]))
        labels = np.empty((len(scores_BD), 1), np.object_)
        labels[:, 0] = [names[best].encode() for best in scores_BD.argmax(axis=1)]
        return {LABEL: labels, SCORES: scores_BD}


def text_signature(graph: ModelSignature, info: GraphInfo, *, max_batch_size: int) -> ModelSignature:
    """What a model takes and gives that answers texts with a graph; a row of each tensor belongs to one text.

    Args:
        graph: tensors of the graph.
        info: of the graph; tells classifiers from encoders.
        max_batch_size: texts of one request; 0 where the rows are an axis like any other.
    """
    width = next(spec for spec in graph.outputs if spec.name in (FEATURES, LOGITS)).shape[-1]
    rows = () if max_batch_size else (FREE,)
    outputs: tuple[TensorSpec, ...] = (TensorSpec(name=EMBEDDING, datatype="FP32", shape=(*rows, width)),)
    if info.task == "text-classification":
        outputs = (
            TensorSpec(name=LABEL, datatype=BYTES, shape=(*rows, 1)),
            TensorSpec(name=SCORES, datatype="FP32", shape=(*rows, width)),
        )
    text = TensorSpec(name=TEXT, datatype=BYTES, shape=(*rows, 1))
    return ModelSignature(inputs=(text,), outputs=outputs, max_batch_size=max_batch_size)


def why_no_texts(info: GraphInfo | None, input_names: tuple[str, ...], *, has_tokenizer: bool) -> str | None:
    """Why a graph cannot be served for texts; None where it can."""
    if info is None or info.reads != "tokens":
        return "it does not read tokens of a known model"
    if info.task not in ("feature-extraction", "text-classification"):
        return f"a graph for {info.task} gives neither embeddings nor labels"
    if info.task == "feature-extraction" and info.pooling is None:
        return "the checkpoint does not say how token features become an embedding"
    if not has_tokenizer:
        return "there is no tokenizer.json beside it"
    if MASK_NAME not in input_names or any(name not in INPUT_NAMES for name in input_names):
        return f"its inputs are {', '.join(input_names)}"
    return None


def _decoded(texts: np.ndarray) -> list[str]:
    try:
        return [bytes(text).decode() for text in texts.ravel()]
    except UnicodeDecodeError as error:
        raise invalid(f"input '{TEXT}' holds bytes that are not UTF-8") from error
