"""The two scaling laws as closed forms: loss, optimum, tokens for a loss, data transferred, compute saved.

Both are L(N, D) = E + A / N^alpha + B / (D^beta N^gamma) in nats a token: with gamma = 0 the law of training
from scratch (Hoffmann et al., 2203.15556), else P2's extended law of continued pretraining (2407.02118,
Eq. 4). D counts target tokens, trained on once each.

N, in this whole study, is the number of weights that are not the embedding matrix or the head: attention,
feed-forward and norms (`train/shapes.py` counts them). P2 prints sizes that contain one embedding matrix and
does not say which N entered its fit, so its constants are used with its own N alone and never compared with
ours as numbers. Compute is C = 6 N D FLOPs unless `shapes.Shape.flops_per_token` says otherwise.

Every constant may be an array (draws of a bootstrap): all functions broadcast. Cost: microseconds a call.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from cptkit.study.claims import PAPERS, ClaimError

FLOPS_PER_WEIGHT = 6.0  # forward and backward of one token: 2 + 4 (Kaplan et al., 2001.08361)
CONSTANTS = ("E", "A", "B", "alpha", "beta", "gamma")
SETTINGS = {"scratch": "training from scratch", "cpt": "continual pre-training"}


@dataclass(frozen=True)
class Law:
    """L = E + A / N^alpha + B / (D^beta N^gamma). Constants are floats, or arrays of one shape (draws)."""

    E: ArrayLike
    A: ArrayLike
    B: ArrayLike
    alpha: ArrayLike
    beta: ArrayLike
    gamma: ArrayLike = 0.0

    def loss(self, N: ArrayLike, D: ArrayLike) -> np.ndarray:
        """Nats a token after D tokens with N weights."""
        N, D = np.asarray(N, float), np.asarray(D, float)
        return self.floor(N) + self.B * D ** -np.asarray(self.beta) * N ** -np.asarray(self.gamma)

    def floor(self, N: ArrayLike) -> np.ndarray:
        """The loss of N weights after endlessly many tokens."""
        return self.E + self.A * np.asarray(N, float) ** -np.asarray(self.alpha)

    def tokens(self, loss: ArrayLike, N: ArrayLike) -> np.ndarray:
        """Tokens at which N weights reach `loss`; NaN at or below their floor, which no budget reaches."""
        N = np.asarray(N, float)
        left = np.asarray(loss, float) - self.floor(N)
        with np.errstate(invalid="ignore", divide="ignore"):
            need = (self.B * N ** -np.asarray(self.gamma) / left) ** (1 / np.asarray(self.beta, float))
        return np.where(left > 0, need, np.nan)

    @property
    def exponents(self) -> tuple[np.ndarray, np.ndarray]:
        """(a, b): the compute-optimal N goes as C^a, D as C^b; a + b = 1 (P2, Eq. 6 and 7)."""
        beta = np.asarray(self.beta, float)
        both = np.asarray(self.alpha) + beta - self.gamma
        return beta / both, (np.asarray(self.alpha) - self.gamma) / both

    @property
    def coefficients(self) -> tuple[np.ndarray, np.ndarray]:
        """(k, l): the compute-optimal N is k C^a and D is l C^b, C in FLOPs.

        NaN where beta <= gamma: there a larger model is always better, and no optimum exists.
        """
        (a, b), steep = self.exponents, np.asarray(self.beta, float) - self.gamma
        with np.errstate(invalid="ignore", divide="ignore"):
            ratio = np.asarray(self.alpha) * self.A / (steep * np.asarray(self.B, float))
            size = np.where(steep > 0, ratio, np.nan) ** (1 / (np.asarray(self.alpha) + steep))
        return size * FLOPS_PER_WEIGHT**-a, FLOPS_PER_WEIGHT**-b / size

    def optimum(self, flops: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
        """(N, D) with the lowest loss at C = 6 N D = `flops`."""
        (a, b), (k, m) = self.exponents, self.coefficients
        flops = np.asarray(flops, float)
        return k * flops**a, m * flops**b

    def best(self, flops: ArrayLike) -> np.ndarray:
        """The lowest loss at `flops`."""
        return self.loss(*self.optimum(flops))


def transferred(scratch: Law, cpt: Law, N: ArrayLike, D: ArrayLike) -> np.ndarray:
    """Effectively transferred tokens: what scratch needs beyond D to be where CPT is (P2, Eq. 10).

    NaN where scratch never gets there; negative where CPT is behind.
    """
    return scratch.tokens(cpt.loss(N, D), N) - np.asarray(D, float)


def saved(scratch: Law, cpt: Law, N: ArrayLike, D: ArrayLike) -> np.ndarray:
    """Share of FLOPs that CPT saves at equal loss and size, after D tokens of CPT (P2, Section 4.2).

    At equal size FLOPs go as tokens, however they are counted. 1 where scratch never gets there.
    """
    need = scratch.tokens(cpt.loss(N, D), N)
    return np.where(np.isnan(need), 1.0, 1 - np.asarray(D, float) / need)


def saved_at_best(scratch: Law, cpt: Law, flops: ArrayLike) -> np.ndarray:
    """Share of FLOPs that CPT saves at its best loss of `flops`, each law at its own optimal size.

    Found by bisection on log C, to 1e-9; NaN where scratch does not get there within a factor of 10^6.
    """
    flops = np.asarray(flops, float)
    wanted = cpt.best(flops)
    low, high = np.log(flops) - np.log(1e6), np.log(flops) + np.log(1e6)
    low, high = np.broadcast_arrays(low + 0 * wanted, high + 0 * wanted)
    inside = (scratch.best(np.exp(high)) <= wanted) & (scratch.best(np.exp(low)) >= wanted)
    for _ in range(50):
        middle = (low + high) / 2
        short = scratch.best(np.exp(middle)) > wanted
        low, high = np.where(short, middle, low), np.where(short, high, middle)
    return np.where(inside, 1 - flops / np.exp(high), np.nan)


def contour(law: Law, loss: float, N: ArrayLike) -> np.ndarray:
    """FLOPs at which each size reaches `loss`: one iso-loss line of P2's Figure 4. NaN where never."""
    return FLOPS_PER_WEIGHT * np.asarray(N, float) * law.tokens(loss, N)


def published_laws(table: pd.DataFrame) -> dict[str, Law]:
    """P2's printed laws (Table 2a) by arm, `scratch` and `cpt`, from `claims.published()`.

    Raises ClaimError when a constant is not there exactly once.
    """
    rows = table[(table["paper"] == PAPERS["P2"]) & (table["table_or_figure"] == "Table 2a")]
    printed = {"B_prime": "B", "beta_prime": "beta"}
    result = {}
    for arm, setting in SETTINGS.items():
        part = rows[rows["setting"] == setting]
        names = [printed.get(name, name) for name in part["metric"]]
        wanted = [name for name in CONSTANTS if arm == "cpt" or name != "gamma"]
        if sorted(names) != sorted(wanted):
            raise ClaimError(f"P2's Table 2a, {setting}: found {sorted(names)}, not {sorted(wanted)}")
        result[arm] = Law(**dict(zip(names, part["value"], strict=True)))
    return result
