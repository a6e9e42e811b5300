"""Fitting the scaling laws: runs in, constants out.

The fit is P2's (and Hoffmann's): Huber loss, delta = 1e-3, on log L, which is a log-sum-exp of terms that are
linear in theta = (log E, log A, log B, alpha, beta, gamma). All forms here share that shape, so a form is a
matrix, one solver serves all, and a fit of both arms together is only a larger matrix.

The objective is not convex: a grid of starts goes through one vectorised descent (`solver.py`), the best ends
go on through scipy's L-BFGS-B, and the fit tells how many starts failed and how far apart ends lie (B66).
Logarithms of N and D are centred, so that a coefficient and its exponent are not nearly the same direction.
Data that cannot tell the terms apart (D proportional to N) are refused (`Unidentified`), not fitted.
Intervals: `uncertainty.py`.

Cost: a fit of 60 runs from some 300 starts, half a second.

Departures from P2: grid and L-BFGS-B for Optuna's search; intervals, which P2 does not give; both arms also
fitted jointly, since keeping E, A and alpha from scratch lets gamma absorb what they got wrong.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, field

import numpy as np
import pandas as pd

from .closed_form import CONSTANTS, Law
from .solver import LOGS, Problem, descend, polish

DELTA = 1e-3  # P2 and Hoffmann et al.
SHARED = ("E", "A", "alpha")
COLLINEAR = 0.03  # spread of log D that log N does not explain, as a share of the spread of log D


class ScalingError(ValueError):
    """Points that cannot be fitted; the message says why."""


class Unidentified(ScalingError):
    """Points that many laws fit equally well."""


@dataclass(frozen=True)
class Points:
    """One row a run: size, tokens, loss, arm (`cpt` or not), and the trunk it was taken from.

    N in weights, D in tokens, loss in nats a token, all [n] float64; `cpt` [n] bool; `trunk` [n] labels (runs
    of one label share training, see `experiments`; all different where none do).
    """

    N: np.ndarray
    D: np.ndarray
    loss: np.ndarray
    cpt: np.ndarray
    trunk: np.ndarray

    def __post_init__(self) -> None:
        for name in ("N", "D", "loss"):
            values = getattr(self, name)
            if not (np.isfinite(values).all() and (values > 0).all()):
                raise ScalingError(f"{name} must be finite and positive in every point")

    @classmethod
    def of(cls, frame: pd.DataFrame) -> Points:
        """From a frame with a row a run: N, D, loss, arm (`cpt` or `scratch`), and `trunk` if it has one."""
        if strange := set(frame["arm"]) - {"cpt", "scratch"}:
            raise ScalingError(f"arms are cpt and scratch, not {sorted(map(str, strange))}")
        trunk = frame["trunk"] if "trunk" in frame else np.arange(len(frame))
        columns = (frame[name].to_numpy(float) for name in ("N", "D", "loss"))
        return cls(*columns, (frame["arm"] == "cpt").to_numpy(), np.asarray(trunk))

    def of_arm(self, cpt: bool) -> Points:
        rows = self.cpt == cpt
        return Points(*(getattr(self, f)[rows] for f in ("N", "D", "loss", "cpt", "trunk")))

    def __len__(self) -> int:
        return len(self.N)


@dataclass(frozen=True)
class Form:
    """Which constants an arm has of its own and which both share.

    `own` names constants estimated per arm as `B` (scratch) and `B'` (CPT); `gamma` tells the arms that have
    one. With a single arm in the points, `own` makes no difference.
    """

    name: str
    gamma: tuple[str, ...] = ()  # arms with gamma: "scratch", "cpt"
    own: tuple[str, ...] = ("B", "beta", "gamma")

    def names(self, points: Points) -> list[str]:
        """The constants in the order of theta; a prime marks those of CPT alone."""
        arms = [arm for arm, there in (("scratch", ~points.cpt), ("cpt", points.cpt)) if there.any()]
        constants = [c for c in CONSTANTS if c != "gamma"]
        result = [c for c in constants if c not in self.own or len(arms) == 1]
        if len(arms) == 2:
            result += [c + ("'" if arm == "cpt" else "") for arm in arms for c in constants if c in self.own]
        return result + [
            "gamma" + ("'" if a == "cpt" and len(arms) == 2 else "") for a in arms if a in self.gamma
        ]


CHINCHILLA = Form("Chinchilla")
EXTENDED = Form("extended", gamma=("scratch", "cpt"))
JOINT = Form(
    "joint", gamma=("cpt",)
)  # P2's two laws at once: scratch plain, CPT extended, E, A, alpha shared


def build(points: Points, form: Form) -> Problem:
    names = form.names(points)
    n, d = np.log(points.N), np.log(points.D)
    centre = (float(n.mean()), float(d.mean()))
    n, d = n - centre[0], d - centre[1]
    design = np.zeros((len(points), 3, len(names)))
    for p, name in enumerate(names):
        constant, prime = name.rstrip("'"), name.endswith("'")
        own = prime or name + "'" in names
        rows = (points.cpt == prime) if own else np.ones(len(points), bool)
        if constant == "gamma" and not own:
            rows = np.isin(points.cpt, [arm == "cpt" for arm in form.gamma])
        term, value = {
            "E": (0, 1.0), "A": (1, 1.0), "B": (2, 1.0), "alpha": (1, -n), "beta": (2, -d), "gamma": (2, -n)
        }[constant]  # fmt: skip
        design[:, term, p] = np.where(rows, value, 0.0)
    return Problem(design, names, centre)


def check_identified(points: Points, form: Form) -> None:
    """Raises `Unidentified` where log N and log D of an arm move together, or have too few values.

    With D proportional to N the terms A / N^alpha and B / D^beta are one function, and gamma is a second
    name of beta. Raises ScalingError for fewer points than constants.
    """
    wanted = len(form.names(points))
    if len(points) <= wanted:
        raise ScalingError(f"{len(points)} runs cannot determine {wanted} constants")
    for cpt in sorted(set(points.cpt.tolist())):
        rows, arm = points.cpt == cpt, "cpt" if cpt else "scratch"
        n, d = np.log(points.N[rows]), np.log(points.D[rows])
        for name, values in (("N", n), ("D", d)):
            if len(np.unique(values.round(6))) < 3:
                raise Unidentified(f"{arm}: fewer than three values of {name}")
        left = d - np.polyval(np.polyfit(n, d, 1), n)
        if left.std() < COLLINEAR * d.std():
            raise Unidentified(
                f"{arm}: D follows N (a power of it explains all but {left.std() / d.std():.1%} of log D), "
                "so their exponents cannot be told apart: cross sizes with budgets"
            )


# ---- estimating -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Stage:
    """One estimation: a form, fitted to one arm (or both), with constants kept from the stage before."""

    form: Form
    arm: str | None = None
    keep: tuple[str, ...] = ()

    def points(self, points: Points) -> Points:
        return points if self.arm is None else points.of_arm(self.arm == "cpt")

    def free(self, problem: Problem) -> list[int]:
        """The places in theta that are estimated."""
        return [p for p, name in enumerate(problem.names) if name not in self.keep]


PLAIN = (Stage(CHINCHILLA),)
GAMMA = (Stage(EXTENDED),)
TOGETHER = (Stage(JOINT),)
AS_P2 = (Stage(CHINCHILLA, "scratch"), Stage(EXTENDED, "cpt", keep=SHARED))


@dataclass(frozen=True)
class Fit:
    """The best of all starts.

    `laws` by arm; `objective` the sum of Huber losses in units of delta^2; `error` and `largest` the mean and
    the largest absolute residual of log L; `starts`, and of them `failed`: ended more than a hundredth of the
    objective above the best; `spread`: how far apart any one exponent lies among the ends that did not fail.
    """

    protocol: tuple[Stage, ...]
    points: Points
    laws: dict[str, Law]
    objective: float
    error: float
    largest: float
    starts: int
    failed: int
    spread: float
    delta: float
    thetas: tuple[np.ndarray, ...] = field(repr=False)

    def constants(self) -> pd.DataFrame:
        """A row an arm: E, A, B, alpha, beta, gamma."""
        return pd.DataFrame(
            [{"arm": a} | {c: getattr(law, c) for c in CONSTANTS} for a, law in self.laws.items()]
        )


def arms_of(points: Points) -> list[str]:
    """The arms that have runs, scratch first."""
    return [arm for arm, there in (("scratch", ~points.cpt), ("cpt", points.cpt)) if there.any()]


def grid(problem: Problem, loss: np.ndarray) -> np.ndarray:
    """Starts [S, P]: E as a share of the lowest loss, what is left split between A and B, exponents."""
    grid = []
    for share, split, alpha, beta, gamma in itertools.product(
        (0.2, 0.6, 0.9), (0.2, 0.5, 0.8), (0.1, 0.3, 0.7, 1.2), (0.1, 0.3, 0.7, 1.2), (0.0, 0.1)
    ):
        if gamma and not any(name.startswith("gamma") for name in problem.names):
            continue
        floor = share * loss.min()
        left = loss.mean() - floor
        values = {
            "E": math.log(floor), "A": math.log(split * left), "B": math.log((1 - split) * left),
            "alpha": alpha, "beta": beta, "gamma": gamma,
        }  # fmt: skip
        grid.append([values[name.rstrip("'")] for name in problem.names])
    return np.array(grid)


def fit(points: Points, protocol: tuple[Stage, ...] = AS_P2, *, delta: float = DELTA) -> Fit:
    """Fit a protocol to one row per run. Raises `Unidentified` or ScalingError, see `check_identified`."""
    laws: dict[str, Law] = {}
    objective, starts, failed, spread, residuals, thetas = 0.0, 0, 0, 0.0, [], []
    for stage in protocol:
        part = stage.points(points)
        check_identified(part, stage.form)
        problem, target = build(part, stage.form), np.log(part.loss)[None]
        theta, free = grid(problem, part.loss), stage.free(problem)
        if stage.keep:
            theta = problem.keep(theta, laws["scratch"], stage.keep)
        theta, values = descend(problem, theta, target, np.ones_like(target), free, delta)
        order = np.argsort(values)
        ends = [polish(problem, theta[k], target, free, delta) for k in order[:5]]
        best, value = min(ends, key=lambda end: end[1])
        good = values <= value * 1.01 + 1e-9
        exponents = [p for p in free if problem.names[p].rstrip("'") not in LOGS]
        starts, failed = starts + len(theta), failed + int((~good).sum())
        if good.any() and exponents:
            spread = max(spread, float(np.ptp(theta[good][:, exponents], axis=0).max()))
        objective += value
        residuals.append(target[0] - problem.predicted(best[None])[0][0])
        thetas.append(best)
        for arm in arms_of(part):
            laws[arm] = _scalar(problem.law(best, arm))
    size = np.abs(np.concatenate(residuals))
    return Fit(
        protocol=protocol,
        points=points,
        laws=laws,
        objective=objective,
        error=float(size.mean()),
        largest=float(size.max()),
        starts=starts,
        failed=failed,
        spread=spread,
        delta=delta,
        thetas=tuple(thetas),
    )


def _scalar(law: Law) -> Law:
    return Law(*(float(getattr(law, name)) for name in CONSTANTS))
