"""The gRPC frontend: Triton's service on grpc.aio, in the event loop of the HTTP server."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from deploy.serving.descriptions import index_entry, model_config, model_metadata, model_statistics, server_metadata
from deploy.serving.faults import Fault, RequestFaultError
from deploy.serving.grpc_messages import read_message, write_message
from deploy.serving.server_state import ServerState

try:
    import grpc
    from google.protobuf.json_format import ParseDict
    from tritonclient.grpc import service_pb2, service_pb2_grpc
except (ImportError, RuntimeError) as error:  # tritonclient wraps the former into the latter
    raise ImportError("tritonclient or grpcio is not installed: pip install 'quietformer[serve]'") from error

_log = logging.getLogger(__name__)
_Handler = Callable[[Any, Any, Any], Awaitable[Any]]


def _answered(handler: _Handler) -> _Handler:
    """Turn refusals into the status of the call, and anything else into a logged internal error."""

    async def answer(self: Any, request: Any, context: Any) -> Any:
        try:
            self.check_token(context)
            return await handler(self, request, context)
        except RequestFaultError as error:
            await context.abort(grpc.StatusCode[error.fault.grpc_status], str(error))
        except grpc.aio.AbortError:
            raise
        except Exception as error:
            _log.exception("%s failed", handler.__name__)
            await context.abort(grpc.StatusCode.INTERNAL, f"internal error: {error}")

    return answer


class GrpcService(service_pb2_grpc.GRPCInferenceServiceServicer):  # type: ignore[misc]  # without types
    """Triton's operations; what is not offered here answers UNIMPLEMENTED.

    Args:
        state: of the server.
    """

    def __init__(self, state: ServerState) -> None:
        self._state = state

    def check_token(self, context: Any) -> None:
        """Refuse a call without the bearer token, where the server asks for one."""
        metadata = dict(context.invocation_metadata() or ())
        if not self._state.settings.admits(metadata.get("authorization")):
            raise RequestFaultError(Fault.UNAUTHENTICATED, "a bearer token is needed: authorization: Bearer TOKEN")

    async def ServerLive(self, request: Any, context: Any) -> Any:  # noqa: N802 - names of the protocol
        """Whether the process answers."""
        return service_pb2.ServerLiveResponse(live=True)

    async def ServerReady(self, request: Any, context: Any) -> Any:  # noqa: N802
        """Whether new work should be sent here."""
        return service_pb2.ServerReadyResponse(ready=self._state.is_ready)

    @_answered
    async def ModelReady(self, request: Any, context: Any) -> Any:  # noqa: N802
        """Whether a model should be sent work."""
        return service_pb2.ModelReadyResponse(ready=self._state.is_model_ready(request.name, request.version))

    @_answered
    async def ServerMetadata(self, request: Any, context: Any) -> Any:  # noqa: N802
        """Name, version and extensions."""
        return service_pb2.ServerMetadataResponse(**server_metadata(self._state.version))

    @_answered
    async def ModelMetadata(self, request: Any, context: Any) -> Any:  # noqa: N802
        """Inputs and outputs."""
        model = self._state.repository.find(request.name, request.version)
        return ParseDict(model_metadata(model), service_pb2.ModelMetadataResponse())

    @_answered
    async def ModelConfig(self, request: Any, context: Any) -> Any:  # noqa: N802
        """Triton's configuration."""
        repository = self._state.repository
        model = repository.find(request.name, request.version)
        config = model_config(model, repository.settings.batching, repository.settings.instances)
        return ParseDict({"config": config}, service_pb2.ModelConfigResponse())

    @_answered
    async def ModelStatistics(self, request: Any, context: Any) -> Any:  # noqa: N802
        """Counts and durations."""
        models = self._state.counted(request.name, request.version)
        return ParseDict(
            {"model_stats": [model_statistics(model) for model in models]}, service_pb2.ModelStatisticsResponse()
        )

    @_answered
    async def RepositoryIndex(self, request: Any, context: Any) -> Any:  # noqa: N802
        """Every model."""
        entries = [entry for entry in self._state.repository.index() if entry.ready or not request.ready]
        return ParseDict({"models": list(map(index_entry, entries))}, service_pb2.RepositoryIndexResponse())

    @_answered
    async def RepositoryModelLoad(self, request: Any, context: Any) -> Any:  # noqa: N802
        """Load again."""
        await self._state.load(request.model_name, with_parameters=bool(request.parameters))
        return service_pb2.RepositoryModelLoadResponse()

    @_answered
    async def RepositoryModelUnload(self, request: Any, context: Any) -> Any:  # noqa: N802
        """Stop serving."""
        self._state.unload(request.model_name)
        return service_pb2.RepositoryModelUnloadResponse()

    @_answered
    async def ModelInfer(self, request: Any, context: Any) -> Any:  # noqa: N802
        """Run a model."""
        with self._state.request():
            return await self._infer(request)

    async def ModelStreamInfer(self, requests: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:  # noqa: N802
        """Run a model for each request of a stream, in order; a refusal is a message, the stream goes on."""
        try:
            self.check_token(context)
        except RequestFaultError as error:
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, str(error))
        async for request in requests:
            with self._state.request():
                try:
                    yield service_pb2.ModelStreamInferResponse(infer_response=await self._infer(request))
                except RequestFaultError as error:
                    yield service_pb2.ModelStreamInferResponse(error_message=str(error))

    async def _infer(self, request: Any) -> Any:
        answer = await self._state.infer(request.model_name, request.model_version, read_message(request))
        return write_message(answer)


async def start_grpc(state: ServerState) -> tuple[Any, int]:
    """A server that answers, and its port.

    Raises:
        OSError: the address cannot be listened on.
    """
    settings = state.settings
    limits = [
        ("grpc.max_receive_message_length", settings.max_body_bytes),
        ("grpc.max_send_message_length", -1),
        ("grpc.so_reuseport", 0),
    ]
    server = grpc.aio.server(options=limits)
    service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(GrpcService(state), server)
    try:
        port = server.add_insecure_port(f"{settings.url_host}:{settings.grpc_port}")
    except RuntimeError as error:
        raise OSError(f"cannot listen on {settings.host} port {settings.grpc_port} for gRPC: {error}") from error
    await server.start()
    return server, port
