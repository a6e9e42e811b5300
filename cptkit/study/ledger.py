"""The ledger: what a paper says, what it printed, what we measured, and a verdict, one row per claim.

A claim (see `claims`) that cannot be tested still has a row, and its note says what is missing. A seed that
exists in one arm only is left out and named in the note; a run that is there but has no value at the compared
step makes the claim untestable, since leaving it out could hide a divergence. With `Scale.magnitudes` false
(another model and other data than the paper's) an effect is at best "direction only"; an equality is
judged by its margin, which has no scale.

Cost: milliseconds.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from cptkit.study import stats
from cptkit.study.claims import FIRST_HAND, Claim, load_claims, published, published_value
from cptkit.study.fronts import advantage

if TYPE_CHECKING:
    from pandas.io.formats.style import Styler

    from cptkit.study.profiles import Profile

# fmt: off
COLUMNS = [
    "claim", "paper", "place", "text", "comparison", "step", "published", "provenance",
    "ours", "low", "high", "unit", "n", "verdict", "scale", "runs", "note",
]
# fmt: on
FLOOR_MARGIN = 0.05
Estimates = Mapping[str, stats.Interval | str]


class LedgerError(ValueError):
    """A frame that does not say which runs to compare; the message names the claim or the columns."""


class _Untestable(Exception):
    """Why one claim has no value here; becomes the row's note."""


@dataclass(frozen=True)
class Scale:
    """What a profile's runs can say; a `profiles.Profile` can stand in its place.

    `measurement` is false in smoke; `magnitudes` is true only with the paper's own models and data.
    """

    name: str
    measurement: bool = True
    magnitudes: bool = False


def _mask(frame: pd.DataFrame, side: Mapping[str, Any]) -> np.ndarray:
    mask = np.ones(len(frame), dtype=bool)
    for column, value in side.items():
        numeric = isinstance(value, float)
        mask &= np.isclose(pd.to_numeric(frame[column]), value) if numeric else (frame[column] == value)
    return mask


def _select(frame: pd.DataFrame, side: Mapping[str, Any], metric: str) -> pd.DataFrame:
    """The rows of a side."""
    for column in (*side, metric):
        if column not in frame:
            raise _Untestable(f"no column {column}")
    rows = frame[_mask(frame, side)]
    if rows.empty:
        raise _Untestable("no runs with " + ", ".join(f"{k} = {v}" for k, v in side.items()))
    return rows


def _curves(frame: pd.DataFrame, side: Mapping[str, Any], metric: str) -> dict[int, pd.Series]:
    """Seed to the metric over steps; each seed must be one run."""
    rows = _select(frame, side, metric)[["seed", "run", "step", metric]]
    curves = {}
    for seed, group in rows.groupby("seed"):
        if (runs := group["run"].nunique()) > 1:
            raise LedgerError(
                f"{runs} runs for {dict(side)}, seed {seed}: filter the frame to one experiment"
            )
        measured = group.dropna(subset=[metric]).drop_duplicates("step", keep="last").sort_values("step")
        curves[int(seed)] = measured.set_index("step")[metric]
    return curves


def _common(a: Mapping[int, Any], b: Mapping[int, Any], notes: list[str]) -> list[int]:
    seeds = sorted(set(a) & set(b))
    if not seeds:
        raise _Untestable(f"no seed in both sides (a: {sorted(a)}, b: {sorted(b)})")
    alone = sorted(set(a) ^ set(b))
    if alone:
        notes.append(f"seeds without a partner left out: {', '.join(map(str, alone))}")
    return seeds


