"""What both frontends share: models, settings, whether the server is ready, and how busy it is."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from deploy.serving.faults import Fault, RequestFaultError, invalid
from deploy.serving.inference_messages import InferAnswer, InferRequest
from deploy.serving.model_repository import ModelRepository
from deploy.serving.served_model import ServedModel
from deploy.serving.server_settings import ServerSettings


class ServerState:
    """One running server.

    Args:
        repository: its models.
        settings: what it allows.
        version: of quietformer.
    """

    def __init__(self, repository: ModelRepository, settings: ServerSettings, *, version: str) -> None:
        self.repository = repository
        self.settings = settings
        self.version = version
        self.is_draining = False
        """SIGTERM came: requests are answered, but the server says that it is not ready."""
        self._in_flight = 0
        self._last_end = time.monotonic()

    @property
    def is_ready(self) -> bool:
        """Whether new work should be sent here."""
        return self.repository.is_loaded and not self.is_draining

    def is_model_ready(self, name: str, version: str) -> bool:
        """Whether a model should be sent work."""
        try:
            self.repository.find(name, version)
        except RequestFaultError:
            return False
        return self.is_ready

    def quiet_seconds(self) -> float:
        """Seconds without a request; 0 while one runs."""
        return 0.0 if self._in_flight else time.monotonic() - self._last_end

    @contextmanager
    def request(self) -> Iterator[None]:
        """A request for inference, from its first byte to its last."""
        self._in_flight += 1
        try:
            yield
        finally:
            self._in_flight -= 1
            self._last_end = time.monotonic()

    async def infer(self, name: str, version: str, request: InferRequest) -> InferAnswer:
        """Answer a request.

        Raises:
            RequestFaultError: see :class:`deploy.serving.served_model.ServedModel`.
        """
        with self.repository.using(name, version) as model:
            return await model.infer(request)

    def counted(self, name: str, version: str) -> list[ServedModel]:
        """Models whose statistics a client asks for; all where it names none.

        Raises:
            RequestFaultError: no such model; INVALID, which is Triton's answer here.
        """
        if not name:
            return self.repository.models()
        try:
            return [self.repository.find(name, version)]
        except RequestFaultError as error:
            raise RequestFaultError(Fault.INVALID, str(error)) from error

    async def load(self, name: str, *, with_parameters: bool) -> None:
        """Load a model again at a client's wish.

        Raises:
            RequestFaultError: not allowed, unknown, with parameters, or it cannot be served.
        """
        self._check_control()
        if with_parameters:
            raise invalid("a model is loaded as the server was started with it; parameters are not taken")
        try:
            await self.repository.load(name)
        except (ValueError, OSError, ImportError) as error:
            raise RequestFaultError(Fault.INVALID, f"failed to load '{name}': {error}") from error

    def unload(self, name: str) -> None:
        """Unload a model at a client's wish; one that nobody knows is unloaded already, says Triton too.

        Raises:
            RequestFaultError: not allowed.
        """
        self._check_control()
        self.repository.unload(name)

    def _check_control(self) -> None:
        if not self.settings.allow_model_control:
            raise RequestFaultError(
                Fault.UNAVAILABLE, "explicit model load / unload is not allowed; start with --allow-model-control"
            )
