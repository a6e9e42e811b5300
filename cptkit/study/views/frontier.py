"""What the scaling study found, as numbers: envelopes, constants, transferred data, what the ledger judges.

Pictures of it are in `scaling_figures.py`. Where a number comes straight from runs it is interpolated in log
D between budgets and never extrapolated; where it comes from a fitted law it says so.

Cost: `study_laws` is two fits and two bootstraps, some 20 s; the rest milliseconds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from cptkit.study import stats
from cptkit.study.claims import PAPERS, find
from cptkit.study.laws import closed_form, power, scaling, uncertainty
from cptkit.study.laws.closed_form import CONSTANTS, FLOPS_PER_WEIGHT, Law
from cptkit.study.laws.scaling import AS_P2, TOGETHER, Fit, Points, ScalingError
from cptkit.study.views import style

PROTOCOLS = {"joint": TOGETHER, "scratch first": AS_P2}


@dataclass(frozen=True)
class Laws:
    """A fit with its bootstrap draws over runs and over trunks (None where there are too few trunks)."""

    fit: Fit
    draws: Mapping[str, Law]
    by_trunk: Mapping[str, Law] | None

    @property
    def scratch(self) -> Law:
        return self.fit.laws["scratch"]

    @property
    def cpt(self) -> Law:
        return self.fit.laws["cpt"]

    def interval(self, value: Callable[[Law, Law], np.ndarray], level: float = 0.95) -> stats.Interval:
        """A number made of (scratch, cpt): from the fit, with its percentile interval over runs."""
        drawn = np.asarray(value(self.draws["scratch"], self.draws["cpt"]), float)
        low, high = uncertainty.quantiles(drawn, level)
        return stats.Interval(float(value(self.scratch, self.cpt)), low, high, len(self.fit.points))


def study_laws(points: pd.DataFrame, draws: int = 4000) -> dict[str, Laws]:
    """Both protocols fitted to the same runs: all constants at once, and scratch first as P2 does.

    Raises `scaling.Unidentified` where the grid cannot tell the laws apart.
    """
    data = Points.of(points)
    result = {}
    for name, protocol in PROTOCOLS.items():
        found = scaling.fit(data, protocol)
        try:
            by_trunk = uncertainty.bootstrap(found, draws, by_trunk=True)
        except ScalingError:
            by_trunk = None
        result[name] = Laws(found, uncertainty.bootstrap(found, draws), by_trunk)
    return result


def constants_table(
    found: Mapping[str, Laws], published: pd.DataFrame, folder: Path | None = None
) -> pd.DataFrame:
    """P2's Table 2a: every constant with its intervals over runs and over trunks, and the published value."""
    printed, rows = closed_form.published_laws(published), []
    for protocol, result in found.items():
        for arm in ("scratch", "cpt"):
            for name in CONSTANTS if arm == "cpt" else CONSTANTS[:-1]:
                low, high = uncertainty.quantiles(getattr(result.draws[arm], name))
                row = {
                    "fit": protocol,
                    "arm": arm,
                    "constant": name,
                    "published": float(getattr(printed[arm], name)),
                    "ours": float(getattr(result.fit.laws[arm], name)),
                    "low": low,
                    "high": high,
                }
                if result.by_trunk:
                    ends = uncertainty.quantiles(getattr(result.by_trunk[arm], name))
                    row |= {"low, trunks": ends[0], "high, trunks": ends[1]}
                rows.append(row)
    return style.keep_table(pd.DataFrame(rows), folder, "table2a_constants")


def fit_table(found: Mapping[str, Laws], folder: Path | None = None) -> pd.DataFrame:
    """How each fit went: runs, mean and largest residual of log L, starts, failed starts, their spread."""
    rows = [
        {
            "fit": name,
            "runs": len(f.points),
            "mean |residual|": f.error,
            "largest": f.largest,
            "objective": f.objective,
            "starts": f.starts,
            "failed": f.failed,
            "spread of exponents": f.spread,
        }
        for name, f in ((name, result.fit) for name, result in found.items())
    ]
    return style.keep_table(pd.DataFrame(rows), folder, "fits")


