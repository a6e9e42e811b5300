"""Which source the next training sequence comes from, exactly, with weights that may change over time.

The unit is the token: every sequence has the same length, so shares of sequences are shares of tokens,
however long the documents are. No draw is random. Which source comes next is decided by Tijdeman's rule
for the chairman assignment problem (R. Tijdeman, Discrete Mathematics 32, 1980): with k sources, among those
that are behind their cumulative target by at least 1/(2k-2) sequences, take the one whose deadline comes
first, the deadline being where it would be behind by more than 1 - 1/(2k-2). Then every source stays within
1 - 1/(2k-2) sequences of its target, after every sequence, for any weights known in advance. Simply taking
the source furthest behind does not achieve that when weights change.

Inside a source, sequences come in an order shuffled anew every epoch, which depends on the source's name,
the seed and the epoch only: two arms with one seed see the same target text in the same order, whatever
is mixed in.

Departure from P1: its released configuration derives weights from document counts, by a formula that gives
50/50 for any two sources. Here the weights are the shares of tokens that were asked for, nothing else.

Costs: a few microseconds per sequence; one permutation (8 bytes per sequence) of each source in memory;
24 bytes per step and source for the schedule. The state is the counts, so resuming is exact and instant.
"""

from __future__ import annotations

import difflib
import hashlib
import math
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar, Protocol

import numpy as np

from cptkit.data.documents import DataError

TOLERANCE = 1e-9  # of a sequence: rounding must not decide whether a source is due


class MixtureError(DataError):
    """Weights, sources or a saved state that do not fit; the message has the numbers."""


# ---- weights as functions of the step ----


class Weights(Protocol):
    """Shares of the sources at a 0-based optimiser step; they sum to 1. `str()` says it in a few words."""

    def at(self, step: int) -> dict[str, float]: ...


@dataclass(frozen=True)
class Constant:
    """The same shares at every step."""

    kind: ClassVar[str] = "constant"

    weights: dict[str, float]

    def __post_init__(self) -> None:
        _check_weights(self.weights)

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
        _check_weights(self.before)
        _check_weights(self.after)
        _check_step(self.step, "step")

    def at(self, step: int) -> dict[str, float]:
        return self.before if step < self.step else self.after

    def __str__(self) -> str:
        return f"{_shares(self.before)}; from step {self.step} {_shares(self.after)}"


@dataclass(frozen=True)
class Linear:
    """`start` up to step `first`, `end` from step `last` on, a straight line between."""

    kind: ClassVar[str] = "linear"

    start: dict[str, float]
    end: dict[str, float]
    first: int
    last: int

    def __post_init__(self) -> None:
        _check_weights(self.start)
        _check_weights(self.end)
        _check_step(self.first, "first")
        _check_step(self.last, "last")
        if self.first >= self.last:
            raise MixtureError(f"linear weights need first < last, not {self.first} and {self.last}")

    def at(self, step: int) -> dict[str, float]:
        way = min(max((step - self.first) / (self.last - self.first), 0.0), 1.0)
        names = self.start | self.end
        return {n: (1 - way) * self.start.get(n, 0.0) + way * self.end.get(n, 0.0) for n in names}

    def __str__(self) -> str:
        return f"linear, step {self.first} {_shares(self.start)} to step {self.last} {_shares(self.end)}"


@dataclass(frozen=True)
class Phase:
    """Shares from step `start` on."""

    start: int
    weights: dict[str, float]

    def __post_init__(self) -> None:
        _check_step(self.start, "start")
        _check_weights(self.weights)


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
        return "; ".join(f"from step {p.start} {_shares(p.weights)}" for p in self.phases)


def _check_weights(weights: dict[str, float]) -> None:
    if not isinstance(weights, dict) or not weights:
        raise MixtureError(f"weights must be a table of source = share, not {weights!r}")
    for name, share in weights.items():
        if isinstance(share, bool) or not isinstance(share, int | float) or not 0 <= share < math.inf:
            raise MixtureError(f"the weight of {name!r} must be a number of at least 0, not {share!r}")
    if abs(sum(weights.values()) - 1) > 1e-6:
        raise MixtureError(f"{_shares(weights)}: weights must sum to 1, not {sum(weights.values()):.7g}")


def _check_step(step: int, what: str) -> None:
    if isinstance(step, bool) or not isinstance(step, int) or step < 0:
        raise MixtureError(f"{what} must be a whole number of at least 0, not {step!r}")


def _unknown(name: object, known) -> str:
    near = difflib.get_close_matches(str(name), list(known), 1)
    return f"unknown; did you mean {near[0]!r}?" if near else f"unknown; known: {', '.join(map(str, known))}"


def _shares(weights: dict[str, float]) -> str:
    return " + ".join(f"{100 * share:.4g} % {name}" for name, share in weights.items())


