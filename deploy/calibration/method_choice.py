"""Other calibration methods for single tensors: patterns and methods as people write them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from deploy.calibration.ranges import parse_method
from deploy.graphs.site_choice import names_match

_NAMES_SHOWN = 5


def parse_choices(texts: Sequence[str]) -> dict[str, str]:
    """Method by pattern from texts such as ``kind:activation_output=mse``.

    Raises:
        ValueError: another form, or no such method.
    """
    chosen: dict[str, str] = {}
    for text in texts:
        pattern, separator, method = text.rpartition("=")
        if not separator or not pattern.strip():
            raise ValueError(f"'{text}' is not PATTERN=METHOD, for example kind:activation_output=mse")
        parse_method(method)
        chosen[pattern] = method
    return chosen


def methods_by_tensor(
    methods: Mapping[str, str], tensors: Sequence[str], *, kinds: Mapping[str, str]
) -> dict[str, str]:
    """Method by tensor; a later pattern wins over an earlier one.

    Args:
        methods: method by pattern (:class:`deploy.graphs.site_choice.SiteChoice` has the forms of patterns).
        tensors: names of the tensors that there are.
        kinds: kind by tensor.

    Raises:
        ValueError: a pattern matches no tensor, or no such method.
    """
    found: dict[str, str] = {}
    for pattern, method in methods.items():
        parse_method(method)
        meant = [name for name in tensors if names_match(pattern, (name,), kinds.get(name, ""))]
        if not meant:
            shown = ", ".join(sorted(tensors)[:_NAMES_SHOWN])
            raise ValueError(
                f"pattern '{pattern}' of method '{method}' matches no tensor; {len(tensors)} exist, such as {shown}, "
                f"of the kinds {', '.join(sorted(set(kinds.values())))}"
            )
        found |= dict.fromkeys(meant, method)
    return found
