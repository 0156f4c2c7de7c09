"""What a Dockerfile says, as far as checks without a container engine need it: stages, copies, variables, commands."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from string import Template

from dockerfile_parse import DockerfileParser

_FROM = re.compile(r"(?P<image>\S+)(?:\s+AS\s+(?P<name>\S+))?", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True, slots=True)
class Copy:
    """One ``COPY``."""

    sources: tuple[str, ...]
    target: str
    stage: str | None
    """Name of the stage that it copies from; None for the repository."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Stage:
    """One ``FROM`` and what follows it, with the default of every build argument filled in."""

    image: str
    name: str | None
    instructions: tuple[tuple[str, str], ...]
    """Name in capitals, and the rest of the line."""

    def values(self, instruction: str) -> list[str]:
        """The rest of the line of every instruction of one kind."""
        return [value for name, value in self.instructions if name == instruction]

    def last(self, instruction: str) -> str | None:
        """The one of a kind that counts where only the last one does."""
        return next(reversed(self.values(instruction)), None)

    def copies(self) -> list[Copy]:
        """Every ``COPY``."""
        found = []
        for value in self.values("COPY"):
            words = shlex.split(value)
            stage = next((word.removeprefix("--from=") for word in words if word.startswith("--from=")), None)
            *sources, target = (word for word in words if not word.startswith("--"))
            found.append(Copy(sources=tuple(sources), target=target, stage=stage))
        return found

    def environment(self) -> dict[str, str]:
        """Every ``ENV``; values that refer to others, such as ``PATH``, are kept as they are written."""
        return {
            name: text
            for value in self.values("ENV")
            for word in shlex.split(value)
            for name, _, text in [word.partition("=")]
        }

    def command(self, instruction: str) -> list[str]:
        """``ENTRYPOINT`` or ``CMD`` in its exec form; empty where there is none.

        Raises:
            ValueError: it is in the shell form, which gets no signals.
        """
        value = self.last(instruction)
        if value is None:
            return []
        try:
            words: list[str] = json.loads(value)
        except ValueError as error:
            raise ValueError(f"{instruction} {value} is not in the exec form") from error
        return words


def read_stages(path: Path, *, arguments: Mapping[str, str] | None = None) -> list[Stage]:
    """The stages of a Dockerfile in order.

    Args:
        path: of the Dockerfile.
        arguments: build arguments that differ from their defaults.

    Raises:
        FileNotFoundError: no such file.
    """
    if not path.is_file():
        raise FileNotFoundError(f"no Dockerfile at {path}")
    stages: list[Stage] = []
    values: dict[str, str] = {}
    for entry in DockerfileParser(str(path)).structure:
        instruction, text = entry["instruction"], str(entry["value"])
        if instruction == "COMMENT":
            continue
        if instruction == "ARG":
            name, has_default, default = text.partition("=")
            if has_default:
                values[name] = (arguments or {}).get(name, default)
            continue
        text = Template(text).safe_substitute(values)
        if instruction == "FROM":
            match = _FROM.fullmatch(text)
            assert match is not None, text
            stages.append(Stage(image=match["image"], name=match["name"], instructions=()))
            continue
        last = stages.pop()
        stages.append(Stage(image=last.image, name=last.name, instructions=(*last.instructions, (instruction, text))))
    return stages
