"""Which ``--rename`` a graph of another tool needs, as an option to type."""

from __future__ import annotations

import re
from collections.abc import Sequence

import onnx

from deploy.data.encoding import INPUT_NAMES

_IDS, _MASK, _TYPES = INPUT_NAMES
_MARKS = ((_MASK, "mask"), (_TYPES, "type|segment"), (_IDS, "id|token|word|text"))
"""What the names of other tools hold, the more telling ones first."""


def rename_option(old: str, new: str) -> str:
    """The option that gives ``old`` the name ``new``."""
    return f"--rename {old}={new}"


def renamed_texts(inputs: Sequence[str]) -> str:
    """Options that give the inputs of a graph of texts their names, by what they are called; empty where names tell nothing."""
    free = [name for name in INPUT_NAMES if name not in inputs]
    options = []
    for name in inputs:
        if name in INPUT_NAMES:
            continue
        new = next((new for new, marks in _MARKS if new in free and re.search(marks, name.lower())), None)
        if new is not None and "position" not in name.lower():
            options.append(rename_option(name, new))
            free.remove(new)
    return " ".join(options)


def renamed_output(graph: onnx.GraphProto, wanted: str, *, rank: int) -> str:
    """The option that gives the only output of so many axes the name ``wanted``; with OLD where none or several could be it."""
    fitting = [value.name for value in graph.output if len(value.type.tensor_type.shape.dim) == rank]
    names = fitting or [value.name for value in graph.output]
    return rename_option(names[0] if len(names) == 1 else "OLD", wanted)
