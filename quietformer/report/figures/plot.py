"""A finished drawing."""

from __future__ import annotations

from dataclasses import dataclass

from deploy.measuring.compare import Evidence


@dataclass(frozen=True, kw_only=True, slots=True)
class Plot:
    """One panel of the page."""

    svg: str
    alt: str
    """What it shows, with its main figures, for whoever cannot see it."""
    caption: str
    evidence: Evidence
    wide: bool = False
    """Takes a row of its own, and scrolls sideways on a phone."""
