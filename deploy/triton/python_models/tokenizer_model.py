"""Texts to the inputs of an encoder, inside Triton's Python backend; needs the packages ``tokenizers`` and ``numpy``."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import triton_python_backend_utils as triton
from tokenizers import Tokenizer


class TritonPythonModel:
    """Reads ``tokenizer.json`` beside this file; rows are padded to few lengths, so that requests can share a run."""

    def initialize(self, args: dict[str, str]) -> None:
        """Called once, when the model is loaded."""
        config = json.loads(args["model_config"])
        parameters = {key: value["string_value"] for key, value in config["parameters"].items()}
        self._kinds = {
            output["name"]: triton.triton_string_to_numpy(output["data_type"]) for output in config["output"]
        }
        self._lengths = [int(length) for length in parameters["lengths"].split(",")]
        self._pad = int(parameters["pad_token_id"])
        folder = Path(args["model_repository"]) / args["model_version"]
        self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()
        self._tokenizer.enable_truncation(int(parameters["max_length"]))

    def execute(self, requests: list[Any]) -> list[Any]:
        """One answer for each request; a bad one fails alone."""
        return [self._answer(request) for request in requests]

    def _answer(self, request: Any) -> Any:
        texts = triton.get_input_tensor_by_name(request, "TEXT").as_numpy()
        try:
            rows = [
                encoding.ids for encoding in self._tokenizer.encode_batch([text.decode() for text in texts.ravel()])
            ]
        except UnicodeDecodeError:
            message = "input 'TEXT' holds bytes that are not UTF-8"
            return triton.InferenceResponse([], triton.TritonError(message, triton.TritonError.INVALID_ARG))
        longest = max(map(len, rows))
        length = next(step for step in self._lengths if step >= longest)
        ids = np.full((len(rows), length), self._pad, np.int64)
        mask = np.zeros_like(ids)
        for place, row in enumerate(rows):
            ids[place, : len(row)] = row
            mask[place, : len(row)] = 1
        made = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
        return triton.InferenceResponse(
            [triton.Tensor(name, made[name].astype(kind)) for name, kind in self._kinds.items()]
        )
