"""Intervals over seeds, paired differences, and the five verdicts.

A seed is the unit of replication: arms of one comparison share the start weights and, seed by seed,
the order of the target data, so the difference of two arms is taken inside each seed first and the
interval is over those differences. With three seeds the t quantile is 4.3, so an effect is called
only when it is more than about two and a half standard deviations of the paired differences; that is
meant. The bootstrap is offered for many values (items, tasks); with three seeds it is far too narrow.

Ratios (perplexities, distances, token counts) are compared as differences of logarithms.

A verdict reads one interval. It knows nothing of the other claims, so among twenty true nulls at
95 % one will look like an effect: the ledger shows all claims, never the best ones.

The last functions choose rows of the metrics frame, for the ledger and the figures alike.

Cost: microseconds, `bootstrap` a few milliseconds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

Verdict = Literal["reproduced", "direction only", "not seen", "reversed", "not testable at this scale"]
VERDICTS: tuple[Verdict, ...] = (
    "reproduced",
    "direction only",
    "not seen",
    "reversed",
    "not testable at this scale",
)
Tolerance = Literal["exact", "relative", "direction"]
TOLERANCES: tuple[Tolerance, ...] = ("exact", "relative", "direction")


class StatsError(ValueError):
    """Values that cannot be compared; the message says which and why."""


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean with its interval, in the units of the values. One value has a mean and NaN bounds."""

    mean: float
    low: float
    high: float
    n: int

    @property
    def bounded(self) -> bool:
        return math.isfinite(self.low) and math.isfinite(self.high)

    def map(self, function: Callable[[float], float]) -> Interval:
        """The interval under an increasing function, e.g. `math.exp` after logarithms."""
        return Interval(function(self.mean), function(self.low), function(self.high), self.n)

    def __str__(self) -> str:
        return f"{self.mean:.4g} [{self.low:.4g}, {self.high:.4g}] (n={self.n})"


def _values(values: ArrayLike) -> np.ndarray:
    array = np.asarray(values, dtype=np.float64).ravel()
    if array.size == 0:
        raise StatsError("no values: an interval needs at least one")
    if not np.isfinite(array).all():
        # A diverged seed left out silently would flatter its arm.
        raise StatsError(f"value {int(np.argmin(np.isfinite(array)))} of {array.size} is not finite")
    return array


def _check_level(level: float) -> None:
    if not 0 < level < 1:
        raise StatsError(f"level is a fraction between 0 and 1, not {level}")


def interval(values: ArrayLike, level: float = 0.95) -> Interval:
    """Student's t interval of the mean of independent values (one per seed).

    Raises StatsError for no values, a value that is not finite, a level outside (0, 1).
    """
    _check_level(level)
    array = _values(values)
    mean, n = float(array.mean()), array.size
    if n == 1:
        return Interval(mean, math.nan, math.nan, 1)
    from scipy.special import stdtrit

    half = float(stdtrit(n - 1, (1 + level) / 2) * array.std(ddof=1) / math.sqrt(n))
    return Interval(mean, mean - half, mean + half, n)


def bootstrap(
    values: ArrayLike,
    level: float = 0.95,
    *,
    draws: int = 4000,
    seed: int = 0,
    statistic: Callable[[np.ndarray], np.ndarray] | None = None,
) -> Interval:
    """Percentile bootstrap; `statistic` maps [draws, n] to [draws] and is the mean unless given.

    Same seed, same interval. For many values only: below about ten it is much too narrow.
    """
    _check_level(level)
    array = _values(values)
    statistic = statistic or (lambda rows: rows.mean(axis=1))
    centre = float(statistic(array[None, :])[0])
    if array.size == 1:
        return Interval(centre, math.nan, math.nan, 1)
    picks = np.random.default_rng(seed).integers(0, array.size, size=(draws, array.size))
    low, high = np.quantile(statistic(array[picks]), [(1 - level) / 2, (1 + level) / 2])
    return Interval(centre, float(low), float(high), array.size)


def paired(
    a: Mapping[int, float], b: Mapping[int, float], level: float = 0.95, *, log: bool = False
) -> Interval:
    """t interval of a minus b, seed by seed; `log=True` compares logarithms (then exp is a/b).

    `a` and `b` map seed to value (a dict, or a pandas Series indexed by seed). Raises StatsError when a
    seed has no partner or two values, or when a value is not finite (or not positive, with `log`).
    """
    sides = []
    for name, side in (("a", a), ("b", b)):
        seeds = list(side.keys())
        if len(set(seeds)) != len(seeds):
            raise StatsError(f"side {name} has a seed twice: {sorted(seeds)}")
        sides.append({seed: float(value) for seed, value in side.items()})
    left, right = sides
    if left.keys() != right.keys():
        raise StatsError(
            f"seeds without a partner: only in a {sorted(left.keys() - right.keys())}, "
            f"only in b {sorted(right.keys() - left.keys())}"
        )
    differences = []
    for seed in sorted(left):
        x, y = left[seed], right[seed]
        if not (math.isfinite(x) and math.isfinite(y)):
            raise StatsError(f"seed {seed}: not finite (a = {x}, b = {y})")
        if log and (x <= 0 or y <= 0):
            raise StatsError(f"seed {seed}: a ratio needs positive values (a = {x}, b = {y})")
        differences.append(math.log(x) - math.log(y) if log else x - y)
    return interval(differences, level)


