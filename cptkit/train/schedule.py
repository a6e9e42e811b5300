"""Learning rates as closed forms of the step.

A rate is a function of (step, total steps) and nothing else, so there is no scheduler object to resume
wrongly, to step once too often under several processes, or to leave at its peak (field bugs B47, B49).
Steps are optimiser steps, counted from 0; `rate(step, total)` is what step number `step` uses.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Schedule:
    """Warm-up, then `cosine`, `wsd` (warm-up, stable, decay) or `constant`.

    `peak` is the largest rate; `warmup` the number of steps of linear rise, of which the first already has
    peak / warmup; `floor` the final rate as a share of the peak (P1: 0.033); `decay` the share of all steps
    that WSD decays over, linearly, down to the floor. Unlike the released code of P3, whose stable phase
    covers the whole run by default, WSD here always decays.
    """

    kind: Literal["cosine", "wsd", "constant"] = "cosine"
    peak: float = 1e-3
    warmup: int = 0
    floor: float = 0.033
    decay: float = 0.2

    def __post_init__(self) -> None:
        if not (math.isfinite(self.peak) and self.peak >= 0):
            raise ValueError(f"peak must be a finite rate >= 0, not {self.peak}")
        if self.warmup < 0 or not 0 <= self.floor <= 1:
            raise ValueError("warmup must be >= 0 and floor in [0, 1]")
        if self.kind == "wsd" and not 0 < self.decay <= 1:
            raise ValueError(f"decay must be in (0, 1] so that WSD does decay, not {self.decay}")

    def rate(self, step: int, total: int) -> float:
        """The learning rate of step `step` in a run of `total` steps. Raises ValueError outside of it."""
        if not 0 <= step < total:
            raise ValueError(f"step {step} lies outside a run of {total} steps")
        if step < self.warmup:
            return self.peak * (step + 1) / self.warmup
        if self.kind == "constant":
            return self.peak
        floor = self.peak * self.floor
        if self.kind == "cosine":
            done = (step - self.warmup) / max(total - 1 - self.warmup, 1)
            return floor + (self.peak - floor) * 0.5 * (1 + math.cos(math.pi * done))
        decay_steps = max(1, round(self.decay * total))
        left = (total - 1 - step) / decay_steps
        return floor + (self.peak - floor) * min(1.0, left)
