"""Trade-offs: which arms no other beats, and whether an arm does better than a lower learning rate would.

Every way of training keeps more when it learns less. So an arm is worth something if it keeps more than plain
training does at the rate that learns as much: `advantage` reads that off the curve of plain training over
rates.

Cost: milliseconds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from cptkit.study import stats


def pareto(x: ArrayLike, y: ArrayLike) -> np.ndarray:
    """Which points no other beats (as high in both, higher in one); more is better. Boolean, [n]."""
    x, y = np.asarray(x, dtype=float), np.asarray(y, dtype=float)
    as_good = (x[:, None] >= x) & (y[:, None] >= y)
    better = (x[:, None] > x) | (y[:, None] > y)
    return ~(as_good & better).any(axis=0)


def advantage(
    frame: pd.DataFrame, controls: pd.DataFrame, by: str, metric: str, labels: Mapping[str, Any] | None = None
) -> pd.DataFrame:
    """How much better in `metric` each run of `frame` ends than plain training does at the same `by`.

    Plain training is the curve through the ends of `controls` over their learning rates, interpolated
    linearly in log(`by`): of the run's own seed where that curve reaches so far, else of the mean over seeds.
    NaN outside both. One row per run.
    """
    ends, curve = stats.ends(frame), stats.ends(controls)
    ends, curve = ends[ends["arm"] != "base"], curve[curve["arm"] != "base"]
    rows = []
    for _, run in ends.iterrows():
        at = math.nan
        for seeds in (curve[curve["seed"] == run["seed"]], curve):
            line = seeds.groupby("lr_peak")[[by, metric]].mean().sort_values(by)
            if len(line) and math.isnan(at):
                at = np.interp(
                    math.log(run[by]), np.log(line[by]), line[metric], left=math.nan, right=math.nan
                )
        found = {"arm": run["arm"], "seed": run["seed"], by: run[by], metric: run[metric]}
        rows.append(found | {"plain": float(at), "advantage": run[metric] - float(at)} | dict(labels or {}))
    return pd.DataFrame(rows)
