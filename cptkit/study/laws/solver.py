"""The minimiser of the scaling-law fits: many starts, or many bootstrap draws, at once.

A law is a log-sum-exp of terms that are linear in theta = (log E, log A, log B, alpha, beta, gamma), so a
problem is a matrix. Its objective, Huber's loss on log L, is a *sum* in units of delta^2 (field bug B64: a
mean of 1e-9 is below every tolerance at once). `descend` walks from all rows of theta together; `polish`
takes one end through scipy's L-BFGS-B, which shares only the objective and its analytic gradient with it.

Cost: 4,000 rows of 60 runs and 8 constants, about 8 s on one core.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.optimize import minimize

from .closed_form import CONSTANTS, Law

LOGS = ("E", "A", "B")  # estimated as logarithms
BOUNDS = {"E": (-12.0, 3.0), "A": (-12.0, 40.0), "B": (-12.0, 40.0)} | {
    k: (-1.0, 4.0) for k in ("alpha", "beta", "gamma")
}
CHUNK = 4000


@dataclass(frozen=True)
class Problem:
    """log L = logsumexp over three terms of design @ theta; design [n, 3, P].

    Functions take theta [S, P] and log L to be met, `target`, [S, n] or [1, n].
    """

    design: np.ndarray
    names: list[str]
    centre: tuple[float, float]  # mean log N, mean log D

    def predicted(self, theta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """theta [S, P] -> log L [S, n] and each term's share of L [S, n, 3]."""
        terms = np.einsum("nkp,sp->snk", self.design, theta, optimize=True)
        top = terms.max(axis=2, keepdims=True)
        parts = np.exp(terms - top)
        total = parts.sum(axis=2)
        return np.log(total) + top[..., 0], parts / total[..., None]

    def objective(
        self, theta: np.ndarray, target: np.ndarray, weights: np.ndarray, delta: float
    ) -> np.ndarray:
        """Sum over runs of the Huber loss in units of delta^2, each `weights` [S, n] times: [S]."""
        return (weights * huber(target - self.predicted(theta)[0], delta)).sum(axis=1)

    def gradient(
        self, theta: np.ndarray, target: np.ndarray, weights: np.ndarray, delta: float
    ) -> np.ndarray:
        """d objective / d theta, analytic: [S, P]."""
        log_loss, shares = self.predicted(theta)
        slope = np.clip(target - log_loss, -delta, delta) / delta**2
        return -np.einsum("sn,snk,nkp->sp", weights * slope, shares, self.design, optimize=True)

    def theta(self, scratch: Law, cpt: Law | None = None) -> np.ndarray:
        """[P]: these laws as this problem writes them; the inverse of `law`."""
        values = []
        for name in self.names:
            law = cpt if name.endswith("'") and cpt else scratch
            values.append(self._centred(law, name.rstrip("'")))
        return np.array(values)

    def keep(self, theta: np.ndarray, law: Law, constants: tuple[str, ...]) -> np.ndarray:
        """theta [S, P] with these constants taken from `law` (floats or [S])."""
        theta = theta.copy()
        for name in constants:
            theta[:, self.names.index(name)] = self._centred(law, name)
        return theta

    def _centred(self, law: Law, name: str) -> np.ndarray:
        value, (n0, d0) = np.asarray(getattr(law, name), float), self.centre
        value = np.log(value) if name in LOGS else value
        if name == "A":
            value = value - np.asarray(law.alpha) * n0
        if name == "B":
            value = value - np.asarray(law.beta) * d0 - np.asarray(law.gamma) * n0
        return value

    def law(self, theta: np.ndarray, arm: str) -> Law:
        """The law of one arm, from theta [..., P]; constants have the leading shape."""
        n0, d0 = self.centre
        values = {}
        for name in CONSTANTS:
            place = name + "'" if arm == "cpt" and name + "'" in self.names else name
            values[name] = theta[..., self.names.index(place)] if place in self.names else 0.0
        A, B = values["A"] + values["alpha"] * n0, values["B"] + values["beta"] * d0 + values["gamma"] * n0
        with np.errstate(over="ignore"):
            return Law(
                np.exp(values["E"]), np.exp(A), np.exp(B), values["alpha"], values["beta"], values["gamma"]
            )


