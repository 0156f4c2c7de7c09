"""Token features to embeddings, or logits to labels, inside Triton's Python backend; needs ``numpy``."""

import json
from typing import Any

import numpy as np
import triton_python_backend_utils as triton


class TritonPythonModel:
    """Which of the two follows from the model's outputs."""

    def initialize(self, args: dict[str, str]) -> None:
        """Called once, when the model is loaded."""
        config = json.loads(args["model_config"])
        parameters = {key: value["string_value"] for key, value in config["parameters"].items()}
        self._gives_labels = any(output["name"] == "LABEL" for output in config["output"])
        self._pooling = parameters.get("pooling")
        self._labels = json.loads(parameters["labels"])

    def execute(self, requests: list[Any]) -> list[Any]:
        """One answer for each request."""
        answer = self._classes if self._gives_labels else self._embedding
        return [triton.InferenceResponse(answer(request)) for request in requests]

    def _classes(self, request: Any) -> list[Any]:
        logits = triton.get_input_tensor_by_name(request, "logits").as_numpy().astype(np.float32)
        powers = np.exp(logits - logits.max(axis=1, keepdims=True))
        scores = powers / powers.sum(axis=1, keepdims=True)
        names = self._labels or [str(number) for number in range(scores.shape[1])]
        labels = np.array([[names[best].encode()] for best in scores.argmax(axis=1)], np.object_)
        return [triton.Tensor("LABEL", labels), triton.Tensor("SCORES", scores)]

    def _embedding(self, request: Any) -> list[Any]:
        features = triton.get_input_tensor_by_name(request, "last_hidden_state").as_numpy().astype(np.float32)
        if self._pooling == "cls":
            vectors = features[:, 0]
        else:
            weights = (
                triton.get_input_tensor_by_name(request, "attention_mask").as_numpy()[:, :, None].astype(np.float32)
            )
            vectors = (features * weights).sum(axis=1) / np.maximum(weights.sum(axis=1), 1.0)
        lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
        return [triton.Tensor("EMBEDDING", (vectors / np.where(lengths > 0, lengths, 1.0)).astype(np.float32))]
