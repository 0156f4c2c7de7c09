"""Graphs of every kind behind the server: what is found out about them, and that they answer as the bare session does."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest

from deploy.backends.opening import open_backend
from deploy.serving.artifact_choice import choose_artifact, served_name
from deploy.serving.batcher import BatchingSettings
from deploy.serving.faults import Fault, RequestFaultError
from deploy.serving.graph_model import GraphModel, OpenedGraph
from deploy.serving.inference_messages import InferAnswer, InferRequest
from tests.deploy.encoder_graph import encoder, feeds, from_text
from tests.deploy.vit_graph import images, vit

Feeds = dict[str, np.ndarray]


def asked(inputs: Feeds) -> InferRequest:
    return InferRequest(id="", inputs=inputs, outputs=(), binary_outputs=True, timeout=None)


def answers(graph: Path, requests: Sequence[Feeds], backend: str = "openvino") -> tuple[GraphModel, list[InferAnswer]]:
    """The model, and what it answers to requests that come at the same time."""

    async def story() -> tuple[GraphModel, list[InferAnswer]]:
        opened = OpenedGraph(choose_artifact(graph, backend), instances=1, threads=1, max_batch_size=8)
        model = GraphModel(opened, name="m", version="1", batching=BatchingSettings(max_rows=8))
        try:
            return model, await asyncio.gather(*(model.infer(asked(inputs)) for inputs in requests))
        finally:
            await model.close()

    return asyncio.run(asyncio.wait_for(story(), 60))


@pytest.fixture
def saved(tmp_path: Path) -> Callable[[onnx.ModelProto], Path]:
    def save(model: onnx.ModelProto) -> Path:
        onnx.save(model, tmp_path / "model.onnx")
        return tmp_path / "model.onnx"

    return save


@pytest.mark.parametrize("backend", ["openvino", "onnxruntime"])
def test_rows_of_many_lengths_share_runs_and_get_what_the_bare_session_gives(
    saved: Callable[[onnx.ModelProto], Path], backend: str
) -> None:
    graph = saved(encoder())
    requests = [feeds(batch=1 + number % 3, length=1 + number % 9, seed=number) for number in range(18)]
    model, found = answers(graph, requests, backend)
    assert [spec.shape for spec in model.signature.inputs] == [(-1,)] * 3
    assert [spec.shape for spec in model.signature.outputs] == [(-1, 32)]
    assert model.statistics.execution_count < len(requests)
    assert model.statistics.inference_count == sum(len(inputs["input_ids"]) for inputs in requests)
    with open_backend(backend, graph) as bare:
        for inputs, answer in zip(requests, found, strict=True):
            marked = inputs["attention_mask"] == 1
            expected = bare.infer(inputs)["hidden"]
            assert answer.outputs["hidden"].shape == expected.shape
            np.testing.assert_allclose(answer.outputs["hidden"][marked], expected[marked], atol=1e-5)


def test_images_of_a_fixed_size_share_runs(saved: Callable[[onnx.ModelProto], Path]) -> None:
    graph = saved(vit())
    requests = [images(batch=1 + number % 2, seed=number) for number in range(6)]
    model, found = answers(graph, requests)
    (spec,) = model.signature.inputs
    assert (spec.datatype, spec.shape) == ("FP32", (3, 16, 16))
    assert model.signature.max_batch_size == 8
    assert model.statistics.execution_count < len(requests)
    with open_backend("openvino", graph) as bare:
        for inputs, answer in zip(requests, found, strict=True):
            (name,) = answer.outputs
            np.testing.assert_allclose(answer.outputs[name], bare.infer(inputs)[name], atol=1e-5)


def test_pixels_that_are_not_finite_are_refused_before_they_join_a_batch(
    saved: Callable[[onnx.ModelProto], Path],
) -> None:
    broken = images(batch=1)
    (name,) = broken
    broken[name] = np.where(np.arange(16) == 3, np.nan, broken[name]).astype(np.float32)
    with pytest.raises(RequestFaultError, match="not finite") as caught:
        answers(saved(vit()), [broken])
    assert caught.value.fault is Fault.INVALID


def test_a_graph_without_a_batch_axis_runs_requests_one_by_one(saved: Callable[[onnx.ModelProto], Path]) -> None:
    graph = saved(from_text("fixed (float[4,3] x) => (float[4,2] y) <float[3,2] w> { y = MatMul(x, w) }"))
    requests = [{"x": np.full((4, 3), number, np.float32)} for number in range(3)]
    model, found = answers(graph, requests)
    assert model.signature.max_batch_size == 0
    assert model.signature.outputs[0].shape == (4, 2)
    assert model.statistics.execution_count == 3
    np.testing.assert_allclose(found[2].outputs["y"], 2 * found[1].outputs["y"], rtol=1e-5)


def test_a_graph_whose_output_lacks_the_batch_axis_runs_requests_one_by_one(
    saved: Callable[[onnx.ModelProto], Path],
) -> None:
    graph = saved(
        from_text("total (float[B,3] x) => (float[1,3] y) { z = Constant<value_ints=[0]>() y = ReduceSum(x, z) }")
    )
    model, found = answers(graph, [{"x": np.ones((5, 3), np.float32)}, {"x": np.ones((2, 3), np.float32)}])
    assert model.signature.max_batch_size == 0
    assert [answer.outputs["y"].tolist() for answer in found] == [[[5, 5, 5]], [[2, 2, 2]]]


def test_a_graph_of_one_length_takes_only_that(saved: Callable[[onnx.ModelProto], Path]) -> None:
    graph = saved(
        from_text(
            "fixed (int64[B,4] input_ids, int64[B,4] attention_mask) => (int64[B,4] y) { y = Mul(input_ids, attention_mask) }"
        )
    )
    good = {"input_ids": np.full((2, 4), 7), "attention_mask": np.ones((2, 4), np.int64)}
    model, found = answers(graph, [good])
    assert found[0].outputs["y"].tolist() == [[7] * 4] * 2
    assert model.signature.inputs[0].shape == (4,)
    with pytest.raises(RequestFaultError, match=r"shape \[2, 3\]; expected \[-1, 4\]"):
        answers(graph, [{name: array[:, :3] for name, array in good.items()}])


def test_a_folder_stands_for_its_quantized_graph_and_a_name_fits_into_an_address(tmp_path: Path) -> None:
    onnx.save(encoder(), tmp_path / "model.onnx")
    assert choose_artifact(tmp_path).path.name == "model.onnx"
    onnx.save(encoder(), tmp_path / "model.int8.onnx")
    assert choose_artifact(tmp_path).path.name == "model.int8.onnx"
    assert served_name(tmp_path / "my model.int8.onnx") == "my-model"
    folder = tmp_path / "runs (new)"
    folder.mkdir()
    assert served_name(folder) == "runs-new"
