"""The models by name: found for requests, loaded, replaced without dropping a request, and unloaded."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from deploy.serving.faults import Fault, RequestFaultError
from deploy.serving.loading import Generation, ModelSettings, find_artifact, load_generation
from deploy.serving.served_model import ServedModel


@dataclass(frozen=True, kw_only=True, slots=True)
class IndexEntry:
    """A model as the repository index lists it."""

    name: str
    version: str
    ready: bool
    reason: str


class ModelRepository:
    """The models of one artifact.

    Args:
        settings: what is served.
    """

    def __init__(self, settings: ModelSettings) -> None:
        self.settings = settings
        self._current: Generation | None = None
        self._last_version = 0
        self._known: dict[str, str] = {}
        """Latest version of every name that was ever served."""
        self._hidden: set[str] = set()
        """Names that were unloaded."""
        self._retiring: set[asyncio.Task[None]] = set()
        self._loading = asyncio.Lock()

    @property
    def is_loaded(self) -> bool:
        """Whether the first load is done; what was unloaded since does not matter."""
        return bool(self._known)

    @property
    def notes(self) -> list[str]:
        """What a person should know of what is served."""
        return [] if self._current is None else self._current.notes

    def models(self) -> list[ServedModel]:
        """Models that answer requests now."""
        if self._current is None:
            return []
        return [model for name, model in self._current.models.items() if name not in self._hidden]

    def index(self) -> list[IndexEntry]:
        """Every model, loaded or not."""
        ready = {model.name for model in self.models()}
        return [
            IndexEntry(name=name, version=version, ready=name in ready, reason="" if name in ready else "unloaded")
            for name, version in self._known.items()
        ]

    def find(self, name: str, version: str = "") -> ServedModel:
        """A model that answers requests.

        Raises:
            RequestFaultError: no such name or version, or it is unloaded.
        """
        for model in self.models():
            if model.name == name:
                if version in ("", model.version):
                    return model
                raise RequestFaultError(
                    Fault.NOT_FOUND,
                    f"model '{name}' has no version '{version:.40}'; version {model.version} is served",
                )
        if not self._known:
            raise RequestFaultError(Fault.UNAVAILABLE, "the server is still loading its models")
        if name in self._known:
            raise RequestFaultError(Fault.NOT_FOUND, f"model '{name}' is not loaded")
        names = ", ".join(model.name for model in self.models()) or "none"
        raise RequestFaultError(Fault.NOT_FOUND, f"unknown model '{name:.80}'; served are {names}")

    @contextmanager
    def using(self, name: str, version: str = "") -> Iterator[ServedModel]:
        """A model that stays open until the block ends, whatever is loaded meanwhile."""
        model = self.find(name, version)
        generation = self._current
        assert generation is not None
        generation.enter()
        try:
            yield model
        finally:
            generation.leave()

    async def load(self, name: str | None = None) -> None:
        """Load, or load again: the models of before answer until the new ones are warm, and finish what they began.

        Args:
            name: a known model; None loads all.

        Raises:
            RequestFaultError: no such name.
            ValueError: the artifact cannot be served; what was served before still is.
            FileNotFoundError: it, or a part of it, is missing.
            ImportError: its runtime is not installed.
        """
        async with self._loading:
            self._check_known(name)
            artifact = await find_artifact(self.settings)
            previous = self._current
            if previous is not None and previous.sha256 == artifact.sha256:  # nothing new: versions name contents
                self._hidden -= {name} if name else set(previous.models)
                return
            fresh = await load_generation(self.settings, artifact, str(self._last_version + 1))
            previous = self._current  # a model may have been unloaded meanwhile
            self._last_version += 1
            self._current = fresh
            self._known |= dict.fromkeys(fresh.models, fresh.version)
            self._hidden = set() if name is None or previous is None else self._hidden - {name}
            if previous is not None:
                self._retire(previous)

    def unload(self, name: str) -> None:
        """Stop serving a model; what it has begun is answered."""
        self._hidden.add(name)
        if self._current is not None and not self.models():
            previous, self._current = self._current, None
            self._retire(previous)

    def _check_known(self, name: str | None) -> None:
        if name is not None and name not in self._known:
            raise RequestFaultError(
                Fault.INVALID, f"no model '{name:.80}' in the repository; it has {', '.join(self._known)}"
            )

    def _retire(self, generation: Generation) -> None:
        task = asyncio.create_task(generation.retire())
        self._retiring.add(task)
        task.add_done_callback(self._retiring.discard)

    async def close(self) -> None:
        """Free everything once the last requests are answered."""
        if self._current is not None:
            previous, self._current = self._current, None
            self._retire(previous)
        await asyncio.gather(*self._retiring)
