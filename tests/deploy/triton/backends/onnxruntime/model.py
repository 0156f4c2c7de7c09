"""ONNX Runtime as a Python backend of Triton, for servers that hold no ONNX Runtime backend of their own.

Reads of a configuration what the real one reads: file name, threads. One bare session, one run per request.
"""

import json
from pathlib import Path
from typing import Any

import onnxruntime
import triton_python_backend_utils as triton


class TritonPythonModel:
    """One session for each instance."""

    def initialize(self, args: dict[str, str]) -> None:
        config = json.loads(args["model_config"])
        folder = Path(args["model_repository"]) / args["model_version"]
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = int(config["parameters"]["intra_op_thread_count"]["string_value"])
        self._session = onnxruntime.InferenceSession(
            folder / (config["default_model_filename"] or "model.onnx"), options, providers=["CPUExecutionProvider"]
        )
        self._inputs = [value["name"] for value in config["input"]]
        self._outputs = [value["name"] for value in config["output"]]

    def execute(self, requests: list[Any]) -> list[Any]:
        return [self._answer(request) for request in requests]

    def _answer(self, request: Any) -> Any:
        feeds = {name: triton.get_input_tensor_by_name(request, name).as_numpy() for name in self._inputs}
        try:
            values = self._session.run(self._outputs, feeds)
        except Exception as error:
            return triton.InferenceResponse([], triton.TritonError(str(error)))
        return triton.InferenceResponse([triton.Tensor(*pair) for pair in zip(self._outputs, values, strict=True)])
