"""Options of sites that several commands share."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer


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