def _sides(
    claim: Claim, frame: pd.DataFrame, share: float | None, notes: list[str]
) -> tuple[dict[int, float], dict[int, float], int]:
    """Seed to value for both sides, and the step at which they were read."""
    if claim.a.get("arm") == "base":
        raise LedgerError(f"claim {claim.id!r}: base can only be side b")
    a = _curves(frame, claim.a, claim.metric)
    from_base = claim.b.get("arm") == "base"
    b = _curves(frame, claim.b, claim.metric) if not from_base else _starts(claim, frame, a)
    seeds = _common(a, b, notes)
    step = max((int(side[s].index.max()) for side in (a, b) for s in seeds if len(side[s])), default=0)
    if step == 0:
        raise _Untestable(f"{claim.metric} was measured at no step after the start")
    if isinstance(claim.at, int):
        step = claim.at
    elif share is not None:
        probed = {s for side in (a, b) for curve in side.values() for s in curve.index if s > 0}
        step = int(min(probed, key=lambda s: abs(math.log(s / (share * step)))))

    def read(side: Mapping[int, pd.Series], name: str, at: int) -> dict[int, float]:
        absent = [s for s in seeds if at not in side[s].index]
        if absent:
            raise _Untestable(f"side {name} has no value at step {at} for seed {', '.join(map(str, absent))}")
        return {s: float(side[s].loc[at]) for s in seeds}

    return read(a, "a", step), read(b, "b", 0 if from_base else step), step


def _starts(claim: Claim, frame: pd.DataFrame, a: dict[int, pd.Series]) -> dict[int, pd.Series]:
    """The start as side b: as the runs of a measured it, else as others of the frame did, which share it."""
    start = stats.start(frame)
    if len(start) and all(0 not in curve.index for curve in a.values()):
        return dict.fromkeys(a, pd.Series({0: start[claim.metric].iloc[0]}).dropna())
    return a


def _tokens_to_match(claim: Claim, side: Mapping[str, Any], frame: pd.DataFrame) -> dict[int, float]:
    """Seed to tokens of CPT over tokens of scratch at equal loss, each arm at its best learning rate."""
    curves = {}
    for arm in ("cpt", "scratch"):
        rows = _select(frame, {**side, "arm": arm}, claim.metric)
        curves[arm] = dict(iter(stats.best_rate(rows, claim.metric).groupby("seed")))
    both = [(s, cpt, curves["scratch"][s]) for s, cpt in curves["cpt"].items() if s in curves["scratch"]]
    return {
        int(seed): stats.tokens_ratio(a["tokens"], a[claim.metric], b["tokens"], b[claim.metric])[0]
        for seed, a, b in both
    }


def _matched(claim: Claim, frame: pd.DataFrame) -> tuple[dict[int, float], dict[int, float]]:
    """Seed to the end of a, and to what b had on its way when `by` was the same (linear between probes)."""
    ends = {}
    for column in (claim.metric, claim.by):
        curves = _curves(frame, claim.a, column)
        ends[column] = {seed: float(curve.iloc[-1]) for seed, curve in curves.items() if len(curve)}
    a, b = ends[claim.metric], {}
    values, ways = (_curves(frame, claim.b, column) for column in (claim.metric, claim.by))
    for seed, place in ends[claim.by].items():
        if seed not in ways or seed not in values:
            continue
        way = pd.concat({"by": ways[seed], "value": values[seed]}, axis=1).dropna()
        if way.empty or not way["by"].min() <= place <= way["by"].max():
            raise _Untestable(f"side b was never at {claim.by} {place:.3g} (seed {seed})")
        way = way.sort_values("by")
        b[seed] = float(np.interp(place, way["by"], way["value"]))
    return a, b


def _above_frontier(claim: Claim, frame: pd.DataFrame) -> dict[int, float]:
    """Seed to the advantage of a over b, b at the learning rate that gives a's `by`."""
    sides = [_select(frame, side, claim.metric) for side in (claim.a, claim.b)]
    if len(sides[0][["seed", "run"]].drop_duplicates()) != sides[0]["seed"].nunique():
        raise LedgerError(f"claim {claim.id!r}: several runs of one seed in side a")
    found = advantage(*sides, claim.by, claim.metric)
    if (outside := found[found["advantage"].isna()]["seed"]).size:
        raise _Untestable(f"no rate of side b has the {claim.by} of a (seed {', '.join(map(str, outside))})")
    return dict(zip(found["seed"], found["advantage"], strict=True))


