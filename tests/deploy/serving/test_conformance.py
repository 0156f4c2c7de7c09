"""Every case of ``conformance_cases`` over plain HTTP, then every operation with the real ``tritonclient``."""

from __future__ import annotations

import json
from collections.abc import Iterator

import numpy as np
import pytest
import tritonclient.http as triton
from tritonclient.utils import InferenceServerException

from tests.deploy.encoder_graph import feeds
from tests.deploy.serving.conformance_cases import CASES, INPUTS, MAX_BATCH, MODEL, OUTPUT, WIDTH, Case
from tests.deploy.serving.served_model import Target, json_of


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_request_gets_the_status_that_triton_gives_it(case: Case, target: Target) -> None:
    if target.is_triton and case.only_ours:
        pytest.skip("Triton does not look at this")
    status, headers, body = target.ask(case.method, case.path, case.body, case.headers)
    expected = case.triton_status if target.is_triton and case.triton_status else case.status
    assert status == expected, body[:500]
    if case.check is not None:
        assert case.check(json_of(body, headers))
    if status >= 400 and not case.path.endswith("/ready") and not target.is_triton:
        assert set(json.loads(body)) == {"error"}
        assert json.loads(body)["error"]


@pytest.fixture
def client(target: Target) -> Iterator[triton.InferenceServerClient]:
    with triton.InferenceServerClient(target.address) as opened:
        yield opened


def inputs_of(arrays: dict[str, np.ndarray], *, binary: bool = True) -> list[triton.InferInput]:
    made = []
    for name, array in arrays.items():
        tensor = triton.InferInput(name, list(array.shape), "INT64")
        tensor.set_data_from_numpy(array, binary_data=binary)
        made.append(tensor)
    return made


def test_tritonclient_finds_server_and_model_alive_and_ready(client: triton.InferenceServerClient) -> None:
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready(MODEL)
    assert client.is_model_ready(MODEL, "1")
    assert not client.is_model_ready("none")


def test_tritonclient_reads_metadata_and_config(client: triton.InferenceServerClient) -> None:
    assert "statistics" in client.get_server_metadata()["extensions"]
    metadata = client.get_model_metadata(MODEL)
    assert {entry["name"] for entry in metadata["inputs"]} == set(INPUTS)
    assert all((entry["datatype"], entry["shape"]) == ("INT64", [-1, -1]) for entry in metadata["inputs"])
    config = client.get_model_config(MODEL)
    assert config["max_batch_size"] == MAX_BATCH
    assert {entry["name"] for entry in config["input"]} == set(INPUTS)
    assert all(entry["dims"] == [-1] for entry in config["input"])
    assert [(entry["name"], entry["data_type"], entry["dims"]) for entry in config["output"]] == [
        (OUTPUT, "TYPE_FP32", [-1, WIDTH])
    ]
    assert (MODEL, "READY") in {
        (entry["name"], entry["state"]) for entry in client.get_model_repository_index() if "state" in entry
    }


@pytest.mark.parametrize("binary", [True, False])
@pytest.mark.parametrize("compression", [None, "gzip", "deflate"])
def test_tritonclient_gets_the_same_numbers_whatever_the_form(
    client: triton.InferenceServerClient, binary: bool, compression: str | None
) -> None:
    arrays = feeds(batch=3, length=6)
    plain = client.infer(MODEL, inputs_of(arrays)).as_numpy(OUTPUT)
    answer = client.infer(
        MODEL,
        inputs_of(arrays, binary=binary),
        outputs=[triton.InferRequestedOutput(OUTPUT, binary_data=not binary)],
        request_id="seven",
        request_compression_algorithm=compression,
        response_compression_algorithm=compression,
    )
    assert answer.get_response()["id"] == "seven"
    assert plain.shape == (3, 6, WIDTH)
    np.testing.assert_allclose(answer.as_numpy(OUTPUT), plain, rtol=1e-6, atol=1e-6)


def test_tritonclient_counts_what_it_asked(client: triton.InferenceServerClient) -> None:
    def successes() -> tuple[int, int, int]:
        found = client.get_inference_statistics(MODEL)["model_stats"][0]
        return found["inference_stats"]["success"]["count"], found["inference_count"], found["execution_count"]

    before = successes()
    for _ in range(2):
        client.infer(MODEL, inputs_of(feeds(batch=3)))
    assert tuple(np.subtract(successes(), before)) == (2, 6, 2)


def test_tritonclient_is_told_what_is_wrong(client: triton.InferenceServerClient) -> None:
    with pytest.raises(InferenceServerException, match="input_ids") as caught:
        client.infer(MODEL, inputs_of(feeds(batch=2))[1:])
    assert caught.value.status() == "400"
    assert client.infer(MODEL, inputs_of(feeds())).as_numpy(OUTPUT) is not None
