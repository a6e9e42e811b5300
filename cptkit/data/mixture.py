"""Which source the next training sequence comes from, exactly, with weights that may change over time.

The unit is the token: every sequence has the same length, so shares of sequences are shares of tokens,
however long the documents are. No draw is random. Which source comes next is decided by Tijdeman's rule
for the chairman assignment problem (R. Tijdeman, Discrete Mathematics 32, 1980): with k sources, among those
that are behind their cumulative target by at least 1/(2k-2) sequences, take the one whose deadline comes
first, the deadline being where it would be behind by more than 1 - 1/(2k-2). Then every source stays within
1 - 1/(2k-2) sequences of its target, after every sequence, for any weights known in advance. Simply taking
the source furthest behind does not achieve that when weights change.

Weights that are set while the run goes on (`Dynamic`) are not known in advance. `reweigh` plans one interval
at a time: each source is to have at its end what it should have by then, so what it was owed is paid within
the interval. Then every source is within one sequence of its target at the end of an interval, and within
two inside it, unless its share of an interval is less than what it had too much.

Inside a source, sequences come in an order shuffled anew every epoch, which depends on the source's name,
the seed and the epoch only: two arms with one seed see the same target text in the same order, whatever
is mixed in. `arrange` may put the sequences that a run will use in another order (`order.py`): which they are
stays the same, so that orders are compared on equal text.

Departure from P1: its released configuration derives weights from document counts, by a formula that gives
50/50 for any two sources. Here the weights are the shares of tokens that were asked for, nothing else.

Costs: a few microseconds per sequence; one permutation (8 bytes per sequence) of each source in memory;
24 bytes per step and source for the schedule. The state is the counts, so resuming is exact and instant.
"""

from __future__ import annotations

import difflib
import hashlib
import math
from collections.abc import Callable, Mapping

import numpy as np

from cptkit.data.weights import MixtureError, Weights, check_weights

