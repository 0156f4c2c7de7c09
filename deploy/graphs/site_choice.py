"""What a person changes about the sites of a profile: switches, and patterns of what is left out or taken in besides.

The same five settings everywhere: ``[quantize.sites.PROFILE]`` of a recipe, the options of ``quietformer quantize``, and the
metadata of a quantized graph, which ``lint`` reads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from fnmatch import fnmatchcase
from typing import Any, Literal, Self, get_args

from deploy.graphs.profiles import KINDS, Profile, Switch

Wish = Literal["profile", "off", "on", "auto"]
"""A switch as a person sets it: ``profile`` leaves it to the profile, ``auto`` is decided by timing what they make."""

KIND_PREFIX = "kind:"
"""Of a pattern that names kinds of tensors and weights (:data:`deploy.graphs.profiles.KINDS`) in place of names."""
_SWITCHES = ("bmms", "residual_adds", "gate_path")


@dataclass(frozen=True, kw_only=True, slots=True)
class SiteChoice:
    """Changes to a profile's sites.

    Patterns are names of tensors, weights or nodes, shell patterns of these (``*`` any text, ``?`` one character, ``[ab]`` one of
    them), or kinds: ``kind:context``, ``kind:*_output``. What is both included and excluded stays float.

    Raises:
        ValueError: a switch has no such value, or a pattern is empty or names no kind.
    """

    exclude: tuple[str, ...] = ()
    """What stays float although the profile quantizes it."""
    include: tuple[str, ...] = ()
    """What is quantized although the profile leaves it float."""
    bmms: Wish = "profile"
    residual_adds: Wish = "profile"
    gate_path: Wish = "profile"

    def __post_init__(self) -> None:
        for name in _SWITCHES:
            if (value := getattr(self, name)) not in get_args(Wish):
                raise ValueError(f"{name} is '{value}'; expected off, on, auto, or profile")
        for pattern in (*self.exclude, *self.include):
            if not pattern.strip():
                raise ValueError("a pattern is empty; expected a name, a shell pattern or kind:NAME")
            wanted = pattern.removeprefix(KIND_PREFIX)
            if wanted != pattern and not any(fnmatchcase(kind, wanted) for kind in KINDS):
                raise ValueError(f"'{pattern}' names no kind; kinds are {', '.join(KINDS)}")

    @property
    def open_switches(self) -> tuple[str, ...]:
        """Switches that are ``auto``."""
        return tuple(name for name in _SWITCHES if getattr(self, name) == "auto")

    def decided(self, switches: Mapping[str, Switch]) -> SiteChoice:
        """The choice with switches set."""
        return replace(self, **switches)  # type: ignore[arg-type]  # names of switches

    def applied_to(self, profile: Profile) -> Profile:
        """The profile with these switches.

        Raises:
            ValueError: a switch is ``auto``.
        """
        switches: dict[str, Switch] = {}
        for name in _SWITCHES:
            value: Wish = getattr(self, name)
            if value == "auto":
                raise ValueError(f"{name} is 'auto', which takes timing on a device; give off or on here")
            if value != "profile":
                switches[name] = value
        return replace(profile, **switches)  # type: ignore[arg-type]  # names of switches, checked above

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON and TOML."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        """Rebuild from :meth:`to_dict`; what is absent has its default.

        Raises:
            TypeError: an unknown setting.
            ValueError: a value that no choice has.
        """
        lists: dict[str, Any] = {name: tuple(values[name]) for name in ("exclude", "include") if name in values}
        return cls(**(dict(values) | lists))


def names_match(pattern: str, names: Sequence[str], kind: str) -> bool:
    """Whether a pattern means something that goes by ``names`` and is of ``kind``."""
    wanted = pattern.removeprefix(KIND_PREFIX)
    if wanted != pattern:
        return fnmatchcase(kind, wanted)
    return any(name == pattern or fnmatchcase(name, pattern) for name in names)


def literal_pattern(name: str) -> str:
    """The pattern that matches exactly ``name``."""
    return "".join(f"[{letter}]" if letter in "*?[" else letter for letter in name)
