"""The real Triton beside ours: the repository that quietformer writes, its answers, and status codes request by request.

python benchmarks/triton_conformance.py RUN --tritonserver BINARY     (RUN holds model.int8.onnx and tokenizer.json)

BINARY is the ``tritonserver`` of the ``nvidia-pytriton`` wheel, in an environment that also has onnxruntime and tokenizers.
Prints tables and one line of JSON; exits 1 where something differs that should not.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import tritonclient.grpc
import tritonclient.http
from tritonclient.utils import InferenceServerException

sys.path.insert(0, str(Path(__file__).parents[1]))

from calibration_data.sets import SAMPLE_FILE
from deploy.data.encoding import TextEncoder
from deploy.data.text_data import read_texts
from deploy.machine import machine_facts
from deploy.triton.real_triton import MISSING_BACKEND, running_triton
from deploy.triton.repository_manifest import RepositoryManifest, hash_files
from deploy.triton.repository_settings import RUNTIMES, RepositorySettings
from deploy.triton.repository_writer import write_repository
from deploy.triton.sources import find_sources
from tests.deploy.encoder_graph import feeds
from tests.deploy.serving.conformance_cases import CASES, MAX_BATCH, MODEL
from tests.deploy.serving.served_model import Target, running, write_model
from tests.deploy.serving.test_grpc import WRONG
from tests.deploy.triton.sources import engine_folder, run_folder

BACKENDS = Path(__file__).parents[1] / "tests" / "deploy" / "triton" / "backends"
OUTPUT = "last_hidden_state"


def main() -> None:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--tritonserver", type=Path, required=True)
    parser.add_argument("--texts", type=int, default=64, help="of the committed sample")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        record: dict[str, Any] = {"benchmark": "triton_conformance", "machine": asdict(machine_facts())}
        record["answers"] = compare_answers(arguments.run, folder, arguments.tritonserver, arguments.texts)
        record["runtimes"] = try_runtimes(folder, arguments.tritonserver)
        record["http"], record["grpc"] = compare_statuses(folder, arguments.tritonserver)
    print(json.dumps(record))
    accepted = all(MISSING_BACKEND.search(reason) for reason in record["runtimes"].values())
    sys.exit(
        0
        if accepted
        and record["answers"]["is_equal"]
        and not record["http"]["unexpected"]
        and not record["grpc"]["differ"]
        else 1
    )


def compare_answers(run: Path, folder: Path, binary: Path, count: int) -> dict[str, Any]:
    """MiniLM INT8 through Triton and through a bare session of the same file, on texts of the sample, one by one and in batches."""
    settings = RepositorySettings(name="minilm", runtime="onnxruntime", threads=1)
    written = write_repository(find_sources(run, plan=False), settings, folder / "minilm", force=False)
    before = hash_files(written.folder)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(
        written.folder / "minilm/1/model.onnx", options, providers=["CPUExecutionProvider"]
    )
    encoder = TextEncoder(run / "tokenizer.json", max_length=128)
    sample = read_texts(SAMPLE_FILE, limit=count)
    rows = encoder.encode(sample)
    worst, asked, embeddings = 0.0, 0, 0.0
    with (
        running_triton(binary, written.folder, backends=BACKENDS) as server,
        tritonclient.http.InferenceServerClient(server.http) as client,
    ):
        states = {entry["name"]: entry["state"] for entry in server.index()}
        for size in (1, 4, 16):
            for start in range(0, len(rows), size):
                given = encoder.feeds(rows[start : start + size])
                found = client.infer("minilm", inputs_of(tritonclient.http, given)).as_numpy(OUTPUT)
                worst = max(worst, float(np.abs(found - session.run(None, given)[0]).max()))
                asked += 1
        texts = np.array([[text.encode()] for text in sample[:16]], np.object_)
        vectors = client.infer("minilm-text", inputs_of(tritonclient.http, {"TEXT": texts})).as_numpy("EMBEDDING")
        embeddings = float(np.abs(np.linalg.norm(vectors, axis=1) - 1).max())
    unchanged = {
        name: digest for name, digest in hash_files(written.folder).items() if "__pycache__" not in name
    } == before
    manifest = RepositoryManifest.load(written.folder)
    print(f"MiniLM INT8, {asked} requests: largest difference from the bare session {worst:g}; models {states}")
    return {
        "graph_sha256": manifest.graph_sha256 if manifest else None,
        "requests": asked,
        "largest_difference": worst,
        "embedding_length_error": embeddings,
        "repository_unchanged": unchanged,
        "is_equal": worst == 0 and unchanged and set(states.values()) == {"READY"},
    }


def try_runtimes(folder: Path, binary: Path) -> dict[str, str]:
    """What Triton says of the configurations that it cannot run here, completion of configurations off."""
    run = run_folder(folder / "run")
    engine_folder(run / "engine", run / "model.int8.onnx")
    for runtime in RUNTIMES[1:]:
        settings = RepositorySettings(
            name=runtime,
            runtime=runtime,
            max_batch_size=8,
            texts=False,
            response_cache=True,
            cuda_graphs=runtime == "tensorrt",
        )
        made = write_repository(find_sources(run, plan=runtime == "tensorrt"), settings, folder / runtime, force=False)
        (folder / "others").mkdir(exist_ok=True)
        (made.folder / runtime).rename(folder / "others" / runtime)
    with running_triton(binary, folder / "others", backends=BACKENDS) as server:
        reasons = {entry["name"]: entry.get("reason", "no reason") for entry in server.index()}
    for runtime, reason in sorted(reasons.items()):
        print(f"{runtime:22} {reason}")
    return reasons


@contextlib.contextmanager
def both(folder: Path, binary: Path) -> Iterator[tuple[Target, Target]]:
    """Ours and Triton, serving the model of the conformance suite."""
    bundle = write_model(folder / "bundle")
    settings = RepositorySettings(name=MODEL, runtime="onnxruntime", max_batch_size=MAX_BATCH, threads=1)
    written = write_repository(find_sources(bundle, plan=False), settings, folder / "conformance", force=False)
    with (
        running(bundle, "--grpc-port", "0", log=folder / "ours.log") as ours,
        running_triton(binary, written.folder, backends=BACKENDS) as triton,
    ):
        yield ours.target, Target(url=f"http://{triton.http}", grpc=triton.grpc, is_triton=True)


def compare_statuses(folder: Path, binary: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Every case over HTTP and every broken request over gRPC, to both."""
    http: dict[str, Any] = {"cases": 0, "same": 0, "differ": {}, "only_ours": 0, "unexpected": {}}
    grpc: dict[str, Any] = {"cases": 0, "same": 0, "differ": {}}
    print(f"\n{'HTTP':48} ours  Triton")
    with both(folder, binary) as (ours, triton):
        for case in CASES:
            if case.only_ours:
                http["only_ours"] += 1
                continue
            codes = tuple(target.ask(case.method, case.path, case.body, case.headers)[0] for target in (ours, triton))
            http["cases"] += 1
            http["same"] += codes[0] == codes[1]
            if codes[0] != codes[1]:
                http["differ"][case.name] = codes
                print(f"{case.name:48} {codes[0]}   {codes[1]}")
            # A client's mistake is 500 there and 4xx here; nothing else may differ, and the suite must say so.
            is_mistake = codes[1] == 500 and 400 <= codes[0] < 500
            if not (codes[0] == codes[1] or is_mistake) or codes[1] != (case.triton_status or case.status):
                http["unexpected"][case.name] = codes
        print(f"\n{'gRPC':48} ours / Triton")
        right = inputs_of(tritonclient.grpc, feeds())
        asked: dict[str, tuple[list[Any], dict[str, Any]]] = {name: (make(), {}) for name, make in WRONG.items()}
        asked["good request"] = (right, {})
        asked["unknown model"] = (right, {"model_name": "none"})
        asked["unknown version"] = (right, {"model_version": "9"})
        asked["unknown output"] = (right, {"outputs": [tritonclient.grpc.InferRequestedOutput("logits")]})
        for name, (inputs, more) in asked.items():
            statuses = tuple(grpc_status(target, inputs, more) for target in (ours, triton))
            grpc["cases"] += 1
            grpc["same"] += statuses[0] == statuses[1]
            if statuses[0] != statuses[1]:
                grpc["differ"][name] = statuses
                print(f"{name:48} {statuses[0]} / {statuses[1]}")
    print(f"\nHTTP: {http['same']} of {http['cases']} the same; gRPC: {grpc['same']} of {grpc['cases']}\n")
    return http, grpc


def grpc_status(target: Target, inputs: list[Any], more: dict[str, Any]) -> str:
    """Name of the status that a request gets."""
    with tritonclient.grpc.InferenceServerClient(target.grpc) as client:
        try:
            client.infer(**({"model_name": MODEL, "inputs": inputs} | more))
        except InferenceServerException as error:
            return str(error.status()).removeprefix("StatusCode.")
    return "OK"


def inputs_of(module: Any, arrays: dict[str, np.ndarray]) -> list[Any]:
    """Inputs of a request as one of tritonclient's modules takes them."""
    made = []
    for name, array in arrays.items():
        tensor = module.InferInput(name, list(array.shape), "BYTES" if array.dtype == object else "INT64")
        tensor.set_data_from_numpy(array)
        made.append(tensor)
    return made


if __name__ == "__main__":
    main()
