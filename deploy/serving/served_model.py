"""What the server asks of every model."""

from __future__ import annotations

from typing import Protocol

from deploy.serving.inference_messages import InferAnswer, InferRequest
from deploy.serving.inference_statistics import InferenceStatistics
from deploy.serving.model_signature import ModelSignature


class ServedModel(Protocol):
    """One version of a model, loaded and warmed up."""

    name: str
    version: str
    platform: str
    """What runs it, as metadata say."""
    signature: ModelSignature
    statistics: InferenceStatistics
    facts: dict[str, str]
    """What else its configuration tells."""

    async def infer(self, request: InferRequest) -> InferAnswer:
        """Answer a request.

        Raises:
            RequestFaultError: the request does not fit, waited too long, or the model failed.
        """
