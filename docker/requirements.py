"""Requirements of some extras, one a line, from ``pyproject.toml`` beside this file or above it: what an image installs.

An image copies packages instead of installing the project, so that a runtime image can leave ``train`` and ``export`` out.

Example: python requirements.py cpu serve > requirements.txt
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Iterable
from pathlib import Path

_OWN_EXTRAS = re.compile(r"quietformer\[([\w,-]+)\]")


def requirements(extras: Iterable[str], project: Path) -> list[str]:
    """What the project and the named extras need.

    Args:
        extras: names; an extra that names others of the project brings theirs.
        project: ``pyproject.toml``.

    Raises:
        FileNotFoundError: no such file.
        ValueError: an extra that the project does not have.
    """
    table = tomllib.loads(project.read_text(encoding="utf-8"))["project"]
    known = table["optional-dependencies"]
    found = dict.fromkeys(table["dependencies"])
    waiting = list(extras)
    while waiting:
        extra = waiting.pop()
        if extra not in known:
            raise ValueError(f"no extra '{extra}' in {project}; known are {', '.join(sorted(known))}")
        for entry in known[extra]:
            own = _OWN_EXTRAS.fullmatch(entry)
            if own:
                waiting += own[1].split(",")
            else:
                found[entry] = None
    return sorted(found)


def main() -> None:
    """Entry point."""
    here = Path(__file__).resolve().parent
    project = next((path for folder in (here, here.parent) if (path := folder / "pyproject.toml").is_file()), None)
    if project is None:
        sys.exit(f"error: no pyproject.toml in {here} or above it")
    try:
        print("\n".join(requirements(sys.argv[1:], project)))
    except ValueError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
