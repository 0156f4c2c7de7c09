"""How the learning rate and the penalty's weight move over a run: pure functions of the step, so a resumed run needs no state.

Steps count optimizer updates from 0. The learning rate rises linearly over the warm-up, then follows a line or half a
cosine down to its final fraction; the penalty's weight rises linearly to its full value and stays there.
"""

from __future__ import annotations

import hashlib
import math
from typing import Literal

DecayKind = Literal["constant", "linear", "cosine"]


def learning_rate_factor(
    step: int, *, steps: int, warmup_steps: int, decay: DecayKind = "linear", final_fraction: float = 0.0
) -> float:
    """Factor on the peak learning rate for one update.

    Update ``k`` of the warm-up uses ``(k + 1) / warmup_steps``, so no update is wasted at 0 and the peak is reached with the
    last one. After it, with ``t`` running from 0 to 1 over the rest, the factor is ``1 - (1 - f) t`` (linear) or
    ``f + (1 - f) (1 + cos(pi t)) / 2`` (cosine), ``f`` the final fraction.

    Args:
        step: index of the update, 0 to ``steps - 1``.
        steps: updates in the whole run.
        warmup_steps: updates of the warm-up, at most ``steps``.
        decay: shape after the warm-up.
        final_fraction: factor that the decay ends at, in [0, 1].
    """
    if step < warmup_steps:
        return (step + 1) / warmup_steps
    if decay == "constant":
        return 1.0
    progress = (step - warmup_steps) / max(1, steps - warmup_steps)
    remaining = 1.0 - progress if decay == "linear" else 0.5 * (1.0 + math.cos(math.pi * progress))
    return final_fraction + (1.0 - final_fraction) * remaining


def ramp_factor(step: int, *, ramp_steps: int) -> float:
    """Factor on the penalty's weight for one update: ``(k + 1) / ramp_steps`` up to 1; 0 ramp steps mean 1 from the start."""
    if step >= ramp_steps:
        return 1.0
    return (step + 1) / ramp_steps


def update_seed(seed: int, *, step: int, part: int) -> int:
    """Seed of torch's generators for one forward pass, in [0, 2**63).

    Dropout and anything else an objective draws is a function of the run's seed, the update and the part of the batch.
    Nothing random survives from one update to the next, which makes resuming exact without stored generator states, on
    any number of processes, whatever an evaluation in between has drawn.
    """
    digest = hashlib.sha256(f"{seed}/{step}/{part}".encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1
