"""Simulated studies: do the intervals hold the truth, and which grid could show gamma at all?

A simulated study has one run per arm at each (N, D) of its grid and normal noise on log L (field bug B68: a
gamma "found" where nothing could show it). All studies are fitted at once, by the joint form.

Cost: `recovery` of 200 studies with 200 draws each half a minute, `power` of 500 studies two seconds a row.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping

import numpy as np
import pandas as pd

from .closed_form import CONSTANTS, Law
from .scaling import DELTA, TOGETHER, Points, Unidentified, build, check_identified
from .solver import Problem, descend
from .uncertainty import DRAW, quantiles, resampled

(FORM,) = (stage.form for stage in TOGETHER)


def simulated(
    laws: Mapping[str, Law], N: np.ndarray, D: np.ndarray, noise: float, studies: int, seed: int = 0
) -> tuple[Points, np.ndarray]:
    """Studies with a run per arm at each (N, D), log L with normal noise of this standard deviation.

    Returns the points of the first study, and log L of all, [studies, 2 n].
    """
    n, d = np.tile(N, 2), np.tile(D, 2)
    cpt = np.repeat([False, True], len(N))
    exact = np.log(np.where(cpt, laws["cpt"].loss(n, d), laws["scratch"].loss(n, d)))
    drawn = exact + np.random.default_rng(seed).normal(0, noise, (studies, len(n)))
    return Points(n, d, np.exp(drawn[0]), cpt, np.arange(len(n))), drawn


def power(
    laws: Mapping[str, Law],
    grids: Mapping[str, tuple[np.ndarray, np.ndarray]],
    noises: Iterable[float],
    *,
    gamma: float = 0.08,
    studies: int = 500,
    level: float = 0.95,
    seed: int = 0,
) -> pd.DataFrame:
    """How often a study on each grid, at each noise, would tell `gamma` from 0: a row per grid and noise.

    By simulation of whole studies: `power` is the share of joint fits under `gamma` whose estimate lies
    outside the central `level` of the estimates under gamma = 0, `spread` the standard deviation of the
    estimates. A grid that cannot identify the law has no number, and the note says why. Fits start at the
    true constants, so this is the power of the best possible search.
    """
    rows = []
    for name, (N, D) in grids.items():
        for noise in noises:
            row = {
                "grid": name,
                "runs": 2 * len(N),
                "noise": noise,
                "power": np.nan,
                "spread": np.nan,
                "note": "",
            }
            try:
                found = [
                    _gammas(laws, N, D, noise, value, studies, seed + k)
                    for k, value in enumerate((0.0, gamma))
                ]
            except Unidentified as reason:
                rows.append(row | {"note": f"unidentified: {reason}"})
                continue
            low, high = quantiles(found[0], level)
            row["power"] = float(np.mean((found[1] < low) | (found[1] > high)))
            row["spread"] = float(found[1].std())
            rows.append(row)
    return pd.DataFrame(rows)


def recovery(
    laws: Mapping[str, Law],
    N: np.ndarray,
    D: np.ndarray,
    noise: float,
    *,
    studies: int = 200,
    draws: int = 200,
    level: float = 0.9,
    seed: int = 0,
) -> pd.DataFrame:
    """How often the bootstrap interval holds the truth in simulated studies: a row per arm and constant.

    `covered` is the share of studies whose interval at `level` holds `truth`; `estimate` and `spread` are the
    mean and standard deviation of the estimates. Joint form, draws within each arm, fits from the truth.
    """
    points, target = simulated(laws, N, D, noise, studies, seed)
    problem, point = _estimated(points, target, laws)
    weights = np.concatenate(
        [resampled(points, draws, np.random.default_rng([seed, k]), False) for k in range(studies)]
    )
    start, targets = (np.repeat(a, draws, axis=0) for a in (point, target))
    ends, _ = descend(problem, start, targets, weights, _all(problem), DELTA, tolerance=DRAW)
    rows = []
    for arm, truth in laws.items():
        for name in CONSTANTS if arm == "cpt" else CONSTANTS[:-1]:
            estimates = getattr(problem.law(point, arm), name)
            drawn = getattr(problem.law(ends, arm), name).reshape(studies, draws)
            low, high = np.quantile(drawn, [(1 - level) / 2, (1 + level) / 2], axis=1)
            exact = float(getattr(truth, name))
            rows.append(
                {
                    "arm": arm,
                    "constant": name,
                    "truth": exact,
                    "estimate": estimates.mean(),
                    "spread": estimates.std(),
                    "covered": float(np.mean((low <= exact) & (exact <= high))),
                }
            )
    return pd.DataFrame(rows)


def _gammas(
    laws: Mapping[str, Law], N: np.ndarray, D: np.ndarray, noise: float, gamma: float, studies: int, seed: int
) -> np.ndarray:
    """gamma as estimated in each simulated study: [studies]."""
    # The same CPT loss at the middle size whatever gamma is, so that only its slope in N differs.
    middle, cpt = np.exp(np.log(N).mean()), laws["cpt"]
    cpt = dataclasses.replace(cpt, B=cpt.B * middle ** (gamma - cpt.gamma), gamma=gamma)
    laws = {"scratch": laws["scratch"], "cpt": cpt}
    points, target = simulated(laws, N, D, noise, studies, seed)
    problem, ends = _estimated(points, target, laws)
    return problem.law(ends, "cpt").gamma


def _estimated(points: Points, target: np.ndarray, laws: Mapping[str, Law]) -> tuple[Problem, np.ndarray]:
    """theta of every study [studies, P], from the true constants. Raises `Unidentified`."""
    check_identified(points, FORM)
    problem = build(points, FORM)
    start = np.repeat(problem.theta(laws["scratch"], laws["cpt"])[None], len(target), axis=0)
    ends, _ = descend(problem, start, target, np.ones_like(target), _all(problem), DELTA)
    return problem, ends


def _all(problem: Problem) -> list[int]:
    return list(range(len(problem.names)))
