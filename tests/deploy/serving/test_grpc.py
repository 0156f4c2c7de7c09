"""Every operation over gRPC with the real ``tritonclient``: the same suite for ours and for Triton."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import grpc
import numpy as np
import pytest
import tritonclient.grpc as triton
from tritonclient.grpc import service_pb2
from tritonclient.utils import InferenceServerException

from tests.deploy.encoder_graph import feeds
from tests.deploy.serving.conformance_cases import INPUTS, MAX_BATCH, MODEL, OUTPUT, VOCABULARY, WIDTH
from tests.deploy.serving.served_model import Target


@pytest.fixture
def client(target: Target) -> Iterator[triton.InferenceServerClient]:
    if target.grpc is None:
        pytest.skip("QUIETFORMER_CONFORMANCE_GRPC names no server")
    with triton.InferenceServerClient(target.grpc) as opened:
        yield opened


def inputs_of(arrays: dict[str, np.ndarray], datatype: str = "INT64") -> list[triton.InferInput]:
    made = []
    for name, array in arrays.items():
        tensor = triton.InferInput(name, list(array.shape), datatype)
        tensor.set_data_from_numpy(array)
        made.append(tensor)
    return made


def refused(
    client: triton.InferenceServerClient, inputs: list[triton.InferInput], model: str = MODEL, **more: Any
) -> str:
    with pytest.raises(InferenceServerException) as caught:
        client.infer(model, inputs, **more)
    return str(caught.value.status()).removeprefix("StatusCode.")


def test_health(client: triton.InferenceServerClient) -> None:
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready(MODEL)
    assert client.is_model_ready(MODEL, "1")
    assert not client.is_model_ready("none")
    assert not client.is_model_ready(MODEL, "9")


def test_descriptions(client: triton.InferenceServerClient) -> None:
    assert "statistics" in client.get_server_metadata().extensions
    metadata = client.get_model_metadata(MODEL)
    assert {entry.name for entry in metadata.inputs} == set(INPUTS)
    assert [(entry.name, entry.datatype, list(entry.shape)) for entry in metadata.outputs] == [
        (OUTPUT, "FP32", [-1, -1, WIDTH])
    ]
    config = client.get_model_config(MODEL).config
    assert config.max_batch_size == MAX_BATCH
    assert config.HasField("dynamic_batching")
    assert MODEL in [entry.name for entry in client.get_model_repository_index().models]
    assert client.get_inference_statistics(MODEL).model_stats[0].name == MODEL


@pytest.mark.parametrize("ask", ["get_model_metadata", "get_model_config"])
def test_an_unknown_model_is_not_found(client: triton.InferenceServerClient, ask: str) -> None:
    with pytest.raises(InferenceServerException) as caught:
        getattr(client, ask)("none")
    assert "NOT_FOUND" in str(caught.value.status())
    with pytest.raises(InferenceServerException):
        client.get_inference_statistics("none")


def test_inference_gives_id_and_numbers_back(client: triton.InferenceServerClient) -> None:
    answer = client.infer(MODEL, inputs_of(feeds(batch=2, length=6)), request_id="seven")
    assert answer.get_response().id == "seven"
    assert answer.as_numpy(OUTPUT).shape == (2, 6, WIDTH)
    again = client.infer(
        MODEL, inputs_of(feeds(batch=2, length=6)), model_version="1", outputs=[triton.InferRequestedOutput(OUTPUT)]
    )
    np.testing.assert_allclose(again.as_numpy(OUTPUT), answer.as_numpy(OUTPUT), rtol=1e-6, atol=1e-6)


def test_typed_contents_give_the_same_numbers_as_raw_ones(client: triton.InferenceServerClient, target: Target) -> None:
    arrays = feeds(batch=2, length=6)
    raw = client.infer(MODEL, inputs_of(arrays)).as_numpy(OUTPUT)
    message = service_pb2.ModelInferRequest(model_name=MODEL)
    for name, array in arrays.items():
        entry = message.inputs.add(name=name, datatype="INT64", shape=array.shape)
        entry.contents.int64_contents.extend(array.ravel().tolist())
    with grpc.insecure_channel(str(target.grpc)) as channel:
        call = channel.unary_unary(
            "/inference.GRPCInferenceService/ModelInfer",
            request_serializer=service_pb2.ModelInferRequest.SerializeToString,
            response_deserializer=service_pb2.ModelInferResponse.FromString,
        )
        typed = np.frombuffer(call(message).raw_output_contents[0], np.float32).reshape(raw.shape)
    np.testing.assert_allclose(typed, raw, rtol=1e-6, atol=1e-6)


def test_a_stream_answers_each_request(client: triton.InferenceServerClient) -> None:
    found: list[tuple[Any, Any]] = []
    client.start_stream(lambda result, error: found.append((result, error)))
    for length in (3, 4):
        client.async_stream_infer(MODEL, inputs_of(feeds(length=length)))
    client.async_stream_infer(MODEL, inputs_of(feeds())[1:])
    client.stop_stream()
    assert [None if result is None else result.as_numpy(OUTPUT).shape[1] for result, _ in found] == [3, 4, None]
    assert found[-1][1] is not None


WRONG: dict[str, Callable[[], list[triton.InferInput]]] = {
    "wrong type": lambda: inputs_of({key: value.astype(np.int32) for key, value in feeds().items()}, "INT32"),
    "wrong rank": lambda: inputs_of({key: value[0] for key, value in feeds().items()}),
    "unknown input": lambda: inputs_of(feeds() | {"more": feeds()["input_ids"]}),
    "missing input": lambda: inputs_of(feeds())[:2],
    "duplicate input": lambda: [*inputs_of(feeds()), inputs_of(feeds())[0]],
    "batch of none": lambda: inputs_of({key: value[:0] for key, value in feeds().items()}),
    "batch above the limit": lambda: inputs_of(feeds(batch=MAX_BATCH + 1)),
    "batches that disagree": lambda: inputs_of(feeds(batch=3))[:1] + inputs_of(feeds(batch=2))[1:],
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_request_is_an_invalid_argument(client: triton.InferenceServerClient, name: str) -> None:
    assert refused(client, WRONG[name]()) == "INVALID_ARGUMENT"
    assert client.infer(MODEL, inputs_of(feeds())).as_numpy(OUTPUT) is not None


def test_an_unknown_output_is_an_invalid_argument(client: triton.InferenceServerClient) -> None:
    outputs = [triton.InferRequestedOutput("logits")]
    assert refused(client, inputs_of(feeds()), outputs=outputs) == "INVALID_ARGUMENT"


def test_unknown_models_and_versions_are_not_found(client: triton.InferenceServerClient) -> None:
    assert refused(client, inputs_of(feeds()), model="none") == "NOT_FOUND"
    assert refused(client, inputs_of(feeds()), model_version="9") == "NOT_FOUND"


def test_an_id_outside_of_the_vocabulary_is_an_invalid_argument(
    client: triton.InferenceServerClient, target: Target
) -> None:
    if target.is_triton:
        pytest.skip("Triton does not look at this")
    arrays = feeds()
    arrays["input_ids"][0, 0] = VOCABULARY
    assert refused(client, inputs_of(arrays)) == "INVALID_ARGUMENT"


def test_loading_is_not_allowed_by_default(client: triton.InferenceServerClient) -> None:
    for ask in (client.load_model, client.unload_model):
        with pytest.raises(InferenceServerException) as caught:
            ask(MODEL)
        assert "UNAVAILABLE" in str(caught.value.status())