def verdict(
    ours: Interval,
    published: float | None,
    direction: int,
    *,
    tolerance: Tolerance = "direction",
    within: float = 0.5,
    log: bool = False,
    region: tuple[float, float] | None = None,
    measurable: bool = True,
) -> Verdict:
    """What our interval says about a published claim.

    First, for every claim: not measurable (smoke), fewer than two seeds, or no finite interval
    -> "not testable at this scale".

    An effect, `direction` +1 or -1: the difference has that sign.

    - the interval touches or covers 0                        -> "not seen"
    - it lies wholly on the other side of 0                   -> "reversed"
    - it lies wholly on the expected side                     -> "direction only", or "reproduced" when the
      published difference is known and agrees by the claim's tolerance class:
        "exact"      it lies inside our interval;
        "relative"   our mean is within `within` x its magnitude of it, or, where both are logs of ratios
                     (`log`), the two ratios are within a factor 1 + `within`;
        "direction"  magnitudes are not comparable (other model, other data): never "reproduced".

    An equality, `direction` 0: the difference lies inside `region` = (low, high), which contains 0. Use
    an infinite bound for a one-sided claim ("is kept": (-0.05, inf)).

    - the interval lies inside the region                     -> "reproduced"
    - it lies wholly outside                                  -> "reversed"
    - otherwise                                               -> "not seen" (too few seeds to say equal)

    This is the equivalence test by inclusion; with a 95 % interval it is stricter than the usual TOST at
    5 %, whose interval is 90 %. `published` and the tolerance class play no part: the margin is the claim.

    Raises StatsError for an unknown direction or class, a missing or wrong region, or a published
    value that has the opposite sign to the claim it is quoted for.
    """
    if direction not in (-1, 0, 1):
        raise StatsError(f"direction is +1, -1 or 0, not {direction!r}")
    if tolerance not in TOLERANCES:
        raise StatsError(f"tolerance class is one of {', '.join(TOLERANCES)}, not {tolerance!r}")
    if direction == 0 and (region is None or not region[0] < 0 < region[1]):
        raise StatsError(f"an equality claim needs a region that contains 0, not {region}")
    if direction and published is not None and published * direction <= 0:
        raise StatsError(f"the published difference {published:g} has not the claimed sign {direction:+d}")

    if not measurable or ours.n < 2 or not ours.bounded:
        return "not testable at this scale"
    if direction == 0:
        low, high = region
        if low <= ours.low and ours.high <= high:
            return "reproduced"
        return "reversed" if ours.high < low or ours.low > high else "not seen"
    if ours.low <= 0 <= ours.high:
        return "not seen"
    if ours.mean * direction < 0:
        return "reversed"
    if published is None or tolerance == "direction":
        return "direction only"
    if tolerance == "exact":
        agrees = ours.low <= published <= ours.high
    else:
        agrees = abs(ours.mean - published) <= (math.log1p(within) if log else within * abs(published))
    return "reproduced" if agrees else "direction only"


def half_fall(steps: Sequence[float], values: Sequence[float], least: float = 0.05) -> float:
    """The first probed step at which half of the fall (first value to lowest value) has happened.

    A resolution of one probe interval, so probe densely early. NaN when the whole fall is below `least` (in
    the units of the values): there is nothing to time. `steps` must increase.
    """
    steps, values = np.asarray(steps, dtype=float), _values(values)
    if steps.shape != values.shape or (np.diff(steps) <= 0).any():
        raise StatsError("half_fall needs one value per step, and steps that increase")
    fall = values[0] - values.min()
    if fall < least:
        return math.nan
    return float(steps[np.argmax(values <= values[0] - fall / 2)])


def half_change(steps: Sequence[float], values: Sequence[float], least: float = 0.05) -> float:
    """The first probed step at which half of the change, up or down, has happened.

    The change is from the first value to the one furthest from it; as in `half_fall`, NaN when it is below
    `least` in the units of the values.
    """
    values = _values(values)
    away = np.abs(values - values[0])
    return half_fall(steps, away.max() - away, least)


