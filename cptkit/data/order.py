"""In which order a source's sequences are trained on, given how hard each of them is.

An order is a frozen dataclass that turns (sequences, scores) into the same sequences rearranged. The
mixture hands it exactly the sequences that the run will use (`Mixture(arrange=...)`), so that every order
is trained on the same text: sorting a whole corpus and stopping early would compare easy text with hard
text instead.

    random (no order)   shuffled by the seed Sorted              easy to hard, or hard to easy (P3, arXiv
    2407.18743, Section 3.2) Buckets             stages of rising difficulty, random inside, some of each
    stage spread over the whole run Paced               from the easiest share of the text that grows with
    the square root of time
                        (competence, Platanios et al., arXiv 1903.09848)

Subject by subject is not an order inside one source: give each subject a source, and the mixture phases.

P3 sorts by the perplexity of the model itself and gives no more. Whether scores are nats a token or nats a
byte is `unit`: per token, text of many repeated or rare pieces and text in another script move for reasons
that are not difficulty (notebook 09 shows which). Scores are of the start model and are not refreshed.

Cost: a sort of the sequences a run uses. Everything is a pure function of scores and seed, so a resumed run
goes on in the same order.
"""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from cptkit.data.documents import DataError


class OrderError(DataError):
    """Parameters or scores that make no order; the message has the numbers."""


Unit = Literal["token", "byte"]


@dataclass(frozen=True)
class Sorted:
    """From easy to hard, or with `descending` from hard to easy."""

    kind: ClassVar[str] = "sorted"

    descending: bool = False
    unit: Unit = "token"

    def arrange(self, used: np.ndarray, scores: np.ndarray, seed: int) -> np.ndarray:
        """`used` [n] int64 by `scores` [n] float64; equal scores keep their random order."""
        scores = _checked(used, scores)
        return used[np.argsort(-scores if self.descending else scores, kind="stable")]


@dataclass(frozen=True)
class Buckets:
    """`count` stages of equal size from easy to hard; `mixed` of all sequences stand anywhere in the run."""

    kind: ClassVar[str] = "buckets"

    count: int = 4
    mixed: float = 0.2
    unit: Unit = "token"

    def __post_init__(self) -> None:
        if self.count < 2 or not 0 <= self.mixed <= 1:
            raise OrderError(f"buckets need count >= 2 and mixed in [0, 1], not {self.count}, {self.mixed}")

    def arrange(self, used: np.ndarray, scores: np.ndarray, seed: int) -> np.ndarray:
        scores, n = _checked(used, scores), len(used)
        rank = np.empty(n, np.int64)
        rank[np.argsort(scores, kind="stable")] = np.arange(n)
        stage = rank * self.count // max(n, 1)
        staged = np.argsort(stage, kind="stable")  # inside a stage as they came: at random
        anywhere = round(self.mixed * n)
        free = np.zeros(n, bool)
        free[_bits(n, seed, 0).argsort(kind="stable")[:anywhere]] = True  # sequences that may stand anywhere
        places = np.zeros(n, bool)
        places[_bits(n, seed, 1).argsort(kind="stable")[:anywhere]] = True
        result = np.empty(n, np.int64)
        result[~places] = staged[~free[staged]]
        result[places] = np.flatnonzero(free)
        return used[result]


@dataclass(frozen=True)
class Paced:
    """At each moment a random one of the easiest share c(t) of all, not yet used: c from `start` to 1.

    c(t) = min(1, (t (1 - start^p) / by + start^p)^(1/p)) with t from 0 to 1; all is open at t = `by`.
    """

    kind: ClassVar[str] = "paced"

    start: float = 0.1
    by: float = 0.8
    power: float = 2.0
    unit: Unit = "token"

    def __post_init__(self) -> None:
        if not (0 < self.start <= 1 and 0 < self.by <= 1 and self.power > 0):
            raise OrderError(f"paced needs 0 < start, by <= 1 and power > 0, not {self}")

    def competence(self, t: float) -> float:
        """The share of the text that is open at t, a share of the run."""
        first = self.start**self.power
        return min(1.0, (t * (1 - first) / self.by + first) ** (1 / self.power))

    def arrange(self, used: np.ndarray, scores: np.ndarray, seed: int) -> np.ndarray:
        scores, n = _checked(used, scores), len(used)
        easiest = np.argsort(scores, kind="stable").tolist()
        key, pool, result, opened = _bits(n, seed, 0).tolist(), [], [], 0
        for place in range(n):
            allowed = max(math.ceil(self.competence(place / n) * n), place + 1)
            while opened < min(allowed, n):
                heapq.heappush(pool, (key[easiest[opened]], easiest[opened]))
                opened += 1
            result.append(heapq.heappop(pool)[1])
        return used[np.array(result, np.int64)] if n else used


Order = Sorted | Buckets | Paced


def _checked(used: np.ndarray, scores: np.ndarray) -> np.ndarray:
    scores = np.asarray(scores, float)
    if scores.shape != np.shape(used):
        raise OrderError(f"{np.shape(used)} sequences have {scores.shape} scores")
    if not np.isfinite(scores).all():
        raise OrderError(f"{int((~np.isfinite(scores)).sum())} of {len(scores)} scores are not finite")
    return scores


def _bits(n: int, seed: int, stream: int) -> np.ndarray:
    """n random numbers. Raw bits, as NumPy may change how it shuffles."""
    return np.random.PCG64(np.random.SeedSequence([seed, stream])).random_raw(n)
