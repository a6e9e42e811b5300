"""How sure a scaling law is: bootstrap over runs, profile of gamma, nested test, budgets.

The unit that is drawn is a run (field bug B69), or the trunk that several runs share. In simulated studies
the 90 % percentile interval holds the truth 90 times in a hundred or more (`power.recovery`). The profile
and the test are by least squares on log L, whose likelihood is known; Huber's is not one.

Cost: 4,000 draws some five seconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
import pandas as pd
from scipy import stats as distributions

from .closed_form import FLOPS_PER_WEIGHT, Law
from .scaling import (
    GAMMA,
    PLAIN,
    TOGETHER,
    Fit,
    Points,
    ScalingError,
    Stage,
    arms_of,
    build,
    fit,
)
from .solver import descend

DRAW = 1e-6  # relative gain at which a draw stops: intervals move by less than a hundredth of their width
SQUARES = 10.0  # Huber's delta in units of the largest residual: all of them squared


def bootstrap(found: Fit, draws: int = 4000, *, seed: int = 0, by_trunk: bool = False) -> dict[str, Law]:
    """Laws by arm whose constants are arrays [draws]: the fit on runs drawn again with replacement.

    Drawn within each arm, so that every draw has as many runs of each as there are; with `by_trunk` whole
    trunks are drawn. A draw starts from the fit's own constants. Draws that cannot identify the form (all
    of one size, say) are drawn again.
    """
    weights = resampled(found.points, draws, np.random.default_rng(seed), by_trunk)
    laws: dict[str, Law] = {}
    for stage, theta in zip(found.protocol, found.thetas, strict=True):
        rows = (
            np.ones(len(found.points), bool)
            if stage.arm is None
            else found.points.cpt == (stage.arm == "cpt")
        )
        part = stage.points(found.points)
        problem, target = build(part, stage.form), np.log(part.loss)[None]
        start = np.repeat(theta[None], draws, axis=0)
        if stage.keep:
            start = problem.keep(start, laws["scratch"], stage.keep)
        free = stage.free(problem)
        ends, _ = descend(problem, start, target, weights[:, rows], free, found.delta, tolerance=DRAW)
        for arm in arms_of(part):
            laws[arm] = problem.law(ends, arm)
    return laws


def resampled(points: Points, draws: int, rng: np.random.Generator, by_trunk: bool) -> np.ndarray:
    """How often each run is in each draw: [draws, n]."""
    weights = np.zeros((draws, len(points)))
    for cpt in sorted(set(points.cpt.tolist())):
        rows = np.flatnonzero(points.cpt == cpt)
        labels = points.trunk[rows] if by_trunk else np.arange(len(rows))
        kinds, member = np.unique(labels, return_inverse=True)
        if by_trunk and len(kinds) < 3:
            raise ScalingError(f"{len(kinds)} trunks are too few to draw from")
        todo = np.arange(draws)
        while len(todo):
            picks = rng.integers(0, len(kinds), size=(len(todo), len(kinds)))
            counts = np.zeros((len(todo), len(kinds)))
            np.add.at(counts, (np.arange(len(todo))[:, None], picks), 1)
            weights[np.ix_(todo, rows)] = counts[:, member]
            seen = counts[:, member] > 0
            sizes = [len(np.unique(points.N[rows][s])) for s in seen]
            budgets = [len(np.unique(points.D[rows][s])) for s in seen]
            todo = todo[(np.array(sizes) < 3) | (np.array(budgets) < 3)]
    return weights


def quantiles(values: np.ndarray, level: float = 0.95) -> tuple[float, float]:
    """Percentile interval of bootstrap draws; draws without a value are left out."""
    low, high = np.nanquantile(values, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


# ---- gamma ------------------------------------------------------------------------------------------


def squares(points: Points, protocol: tuple[Stage, ...], around: float = 0.2) -> Fit:
    """The fit by least squares on log L: Huber's loss with a delta that no residual reaches."""
    first = fit(points, protocol, delta=around)
    return fit(points, protocol, delta=max(SQUARES * first.largest, 1e-12))


