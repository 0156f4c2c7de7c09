"""Whether INT8 or FP8 is worth it on a GPU, in words: what its generation can do, what ran, and what was measured."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["int8", "float8"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Generation:
    """What the tensor cores of a compute capability offer (NVIDIA's data sheets)."""

    name: str
    int8: str
    """``fast`` (twice float16), ``weak`` or ``none``."""
    has_fp8: bool


GENERATIONS = {
    "7.5": Generation(name="Turing", int8="fast", has_fp8=False),
    "8.0": Generation(name="Ampere", int8="fast", has_fp8=False),
    "8.6": Generation(name="Ampere", int8="fast", has_fp8=False),
    "8.7": Generation(name="Ampere, Orin", int8="fast", has_fp8=False),
    "8.9": Generation(name="Ada", int8="fast", has_fp8=True),
    "9.0": Generation(name="Hopper", int8="fast", has_fp8=True),
    "10.0": Generation(name="Blackwell", int8="fast", has_fp8=True),
    "10.3": Generation(name="Blackwell Ultra", int8="weak", has_fp8=True),
    "12.0": Generation(name="Blackwell, GeForce and RTX PRO", int8="weak", has_fp8=True),
    "12.1": Generation(name="Blackwell, GB10", int8="weak", has_fp8=True),
}
"""By compute capability."""
_WORTH_IT = 1.1
"""A gain below a tenth pays for no second artifact."""
_MOST = 0.5
_TITLES: dict[Kind, str] = {"int8": "INT8", "float8": "FP8"}


def verdict(
    capability: str,
    *,
    kind: Kind = "int8",
    against: str = "float16",
    speedup: tuple[float, float] | None = None,
    products: dict[str, int] | None = None,
) -> str:
    """One or two sentences on 8 bits against a float type.

    Args:
        capability: of the GPU, such as ``8.9``.
        kind: the 8 bits.
        against: precision of the engine that was measured beside it.
        speedup: interval of its time over that of the 8 bits, both measured in turns; None where nothing was measured.
        products: matrix products of the 8-bit engine by the type they ran in, from its inspection.

    Raises:
        ValueError: the interval is upside down or not positive.
    """
    title = _TITLES[kind]
    parts = [] if speedup is None else [_measured(*speedup, title=title, against=against)]
    ran, total = (products or {}).get(kind, 0), sum((products or {}).values())
    if products is not None and total and ran < _MOST * total:
        parts.append(f"only {ran} of {total} matrix products ran in {title}: look at the graph before judging the GPU")
    parts.append(_expected(capability, kind))
    return "; ".join(parts)


def _measured(low: float, high: float, *, title: str, against: str) -> str:
    if not 0 < low <= high:
        raise ValueError(f"speed-up from {low} to {high} is no interval of positive numbers")
    times = f"{low:.2f} to {high:.2f} times as fast as {against}"
    if low >= _WORTH_IT:
        return f"worth it: {title} is {times}"
    if high < _WORTH_IT:
        return f"not worth it: {title} is {times}"
    return f"undecided: {title} is {times}; measure longer"


def _expected(capability: str, kind: Kind) -> str:
    known = GENERATIONS.get(capability)
    if known is None:
        return f"SM {capability} is not in the table of generations: only a measurement tells"
    if kind == "float8":
        return (
            f"SM {capability} ({known.name}) multiplies FP8 twice as fast as float16"
            if known.has_fp8
            else (f"SM {capability} ({known.name}) has no FP8")
        )
    if known.int8 == "weak":
        return f"SM {capability} ({known.name}) has few INT8 units: prefer FP8"
    fp8 = "; FP8 is as fast and needs less care" if known.has_fp8 else ", and there is no FP8"
    return f"SM {capability} ({known.name}) multiplies INT8 twice as fast as float16{fp8}"
