"""Check a Q/DQ graph against the rules of its profile and against what TensorRT's parser refuses.

quietformer lint MODEL.onnx
"""

from __future__ import annotations

from pathlib import Path

import onnx

from deploy.graphs.graph_info import METADATA_KEY, GraphInfo
from deploy.graphs.graph_structure import read_outline
from deploy.graphs.profiles import Profile, profile_named
from deploy.quantization.bits import Bits
from deploy.quantization.lint_rules.finding import Finding, Rule
from deploy.quantization.lint_rules.linear_layers import LINEAR_RULES
from deploy.quantization.lint_rules.operators import OPERATOR_RULES
from deploy.quantization.lint_rules.parameters import PARAMETER_RULES
from deploy.quantization.lint_rules.placement import PLACEMENT_RULES
from deploy.quantization.qdq_view import QdqView
from deploy.quantization.site_selection import RecordedChoice

RULES: tuple[Rule, ...] = (*OPERATOR_RULES, *PARAMETER_RULES, *PLACEMENT_RULES, *LINEAR_RULES)


def lint(model_path: Path, profile: str) -> list[Finding]:
    """Findings of every rule, sorted by rule and place in the graph; an empty list is a clean graph.

    What ``quantize`` was told to exclude or include, and switches it was given, are no finding.

    Raises:
        FileNotFoundError: no such file.
        ValueError: not an ONNX model, or an unknown profile.
    """
    return lint_model(read_outline(model_path), profile_named(profile), source=model_path)


def own_profile(model_path: Path) -> str | None:
    """The profile that a graph was quantized with, as its metadata says; None for a float graph or one of another tool.

    Raises:
        FileNotFoundError: no such file.
        ValueError: not an ONNX model, or damaged metadata.
    """
    structure = read_outline(model_path)
    if all(entry.key != METADATA_KEY for entry in structure.metadata_props):
        return None
    return GraphInfo.read(structure, name=str(model_path)).profile


def lint_model(model: onnx.ModelProto, profile: Profile, *, source: Path | None = None) -> list[Finding]:
    """See :func:`lint`; on a model that was read, or the outline of ``source``."""
    bits = next(
        (GraphInfo.read(model, name="the graph").bits for entry in model.metadata_props if entry.key == METADATA_KEY),
        None,
    )
    view = QdqView(
        model,
        profile,
        recorded=RecordedChoice.read(model),
        bits=Bits.parse(bits) if bits is not None else None,
        source=source,
    )
    return sorted((finding for rule in RULES for finding in rule(view)), key=lambda finding: finding.rule)