def profile(
    points: Points, values: Iterable[float], protocol: tuple[Stage, ...] = TOGETHER, level: float = 0.95
) -> pd.DataFrame:
    """The profile likelihood of CPT's gamma: the best least-squares fit at each of `values`.

    Columns gamma, sum (of squares), F against the best fit, inside: F is below its quantile at `level`, so
    the rows inside are the interval.
    """
    best = squares(points, protocol)
    (stage,), (theta,) = protocol, best.thetas
    problem, target = build(points, stage.form), np.log(points.loss)[None]
    place = next(p for p, name in enumerate(problem.names) if name in ("gamma'", "gamma"))
    values = np.asarray(list(values), float)
    start = np.repeat(theta[None], len(values), axis=0)
    start[:, place] = values
    free = [p for p in range(len(problem.names)) if p != place]
    _, ends = descend(problem, start, target, np.ones_like(target), free, best.delta, limit=2000)
    spare = len(points) - len(problem.names)
    ratio = np.maximum(ends / best.objective - 1, 0) * spare
    return pd.DataFrame(
        {
            "gamma": values,
            "sum": 2 * ends * best.delta**2,
            "F": ratio,
            "inside": ratio <= distributions.f.ppf(level, 1, spare),
        }
    )


def nested(points: Points) -> pd.DataFrame:
    """P2's Table 3 as a test: a row an arm; does gamma fit better than the plain form, beyond chance?

    Columns: errors of both forms (mean |log residual| of the Huber fits), gamma, F and p of the extra
    constant by least squares. The extended form contains the plain one, so its objective can never be higher.
    """
    rows = []
    for arm in arms_of(points):
        part = points.of_arm(arm == "cpt")
        plain, extended = fit(part, PLAIN), fit(part, GAMMA)
        small, large = squares(part, PLAIN), squares(part, GAMMA)
        spare = len(part) - len(large.thetas[0])
        sums = [f.objective * f.delta**2 for f in (small, large)]
        ratio = max(sums[0] / sums[1] - 1, 0) * spare
        rows.append(
            {
                "arm": arm,
                "runs": len(part),
                "error, plain form": plain.error,
                "error, extended form": extended.error,
                "objective, plain form": plain.objective,
                "objective, extended form": extended.objective,
                "gamma": extended.laws[arm].gamma,
                "F": ratio,
                "p": float(distributions.f.sf(ratio, 1, spare)),
            }
        )
    return pd.DataFrame(rows)


# ---- budgets ----------------------------------------------------------------------------------------


def budget(flops: Iterable[float], found: Fit, draws: Mapping[str, Law], level: float = 0.95) -> pd.DataFrame:
    """What to do with a budget: a row per FLOPs and arm with the optimal N and D and the loss to expect.

    Each with `_low` and `_high` from the draws (`bootstrap`). `outside` names what lies beyond the runs that
    were fitted, empty where nothing does: beyond them the law is a guess whose interval does not know it.
    """
    rows = []
    for arm, law in found.laws.items():
        part = found.points.of_arm(arm == "cpt")
        for c in flops:
            (N, D), drawn = law.optimum(c), draws[arm].optimum(c)
            row = {"flops": c, "arm": arm, "N": float(N), "D": float(D), "loss": float(law.best(c))}
            for name, values in (("N", drawn[0]), ("D", drawn[1]), ("loss", draws[arm].best(c))):
                row[f"{name}_low"], row[f"{name}_high"] = quantiles(values, level)
            row["outside"] = ", ".join(
                name
                for name, value, seen in (
                    ("compute", c, FLOPS_PER_WEIGHT * part.N * part.D), ("N", N, part.N), ("D", D, part.D)
                )
                if not seen.min() <= value <= seen.max()
            )  # fmt: skip
            rows.append(row)
    return pd.DataFrame(rows)
