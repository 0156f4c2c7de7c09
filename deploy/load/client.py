"""One model of a server, asked over HTTP or gRPC by asyncio clients of tritonclient."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Self
from urllib.parse import urlsplit

import numpy as np

from deploy.serving.wire_types import datatype_of

Protocol = Literal["http", "grpc"]
Arrays = Mapping[str, np.ndarray]


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelFacts:
    """What the server says of a model."""

    name: str
    inputs: dict[str, str]
    """Element type on the wire by name, in the model's order."""
    max_batch_size: int


def split_url(url: str) -> tuple[Protocol, str]:
    """``http://host:port`` or ``grpc://host:port`` as protocol and address; without a protocol HTTP is meant.

    Raises:
        ValueError: not an address of a server.
    """
    parts = urlsplit(url if "://" in url else f"http://{url}")
    if parts.scheme not in ("http", "grpc") or not parts.hostname or parts.port is None or parts.path.strip("/"):
        raise ValueError(f"'{url}' is no address of a server; expected http://localhost:8000 or grpc://localhost:8001")
    return ("grpc" if parts.scheme == "grpc" else "http"), parts.netloc


class LoadClient:
    """Asks one model; made and closed in the event loop that uses it.

    Args:
        url: ``http://host:port`` or ``grpc://host:port``.
        timeout: seconds that an answer may take.
        connections: most that HTTP opens.
        token: bearer token of the server.

    Raises:
        ImportError: tritonclient's part for this protocol is not installed.
        ValueError: not an address.
    """

    def __init__(self, url: str, *, timeout: float, connections: int, token: str | None = None) -> None:
        self.protocol, address = split_url(url)
        self.url = url
        self._timeout = timeout
        self._headers = {"authorization": f"Bearer {token}"} if token else None
        try:
            if self.protocol == "grpc":
                import tritonclient.grpc.aio as module  # noqa: PLC0415 - only what is used
            else:
                import tritonclient.http.aio as module  # noqa: PLC0415 - only what is used
        except (ImportError, RuntimeError) as error:  # RuntimeError: tritonclient's word for a missing part
            raise ImportError(f"{error}: pip install 'quietformer[serve]' 'tritonclient[http]'") from error
        self._module: Any = module
        more = {} if self.protocol == "grpc" else {"conn_limit": connections, "conn_timeout": timeout}
        self._client: Any = module.InferenceServerClient(address, **more)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self._client.close()

    async def facts(self, model: str | None) -> ModelFacts:
        """Inputs and batch limit of a model; None takes the only one, or the one that takes texts for another.

        Raises:
            ValueError: no such model, several of them, or no server there.
        """
        try:
            name = model or await self._only_model()
            more = {"as_json": True} if self.protocol == "grpc" else {}
            metadata = await self._client.get_model_metadata(name, headers=self._headers, **more)
            config = await self._client.get_model_config(name, headers=self._headers, **more)
        except ValueError:
            raise
        except Exception as error:  # many kinds: of the connection, of the protocol, of the server
            raise ValueError(f"{self.url} does not answer as a KServe v2 server: {_first_line(error)}") from error
        config = config.get("config", config)
        return ModelFacts(
            name=name,
            inputs={entry["name"]: entry["datatype"] for entry in metadata["inputs"]},
            max_batch_size=int(config.get("max_batch_size", 0)),
        )

    async def _only_model(self) -> str:
        more = {"as_json": True} if self.protocol == "grpc" else {}
        index = await self._client.get_model_repository_index(headers=self._headers, **more)
        names = sorted({entry["name"] for entry in (index.get("models", []) if isinstance(index, dict) else index)})
        texts = [name for name in names if name.endswith("-text")]
        if len(names) == 1 or len(texts) == 1:
            return str(texts[0] if texts else names[0])
        raise ValueError(f"{self.url} serves {', '.join(names) or 'no model'}; choose one with --model")

    def prepare(self, arrays: Arrays) -> list[Any]:
        """A request, made before the clock runs."""
        made = []
        for name, array in arrays.items():
            tensor = self._module.InferInput(name, list(array.shape), datatype_of(array.dtype))
            tensor.set_data_from_numpy(array)
            made.append(tensor)
        return made

    async def ask(self, model: str, request: Sequence[Any]) -> str | None:
        """Send a request; the kind of its error, or None when it was answered."""
        try:
            async with asyncio.timeout(self._timeout):
                await self._client.infer(model, request, headers=self._headers)
        except TimeoutError:
            return f"no answer in {self._timeout:g} s"
        except Exception as error:  # many kinds: of the connection, of the protocol, of the server
            return _kind(error)
        return None


def _kind(error: Exception) -> str:
    """``503: Exceeds maximum queue size`` and the like: few kinds, so that they can be counted."""
    status = getattr(error, "status", None)
    code = status() if callable(status) else None
    text = _first_line(error).partition("] ")[2] or _first_line(error)
    return f"{str(code).removeprefix('StatusCode.')}: {text}"[:100] if code else type(error).__name__


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