def huber(residual: np.ndarray, delta: float) -> np.ndarray:
    """Huber's loss in units of delta^2: r^2 / 2 up to |r| = 1, then |r| - 1/2, for r = residual / delta."""
    size = np.abs(residual) / delta
    return np.where(size <= 1, size * size / 2, size - 0.5)


def bounds(names: list[str]) -> np.ndarray:
    return np.array([BOUNDS[name.rstrip("'")] for name in names]).T


def descend(
    problem: Problem,
    theta: np.ndarray,
    target: np.ndarray,
    weights: np.ndarray,
    free: list[int],
    delta: float,
    tolerance: float = 1e-10,
    limit: int = 400,
) -> tuple[np.ndarray, np.ndarray]:
    """Damped Gauss-Newton from all of theta [S, P] at once -> theta and objective [S].

    `target` and `weights` are [S, n], or [1, n] for all. Huber's loss as reweighted squares, Levenberg's
    damping for each row by itself. A row stops when a step that was not damped away gains less than
    `tolerance` of its objective. Memory: some 100 bytes x n x P a row, in chunks of 4,000 rows.
    """
    target, weights = (np.broadcast_to(a, (len(theta), a.shape[1])) for a in (target, weights))
    parts = [slice(k, k + CHUNK) for k in range(0, len(theta), CHUNK)]
    ends = [_descend(problem, theta[p], target[p], weights[p], free, delta, tolerance, limit) for p in parts]
    return np.concatenate([e[0] for e in ends]), np.concatenate([e[1] for e in ends])


def _descend(
    problem: Problem,
    theta: np.ndarray,
    target: np.ndarray,
    weights: np.ndarray,
    free: list[int],
    delta: float,
    tolerance: float,
    limit: int,
) -> tuple[np.ndarray, np.ndarray]:
    theta, (low, high) = theta.copy(), bounds(problem.names)[:, free]
    objective = problem.objective(theta, target, weights, delta)
    damping, active = np.full(len(theta), 1e-2), np.arange(len(theta))
    for _ in range(limit):
        at, aim, w, was = theta[active], target[active], weights[active], objective[active]
        log_loss, shares = problem.predicted(at)
        residual = aim - log_loss
        jacobian = np.einsum("snk,nkp->snp", shares, problem.design[..., free], optimize=True)
        pull = w * np.minimum(1.0, delta / np.maximum(np.abs(residual), 1e-300)) / delta**2
        weighted = jacobian * pull[..., None]
        curvature = np.swapaxes(weighted, 1, 2) @ jacobian
        slope = (weighted * residual[..., None]).sum(axis=1)
        diagonal = np.einsum("spp->sp", curvature)
        ridge = damping[active, None] * diagonal + 1e-9 * diagonal.max(axis=1, keepdims=True) + 1e-12
        step = np.linalg.solve(curvature + ridge[..., None] * np.eye(len(free)), slope[..., None])[..., 0]
        trial = at.copy()
        trial[:, free] = np.clip(at[:, free] + step, low, high)
        value = problem.objective(trial, aim, w, delta)
        better = value < was
        theta[active[better]], objective[active[better]] = trial[better], value[better]
        damping[active] = np.clip(damping[active] * np.where(better, 0.25, 5.0), 1e-9, 1e8)
        stopped = (better & (was - value <= tolerance * was)) | (damping[active] >= 1e7)
        active = active[~stopped]
        if not len(active):
            break
    return theta, objective


def polish(
    problem: Problem, theta: np.ndarray, target: np.ndarray, free: list[int], delta: float
) -> tuple[np.ndarray, float]:
    """scipy's L-BFGS-B from one end [P], with the analytic gradient; the lower of start and end."""
    weights = np.ones_like(target)

    def full(x: np.ndarray) -> np.ndarray:
        result = theta.copy()
        result[free] = x
        return result[None]

    found = minimize(
        lambda x: problem.objective(full(x), target, weights, delta)[0],
        theta[free],
        jac=lambda x: problem.gradient(full(x), target, weights, delta)[0, free],
        method="L-BFGS-B",
        bounds=bounds(problem.names).T[free],
        options={"maxiter": 2000, "ftol": 1e-13, "gtol": 1e-8},
    )
    before = float(problem.objective(theta[None], target, weights, delta)[0])
    return (full(found.x)[0], float(found.fun)) if found.fun < before else (theta, before)