def allocation_table(found: Laws, published: pd.DataFrame, folder: Path | None = None) -> pd.DataFrame:
    """P2's Table 2b and Eq. 8-9: exponents and coefficients of the compute-optimal N and D."""
    rows = []
    for arm, setting in closed_form.SETTINGS.items():
        for k, (name, printed) in enumerate(
            [
                ("a, exponent of N", ("Table 2b", "a_exponent_N_opt")),
                ("b, exponent of D", ("Table 2b", "b_exponent_D_opt")),
                ("coefficient of N", ("Eq. 8-9", "N_opt_coefficient")),
                ("coefficient of D", ("Eq. 8-9", "D_opt_coefficient")),
            ]
        ):
            value = found.interval(lambda s, c, arm=arm, k=k: _allocation(s if arm == "scratch" else c)[k])
            place, metric = printed
            row = find(published, paper=PAPERS["P2"], table_or_figure=place, setting=setting, metric=metric)
            rows.append(
                {
                    "arm": arm,
                    "quantity": name,
                    "published": row["value"],
                    "ours": value.mean,
                    "low": value.low,
                    "high": value.high,
                }
            )
    return style.keep_table(pd.DataFrame(rows), folder, "table2b_allocation")


def _allocation(law: Law) -> tuple[np.ndarray, ...]:
    return (*law.exponents, *law.coefficients)


def envelope(points: pd.DataFrame, arm: str, compute: str = "flops") -> tuple[float, float, pd.DataFrame]:
    """(k, e) of the lowest loss per compute, L = k C^e (P2, Section 4.2), and the runs that stand on it.

    Those are the runs that no run with as little compute beats; NaN for fewer than three.
    """
    rows = points[points["arm"] == arm].sort_values([compute, "loss"])
    best = rows[rows["loss"] < rows["loss"].cummin().shift(fill_value=np.inf)]
    if len(best) < 3:
        return np.nan, np.nan, best
    e, log_k = np.polyfit(np.log(best[compute]), np.log(best["loss"]), 1)
    return float(np.exp(log_k)), float(e), best


def envelope_table(points: pd.DataFrame, published: pd.DataFrame, folder: Path | None = None) -> pd.DataFrame:
    """Loss against compute, L = k C^e, by arm: with C = 6 N D and with C counted from the architecture."""
    rows = []
    for arm, setting in closed_form.SETTINGS.items():
        place = {"paper": PAPERS["P2"], "table_or_figure": "Section 4.2 / Figure 1", "setting": setting}
        printed = [
            float(find(published, metric=f"loss_compute_{what}", **place)["value"])
            for what in ("coefficient", "exponent")
        ]
        row = {"arm": arm, "k, published": printed[0], "exponent, published": printed[1]}
        for compute, label in (("flops", "6 N D"), ("counted", "counted")):
            k, e, best = envelope(points, arm, compute)
            row |= {f"k, {label}": k, f"exponent, {label}": e, f"runs, {label}": len(best)}
        rows.append(row)
    return style.keep_table(pd.DataFrame(rows), folder, "loss_against_compute")


def measured_transfer(points: pd.DataFrame) -> pd.DataFrame:
    """Straight from the runs: the tokens scratch needs to be where each CPT run of its size is.

    Columns size, N, D (of CPT), scratch_tokens, transferred (their difference), saved (share). Interpolated
    in log D between scratch's budgets. Where CPT is better than scratch ever was, or worse than at its first
    budget, the tokens are not known: `transferred` and `saved` are NaN, and `bound` says "more" or "less".
    """
    rows = []
    for size, part in points.groupby("size", sort=False):
        scratch = part[part["arm"] == "scratch"].sort_values("D")
        losses = np.minimum.accumulate(scratch["loss"].to_numpy())
        for run in part[part["arm"] == "cpt"].sort_values("D").itertuples():
            inside = losses[-1] <= run.loss <= losses[0]
            need = np.nan
            if inside:
                need = float(np.exp(np.interp(-run.loss, -losses, np.log(scratch["D"]))))
            rows.append(
                {
                    "size": size,
                    "N": run.N,
                    "D": run.D,
                    "loss": run.loss,
                    "scratch_tokens": need,
                    "transferred": need - run.D,
                    "saved": 1 - run.D / need,
                    "bound": "" if inside else ("more" if run.loss < losses[-1] else "less"),
                }
            )
    return pd.DataFrame(rows)


def nested_table(points: pd.DataFrame, published: pd.DataFrame, folder: Path | None = None) -> pd.DataFrame:
    """P2's Table 3, errors of both forms on each arm and gamma, with the test that P2 does not make.

    P2 does not say what its error is; ours is the mean absolute residual of log L.
    """
    table, data = uncertainty.nested(Points.of(points)), {"scratch": "pre-training data", "cpt": "CPT data"}
    for form, column in (("Chinchilla form", "error, plain form"), ("extended form", "error, extended form")):
        table[f"{column}, published"] = [
            _printed(published, f"{form} on {data[arm]}", "huber_fit_error") for arm in table["arm"]
        ]
    table["gamma, published"] = [
        _printed(published, f"extended form on {data[arm]}", "gamma") for arm in table["arm"]
    ]
    return style.keep_table(table, folder, "table3_forms")


