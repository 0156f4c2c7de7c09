"""Settings of a retrofit."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, Self, get_args

from train.loop.loop_settings import LoopSettings, MixedPrecision
from train.loop.schedule import DecayKind
from train.objectives.penalty import PenaltySettings, default_widths
from train.simulation.quantization_places import PROFILE_NAMES, ProfileName
from train.simulation.quantizer import WEIGHT_RANGES, WeightRange, check_bits

ObjectiveName = Literal["hidden", "logits"]
"""What is distilled: last hidden states (:mod:`train.objectives.distillation`), or the distribution that the head puts out
(:mod:`train.objectives.logit_distillation`)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RetrofitSettings:
    """How a converted model is distilled from its float original; plain values, as a recipe holds them.

    The four arms: gates are the student's (its ``AttentionSettings``), the penalty is ``penalty_weight``; each can be left out.

    Raises:
        ValueError: a value is outside its range, or has no effect with the others.
    """

    prefix: str | tuple[int, ...] = ()
    """Tokens whose keys and values stand before every sequence (:mod:`train.conversion.prefix_tokens`): ids, a text, or ``search``: the best of
    some texts. Outputs are then those of a text behind these tokens, which is what the student starts from."""
    rotate: bool = False
    """Rotate the residual stream and the values (:mod:`train.weights.rotation`), before anything is learnt."""
    equalize: bool = False
    """Move scales between neighbouring tensors (:mod:`train.weights.equalization`), before anything is learnt."""
    round_weights: bool = False
    """Round weights so that their errors cancel (:mod:`train.weights.weight_rounding`), when everything is learnt."""
    preparation_rows: int = 64
    """Training rows that the four above look at."""
    objective: ObjectiveName = "hidden"
    steps: int = 400
    """Updates; 0: only what is done before and after them."""
    batch_size: int = 16
    """Rows per update, over all processes and accumulated parts."""
    accumulation: int = 1
    """Parts of a batch computed one after the other."""
    max_length: int = 128
    """Tokens of the longest row that is accepted."""
    learning_rate: float = 2e-4
    """Peak learning rate of AdamW."""
    decay: DecayKind = "linear"
    """Learning rate after the warm-up, down to 0 (or ``constant``)."""
    warmup_steps: int = 20
    """Updates of linear warm-up."""
    weight_decay: float = 0.0
    """Decoupled, on matrices; none by default, since the weights to stay near are the teacher's and not 0."""
    clip_norm: float = 1.0
    """Largest global gradient norm."""
    mixed_precision: MixedPrecision = "no"
    """Autocast of the student's forward."""
    penalty_weight: float = 0.1
    """Weight of the outlier penalty once ramped up; 0 leaves it out."""
    penalty_ramp_steps: int = 100
    """Updates over which it rises."""
    penalty_width: float = 5.0
    """On FFN outputs."""
    penalty_power: float = 4.0
    """Exponent of the penalty."""
    penalty_norm_ratio: float = 2.0
    """Width on LayerNorm outputs as a multiple of ``penalty_width``."""
    penalty_inner_ratio: float = 0.0
    """Width on the inner units of the feed-forward blocks, likewise; 0 leaves them alone."""
    penalty_knee: float = 8.0
    """Widths from which the penalty continues as a parabola."""
    embedding_weight: float = 1.0
    """Weight of the term on similarities between rows; 0 leaves it out."""
    split_units: int = 0
    """Inner units that each feed-forward block gets to divide its largest weights among (:mod:`train.weights.channel_split`); 0: none."""
    weight_limit: float = 0.0
    """Largest weight of a linear layer, in standard deviations of its matrix, approached while the penalty ramps up; 0: none."""
    quantization_aware_steps: int = 0
    """Last updates in which the student computes on rounded weights and activations (:mod:`train.simulation.quantization_aware`)."""
    seed: int = 0
    """Of the order of rows and the choice of calibration rows."""
    evaluate_every: int = 100
    """Updates between evaluations of the simulated integer model; 0: at the end only."""
    patience: int | None = None
    """Evaluations without a better one after which the run stops."""
    checkpoint_every: int = 100
    """Updates between checkpoints to resume from; 0: none."""
    calibration_rows: int = 64
    """Training rows that calibrate each evaluation."""
    evaluation_profile: ProfileName = "paper"
    """Quantizer of the evaluation, and of the quantization-aware updates."""
    evaluation_weights: WeightRange = "minmax"
    """Weight ranges of the evaluation."""
    weight_bits: int = 8
    """Of the evaluation's weights."""
    activation_bits: int = 8
    """Of the evaluation's activations."""

    def __post_init__(self) -> None:
        """Check everything, what the loop and the penalty check included."""
        self.loop_settings()
        self.penalty_settings()
        self._check_objective()
        for name in ("max_length", "calibration_rows", "preparation_rows"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; expected at least 1")
        if self.split_units < 0:
            raise ValueError(f"split_units is {self.split_units}; expected at least 0")
        if self.weight_limit and not self.weight_limit >= 3:
            raise ValueError(
                f"weight_limit is {self.weight_limit}; expected at least 3 standard deviations, or 0 for none"
            )
        if not 0 <= self.quantization_aware_steps <= self.steps:
            raise ValueError(
                f"quantization_aware_steps is {self.quantization_aware_steps}; expected 0 to the run's {self.steps} steps"
            )
        if not self.embedding_weight >= 0:
            raise ValueError(f"embedding_weight is {self.embedding_weight}; expected at least 0")
        known = {"evaluation_profile": PROFILE_NAMES, "evaluation_weights": WEIGHT_RANGES}
        for name, names in known.items():
            if getattr(self, name) not in names:
                raise ValueError(f"unknown {name} '{getattr(self, name)}'; known are {', '.join(names)}")
        check_bits(self.weight_bits, what="weight_bits")
        check_bits(self.activation_bits, what="activation_bits")

    def _check_objective(self) -> None:
        if self.objective not in get_args(ObjectiveName):
            raise ValueError(f"unknown objective '{self.objective}'; known are {', '.join(get_args(ObjectiveName))}")
        if self.rotate and self.objective == "hidden":
            raise ValueError(
                "rotate puts hidden states in another basis than the teacher's; it needs objective = 'logits'"
            )

    def loop_settings(self) -> LoopSettings:
        """What the training loop needs of it."""
        return LoopSettings(
            steps=self.steps,
            batch_size=self.batch_size,
            accumulation=self.accumulation,
            learning_rate=self.learning_rate,
            decay=self.decay,
            warmup_steps=self.warmup_steps,
            weight_decay=self.weight_decay,
            clip_norm=self.clip_norm,
            dropout=False,
            mixed_precision=self.mixed_precision,
            penalty_weight=self.penalty_weight,
            penalty_ramp_steps=self.penalty_ramp_steps,
            seed=self.seed,
            evaluate_every=self.evaluate_every,
            evaluate_at_start=True,
            patience=self.patience,
            checkpoint_every=self.checkpoint_every,
        )

    def penalty_settings(self) -> PenaltySettings | None:
        """The outlier penalty, ``None`` in the arms without."""
        if not self.penalty_weight:
            return None
        return PenaltySettings(
            width=self.penalty_width,
            power=self.penalty_power,
            knee=self.penalty_knee,
            relative_widths=default_widths(norm_ratio=self.penalty_norm_ratio, inner_ratio=self.penalty_inner_ratio),
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        """Rebuild from :meth:`to_dict`; an unknown key is an error.

        Raises:
            ValueError: an unknown key, or a value that ``RetrofitSettings`` refuses.
        """
        known = {field.name for field in fields(cls)}
        if unknown := sorted(set(values) - known):
            raise ValueError(f"unknown retrofit setting '{unknown[0]}'; known are {', '.join(sorted(known))}")
        prefix = values.get("prefix", ())
        return cls(**values | {"prefix": prefix if isinstance(prefix, str) else tuple(prefix)})