TOLERANCE = 1e-9  # of a sequence: rounding must not decide whether a source is due


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
        arrange: source name to a function that is given the sequences this run will use, in their random
            order (int64, with repetitions in later epochs), and returns them in the order wanted. With
            weights that are fed back their number is an estimate from the first ones; what is used beyond
            it is in random order.

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
        arrange: Mapping[str, Callable[[np.ndarray], np.ndarray]] | None = None,
    ) -> None:
        if min(length, steps, sequences_per_step) < 1:
            raise MixtureError(f"{length=}, {steps=} and {sequences_per_step=} must be at least 1")
        self.sources, self.length, self.weights = dict(sources), length, weights
        self.steps, self.sequences_per_step, self.seed = steps, sequences_per_step, seed
        self.names = list(self.sources)
        self._shares = np.array([self._row(step) for step in range(steps)])
        # What each source should have had, in sequences, at the start of every step and after the last.
        self._target = np.zeros((steps + 1, len(self.names)))
        np.cumsum(self._shares * sequences_per_step, axis=0, out=self._target[1:])
        self.max_epochs = max_epochs
        self._check_supply(steps)
        self._changes: list[tuple[int, int, list[float], list[int]]] = []
        self._follow(self._target, self._shares)
        self._orders: dict[int, tuple[int, np.ndarray]] = {}
        self._arranged = self._arrange(arrange or {})
        self.step = 0
        self._counts = [0] * len(self.names)
        self._worst = 0.0

    def _follow(self, plan: np.ndarray, rates: np.ndarray) -> None:
        """Draw by `plan` [steps + 1, k], which grows by `rates`: the target, unless weights are fed back."""
        self._plan, self._rates, self._columns = plan, rates, np.ascontiguousarray(plan.T)
        self._drawn_from = [i for i in range(len(self.names)) if plan[-1, i] > 0]
        k = len(self._drawn_from)
        self._slack = 1 / (2 * k - 2) if k > 1 else 0.0

    def _row(self, step: int) -> list[float]:
        return self._checked(self.weights.at(step), step)

    def _checked(self, weights: Mapping[str, float], step: int) -> list[float]:
        for name in weights:
            if name not in self.sources:
                raise MixtureError(f"weights, step {step}: source {name!r} is {_unknown(name, self.sources)}")
        check_weights(weights)
        total = math.fsum(weights.values())  # may miss 1 by 1e-6, in a million sequences a whole one
        return [weights.get(name, 0.0) / total for name in self.names]

    def _check_supply(self, until: int) -> None:
        """Refuse targets that no text, or too little, is there for, up to the start of step `until`."""
        for name, asked in zip(self.names, self._target[until].tolist(), strict=True):
            available = self.sources[name]
            if asked > 0 and available < 1:
                raise MixtureError(f"source {name!r} has a positive weight but no sequences")
            if self.max_epochs is not None and asked > self.max_epochs * available * (1 + TOLERANCE):
                raise MixtureError(
                    f"source {name!r}: the schedule asks for {_tokens(asked * self.length)} tokens of the "
                    f"{_tokens(available * self.length)} there are, {asked / available:.2f} epochs where "
                    f"max_epochs is {self.max_epochs:g}: add text, lower its weight, train less or allow more"
                )

    # -- weights that are fed back --

    @property
    def shares(self) -> dict[str, float]:
        """The shares of the next step (of the last one at the end)."""
        return dict(zip(self.names, self._shares[min(self.step, self.steps - 1)].tolist(), strict=True))

    def reweigh(self, weights: Mapping[str, float], steps: int) -> None:
        """From the next step on use these shares; they are expected to hold for `steps` steps.

        Raises:
            MixtureError: unknown sources, shares that do not sum to 1, or more than `max_epochs` of a source
                within those steps.
        """
        until = min(self.step + max(steps, 1), self.steps)
        row = self._checked(weights, self.step)
        if until == self.step:
            return
        self._apply(self.step, until, row, self._counts)
        self._check_supply(until)
        self._changes.append((self.step, until, row, list(self._counts)))

    def _apply(self, step: int, until: int, row: list[float], counts: list[int]) -> None:
        """Targets from `step` on by the shares `row`, and the plan that has paid all debts at `until`."""
        n = self.sequences_per_step
        self._shares[step:] = row
        ahead = np.arange(1, self.steps - step + 1)[:, None] * n
        self._target[step + 1 :] = self._target[step] + ahead * np.asarray(row)
        missing = np.maximum(self._target[until] - counts, 0.0)
        missing *= (until - step) * n / missing.sum()
        rates, plan = self._shares.copy(), self._target.copy()
        rates[step:until] = missing / ((until - step) * n)
        plan[step] = counts
        plan[step + 1 :] = plan[step] + np.cumsum(rates[step:] * n, axis=0)
        self._follow(plan, rates)

    # -- drawing --

    def next_step(self) -> list[tuple[str, int]]:
        """(source, index of a sequence in it) for each sequence of the next optimiser step.

        The sources are spread evenly over the list, so that its slices (micro-batches, ranks) are mixed too.

        Raises:
            MixtureError: all `steps` have been drawn.
        """
        if self.step >= self.steps:
            raise MixtureError(f"the mixture was planned for {self.steps} steps and has delivered them all")
        step, fed_back = self.step, self._plan is not self._target
        plan, rates = self._plan[step].tolist(), self._rates[step].tolist()
        deadlines = {i: self._deadline(i) for i in self._drawn_from}
        drawn = []
        for n in range(1, self.sequences_per_step + 1):
            behind = {i: plan[i] + n * rates[i] - self._counts[i] for i in self._drawn_from}
            enough = min(self._slack, max(behind.values()))  # rounding must leave one due
            due = [i for i in self._drawn_from if behind[i] >= enough - TOLERANCE]
            chosen = min(due, key=deadlines.__getitem__)
            drawn.append((self.names[chosen], self._index(chosen)))
            self._counts[chosen] += 1
            deadlines[chosen] = self._deadline(chosen)
            behind[chosen] -= 1
            if fed_back:  # what counts is the distance from what was asked, not from the plan
                asked = self._target[step] + n * self._shares[step]
                behind = dict(enumerate((asked - self._counts).tolist()))
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
        arranged = self._arranged.get(i, ())
        if self._counts[i] < len(arranged):
            return int(arranged[self._counts[i]])
        epoch, position = divmod(self._counts[i], self.sources[self.names[i]])
        if self._orders.get(i, (None,))[0] != epoch:
            self._orders[i] = epoch, self._order(self.names[i], epoch)
        return int(self._orders[i][1][position])

    def _order(self, name: str, epoch: int) -> np.ndarray:
        """Every sequence of the source once. Sorting raw bits, as NumPy may change how it shuffles."""
        source = int.from_bytes(hashlib.sha256(name.encode()).digest()[:16], "big")
        bits = np.random.PCG64(np.random.SeedSequence([source, self.seed, epoch]))
        return np.argsort(bits.random_raw(self.sources[name]), kind="stable")

    def _arrange(self, arrange: Mapping[str, Callable[[np.ndarray], np.ndarray]]) -> dict[int, np.ndarray]:
        """The sequences that the sources of `arrange` will use, in the order wanted."""
        result = {}
        for name, order in arrange.items():
            if name not in self.sources:
                raise MixtureError(f"order of source {name!r}: {_unknown(name, self.sources)}")
            i = self.names.index(name)
            need, there = math.ceil(self._target[-1, i] - TOLERANCE), self.sources[name]
            epochs = [self._order(name, epoch) for epoch in range(-(-need // there) if there else 0)]
            used = np.concatenate(epochs)[:need] if epochs else np.zeros(0, np.int64)
            result[i] = np.asarray(order(used))
            if sorted(result[i].tolist()) != sorted(used.tolist()):
                raise MixtureError(
                    f"order of source {name!r}: it must keep the {need} sequences it was given"
                )
        return result

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
        """Step, counts, the deviation so far and the weights fed back so far: plain numbers, a copy."""
        counts = dict(zip(self.names, self._counts, strict=True))
        changes = [[step, until, list(row), list(had)] for step, until, row, had in self._changes]
        return {"step": self.step, "counts": counts, "worst": self._worst, "changes": changes}

    def load_state_dict(self, state: dict) -> None:
        """Go on where `state_dict` was taken, in a mixture that has not been drawn from.

        Raises:
            MixtureError: the state belongs to other sources, weights, or another size of step.
        """
        step, counts = state["step"], state["counts"]
        if set(counts) != set(self.names) or not 0 <= step <= self.steps:
            raise MixtureError(
                f"the saved mixture (step {step}, sources {', '.join(counts)}) is not this one "
                f"({self.steps} steps, sources {', '.join(self.names)})"
            )
        for changed, until, row, had in state.get("changes", ()):
            self._apply(changed, until, row, had)
            self._changes.append((changed, until, row, had))
        plan = dict(zip(self.names, self._plan[step].tolist(), strict=True))
        apart = any(abs(counts[name] - planned) >= 1 for name, planned in plan.items())
        if apart or sum(counts.values()) != step * self.sequences_per_step:
            raise MixtureError(
                f"the saved mixture had drawn {counts} sequences by step {step}, these weights and this "
                f"batch size ask for {plan}: resume with the settings it was saved with"
            )
        self.step, self._worst = step, state["worst"]
        self._counts = [counts[name] for name in self.names]


def _tokens(n: float) -> str:
    """A count of tokens in three digits: 950, 8.19K, 1.64M, 100B."""
    for unit, size in (("T", 1e12), ("B", 1e9), ("M", 1e6), ("K", 1e3)):
        if n >= size:
            return f"{n / size:.3g}{unit}"
    return f"{n:.0f}"


def _unknown(name: object, known) -> str:
    near = difflib.get_close_matches(str(name), list(known), 1)
    return f"unknown; did you mean {near[0]!r}?" if near else f"unknown; known: {', '.join(map(str, known))}"
