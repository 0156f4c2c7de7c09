"""What a checkpoint's attention does: softmax kind, gate kind, and their parameters.

The settings are a property of the checkpoint. They are stored in its config under ``quietformer`` and decide what
:func:`train.checkpoints.checkpoint.load` builds; a checkpoint without them is a vanilla model.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, Self, get_args

SoftmaxKind = Literal["vanilla", "clipped", "clipped_per_row", "off_by_one"]
GateKind = Literal["none", "linear", "mlp", "all_heads_linear"]


@dataclass(frozen=True, kw_only=True, slots=True)
class AttentionSettings:
    """Softmax and gate of every attention layer of a model; they combine freely.

    Raises:
        ValueError: a value is outside its range, or a parameter is given that the chosen kinds do not read.
    """

    softmax: SoftmaxKind = "vanilla"
    """``clipped``: ``clip((zeta - gamma) * softmax(x) + gamma, 0, 1)``; ``clipped_per_row``: gamma_i = -alpha / (i + 1)."""
    gamma: float | None = None
    """Lower stretch, at most 0. Give this or ``alpha`` with ``clipped``."""
    alpha: float | None = None
    """Length-free form: ``gamma = -alpha / length`` (``clipped``) or ``-alpha / (i + 1)`` (``clipped_per_row``)."""
    length: int | None = None
    """Training length in tokens that ``alpha`` refers to; stays fixed with the checkpoint."""
    zeta: float = 1.0
    """Upper stretch, at least 1."""
    gate: GateKind = "none"
    """A sigmoid gate per token and head on the context, before the output projection."""
    gate_hidden: int | None = None
    """Hidden width of the ``mlp`` gate, per head."""
    gate_init: float = 0.5
    """Initial gate probability pi_init, in (0, 1)."""
    gate_scale: float = 1.0
    """Factor on the sigmoid. ``1 / gate_init`` makes the product start at 1 on a pretrained model."""
    prefix: int = 0
    """Keys and values stored in front of every sequence (``train.attention.stored_prefix``); a model with rotary positions takes some."""
    patch_norm: bool = False
    """A LayerNorm after the patch embedding of a vision transformer. It changes what a pretrained model puts out, so it is for
    training from scratch."""

    def __post_init__(self) -> None:
        """Check every value and every combination."""
        for name, kinds in (("softmax", SoftmaxKind), ("gate", GateKind)):
            if getattr(self, name) not in get_args(kinds):
                raise ValueError(f"unknown {name} '{getattr(self, name)}'; known are {', '.join(get_args(kinds))}")
        self._check_softmax()
        if (self.gate == "mlp") != (self.gate_hidden is not None):
            raise ValueError("gate_hidden belongs to gate = 'mlp' and only to it")
        if self.gate_hidden is not None and self.gate_hidden < 1:
            raise ValueError(f"gate_hidden is {self.gate_hidden}; expected at least 1")
        if not 0.0 < self.gate_init < 1.0:
            raise ValueError(f"gate_init is {self.gate_init}; expected a probability strictly between 0 and 1")
        if not self.gate_scale > 0.0:
            raise ValueError(f"gate_scale is {self.gate_scale}; expected a positive factor")
        if self.gate == "none" and (self.gate_init, self.gate_scale) != (0.5, 1.0):
            raise ValueError("gate_init and gate_scale have no effect with gate = 'none'")
        if self.prefix < 0:
            raise ValueError(f"prefix is {self.prefix}; expected a number of stored keys, 0 or more")
        if not isinstance(self.patch_norm, bool):
            raise ValueError(f"patch_norm is {self.patch_norm!r}; expected true or false")  # noqa: TRY004 - from a user's file

    def _check_softmax(self) -> None:
        given = [name for name in ("gamma", "alpha") if getattr(self, name) is not None]
        if self.softmax == "clipped":
            if len(given) != 1:
                raise ValueError("clipped softmax takes exactly one of gamma and alpha")
            if (self.alpha is not None) != (self.length is not None):
                raise ValueError("length belongs to alpha: gamma = -alpha / length")
        elif self.softmax == "clipped_per_row":
            if given != ["alpha"] or self.length is not None:
                raise ValueError("clipped_per_row takes alpha only: gamma_i = -alpha / (i + 1)")
        elif given or self.length is not None or self.zeta != 1.0:
            raise ValueError(f"gamma, alpha, length and zeta have no effect with softmax = '{self.softmax}'")
        if self.gamma is not None and self.gamma > 0:
            raise ValueError(f"gamma is {self.gamma}; expected at most 0")
        if self.alpha is not None and self.alpha < 0:
            raise ValueError(f"alpha is {self.alpha}; expected at least 0")
        if self.length is not None and self.length < 1:
            raise ValueError(f"length is {self.length}; expected at least 1")
        if self.zeta < 1:
            raise ValueError(f"zeta is {self.zeta}; expected at least 1")

    @property
    def is_vanilla(self) -> bool:
        """Whether the attention computes what the unmodified model does."""
        return self.softmax == "vanilla" and self.gate == "none" and not self.patch_norm and not self.prefix

    @property
    def clip_gamma(self) -> float:
        """The fixed gamma of ``clipped`` softmax (PAPER: gamma = -alpha / T)."""
        assert self.softmax == "clipped"
        if self.gamma is not None:
            return self.gamma
        assert self.alpha is not None
        assert self.length is not None
        return -self.alpha / self.length

    def to_dict(self) -> dict[str, Any]:
        """Plain values for a config file."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        """Rebuild from :meth:`to_dict`; an unknown key is an error.

        Raises:
            ValueError: an unknown key, or a value that ``AttentionSettings`` refuses.
        """
        known = {field.name for field in fields(cls)}
        if unknown := sorted(set(values) - known):
            raise ValueError(f"unknown attention setting '{unknown[0]}'; known are {', '.join(sorted(known))}")
        return cls(**values)
