"""Forgetting as a law: source loss over tokens and replayed share. Four forms, one fit, an honest comparison.

    D-CPT       2406.01375   E + B p^eta / D^beta + C / (p + eps)^gamma, p the source's share
    forgetting  2502.06042   start + A D^beta / (1 + k p)^alpha
    recovery    ours         start + A D^beta / (1 + k p^mu D^kappa)
    constant    a baseline   the share's own mean cannot be known for a new one: start + A, for all

`recovery` says what P2 shows and gives no formula for: without replay the loss rises as a power of D; with
replay it rises, turns where k p^mu D^kappa passes beta / (kappa - beta), and falls again as a power. Without
the term in D it is the forgetting law; that form can only rise, and the D-CPT form can only fall. There is
one model size here, so terms in N are part of the constants.

Fitted by least squares on log L from many starts (scipy), to every probe after the warm-up; intervals from
runs drawn again (points of one run are not independent). Judged by what was not fitted: a share between
those that were, and longer runs.

The critical mixture ratio (2407.17467) is another question of the same runs: the largest *target* share whose
source loss stays within a tolerance, as e0 + e1 D^s.

Cost: a form some 0.5 s, its bootstrap of 200 draws ten.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy.optimize import brentq, least_squares

from cptkit.study import stats

from .uncertainty import quantiles

UNIT = 1e6  # tokens: D enters as D / UNIT, so that constants are of the order of one
EPSILON = 1e-12


class ForgettingError(ValueError):
    """Curves that no law can be fitted to; the message says why."""


@dataclass(frozen=True)
class Form:
    """A law of the source loss. `loss(theta, D, p, start)`: theta are logarithms of positive constants."""

    name: str
    place: str
    constants: tuple[str, ...]
    loss: Callable[[np.ndarray, np.ndarray, np.ndarray, float], np.ndarray]


def _d_cpt(theta: np.ndarray, D: np.ndarray, p: np.ndarray, start: float) -> np.ndarray:
    E, B, eta, beta, C, eps, gamma = np.exp(theta)
    return E + B * np.where(p > 0, p, EPSILON) ** eta / D**beta + C / (p + eps) ** gamma


def _forgetting(theta: np.ndarray, D: np.ndarray, p: np.ndarray, start: float) -> np.ndarray:
    A, beta, k, alpha = np.exp(theta)
    return start + A * D**beta / (1 + k * p) ** alpha


def _recovery(theta: np.ndarray, D: np.ndarray, p: np.ndarray, start: float) -> np.ndarray:
    A, beta, k, mu, kappa = np.exp(theta)
    return start + A * D**beta / (1 + k * np.where(p > 0, p, EPSILON) ** mu * D**kappa)


def _constant(theta: np.ndarray, D: np.ndarray, p: np.ndarray, start: float) -> np.ndarray:
    return np.full_like(D, start + np.exp(theta[0]))


FORMS = (
    Form("recovery (ours)", "", ("A", "beta", "k", "mu", "kappa"), _recovery),
    Form("forgetting", "2502.06042", ("A", "beta", "k", "alpha"), _forgetting),
    Form("D-CPT", "2406.01375", ("E", "B", "eta", "beta", "C", "eps", "gamma"), _d_cpt),
    Form("constant", "", ("A",), _constant),
)


@dataclass(frozen=True)
class Fitted:
    """A form with its constants, the source loss at the start, and the mean squared error of log L."""

    form: Form
    theta: np.ndarray
    start: float
    error: float

    def loss(self, D: np.ndarray, p: np.ndarray) -> np.ndarray:
        """Source loss in nats a token after D tokens at the replayed share p; arrays of one shape."""
        D, p = np.broadcast_arrays(np.asarray(D, float) / UNIT, np.asarray(p, float))
        return self.form.loss(self.theta, D, p, self.start)

    @property
    def constants(self) -> dict[str, float]:
        return dict(zip(self.form.constants, np.exp(self.theta).tolist(), strict=True))


def usable(curves: pd.DataFrame, first: int) -> pd.DataFrame:
    """The rows of `replay.curves` that laws are fitted to: from step `first` (the end of the warm-up) on."""
    rows = curves[(curves["step"] >= first) & (curves["step"] > 0)].dropna(subset=["source"])
    if rows["share"].nunique() < 3:
        raise ForgettingError(f"{rows['share'].nunique()} shares: a law over shares needs at least three")
    return rows


def start_of(curves: pd.DataFrame) -> float:
    """The source loss of the base model. Raises ForgettingError where step 0 was not measured."""
    rows = curves[curves["step"] == 0]["source"].dropna()
    if rows.empty:
        raise ForgettingError("the source loss was not measured at step 0")
    return float(rows.mean())


def fit(form: Form, rows: pd.DataFrame, start: float, *, starts: int = 40, seed: int = 0) -> Fitted:
    """The best of `starts` random starts, by least squares on log L."""
    D, p, target = (rows[c].to_numpy(float) for c in ("D", "share", "source"))
    best, log = None, np.log(target)

    def residual(theta: np.ndarray) -> np.ndarray:
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            value = np.log(form.loss(theta, D / UNIT, p, start)) - log
        return np.nan_to_num(value, nan=50.0, posinf=50.0, neginf=-50.0)

    rng = np.random.default_rng(seed)
    for _ in range(starts):
        found = least_squares(
            residual, rng.normal(0, 1.5, len(form.constants)), bounds=(-12, 12), max_nfev=400
        )
        if best is None or found.cost < best.cost:
            best = found
    return Fitted(form, best.x, start, float(np.mean(best.fun**2)))


def bootstrap(found: Fitted, rows: pd.DataFrame, draws: int = 200, *, seed: int = 0) -> list[Fitted]:
    """The form fitted to runs drawn again with replacement, from the fit's own constants.

    The shares 0 and largest are in every draw: without them a draw would be another question.
    """
    runs = [part for _, part in rows.groupby("run")]
    ends = [rows["share"].min(), rows["share"].max()]
    fixed = [next(k for k, r in enumerate(runs) if r["share"].iloc[0] == end) for end in ends]
    rng, result = np.random.default_rng(seed), []
    for _ in range(draws):
        picks = [*fixed, *rng.integers(0, len(runs), len(runs) - len(fixed))]
        drawn = pd.concat([runs[k] for k in picks])
        result.append(_refit(found, drawn))
    return result


def _refit(found: Fitted, rows: pd.DataFrame) -> Fitted:
    D, p, log = (
        rows["D"].to_numpy(float) / UNIT,
        rows["share"].to_numpy(float),
        np.log(rows["source"].to_numpy(float)),
    )

    def residual(theta: np.ndarray) -> np.ndarray:
        return np.log(found.form.loss(theta, D, p, found.start)) - log

    ends = least_squares(residual, np.clip(found.theta, -11.9, 11.9), bounds=(-12, 12), max_nfev=200)
    return Fitted(found.form, ends.x, found.start, float(np.mean(ends.fun**2)))


def errors(found: Mapping[str, Fitted], sets: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """Root mean squared error of log L, in per cent of the loss, per form and set of curves."""
    rows = []
    for name, law in found.items():
        row = {"form": name, "published": law.form.place, "constants": len(law.theta)}
        for label, part in sets.items():
            residual = np.log(law.loss(part["D"], part["share"])) - np.log(part["source"])
            row[label] = 100 * float(np.sqrt(np.mean(residual**2)))
        rows.append(row)
    return pd.DataFrame(rows)


# ---- what follows from a law ------------------------------------------------------------------------


def share_for(law: Fitted, D: float, tolerance: float) -> float:
    """The smallest replayed share that loses at most `tolerance` nats after D tokens; NaN where none does."""

    def excess(p: float) -> float:
        return float(law.loss(D, p)) - law.start - tolerance

    if excess(0.0) <= 0:
        return 0.0
    if excess(1.0) > 0:
        return float("nan")
    return float(brentq(excess, 0.0, 1.0, xtol=1e-6))


def recommended(law: Fitted, draws: list[Fitted], D: float, tolerance: float) -> stats.Interval:
    """`share_for` with its interval over runs drawn again."""
    values = np.array([share_for(drawn, D, tolerance) for drawn in draws])
    low, high = quantiles(values) if np.isfinite(values).any() else (np.nan, np.nan)
    return stats.Interval(share_for(law, D, tolerance), low, high, len(draws))


def critical_ratio(curves: pd.DataFrame, start: float, tolerance: float) -> pd.DataFrame:
    """2407.17467: at each probe the largest target share within the tolerance, between shares that were run.

    Columns step, D, ratio; a row is missing where all shares are within it, or none.
    """
    rows = []
    for (step, D), part in curves[curves["step"] > 0].groupby(["step", "D"]):
        mean = part.groupby("share")["source"].mean()
        over = mean.to_numpy() - start - tolerance
        if over[0] <= 0 or over[-1] > 0:
            continue
        k = int(np.argmax(over <= 0))
        share = np.interp(0, [over[k], over[k - 1]], [mean.index[k], mean.index[k - 1]])
        rows.append({"step": step, "D": D, "ratio": 1 - float(share)})
    return pd.DataFrame(rows, columns=["step", "D", "ratio"])


def fit_critical(table: pd.DataFrame) -> tuple[float, float, float]:
    """(e0, e1, s) of ratio = e0 + e1 (D / UNIT)^s; NaN for fewer than four points."""
    if len(table) < 4:
        return (float("nan"),) * 3
    D, ratio = table["D"].to_numpy(float) / UNIT, table["ratio"].to_numpy(float)
    best = None
    for s in (-1.0, -0.3, 0.3, 1.0):
        found = least_squares(
            lambda x: x[0] + x[1] * D ** x[2] - ratio, [ratio.mean(), 0.1, s], max_nfev=2000
        )
        best = found if best is None or found.cost < best.cost else best
    return tuple(float(x) for x in best.x)
