"""The HTTP frontend: KServe v2 as a plain ASGI application."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any

from deploy.serving.descriptions import index_entry, model_config, model_metadata, model_statistics, server_metadata
from deploy.serving.faults import Fault, RequestFaultError, invalid
from deploy.serving.http_messages import read_json, read_request, write_answer, write_json
from deploy.serving.http_request import ClientGoneError, HttpRequest, Message, Receive
from deploy.serving.prometheus_text import CONTENT_TYPE, prometheus_text
from deploy.serving.server_state import ServerState

_log = logging.getLogger(__name__)
_Send = Callable[[Message], Awaitable[None]]
_Headers = list[tuple[bytes, bytes]]
_Answer = tuple[int, _Headers, bytes]

_JSON = (b"content-type", b"application/json")
_BINARY = (b"content-type", b"application/octet-stream")
_HEADER_LENGTH = b"inference-header-content-length"
_VERBS = ("infer", "ready", "config", "stats")
_NOT_OFFERED = ("trace", "logging", "systemsharedmemory", "cudasharedmemory")


class HttpApp:
    """Answers HTTP requests; one instance serves all connections.

    Args:
        state: of the server.
    """

    def __init__(self, state: ServerState) -> None:
        self._state = state

    async def __call__(self, scope: Message, receive: Receive, send: _Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            return
        request = HttpRequest(scope, receive)
        try:
            status, headers, body = await self._answer(request)
        except ClientGoneError:
            return
        except RequestFaultError as error:
            status, headers, body = _refusal(error)
        except Exception as error:
            _log.exception("%s %s failed", request.method, request.path)
            status, headers, body = _refusal(RequestFaultError(Fault.INTERNAL, f"internal error: {error}"))
        headers.append((b"content-length", str(len(body)).encode()))
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    async def _answer(self, request: HttpRequest) -> _Answer:
        parts = [part for part in request.path.split("/") if part]
        is_health = parts[:2] == ["v2", "health"]
        if not is_health and not self._state.settings.admits(request.header(b"authorization")):
            raise RequestFaultError(Fault.UNAUTHENTICATED, "a bearer token is needed: Authorization: Bearer TOKEN")
        match parts:
            case ["v2", "models", "stats"]:
                request.allow("GET")
                return _json({"model_stats": [model_statistics(model) for model in self._state.repository.models()]})
            case ["v2", "models", name, *rest] if (found := _version_and_verb(rest)) is not None:
                return await self._model(request, name, *found)
            case ["v2", "repository", "index"] | ["v2", "repository", "models", _, "load" | "unload"]:
                return await self._repository(request, parts[2:])
            case ["v2", word, *_] if word in _NOT_OFFERED:
                raise RequestFaultError(Fault.UNSUPPORTED, f"this server does not offer '{word}'")
            case ["v2"] | ["v2", "health", "live" | "ready"] | ["metrics"]:
                request.allow("GET")
                return self._about_server(parts[-1])
        raise RequestFaultError(Fault.NOT_FOUND, f"nothing at {request.path:.200}")

    def _about_server(self, word: str) -> _Answer:
        if word == "metrics":
            text = prometheus_text(self._state.repository.models())
            return 200, [(b"content-type", CONTENT_TYPE.encode())], text.encode()
        if word == "v2":
            return _json(server_metadata(self._state.version))
        return (200 if word == "live" or self._state.is_ready else 400), [], b""

    async def _model(self, request: HttpRequest, name: str, version: str, verb: str) -> _Answer:
        repository = self._state.repository
        if verb == "infer":
            request.allow("POST")
            with self._state.request():
                return await self._infer(request, name, version)
        request.allow("GET")
        if verb == "ready":
            return (200 if self._state.is_model_ready(name, version) else 400), [], b""
        if verb == "stats":
            models = self._state.counted(name, version)
            return _json({"model_stats": [model_statistics(model) for model in models]})
        model = repository.find(name, version)
        if verb == "config":
            return _json(model_config(model, repository.settings.batching, repository.settings.instances))
        return _json(model_metadata(model))

    async def _infer(self, request: HttpRequest, name: str, version: str) -> _Answer:
        self._state.repository.find(name, version)  # before a body is read for nothing
        body = await request.body(self._state.settings)
        asked = read_request(body, request.header(_HEADER_LENGTH))
        answer = await request.while_connected(self._state.infer(name, version, asked))
        body, head_size = write_answer(answer)
        if head_size is None:
            return 200, [_JSON], body
        return 200, [_BINARY, (_HEADER_LENGTH, str(head_size).encode())], body

    async def _repository(self, request: HttpRequest, parts: list[str]) -> _Answer:
        state = self._state
        request.allow("POST")
        body = await request.body(state.settings)
        document = read_json(body) if body.strip() else {}
        if parts == ["index"]:
            if not isinstance(ready_only := document.get("ready", False), bool):
                raise invalid(f"'ready' is {ready_only!r:.40}; expected true or false")
            return _json([index_entry(entry) for entry in state.repository.index() if entry.ready or not ready_only])
        _, name, verb = parts
        if verb == "unload":
            state.unload(name)
        else:
            await state.load(name, with_parameters=bool(document.get("parameters")))
        return 200, [], b""


def _version_and_verb(rest: list[str]) -> tuple[str, str] | None:
    """Of what follows a model's name in an address; None where that is nothing known."""
    version = ""
    if len(rest) >= 2 and rest[0] == "versions":
        version, rest = rest[1], rest[2:]
    if not rest:
        return version, "metadata"
    return (version, rest[0]) if len(rest) == 1 and rest[0] in _VERBS else None


def _json(value: Any) -> _Answer:
    return 200, [_JSON], write_json(value)


def _refusal(error: RequestFaultError) -> _Answer:
    headers: _Headers = [_JSON]
    if error.fault is Fault.UNAUTHENTICATED:
        headers.append((b"www-authenticate", b"Bearer"))
    return error.fault.http_status, headers, write_json({"error": str(error)})
