"""What a training run does: length, optimizer, schedule, penalty ramp, evaluation and checkpoints."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

from train.loop.schedule import DecayKind

MixedPrecision = Literal["no", "fp16", "bf16"]

# Fields that change what is written or shown and never what is computed: a resumed run may change them.
WITHOUT_EFFECT_ON_RESULT = ("checkpoint_every", "log_every")


@dataclass(frozen=True, kw_only=True, slots=True)
class LoopSettings:
    """Settings of :func:`train.loop.training_loop.run_training`; counts of steps are optimizer updates.

    Raises:
        ValueError: a value is outside its range, or has no effect with the others.
    """

    steps: int
    """Updates in the whole run; 0: the model is only evaluated."""
    batch_size: int
    """Rows per update, over all processes and accumulated parts: a recipe means the same on any number of devices."""
    accumulation: int = 1
    """Parts that each process computes one after the other for one update."""
    learning_rate: float = 2e-4
    """Peak learning rate."""
    decay: DecayKind = "linear"
    """Shape of the learning rate after the warm-up."""
    warmup_steps: int = 0
    """Updates of linear warm-up."""
    final_fraction: float = 0.0
    """Fraction of the peak that the decay ends at."""
    betas: tuple[float, float] = (0.9, 0.999)
    """AdamW's decay rates of the first and second moment."""
    weight_decay: float = 0.01
    """AdamW's decoupled weight decay, on matrices; never on biases."""
    decay_norms: bool = False
    """Whether weight decay also acts on normalisation weights (PAPER: helps OPT)."""
    clip_norm: float | None = 1.0
    """Largest global gradient norm; ``None`` leaves gradients alone."""
    dropout: bool = True
    """Whether the model is in training mode; a distillation is better off without."""
    mixed_precision: MixedPrecision = "no"
    """Autocast of the model's forward; master weights and the objective stay float32."""
    penalty_weight: float = 0.0
    """Weight of the objective's penalty once ramped up."""
    penalty_ramp_steps: int = 0
    """Updates over which that weight rises linearly from almost 0."""
    seed: int = 0
    """Seed of everything random in the run."""
    evaluate_every: int = 0
    """Updates between evaluations; 0 evaluates at the end only (when an evaluation is given at all)."""
    evaluate_at_start: bool = False
    """Whether the model is also evaluated before the first update, and that state can be the best one."""
    patience: int | None = None
    """Evaluations without a new best after which the run stops; ``None`` never stops early."""
    checkpoint_every: int = 0
    """Updates between checkpoints to resume from; 0 writes none."""
    log_every: int = 1
    """Updates between reports; each reads the loss back from the device."""

    def __post_init__(self) -> None:
        """Check every value and every combination."""
        at_least = {"steps": 0, "batch_size": 1, "accumulation": 1, "log_every": 1}
        at_least |= dict.fromkeys(
            ("warmup_steps", "penalty_ramp_steps", "seed", "evaluate_every", "checkpoint_every"), 0
        )
        for name, least in at_least.items():
            if getattr(self, name) < least:
                raise ValueError(f"{name} is {getattr(self, name)}; expected at least {least}")
        if self.patience is not None and self.patience < 1:
            raise ValueError(f"patience is {self.patience}; expected at least 1 evaluation, or none at all")
        for name, kinds in (("decay", DecayKind), ("mixed_precision", MixedPrecision)):
            if getattr(self, name) not in get_args(kinds):
                raise ValueError(f"unknown {name} '{getattr(self, name)}'; known are {', '.join(get_args(kinds))}")
        if not self.learning_rate > 0:
            raise ValueError(f"learning_rate is {self.learning_rate}; expected a positive number")
        for name in ("weight_decay", "penalty_weight"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name} is {getattr(self, name)}; expected at least 0")
        if not 0.0 <= self.final_fraction <= 1.0:
            raise ValueError(f"final_fraction is {self.final_fraction}; expected between 0 and 1")
        if not all(0.0 <= beta < 1.0 for beta in self.betas):
            raise ValueError(f"betas are {self.betas}; expected two numbers in [0, 1)")
        if self.clip_norm is not None and not self.clip_norm > 0:
            raise ValueError(f"clip_norm is {self.clip_norm}; expected a positive number, or none at all")
        self._check_combinations()

    def _check_combinations(self) -> None:
        if self.warmup_steps > self.steps:
            raise ValueError(f"warmup_steps is {self.warmup_steps}, more than the run's {self.steps} steps")
        if self.batch_size % self.accumulation:
            raise ValueError(f"batch_size {self.batch_size} cannot be split into {self.accumulation} equal parts")
        if self.penalty_ramp_steps and not self.penalty_weight:
            raise ValueError("penalty_ramp_steps has no effect with penalty_weight = 0")
        if self.patience is not None and not self.evaluate_every:
            raise ValueError("patience has no effect with evaluate_every = 0")
        if self.decay == "constant" and self.final_fraction:
            raise ValueError("final_fraction has no effect with decay = 'constant'")

    def to_dict(self) -> dict[str, Any]:
        """Every field as a plain JSON value."""
        return asdict(self) | {"betas": list(self.betas)}
