"""Input shapes as trtexec writes them: ``input_ids:1x128,attention_mask:1x128``, or ``1x128`` for all inputs.

Sizes that the graph fixes may be left out at the end: ``8`` stands for ``8x3x224x224`` where only the batch is free.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

Shapes = dict[str, tuple[int, ...]]

_MAX_SIZE = 2**31 - 1
"""What runtimes keep sizes in."""
_SIZES = re.compile(r"[1-9]\d*(x[1-9]\d*)*")


def parse_shapes(text: str, graph: Mapping[str, Sequence[int | str]]) -> Shapes:
    """Shape of every input.

    Args:
        text: one shape for all inputs, or ``name:shape`` for each, joined by commas.
        graph: sizes of each input of the graph, a name where a size is free.

    Raises:
        ValueError: not of this form, an unknown input, or one without a shape.
    """
    if ":" not in text:
        return {name: _completed(_sizes(text, text), graph[name]) for name in graph}
    shapes: Shapes = {}
    for part in text.split(","):
        name, colon, sizes = part.strip().rpartition(":")
        if not colon:
            raise ValueError(f"'{part}' in '{text}' has no input name; expected for example input_ids:1x128")
        if name not in graph:
            raise ValueError(f"unknown input '{name}' in '{text}'; the graph takes {', '.join(graph)}")
        if name in shapes:
            raise ValueError(f"input '{name}' has two shapes in '{text}'")
        shapes[name] = _completed(_sizes(sizes, text), graph[name])
    if missing := [name for name in graph if name not in shapes]:
        raise ValueError(f"input '{missing[0]}' has no shape in '{text}'")
    return shapes


def _completed(sizes: tuple[int, ...], expected: Sequence[int | str]) -> tuple[int, ...]:
    """``sizes``, followed by those that the graph fixes where the user left them out."""
    fixed = tuple(size for size in expected[len(sizes) :] if isinstance(size, int))
    return sizes + fixed if len(sizes) + len(fixed) == len(expected) else sizes


def format_shapes(shapes: Mapping[str, Sequence[int]]) -> str:
    """The text that :func:`parse_shapes` reads."""
    return ",".join(f"{name}:{'x'.join(map(str, sizes))}" for name, sizes in shapes.items())


def check_profile(
    graph: Mapping[str, Sequence[int | str]], *, smallest: Shapes, usual: Shapes, largest: Shapes
) -> None:
    """Check a range of shapes against a graph's inputs.

    Args:
        graph: sizes of each input, a name where a size is free.
        smallest: least sizes.
        usual: sizes to be fastest at.
        largest: greatest sizes.

    Raises:
        ValueError: an input is missing or unknown, a rank or fixed size differs, or sizes are out of order.
    """
    for shapes in (smallest, usual, largest):
        if odd := sorted(set(shapes) ^ set(graph)):
            raise ValueError(
                f"input '{odd[0]}' is not in both the graph ({', '.join(graph)}) and {format_shapes(shapes)}"
            )
        for name, sizes in shapes.items():
            fixed = [size for size in graph[name] if isinstance(size, int)]
            fits = len(sizes) == len(graph[name]) and all(
                not isinstance(wanted, int) or size == wanted for size, wanted in zip(sizes, graph[name], strict=True)
            )
            if not fits:
                what = f"fixed sizes {fixed}" if fixed else f"{len(graph[name])} sizes"
                raise ValueError(f"shape {'x'.join(map(str, sizes))} does not fit input '{name}', which has {what}")
    for name in graph:
        for low, middle, high in zip(smallest[name], usual[name], largest[name], strict=True):
            if not low <= middle <= high:
                raise ValueError(f"shapes of input '{name}' are out of order: {low}, {middle}, {high}")


def _sizes(sizes: str, text: str) -> tuple[int, ...]:
    if not _SIZES.fullmatch(sizes):
        raise ValueError(f"'{sizes}' in '{text}' is no shape; expected positive sizes such as 1x128")
    numbers = tuple(int(size) for size in sizes.split("x"))
    if max(numbers) > _MAX_SIZE:
        raise ValueError(f"'{sizes}' in '{text}' is too large; expected sizes up to {_MAX_SIZE}")
    return numbers


def joined_sizes(sizes: Iterable[int | str]) -> str:
    """``1x128`` of 1 and 128."""
    return "x".join(map(str, sizes))
