"""What happens to the weights after the optimiser's step: averaging, in three distinct senses.

- `Feedback`, the equation of P1 (Section 5): every `every` steps w = alpha * w_(last time) + (1 - alpha) *
  w', and training goes on from w. With every = 1 it is AdamW at (1 - alpha) times the learning rate, exactly,
  weight decay included, for any gradients (`plain_rate`); with every = k it is Lookahead (Zhang et al. 2019)
  with k inner steps and slow step 1 - alpha.
- `Released`, what the released code of P1 computes instead: (2 - alpha) * new - (1 - alpha) * old, every
  step. That is AdamW at (2 - alpha) times the rate.
- `Shadow`, what is usually called an exponential moving average: it is evaluated and saved, and training
  never sees it.

`restraint.py` has rules that choose their strength by themselves.

Averages are fp32 whatever the model's precision, since a share of 1e-4 of a bf16 number is nothing (field
bugs B37, B42). A tied tensor counts once, buffers are not averaged: an evaluated shadow has the model's own.

Cost: 4 bytes a parameter for the average (another 4 while a shadow is evaluated), printed before training,
and one pass over weights and average every `every` steps.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor


@dataclass(frozen=True)
class Feedback:
    """P1's averaging: fed back into training. alpha 0.92, every 1 (Basque, Indonesian) or 10 (Arabic)."""

    kind: ClassVar[str] = "feedback"

    alpha: float
    every: int = 1

    def __post_init__(self) -> None:
        _check(self.alpha, self.every)


@dataclass(frozen=True)
class Released:
    """The rule as P1's released `update_moving_average` has it: a step away from the old weights."""

    kind: ClassVar[str] = "released"

    alpha: float = 0.92

    def __post_init__(self) -> None:
        _check(self.alpha, 1)


@dataclass(frozen=True)
class Shadow:
    """An average that is evaluated and saved, never fed back. Give `alpha` per update, or `half_life` in
    steps.

    Until step `start` the shadow is a copy of the weights; from then it is updated every `every` steps.
    """

    kind: ClassVar[str] = "shadow"

    alpha: float | None = None
    half_life: float | None = None
    every: int = 1
    start: int = 0

    def __post_init__(self) -> None:
        if (self.alpha is None) == (self.half_life is None):
            raise ValueError("shadow: give either `alpha` or `half_life`")
        if self.half_life is not None and not 0 < self.half_life < math.inf:
            raise ValueError(f"shadow: half_life must be a positive number of steps, not {self.half_life}")
        if self.start < 0:
            raise ValueError(f"shadow: start must be at least 0, not {self.start}")
        _check(self.decay, self.every)

    @property
    def decay(self) -> float:
        """The share of the old average that an update keeps."""
        return self.alpha if self.alpha is not None else 0.5 ** (self.every / self.half_life)


def _check(alpha: float, every: int) -> None:
    if not 0 <= alpha < 1:
        raise ValueError(f"alpha is the share of the old weights, at least 0 and below 1, not {alpha}")
    if every < 1:
        raise ValueError(f"every must be at least 1 step, not {every}")


def plain_rate(spec: object) -> float | None:
    """The factor on the learning rate that makes plain AdamW the same run as `spec`; None where none does.

    Released is the same run when its rule is applied where it can last, after the optimiser's step.
    """
    if spec is None:
        return 1.0
    if isinstance(spec, Feedback) and spec.every == 1:
        return 1 - spec.alpha
    if isinstance(spec, Released):
        return 2 - spec.alpha
    return None


class Averaging:
    """The average of one run's weights. `parameters` are the trained ones, of tied tensors the first only.

    `after_step(step)` is called with the number of steps done, after the optimiser has moved the weights.
    """

    def __init__(self, spec: Feedback | Released | Shadow, parameters: Iterable[tuple[str, Tensor]]) -> None:
        self.spec = spec
        self.names, self.weights = named(parameters)
        self.average = [w.detach().to(torch.float32, copy=True) for w in self.weights]

    @torch.no_grad()
    def after_step(self, step: int) -> dict[str, float]:
        """Update the average, and the weights where it is fed back. Returns columns for the step's row."""
        spec = self.spec
        if isinstance(spec, Shadow):
            if step <= spec.start:
                torch._foreach_copy_(self.average, self.weights)
            elif step % spec.every == 0:
                self._move(1 - spec.decay)
            return {}
        if isinstance(spec, Released):
            self._move(2 - spec.alpha)
            torch._foreach_copy_(self.weights, self.average)
        elif step % spec.every == 0:
            self._move(1 - spec.alpha)
            torch._foreach_copy_(self.weights, self.average)
        return {}

    def _move(self, share: float) -> None:
        torch._foreach_lerp_(self.average, in_fp32(self.weights), share)

    @contextmanager
    def evaluated(self) -> Iterator[None]:
        """The model with the weights that count: a shadow's inside this block, the trained ones after it."""
        if isinstance(self.spec, Shadow):
            with swap(self.weights, self.average):
                yield
        else:
            yield

    def state(self) -> dict[str, Tensor]:
        """Tensors for the checkpoint."""
        return dict(zip(self.names, self.average, strict=True))

    def load_state(self, tensors: dict[str, Tensor]) -> None:
        """Restore `state`. Raises KeyError for another model's."""
        torch._foreach_copy_(self.average, [tensors[name] for name in self.names])

    def describe(self) -> str:
        """Rule and memory, for the terminal and the run folder."""
        held = sum(a.numel() for a in self.average) * 4 / 1e6
        more = ", and as much again while it is evaluated" if isinstance(self.spec, Shadow) else ""
        same = plain_rate(self.spec)
        equal = f"; the same run as AdamW at {same:g} x the learning rate" if same is not None else ""
        return f"averaging: {self.spec}{equal}; {held:.1f} MB{more}"


@contextmanager
@torch.no_grad()
def swap(weights: list[Tensor], others: list[Tensor]) -> Iterator[None]:
    """`weights` hold the values of `others` inside the block, and exactly their own again after it."""
    kept = [w.detach().clone() for w in weights]
    torch._foreach_copy_(weights, others)
    try:
        yield
    finally:
        with torch.no_grad():
            torch._foreach_copy_(weights, kept)


def named(parameters: Iterable[tuple[str, Tensor]]) -> tuple[list[str], list[Tensor]]:
    """Names and tensors of what is trained; a tensor that has two names is given once."""
    seen: dict[int, tuple[str, Tensor]] = {}
    for name, tensor in parameters:
        if tensor.requires_grad:
            seen.setdefault(id(tensor), (name, tensor))
    return [n for n, _ in seen.values()], [t for _, t in seen.values()]


def in_fp32(tensors: list[Tensor]) -> list[Tensor]:
    """The tensors themselves where they are fp32, else copies."""
    return [t.detach() if t.dtype == torch.float32 else t.detach().float() for t in tensors]
