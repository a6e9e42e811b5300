"""Shares of the sources over the optimiser steps: constant, switched, linear, in phases, or fed back.

Each is a frozen dataclass that a spec can hold and that prints itself in a few words. All but `Dynamic` are
known before training; `Dynamic` says where to begin and by which rule to go on (`feedback.py`), and the
trainer tells the mixture its next shares at every interval.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import ClassVar, Protocol

from cptkit.data.corpus import CorpusSpec
from cptkit.data.documents import DataError
from cptkit.data.feedback import ExcessLoss, TopicFeedback


class MixtureError(DataError):
    """Weights, sources or a saved state that do not fit; the message has the numbers."""


class Weights(Protocol):
    """Shares of the sources at a 0-based optimiser step; they sum to 1. `str()` says it in a few words."""

    def at(self, step: int) -> dict[str, float]: ...


@dataclass(frozen=True)
class Constant:
    """The same shares at every step."""

    kind: ClassVar[str] = "constant"

    weights: dict[str, float]

    def __post_init__(self) -> None:
        check_weights(self.weights)

    def at(self, step: int) -> dict[str, float]:
        return self.weights

    def __str__(self) -> str:
        return "constant"


@dataclass(frozen=True)
class Switch:
    """`before` up to `step`, `after` from `step` on."""

    kind: ClassVar[str] = "switch"

    before: dict[str, float]
    after: dict[str, float]
    step: int

    def __post_init__(self) -> None:
        check_weights(self.before)
        check_weights(self.after)
        _check_step(self.step, "step")

    def at(self, step: int) -> dict[str, float]:
        return self.before if step < self.step else self.after

    def __str__(self) -> str:
        return f"{shares_text(self.before)}; from step {self.step} {shares_text(self.after)}"


@dataclass(frozen=True)
class Linear:
    """`start` up to step `first`, `end` from step `last` on, a straight line between."""

    kind: ClassVar[str] = "linear"

    start: dict[str, float]
    end: dict[str, float]
    first: int
    last: int

    def __post_init__(self) -> None:
        check_weights(self.start)
        check_weights(self.end)
        _check_step(self.first, "first")
        _check_step(self.last, "last")
        if self.first >= self.last:
            raise MixtureError(f"linear weights need first < last, not {self.first} and {self.last}")

    def at(self, step: int) -> dict[str, float]:
        way = min(max((step - self.first) / (self.last - self.first), 0.0), 1.0)
        names = self.start | self.end
        return {n: (1 - way) * self.start.get(n, 0.0) + way * self.end.get(n, 0.0) for n in names}

    def __str__(self) -> str:
        return (
            f"linear, step {self.first} {shares_text(self.start)} to step {self.last} {shares_text(self.end)}"
        )


@dataclass(frozen=True)
class Phase:
    """Shares from step `start` on."""

    start: int
    weights: dict[str, float]

    def __post_init__(self) -> None:
        _check_step(self.start, "start")
        check_weights(self.weights)


@dataclass(frozen=True)
class Phases:
    """Any number of phases, in order; the first starts at step 0."""

    kind: ClassVar[str] = "phases"

    phases: tuple[Phase, ...]

    def __post_init__(self) -> None:
        starts = [phase.start for phase in self.phases]
        if starts[:1] != [0] or any(b <= a for a, b in pairwise(starts)):
            raise MixtureError(f"phases must start at step 0 and then at ever later steps, not at {starts}")

    def at(self, step: int) -> dict[str, float]:
        return next(p.weights for p in reversed(self.phases) if p.start <= max(step, 0))

    def __str__(self) -> str:
        return "; ".join(f"from step {p.start} {shares_text(p.weights)}" for p in self.phases)


def check_weights(weights: dict[str, float]) -> None:
    if not isinstance(weights, dict) or not weights:
        raise MixtureError(f"weights must be a table of source = share, not {weights!r}")
    for name, share in weights.items():
        if isinstance(share, bool) or not isinstance(share, int | float) or not 0 <= share < math.inf:
            raise MixtureError(f"the weight of {name!r} must be a number of at least 0, not {share!r}")
    if abs(sum(weights.values()) - 1) > 1e-6:
        raise MixtureError(f"{shares_text(weights)}: weights must sum to 1, not {sum(weights.values()):.7g}")


def _check_step(step: int, what: str) -> None:
    if isinstance(step, bool) or not isinstance(step, int) or step < 0:
        raise MixtureError(f"{what} must be a whole number of at least 0, not {step!r}")


def shares_text(weights: dict[str, float]) -> str:
    return " + ".join(f"{100 * share:.4g} % {name}" for name, share in weights.items())


@dataclass(frozen=True)
class Dynamic:
    """`base`, but what the sources of `texts` have together is divided by `rule`, anew every `every` steps.

    `texts` gives each of them its validation text, whose perplexity the rule is told at step 0 and then after
    every interval; the other sources keep their shares. `groups` (group -> sources) are measured and moved as
    one, their sources in fixed proportion to each other: feedback between data sets and not between topics.
    Phases of `base` must change between intervals.
    """

    kind: ClassVar[str] = "dynamic"

    base: Constant | Phases
    every: int
    rule: TopicFeedback | ExcessLoss
    texts: dict[str, CorpusSpec]
    groups: dict[str, tuple[str, ...]] = field(default_factory=dict)
    documents: int = 50  # per validation text, from its beginning

    def __post_init__(self) -> None:
        if isinstance(self.every, bool) or not isinstance(self.every, int) or self.every < 1:
            raise MixtureError(f"every must be a whole number of at least 1, not {self.every!r}")
        starts = [phase.start for phase in self.base.phases] if isinstance(self.base, Phases) else [0]
        if late := [start for start in starts if start % self.every]:
            raise MixtureError(f"phases start at {late}, inside of an interval of {self.every} steps")
        for start in starts:
            if missing := [name for name in self.texts if self.base.at(start).get(name, 0.0) <= 0]:
                raise MixtureError(f"step {start}: feedback needs a positive share of {', '.join(missing)}")
        grouped = [name for names in self.groups.values() for name in names]
        if self.groups and sorted(grouped) != sorted(self.texts):
            raise MixtureError("groups must name every source that is fed back exactly once")
        if len(self.groups or self.texts) < 2:
            raise MixtureError("feedback needs two sources, or two groups, to divide a share between")

    def at(self, step: int) -> dict[str, float]:
        return self.base.at(step)

    def next(self, step: int, shares: Mapping[str, float], measured: Sequence[Mapping[str, float]]) -> dict:
        """The shares from `step` on, from those before it and all measurements so far."""
        members = self.groups or {name: (name,) for name in self.texts}
        asked, before = dict(self.base.at(step)), sum(shares[name] for name in self.texts)
        scale = sum(asked[name] for name in self.texts) / before
        together = {group: scale * sum(shares[n] for n in names) for group, names in members.items()}
        moved = self.rule.update(together, [self._grouped(m, shares, members) for m in measured])
        for group, names in members.items():
            for name in names:
                asked[name] = scale * shares[name] / together[group] * moved[group]
        return asked

    def _grouped(self, round_: Mapping, shares: Mapping, members: Mapping) -> dict[str, float]:
        """Perplexity of each group: of its mean loss, sources weighted by their shares."""
        found = {}
        for group, names in members.items():
            known = [name for name in names if name in round_]
            if len(names) == 1 and known:
                found[group] = round_[names[0]]
            elif known:
                total = sum(shares[name] for name in known)
                found[group] = math.exp(sum(shares[n] * math.log(round_[n]) for n in known) / total)
        return found

    def __str__(self) -> str:
        return f"{self.base}; {', '.join(self.texts)} divided anew every {self.every} steps by {self.rule}"
