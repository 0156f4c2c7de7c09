"""Options of sites that several commands share, and the choice that they make."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from deploy.graphs.site_choice import SiteChoice


class SwitchChoice(StrEnum):
    """How a switch of a profile's sites is set; ``deploy.graphs.site_choice`` has the meaning."""

    PROFILE = "profile"
    OFF = "off"
    ON = "on"
    AUTO = "auto"


Exclude = Annotated[
    list[str] | None,
    typer.Option(
        "--exclude",
        metavar="PATTERN|FILE",
        help="What stays float: a name, a shell pattern or kind:NAME, or a file of these, one a line. Repeatable.",
    ),
]
Include = Annotated[
    list[str] | None,
    typer.Option("--include", metavar="PATTERN|FILE", help="What is quantized though the profile leaves it float."),
]
Bmms = Annotated[
    SwitchChoice, typer.Option("--bmms", help="Integers into the two products of activations in attention.")
]
ResidualAdds = Annotated[SwitchChoice, typer.Option("--residual-adds", help="Integers into residual sums.")]
GatePath = Annotated[
    SwitchChoice, typer.Option("--gate-path", help="Integers for gates and the layers that make them.")
]

SwitchSeconds = Annotated[
    float, typer.Option("--seconds", help="Of a switch that is 'auto': time per combination and repeat.")
]


def site_choice(
    *,
    exclude: Sequence[str] | None,
    include: Sequence[str] | None,
    bmms: SwitchChoice,
    residual_adds: SwitchChoice,
    gate_path: SwitchChoice,
) -> SiteChoice:
    """The choice that the options make; an entry that names a file is the list in it, any other a pattern.

    Raises:
        ValueError: a list that is none, or a setting that no choice has.
    """
    from deploy.graphs.site_choice import SiteChoice

    return SiteChoice(
        exclude=_patterns(exclude),
        include=_patterns(include),
        bmms=bmms.value,
        residual_adds=residual_adds.value,
        gate_path=gate_path.value,
    )


def listed_files(*options: Sequence[str] | None) -> list[Path]:
    """The entries of options that are files."""
    return [Path(entry) for entries in options for entry in entries or () if Path(entry).is_file()]


def _patterns(entries: Sequence[str] | None) -> tuple[str, ...]:
    found: list[str] = []
    for entry in entries or ():
        found += _read_patterns(Path(entry)) if Path(entry).is_file() else [entry]
    return tuple(found)


def _read_patterns(path: Path) -> list[str]:
    """Lines of a list without blanks and comments (``#`` and what follows)."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not a text file: byte {error.start} is not UTF-8") from error
    patterns = [pattern for line in lines if (pattern := line.partition("#")[0].strip())]
    if not patterns:
        raise ValueError(f"{path} names nothing")
    return patterns