def tokens_ratio(
    tokens_a: ArrayLike, loss_a: ArrayLike, tokens_b: ArrayLike, loss_b: ArrayLike
) -> tuple[float, float, float]:
    """Tokens that runs a and b need to reach the same loss: (tokens of a / tokens of b, tokens a, tokens b).

    The loss is the worse of the two final (lowest so far) losses, the deepest one that both reach, so neither
    run is extrapolated. Crossings are interpolated linearly in tokens on the running minimum. A run that
    starts below that loss is given its first positive token count (a ratio of 0 would have no logarithm).
    """
    curves = []
    for tokens, loss in ((tokens_a, loss_a), (tokens_b, loss_b)):
        tokens, loss = _values(tokens), _values(loss)
        if tokens.shape != loss.shape or tokens.size < 2 or (np.diff(tokens) <= 0).any() or tokens[0] < 0:
            raise StatsError("a loss curve needs at least two points, with token counts that increase")
        curves.append((tokens, np.minimum.accumulate(loss)))
    target = max(loss[-1] for _, loss in curves)
    needed = []
    for tokens, loss in curves:
        k = int(np.argmax(loss <= target))
        if k == 0:
            needed.append(float(tokens[tokens > 0][0]))
        else:
            share = (loss[k - 1] - target) / (loss[k - 1] - loss[k])
            needed.append(float(tokens[k - 1] + share * (tokens[k] - tokens[k - 1])))
    return needed[0] / needed[1], needed[0], needed[1]


def tokens_saved(cpt: pd.DataFrame, scratch: pd.DataFrame, metric: str) -> float:
    """The share of tokens that `cpt` saves against `scratch`, geometric mean over the seeds both have.

    Rows with `seed`, `tokens` and `metric`, one run per seed. NaN where no seed is in both.
    """
    ratios = []
    for seed, a in cpt.groupby("seed"):
        b = scratch[scratch["seed"] == seed]
        if len(b) > 1 and len(a) > 1:
            ratios.append(tokens_ratio(a["tokens"], a[metric], b["tokens"], b[metric])[0])
    return 1 - math.exp(np.log(ratios).mean()) if ratios else math.nan


def probes(frame: pd.DataFrame) -> pd.DataFrame:
    """The probe rows in step order (every row of a frame without the column `kind`)."""
    rows = frame[frame["kind"] == "probe"] if "kind" in frame else frame
    return rows.sort_values("step", kind="stable")


def start(frame: pd.DataFrame) -> pd.DataFrame:
    """The row of step 0, as arm "base": one measurement, as all runs of an experiment share their start."""
    return probes(frame[frame["step"] == 0]).head(1).assign(arm="base")


def ends(frame: pd.DataFrame) -> pd.DataFrame:
    """Each run's last probe row, and the start as arm `base` where it was measured."""
    rows = probes(frame)
    rows = rows[rows["arm"] != "base"]
    return pd.concat([start(rows), rows[rows["step"] > 0].groupby("run").tail(1)])


def headline(frame: pd.DataFrame, *, keep_ties: bool = False) -> pd.DataFrame:
    """The rows of each arm at its learning rate (`lr_peak`) with the most runs: the arms without their sweep.

    Raises StatsError when two rates of an arm have as many: then the caller has to choose. With `keep_ties`
    such an arm keeps those rates, for a caller who will not read it or will notice.
    """
    runs = frame.groupby(["arm", "lr_peak"])["run"].nunique().reset_index()
    most = runs[runs["run"] == runs.groupby("arm")["run"].transform("max")]
    if not keep_ties and len(tied := most[most.duplicated("arm", keep=False)]):
        arm = tied["arm"].iloc[0]
        rates = ", ".join(f"{r:g}" for r in tied[tied["arm"] == arm]["lr_peak"])
        raise StatsError(f"rates {rates} of {arm} have as many runs: choose one by lr_peak")
    places = pd.MultiIndex.from_frame(frame[["arm", "lr_peak"]])
    return frame[places.isin(pd.MultiIndex.from_frame(most[["arm", "lr_peak"]]))]


def best_peak(frame: pd.DataFrame, metric: str) -> float:
    """The learning rate that `best_rate` chooses among the probes of one arm."""
    return float(best_rate(probes(frame), metric)["lr_peak"].iloc[0])


def best_rate(rows: pd.DataFrame, metric: str) -> pd.DataFrame:
    """The rows of one arm at the learning rate (`lr_peak`) with the lowest final `metric`, mean over seeds.

    One rate for all seeds, so that no seed picks its own luck. Rows without the metric are dropped.
    """
    rows = rows.dropna(subset=[metric]).sort_values("step", kind="stable")
    if rows.empty:
        raise StatsError(f"{metric} was not measured")
    if "lr_peak" not in rows:
        return rows
    ends = rows.groupby("run").tail(1)
    if "seed" in ends:  # compare rates on the seeds that all of them have: the best rate may have more
        common = set.intersection(*(set(seeds) for _, seeds in ends.groupby("lr_peak")["seed"]))
        ends = ends[ends["seed"].isin(common)] if common else ends
    return rows[rows["lr_peak"] == ends.groupby("lr_peak")[metric].mean().idxmin()]
