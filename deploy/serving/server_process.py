"""The running server: sockets, signals, start, drain and end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import resource
import signal
import socket
import time
from collections.abc import Callable, Iterator
from typing import Any

from deploy.serving.http_app import HttpApp
from deploy.serving.loading import ModelSettings
from deploy.serving.model_repository import ModelRepository
from deploy.serving.patient_connections import timed_connections
from deploy.serving.server_settings import ServerSettings
from deploy.serving.server_state import ServerState

try:
    import uvicorn
    import uvloop
except ImportError as error:
    raise ImportError(f"{error.name} is not installed: pip install 'quietformer[serve]'") from error

_POLL_SECONDS = 0.05
Tell = Callable[[str], None]


class _Uvicorn(uvicorn.Server):
    """Leaves signals to :func:`run_server`."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def run_server(model: ModelSettings, settings: ServerSettings, *, version: str, tell: Tell) -> None:
    """Serve until SIGTERM (drains first) or SIGINT (finishes what it has begun).

    SIGHUP loads the model again. A second SIGTERM or SIGINT ends the wait.

    Args:
        model: what is served.
        settings: bounds of the server.
        version: of quietformer, for metadata.
        tell: takes lines for a person.

    Raises:
        OSError: the address cannot be listened on.
        ValueError: the artifact cannot be served.
        FileNotFoundError: it, or a part of it, is missing.
        ImportError: a runtime is not installed.
    """
    _raise_file_limit()
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)  # its warnings are about what clients sent
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(model, settings, version, tell))


async def _serve(model: ModelSettings, settings: ServerSettings, version: str, tell: Tell) -> None:
    stop, hurry = asyncio.Event(), asyncio.Event()
    repository = ModelRepository(model)
    state = ServerState(repository, settings, version=version)
    listener = _listen(settings.host, settings.http_port)
    server = _Uvicorn(_uvicorn_config(HttpApp(state), settings))
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    grpc_server, grpc_note = None, ""
    reloads: set[asyncio.Task[None]] = set()

    def ask_to_stop(*, drain: bool) -> None:
        if stop.is_set() or not drain:
            hurry.set()
        stop.set()

    def ask_to_reload() -> None:
        task = asyncio.create_task(_reload(repository, tell))
        reloads.add(task)
        task.add_done_callback(reloads.discard)

    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, lambda: ask_to_stop(drain=True))
    loop.add_signal_handler(signal.SIGINT, lambda: ask_to_stop(drain=False))
    loop.add_signal_handler(signal.SIGHUP, ask_to_reload)
    try:
        if settings.grpc_port is not None:
            grpc_server, grpc_port = await _start_grpc(state)
            grpc_note = f" and grpc {settings.url_host}:{grpc_port}"
        addresses = f"http://{settings.url_host}:{listener.getsockname()[1]}{grpc_note}"
        tell(f"loading {model.path}; requests are answered with 503 until it is ready")
        loading = asyncio.create_task(repository.load())
        stopping = asyncio.create_task(stop.wait())
        await asyncio.wait({loading, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if loading.done():
            await loading
            for note in repository.notes:
                tell(note)
            tell(f"ready: {addresses}")
            await stopping
            state.is_draining = True
            await _drain(state, hurry, tell)
        else:
            loading.cancel()
    finally:
        server.should_exit = True
        if grpc_server is not None:
            await grpc_server.stop(settings.drain_timeout)
        await serving
        await repository.close()


async def _start_grpc(state: ServerState) -> tuple[Any, int]:
    from deploy.serving.grpc_service import start_grpc  # noqa: PLC0415 - only where gRPC is asked for

    return await start_grpc(state)


async def _drain(state: ServerState, hurry: asyncio.Event, tell: Tell) -> None:
    """Go on answering, as not ready, until requests cease to come."""
    if hurry.is_set():
        return
    settings = state.settings
    tell(f"draining: not ready any more, requests are answered for at most {settings.drain_timeout:g} s")
    start = time.monotonic()
    while not hurry.is_set() and (passed := time.monotonic() - start) < settings.drain_timeout:
        if min(state.quiet_seconds(), passed) >= settings.drain_quiet:
            break
        await asyncio.sleep(_POLL_SECONDS)


async def _reload(repository: ModelRepository, tell: Tell) -> None:
    try:
        await repository.load()
    except (ValueError, OSError, ImportError) as error:
        tell(f"not loaded again, the models of before go on: {error}")
    else:
        for note in repository.notes:
            tell(note)


def _uvicorn_config(app: HttpApp, settings: ServerSettings) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        http=timed_connections(settings.read_timeout),
        loop="none",
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=settings.access_log,
        server_header=False,
        date_header=False,
        proxy_headers=False,
        timeout_keep_alive=int(settings.idle_timeout),
        timeout_graceful_shutdown=max(1, int(settings.drain_timeout)),
    )


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=4096)
    except OSError as error:
        raise OSError(f"cannot listen on {host} port {port}: {error.strerror or error}") from error


def _raise_file_limit() -> None:
    """As many open connections as the system allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