def _measure(
    claim: Claim, frame: pd.DataFrame, share: float | None, notes: list[str], estimates: Estimates
) -> tuple[stats.Interval, int | None]:
    """Our interval on the working scale (minus the bound where there is one), and the step."""
    if claim.statistic == "tokens_to_match":
        a = _tokens_to_match(claim, claim.a, frame)
        b = _tokens_to_match(claim, claim.b, frame) if claim.b else dict.fromkeys(a, 1.0)
        seeds = _common(a, b, notes)
        return stats.paired({s: a[s] for s in seeds}, {s: b[s] for s in seeds}, log=True), None
    if claim.statistic == "estimate":
        found = estimates.get(claim.metric, "not estimated here")
        if isinstance(found, str):
            raise _Untestable(found)
        return found, None
    if claim.statistic == "frontier":
        return stats.interval(list(_above_frontier(claim, frame).values())), None
    if claim.statistic == "half_fall":
        shares = {}
        for seed, curve in _curves(frame, claim.a, claim.metric).items():
            if curve.empty or curve.index[0] != 0:
                raise _Untestable(f"{claim.metric} was not measured at step 0 for seed {seed}")
            step = stats.half_fall(curve.index, curve.to_numpy())
            shares[seed] = step / max(curve.index.max(), 1) - claim.bound
        flat = [s for s, v in shares.items() if math.isnan(v)]
        if flat:
            raise _Untestable(f"no fall to time for seed {', '.join(map(str, flat))}")
        return stats.interval(list(shares.values())), None
    if claim.statistic == "matched":
        a, b = _matched(claim, frame)
        step, seeds = None, _common(a, b, notes)
        a, b = {s: a[s] for s in seeds}, {s: b[s] for s in seeds}
    else:
        a, b, step = _sides(claim, frame, share, notes)
    if claim.floor:
        if claim.floor not in frame:
            raise _Untestable(f"no column {claim.floor}")
        chance = float(frame[claim.floor].mean())
        if max(np.mean(list(a.values())), np.mean(list(b.values()))) < chance + FLOOR_MARGIN:
            over = f"{100 * FLOOR_MARGIN:g} points above chance ({100 * chance:.1f} %)"
            raise _Untestable(f"neither side is {over}")
    return stats.paired(a, b, log=claim.unit == "ratio"), step


def _display(claim: Claim) -> tuple[Callable[[float], float], Callable[[float], float]]:
    """Working scale to the claim's unit, and back."""
    if claim.unit == "ratio":
        return math.exp, math.log
    factor, shift = (100.0, 0.0) if claim.unit == "points" else (1.0, claim.bound or 0.0)
    return (lambda v: factor * v + shift), (lambda v: (v - shift) / factor)


def judge(
    claim: Claim,
    frame: pd.DataFrame,
    scale: Scale | Profile,
    table: pd.DataFrame,
    estimates: Estimates | None = None,
) -> dict[str, Any]:
    """One ledger row. Raises LedgerError for a wrong claim or an ambiguous frame, never for missing runs."""
    value, provenance, share = published_value(claim, table)
    to_unit, from_unit = _display(claim)
    region = tuple(from_unit(v) if math.isfinite(v) else v for v in claim.region) if claim.region else None
    notes = [] if scale.measurement else ["not a measurement"]
    ours, step = stats.Interval(math.nan, math.nan, math.nan, 0), None
    try:
        if (
            claim.statistic not in ("tokens_to_match", "frontier", "estimate")
            and "lr_peak" in frame
            and len(frame)
        ):
            frame = stats.headline(frame, keep_ties=True)  # an ambiguous side is refused where it is read
        ours, step = _measure(claim, frame, share, notes, estimates or {})
    except (_Untestable, stats.StatsError) as error:
        notes.append(str(error))
    if ours.n == 1:
        notes.append("one seed")
    verdict = stats.verdict(
        ours,
        value,
        claim.direction,
        tolerance=claim.tolerance if getattr(scale, "magnitudes", False) else "direction",
        within=claim.within,
        log=claim.unit == "ratio",
        region=region,
        measurable=scale.measurement,
    )
    used = pd.Series(False, index=frame.index)
    for side in (claim.a, claim.b):
        if side and side.get("arm") != "base" and set(side) <= set(frame.columns):
            used |= _mask(frame, side)
    shown = ours.map(to_unit)
    return {
        "claim": claim.id,
        "paper": claim.paper,
        "place": claim.place,
        "text": claim.text,
        "comparison": claim.comparison,
        "step": step,
        "published": math.nan if value is None else to_unit(value),
        "provenance": provenance,
        "ours": shown.mean,
        "low": shown.low,
        "high": shown.high,
        "unit": claim.unit,
        "n": ours.n,
        "verdict": verdict,
        "scale": scale.name,
        "runs": " ".join(sorted(frame.loc[used, "run"].astype(str).unique())),
        "note": "; ".join(notes),
    }


