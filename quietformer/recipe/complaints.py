"""What is wrong with a recipe, in one line: which key, what it holds, what is expected, what may have been meant."""

from __future__ import annotations

import difflib
import json
from collections.abc import Sequence

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails


def complaint_text(error: ValidationError, schema: type[BaseModel]) -> str:
    """The first complaint of a failed validation of ``schema``, and how many more there are."""
    complaints = error.errors(include_url=False)
    # A misspelt key is the cause of a missing one, so it is told first.
    complaints.sort(key=lambda complaint: complaint["type"] != "extra_forbidden")
    rest = f" (and {len(complaints) - 1} more)" if len(complaints) > 1 else ""
    return _complaint(complaints[0], schema) + rest


def _complaint(complaint: ErrorDetails, schema: type[BaseModel]) -> str:
    where = ".".join(str(part) for part in complaint["loc"])
    if complaint["type"] == "extra_forbidden":
        return _unknown_key(complaint["loc"], schema)
    if complaint["type"] == "missing":
        return f"'{where}' is missing"
    if complaint["type"] == "value_error":
        message = str(complaint["ctx"]["error"])
        return f"[{where}] {message}" if where else message
    message = complaint["msg"]
    expected = message.removeprefix("Input should be ").removeprefix("a valid ")
    return f"'{where}' is {_shown(complaint['input'])}; expected {expected}"


def _unknown_key(location: tuple[int | str, ...], schema: type[BaseModel]) -> str:
    *tables, key = (str(part) for part in location)
    known = sorted(_section_at(tables, schema).model_fields)
    close = difflib.get_close_matches(key, known, n=1)
    hint = f"did you mean '{'.'.join([*tables, close[0]])}'?" if close else f"known here are {', '.join(known)}"
    return f"unknown key '{'.'.join([*tables, key])}'; {hint}"


def _section_at(tables: Sequence[str], schema: type[BaseModel]) -> type[BaseModel]:
    section = schema
    for table in tables:
        if table not in section.model_fields:  # a name that the recipe chooses, as in [quantize.sites.NAME]
            continue
        annotation = section.model_fields[table].annotation
        options = [annotation, *getattr(annotation, "__args__", ())]
        section = next(option for option in options if isinstance(option, type) and issubclass(option, BaseModel))
    return section


def _shown(value: object) -> str:
    return f"'{value}'" if isinstance(value, str) else json.dumps(value, default=str)