def _printed(published: pd.DataFrame, setting: str, metric: str) -> float:
    place = {"paper": PAPERS["P2"], "table_or_figure": "Table 3"}
    return float(find(published, setting=setting, metric=metric, **place)["value"])


def gamma_profile(points: pd.DataFrame, low: float = -0.3, high: float = 0.4) -> pd.DataFrame:
    """The profile likelihood of gamma in steps of 0.01 (`uncertainty.profile`)."""
    return uncertainty.profile(Points.of(points), np.arange(round(100 * low), round(100 * high) + 1) / 100)


def budget_table(found: Laws, powers: Iterable[int], folder: Path | None = None) -> pd.DataFrame:
    """How to spend budgets of 10^power FLOPs (`uncertainty.budget`)."""
    table = uncertainty.budget([10.0**p for p in powers], found.fit, found.draws)
    return style.keep_table(table, folder, "budgets")


def power_table(found: Laws, points: pd.DataFrame, studies: int, folder: Path | None = None) -> pd.DataFrame:
    """Which grid would show P2's gamma (0.08) at which noise: `power.power` around the fitted laws.

    Grids: ours, ours with three seeds, with twice as many sizes and budgets between the same ends, and as
    many runs on the one line D = 20 N. Noise: a third of what the joint fit leaves, all of it, three times.
    """
    runs = points[points["arm"] == "cpt"]
    N, D = runs["N"].to_numpy(float), runs["D"].to_numpy(float)
    finer = np.meshgrid(*(np.geomspace(v.min(), v.max(), 2 * len(np.unique(v))) for v in (N, D)))
    line = np.geomspace(N.min(), N.max(), len(N))
    grids = {
        "ours": (N, D),
        "ours, three seeds": (np.tile(N, 3), np.tile(D, 3)),
        "twice the sizes and budgets": tuple(axis.ravel() for axis in finer),
        "one line, D = 20 N": (line, 20 * line),
    }
    noise = 1.25 * found.fit.error  # the standard deviation of a normal error with this mean size
    table = power.power(found.fit.laws, grids, [noise / 3, noise, 3 * noise], studies=studies)
    return style.keep_table(table, folder, "power")


def middle(points: Points) -> tuple[float, float]:
    """The geometric middle of the grid: (N, D)."""
    return float(np.exp(np.log(points.N).mean())), float(np.exp(np.log(points.D).mean()))


def estimates(found: Mapping[str, Laws]) -> dict[str, stats.Interval]:
    """What the ledger judges of P2: numbers of the joint fit inside the grid, with intervals over runs.

    `scaling.gamma.alone` is of the protocol that keeps E, A and alpha from scratch, as P2's is.
    """
    result = found["joint"]
    p = result.fit.points
    N, D = middle(p)
    first, last, small, large = p.D.min(), p.D.max(), p.N.min(), p.N.max()
    compute = FLOPS_PER_WEIGHT * N * D
    numbers = {
        "scaling.gamma": lambda s, c: c.gamma,
        "scaling.beta": lambda s, c: np.asarray(c.beta) - s.beta,
        "scaling.exponent_of_N": lambda s, c: c.exponents[0] - s.exponents[0],
        "scaling.log_N_ratio": lambda s, c: np.log(c.optimum(compute)[0] / s.optimum(compute)[0]),
        "scaling.saved": lambda s, c: closed_form.saved(s, c, N, D),
        "scaling.saved_change": _change(closed_form.saved, (N, first), (N, last)),
        "scaling.transferred_change": _change(_moved, (N, first), (N, last)),
        "scaling.transferred_by_size": _change(_moved, (small, D), (large, D)),
    }
    intervals = {name: result.interval(value) for name, value in numbers.items()}
    intervals["scaling.gamma.alone"] = found["scratch first"].interval(lambda s, c: c.gamma)
    return intervals


def _moved(scratch: Law, cpt: Law, N: float, D: float) -> np.ndarray:
    """Effectively transferred tokens; endlessly many where scratch never gets there."""
    tokens = closed_form.transferred(scratch, cpt, N, D)
    return np.where(np.isnan(tokens), np.inf, tokens)


def _change(
    value: Callable, here: tuple[float, float], there: tuple[float, float]
) -> Callable[[Law, Law], np.ndarray]:
    """A number of both laws at one (N, D) minus that at another, as a function of the laws."""

    def difference(scratch: Law, cpt: Law) -> np.ndarray:
        with np.errstate(invalid="ignore"):  # endless minus endless
            return value(scratch, cpt, *there) - value(scratch, cpt, *here)

    return difference