# ---- the mixture ----


class Mixture:
    """The order in which sequences of several sources are trained on.

    Args:
        sources: name to number of sequences (`Packed.n_sequences`).
        length: tokens per sequence, for the report.
        weights: shares of tokens over the steps. A source that never has a weight is never drawn; one whose
            weight falls to 0 may still get the one sequence it is owed.
        steps, sequences_per_step: how long the run is, and the sequences of one optimiser step over all
            micro-batches and ranks.
        seed: of the order inside each source.
        max_epochs: how often a source may be repeated (1.0: never); None: as often as the weights ask.

    Raises:
        MixtureError: unknown sources in the weights, a positive weight on an empty source, a schedule that
            repeats a source more than `max_epochs` times. All of it before the first sequence.
    """

    def __init__(
        self,
        sources: dict[str, int],
        length: int,
        weights: Weights,
        steps: int,
        sequences_per_step: int,
        seed: int,
        max_epochs: float | None = None,
    ) -> None:
        if min(length, steps, sequences_per_step) < 1:
            raise MixtureError(f"{length=}, {steps=} and {sequences_per_step=} must be at least 1")
        self.sources, self.length, self.weights = dict(sources), length, weights
        self.steps, self.sequences_per_step, self.seed = steps, sequences_per_step, seed
        self.names = list(self.sources)
        self._shares = np.array([self._row(step) for step in range(steps)])
        # Target of each source in sequences, at the start of every step and at the end of the last one.
        self._target = np.zeros((steps + 1, len(self.names)))
        np.cumsum(self._shares * sequences_per_step, axis=0, out=self._target[1:])
        self._check_supply(max_epochs)
        self._drawn_from = [i for i in range(len(self.names)) if self._target[-1, i] > 0]
        k = len(self._drawn_from)
        self._slack = 1 / (2 * k - 2) if k > 1 else 0.0
        self._columns = np.ascontiguousarray(self._target.T)
        self._orders: dict[int, tuple[int, np.ndarray]] = {}
        self.step = 0
        self._counts = [0] * len(self.names)
        self._worst = 0.0

    def _row(self, step: int) -> list[float]:
        weights = self.weights.at(step)
        for name in weights:
            if name not in self.sources:
                raise MixtureError(f"weights, step {step}: source {name!r} is {_unknown(name, self.sources)}")
        _check_weights(weights)
        total = math.fsum(weights.values())  # may miss 1 by 1e-6, in a million sequences a whole one
        return [weights.get(name, 0.0) / total for name in self.names]

    def _check_supply(self, max_epochs: float | None) -> None:
        for name, asked in zip(self.names, self._target[-1].tolist(), strict=True):
            available = self.sources[name]
            if asked > 0 and available < 1:
                raise MixtureError(f"source {name!r} has a positive weight but no sequences")
            if max_epochs is not None and asked > max_epochs * available * (1 + TOLERANCE):
                raise MixtureError(
                    f"source {name!r}: the schedule asks for {_tokens(asked * self.length)} tokens of the "
                    f"{_tokens(available * self.length)} there are, {asked / available:.2f} epochs where "
                    f"max_epochs is {max_epochs:g}: add text, lower its weight, train less or allow more"
                )

    # -- drawing --

    def next_step(self) -> list[tuple[str, int]]:
        """(source, index of a sequence in it) for each sequence of the next optimiser step.

        The sources are spread evenly over the list, so that its slices (micro-batches, ranks) are mixed too.

        Raises:
            MixtureError: all `steps` have been drawn.
        """
        if self.step >= self.steps:
            raise MixtureError(f"the mixture was planned for {self.steps} steps and has delivered them all")
        target, shares = self._target[self.step].tolist(), self._shares[self.step].tolist()
        deadlines = {i: self._deadline(i) for i in self._drawn_from}
        drawn = []
        for n in range(1, self.sequences_per_step + 1):
            behind = {i: target[i] + n * shares[i] - self._counts[i] for i in self._drawn_from}
            enough = min(self._slack, max(behind.values()))  # rounding must leave one due
            due = [i for i in self._drawn_from if behind[i] >= enough - TOLERANCE]
            chosen = min(due, key=deadlines.__getitem__)
            drawn.append((self.names[chosen], self._index(chosen)))
            self._counts[chosen] += 1
            deadlines[chosen] = self._deadline(chosen)
            behind[chosen] -= 1
            self._worst = max(self._worst, max(map(abs, behind.values())))
        self.step += 1
        return drawn

    def _deadline(self, i: int) -> float:
        """When, in sequences from the start of the run, source `i` must have been drawn again."""
        goal = self._counts[i] + 1 - self._slack
        column = self._columns[i]
        step = int(np.searchsorted(column, goal))  # the target reaches the goal during step - 1
        if step > self.steps:
            return math.inf
        share = (goal - column[step - 1]) / (column[step] - column[step - 1])
        return (step - 1 + float(share)) * self.sequences_per_step

    def _index(self, i: int) -> int:
        epoch, position = divmod(self._counts[i], self.sources[self.names[i]])
        if self._orders.get(i, (None,))[0] != epoch:
            self._orders[i] = epoch, self._order(self.names[i], epoch)
        return int(self._orders[i][1][position])

    def _order(self, name: str, epoch: int) -> np.ndarray:
        """Every sequence of the source once. Sorting raw bits, as NumPy may change how it shuffles."""
        source = int.from_bytes(hashlib.sha256(name.encode()).digest()[:16], "big")
        bits = np.random.PCG64(np.random.SeedSequence([source, self.seed, epoch]))
        return np.argsort(bits.random_raw(self.sources[name]), kind="stable")

    # -- reporting --

    def describe(self) -> str:
        """The plan as text, one line per source: tokens asked and available, share in all and now, epochs."""
        now = self._shares[min(self.step, self.steps - 1)]
        everything = self._target[-1].sum()
        rows = [("source", "tokens", "share", f"at step {self.step}", "available", "epochs")]
        for i, (name, available) in enumerate(self.sources.items()):
            asked = self._target[-1, i]
            shares = f"{100 * asked / everything:.2f} %", f"{100 * now[i]:.2f} %"
            epochs = f"{asked / available:.2f}" if available else "-"
            in_tokens = _tokens(asked * self.length), _tokens(available * self.length)
            rows.append((name, in_tokens[0], *shares, in_tokens[1], epochs))
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = [
            f"mixture of {_tokens(everything * self.length)} tokens: {self.steps:,} steps of "
            f"{self.sequences_per_step:,} sequences of {self.length:,} tokens (seed {self.seed})",
            f"weights: {self.weights}",
        ]
        for n, (name, *cells) in enumerate(rows):
            branch = "   " if n == 0 else "└─ " if n == len(rows) - 1 else "├─ "
            numbers = "  ".join(cell.rjust(width) for cell, width in zip(cells, widths[1:], strict=True))
            lines.append(f"{branch}{name.ljust(widths[0])}  {numbers}")
        return "\n".join(lines)

    def audit(self) -> dict:
        """What was delivered so far, as plain numbers for JSON.

        Per source: `tokens` and `asked` (tokens that the weights gave it up to this step), `share` and
        `asked_share` of all tokens, `sequences`, `epochs`. Overall: `steps`, `tokens`, and `max_deviation`,
        the largest distance from the target after any sequence of any source, in sequences.
        """
        asked, total = self._target[self.step].tolist(), self.step * self.sequences_per_step
        sources = {
            name: {
                "tokens": count * self.length,
                "asked": asked[i] * self.length,
                "share": count / total if total else 0.0,
                "asked_share": asked[i] / total if total else 0.0,
                "sequences": count,
                "epochs": count / self.sources[name] if count else 0.0,
            }
            for i, (name, count) in enumerate(zip(self.names, self._counts, strict=True))
        }
        return {
            "steps": self.step,
            "tokens": total * self.length,
            "max_deviation": self._worst,
            "sources": sources,
        }

    # -- resuming --

    def state_dict(self) -> dict:
        """Step, counts and the deviation so far: plain numbers, a copy."""
        counts = dict(zip(self.names, self._counts, strict=True))
        return {"step": self.step, "counts": counts, "worst": self._worst}

    def load_state_dict(self, state: dict) -> None:
        """Go on where `state_dict` was taken.

        Raises:
            MixtureError: the state belongs to other sources, weights, or another size of step.
        """
        step, counts = state["step"], state["counts"]
        if set(counts) != set(self.names) or not 0 <= step <= self.steps:
            raise MixtureError(
                f"the saved mixture (step {step}, sources {', '.join(counts)}) is not this one "
                f"({self.steps} steps, sources {', '.join(self.names)})"
            )
        targets = dict(zip(self.names, self._target[step].tolist(), strict=True))
        apart = any(abs(counts[name] - target) >= 1 for name, target in targets.items())
        if apart or sum(counts.values()) != step * self.sequences_per_step:
            raise MixtureError(
                f"the saved mixture had drawn {counts} sequences by step {step}, these weights and this "
                f"batch size ask for {targets}: resume with the settings it was saved with"
            )
        self.step, self._worst = step, state["worst"]
        self._counts = [counts[name] for name in self.names]


def _tokens(n: float) -> str:
    """A count of tokens in three digits: 950, 8.19K, 1.64M, 100B."""
    for unit, size in (("T", 1e12), ("B", 1e9), ("M", 1e6), ("K", 1e3)):
        if n >= size:
            return f"{n / size:.3g}{unit}"
    return f"{n:.0f}"
