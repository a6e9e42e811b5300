"""Shares that follow what was measured: P3's topic feedback, and excess loss by exponentiated gradient.

A rule is a function of the present shares and of all measurements so far, oldest first; a measurement gives
the validation perplexity of each source that was measured. It knows no model and keeps no state of its
own, so what a run has measured is all that a checkpoint needs.

- `TopicFeedback` (P3, arXiv 2407.18743, Section 3.1): f_i = 1 + alpha d_i w_i, r_i goes as r_i f_i, where
  d_i is the normalised change of perplexity since the measurement before. A source that got worse gets
  more. P3 gives neither alpha nor w_i nor the normalisation nor the interval: all are parameters here.
- `ExcessLoss` (DoReMi, arXiv 2305.10429, Algorithm 1): r_i goes as r_i exp(eta max(loss_i - reference_i, 0)),
  mixed with the uniform shares. A source gets more the further it is above what a reference run reached.

A source without a measurement in the last round keeps its share; what the others have together is theirs to
divide. Shares are then moved into [floor, cap], both shares of what is divided, the rest in proportion.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal, Protocol

from cptkit.data.documents import DataError

Measured = Mapping[str, float]
LEAST = 1e-3  # of a factor: one measurement never takes a source away


class FeedbackError(DataError):
    """A rule's parameters or a measurement that cannot be used; the message names the source."""


class Rule(Protocol):
    """New shares of the sources in `shares`, whose sum they keep, from perplexities, oldest first."""

    def update(self, shares: Measured, measured: Sequence[Measured]) -> dict[str, float]: ...


@dataclass(frozen=True)
class TopicFeedback:
    """P3's rule. `importance` is w_i (1 where absent); `smoothing` the weight of older changes, 0 for none.

    `normalise`: "relative" divides a change by the perplexity before it, "largest" by the largest change of
    any source, "sum" by the sum of their sizes. The last two do not depend on how fast all learn.
    """

    kind: ClassVar[str] = "topic_feedback"

    alpha: float = 1.0
    normalise: Literal["relative", "largest", "sum"] = "largest"
    importance: dict[str, float] = field(default_factory=dict)
    smoothing: float = 0.0
    floor: float = 0.0
    cap: float = 1.0

    def __post_init__(self) -> None:
        if not 0 <= self.smoothing < 1:
            raise FeedbackError(f"smoothing must be at least 0 and below 1, not {self.smoothing}")
        _check_bounds(self.floor, self.cap)

    def update(self, shares: Measured, measured: Sequence[Measured]) -> dict[str, float]:
        """Raises FeedbackError for a perplexity that is not a positive number."""
        now, changes = _known(shares, measured[-1]), self._changes(shares, measured)
        factors = {
            name: max(1 + self.alpha * changes[name] * self.importance.get(name, 1.0), LEAST)
            for name in now
            if name in changes
        }
        return _within(_scaled(shares, factors), self.floor, self.cap)

    def _changes(self, shares: Measured, measured: Sequence[Measured]) -> dict[str, float]:
        """The normalised change of each source, smoothed over the rounds in which it was measured."""
        last: dict[str, float] = {}
        smooth: dict[str, float] = {}
        for round_ in measured:
            known = _known(shares, round_)
            raw = {n: p - last[n] for n, p in known.items() if n in last}
            sizes = [abs(change) for change in raw.values()]
            for name, change in raw.items():
                size = {"relative": last[name], "largest": max(sizes), "sum": sum(sizes)}[self.normalise]
                new = change / size if change else 0.0
                old = smooth.get(name)
                smooth[name] = new if old is None else self.smoothing * old + (1 - self.smoothing) * new
            last |= known
        return smooth


@dataclass(frozen=True)
class ExcessLoss:
    """Exponentiated gradient on the loss above `reference` (nats a token, of a run with fixed shares)."""

    kind: ClassVar[str] = "excess_loss"

    reference: dict[str, float]
    eta: float = 1.0
    uniform: float = 1e-3  # DoReMi's c: how much of the uniform shares is mixed in
    floor: float = 0.0
    cap: float = 1.0

    def __post_init__(self) -> None:
        if not 0 <= self.uniform <= 1:
            raise FeedbackError(f"uniform must lie between 0 and 1, not {self.uniform}")
        _check_bounds(self.floor, self.cap)

    def update(self, shares: Measured, measured: Sequence[Measured]) -> dict[str, float]:
        """Raises FeedbackError for a perplexity that is not a positive number, or without a reference."""
        now = _known(shares, measured[-1])
        if missing := [name for name in now if name not in self.reference]:
            raise FeedbackError(f"no reference loss for {', '.join(missing)}")
        factors = {
            name: math.exp(self.eta * max(math.log(p) - self.reference[name], 0.0)) for name, p in now.items()
        }
        moved, mass = _scaled(shares, factors), sum(shares[name] for name in factors)
        for name in factors:
            moved[name] = (1 - self.uniform) * moved[name] + self.uniform * mass / len(factors)
        return _within(moved, self.floor, self.cap)


def bounded(shares: Measured, floor: float, cap: float) -> dict[str, float]:
    """The shares moved into [floor, cap]; those strictly inside keep their proportions, the sum stays.

    Raises FeedbackError where so many sources cannot all lie between the bounds.
    """
    total, n = sum(shares.values()), len(shares)
    if n * floor > total + 1e-9 or n * cap < total - 1e-9:
        raise FeedbackError(f"{n} shares with a sum of {total:g} do not fit between {floor:g} and {cap:g}")
    low, high = 0.0, 1.0
    if all(share <= 0 for share in shares.values()):
        raise FeedbackError("all shares are zero")

    def at(scale: float) -> dict[str, float]:
        return {name: min(max(share * scale, floor), cap) for name, share in shares.items()}

    if math.isclose(sum(at(1.0).values()), total, rel_tol=1e-12):
        return at(1.0)
    while sum(at(high).values()) < total and high < 1e12:
        high *= 2
    for _ in range(200):  # the sum grows with the scale: bisection
        middle = (low + high) / 2
        low, high = (middle, high) if sum(at(middle).values()) < total else (low, middle)
    found = at(high)
    spare = total - sum(found.values())
    return {name: share + spare * share / sum(found.values()) for name, share in found.items()}


def _within(shares: Measured, floor: float, cap: float) -> dict[str, float]:
    total = sum(shares.values())
    return bounded(shares, floor * total, cap * total)


def _known(shares: Measured, round_: Measured) -> dict[str, float]:
    """The perplexities of this round for the sources that have a share."""
    for name, perplexity in round_.items():
        if not (isinstance(perplexity, int | float) and math.isfinite(perplexity) and perplexity > 0):
            raise FeedbackError(f"the perplexity of {name!r} is {perplexity}: it must be a positive number")
    return {name: round_[name] for name in shares if name in round_}


def _scaled(shares: Measured, factors: Mapping[str, float]) -> dict[str, float]:
    """The shares times their factors; those without one as they are, the sum of the others kept."""
    mass = sum(shares[name] for name in factors)
    raised = {name: shares[name] * factor for name, factor in factors.items()}
    total = sum(raised.values())
    return dict(shares) | {name: share * mass / total for name, share in raised.items() if total > 0}


def _check_bounds(floor: float, cap: float) -> None:
    if not 0 <= floor <= cap <= 1:
        raise FeedbackError(f"floor and cap must satisfy 0 <= floor <= cap <= 1, not {floor} and {cap}")