def ledger(
    frame: pd.DataFrame,
    profile: Scale | Profile,
    notebook: str,
    claims: list[Claim] | None = None,
    estimates: Estimates | None = None,
) -> pd.DataFrame:
    """One row per claim of `notebook`, in the order of the file; columns are `COLUMNS`.

    `frame` is the metrics frame of this notebook's runs. Of a sweep over learning rates, claims on values
    read the rate with the most runs (`stats.headline`), and tokens_to_match chooses by itself. Beyond that
    a side of a claim must be one run per seed, else LedgerError. `estimates` are intervals of what was fitted
    to many runs, on the claim's working scale, or the reason why one could not be: statistic `estimate`.
    """
    if frame.empty:
        raise LedgerError("the frame is empty: no runs to judge")
    found = set(frame["profile"]) if "profile" in frame else set()
    if found - {profile.name}:
        raise LedgerError(f"the frame holds profiles {sorted(map(str, found))}, not only {profile.name!r}")
    probes, table = stats.probes(frame), published()
    claims = claims or load_claims(notebook=notebook)
    rows = [judge(claim, probes, profile, table, estimates) for claim in claims]
    result = pd.DataFrame(rows, columns=COLUMNS)
    result["step"] = result["step"].astype("Int64")
    return result


VERDICT_COLOURS = {  # background; the words stand beside it, colour is never the only sign
    "reproduced": "#b7e1cd",
    "direction only": "#d7e8f7",
    "not seen": "#f3f3f3",
    "reversed": "#f6c7b6",
    "not testable at this scale": "#ffffff",
}


def render(table: pd.DataFrame) -> Styler:
    """The ledger for a notebook, coloured by verdict; published values not read first-hand are marked †."""

    def number(value: float, unit: str) -> str:
        if math.isnan(value):
            return "–"
        return {"ratio": f"× {value:.3g}", "points": f"{value:+.1f} pts"}.get(unit, f"{value:.3g}")

    shown = pd.DataFrame(
        {
            "claim": table["text"],
            "where": table["paper"] + ", " + table["place"],
            "compared": [
                c + ("" if pd.isna(s) else f" (step {s})")
                for c, s in zip(table["comparison"], table["step"], strict=True)
            ],
            "published": [
                number(v, u) + ("" if p in ("", *FIRST_HAND) else " †")
                for v, u, p in zip(table["published"], table["unit"], table["provenance"], strict=True)
            ],
            "ours": [number(v, u) for v, u in zip(table["ours"], table["unit"], strict=True)],
            "95 % interval": [
                "–" if math.isnan(lo) else f"{number(lo, u)} to {number(hi, u)}"
                for lo, hi, u in zip(table["low"], table["high"], table["unit"], strict=True)
            ],
            "seeds": table["n"],
            "verdict": table["verdict"],
            "note": table["note"],
        }
    )
    colours = [f"background-color: {VERDICT_COLOURS[v]}; color: #111" for v in table["verdict"]]
    style = shown.style.hide(axis="index").set_uuid("ledger")
    style = style.apply(lambda _: colours, subset=["verdict"])
    style = style.set_properties(**{"text-align": "left", "vertical-align": "top"})
    scale = ", ".join(dict.fromkeys(table["scale"]))
    return style.set_caption(
        f"Profile {scale}. × ratio a/b, pts percentage points. † read second-hand or off an image."
    )


def save(table: pd.DataFrame, folder: Path) -> Path:
    """Write folder/ledger.csv whole or not at all; returns its path."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "ledger.csv"
    partial = path.with_suffix(".partial")
    table.to_csv(partial, index=False)
    os.replace(partial, path)
    return path
