"""Claims of the papers, as data: what is said, where, how it is tested, and the numbers that were printed.

Claims are read from `published/claims.toml`, strictly; published numbers are looked up in `published/*.csv`
and never typed twice. One claim is one comparison of two sides, `a` minus `b` (or a over b), paired by seed:

    id, notebook, paper, place, text   who says what, in our words
    metric      a column of the metrics frame (store.load)
    a, b        column = value filters that choose runs; arm = "base" is the start: step 0 of the runs of a
    statistic   value (default) | half_fall | tokens_to_match (arms cpt and scratch, each at its best rate) |
                matched (the end of a against b where, on its way, b has the same `by`, a column such as
                drift)
                frontier (the end of a against the ends of b over its learning rates, at the same `by`) |
                estimate (what was fitted to many runs, e.g. gamma, under the name `metric`; `a` says which
                runs those are)
    at          final (default) | a step number | published: the share of our run that the published step is
                of the paper's, at the nearest probed step
    unit        ratio (compared as logarithms) | points (differences of fractions, in per cent) |
                share of the run | nats (differences of nats a token) | number
    direction   1, -1: the sign of the effect; 0: an equality, then `region` = [low, high] in `unit`
    bound       half_fall only: the statistic is compared with this instead of with a side b
    floor       a chance column: when neither side is 5 points above it, there is nothing to compare
    tolerance, within   see `stats.verdict`
    published   filters that find one row (a) or two rows (a, b) of the CSVs

Cost: milliseconds.
"""

from __future__ import annotations

import difflib
import math
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from cptkit.study import stats

PAPERS = {"P1": "2506.00288", "P2": "2407.02118", "P3": "2407.18743"}
FOLDER = Path(__file__).parent.parent / "published"
FIRST_HAND = ("full-text", "authors-repo", "authors-dataset")
UNITS = ("ratio", "points", "share of the run", "nats", "number")
STATISTICS = ("value", "frontier", "half_fall", "matched", "tokens_to_match", "estimate")


class ClaimError(ValueError):
    """A claims file that cannot be used, or a published number that is not there; says claim and key."""


@dataclass(frozen=True)
class Claim:
    """One claim; the keys of claims.toml, explained at the top of this module."""

    id: str
    notebook: str
    paper: str
    place: str
    text: str
    metric: str
    a: Mapping[str, Any]
    unit: str
    direction: int
    b: Mapping[str, Any] = field(default_factory=dict)
    statistic: str = "value"
    at: str | int = "final"
    tolerance: str = "direction"
    within: float = 0.5
    region: tuple[float, float] | None = None
    bound: float | None = None
    by: str | None = None
    floor: str | None = None
    published: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for key, known in (
            ("paper", tuple(PAPERS)),
            ("unit", UNITS),
            ("statistic", STATISTICS),
            ("tolerance", stats.TOLERANCES),
        ):
            if getattr(self, key) not in known:
                value = getattr(self, key)
                raise ClaimError(f"claim {self.id!r}: {key} is one of {', '.join(known)}, not {value!r}")
        if self.direction not in (-1, 0, 1) or (self.direction == 0) != (self.region is not None):
            raise ClaimError(f"claim {self.id!r}: direction is 1, -1, or 0 with a region (and only then)")
        if (self.statistic == "half_fall") != (self.bound is not None):
            raise ClaimError(f"claim {self.id!r}: half_fall needs a bound, and nothing else has one")
        if self.statistic in ("value", "frontier", "matched") and not self.b:
            raise ClaimError(f"claim {self.id!r}: a value is compared with a side b")
        if (self.statistic in ("frontier", "matched")) != (self.by is not None):
            raise ClaimError(f"claim {self.id!r}: matched and frontier need `by`, and nothing else has one")
        if self.at == "published" and "step" not in self.published.get("a", {}):
            raise ClaimError(f"claim {self.id!r}: at = published needs the step of the published row")
        if not (self.at in ("final", "published") or (type(self.at) is int and self.at >= 0)):
            raise ClaimError(f"claim {self.id!r}: at is final, published or a step, not {self.at!r}")

    @property
    def comparison(self) -> str:
        def name(side: Mapping[str, Any]) -> str:
            return ", ".join(str(v) if k == "arm" else f"{k} {v}" for k, v in side.items())

        if self.statistic == "tokens_to_match":
            name_a = f"cpt / scratch at {name(self.a)}"
            return f"({name_a}) / ({name(self.b)})" if self.b else name_a
        if self.statistic == "estimate":
            return self.metric
        if self.bound is not None:
            return f"{name(self.a)} below {self.bound:g}"
        if self.by is not None:
            return f"{name(self.a)} minus {name(self.b)} at equal {self.by}"
        return f"{name(self.a)} {'/' if self.unit == 'ratio' else 'minus'} {name(self.b)}"


def load_claims(path: Path | None = None, notebook: str | None = None) -> list[Claim]:
    """The claims of the file, in its order, all or those of one notebook.

    Raises ClaimError for an unknown, missing or mistyped key, an id used twice, or no claim for `notebook`.
    """
    path = path or FOLDER / "claims.toml"
    with open(path, "rb") as file:
        content = tomllib.load(file)
    if set(content) != {"claim"}:
        raise ClaimError(f"{path.name}: only [[claim]] tables are known, found {sorted(content)}")
    known = [f.name for f in fields(Claim)]
    required = [f.name for f in fields(Claim) if f.default is MISSING and f.default_factory is MISSING]
    claims = []
    for entry in content["claim"]:
        name = entry.get("id", "?")
        for key in entry:
            if key not in known:
                near = difflib.get_close_matches(key, known, 1)
                hint = f"; did you mean {near[0]!r}?" if near else ""
                raise ClaimError(f"claim {name!r}: unknown key {key!r}{hint}")
        missing = [k for k in required if k not in entry]
        if missing:
            raise ClaimError(f"claim {name!r}: missing {', '.join(missing)}")
        if "region" in entry:
            entry["region"] = tuple(float(v) for v in entry["region"])
        claims.append(Claim(**entry))
    ids = [claim.id for claim in claims]
    if len(set(ids)) != len(ids):
        raise ClaimError(f"{path.name}: an id is used twice: {sorted({i for i in ids if ids.count(i) > 1})}")
    chosen = [claim for claim in claims if notebook in (None, claim.notebook)]
    if not chosen:
        raise ClaimError(f"{path.name}: no claims for notebook {notebook!r}")
    return chosen


def published(paths: Iterable[Path] | None = None) -> pd.DataFrame:
    """All published rows as one frame: `value` a float where it is a number, the rest text ("nan" too)."""
    paths = sorted(FOLDER.glob("*.csv")) if paths is None else list(paths)
    frames = [pd.read_csv(path, dtype=str, keep_default_na=False) for path in paths]
    table = pd.concat(frames, ignore_index=True)
    table["value"] = pd.to_numeric(table["value"], errors="coerce")
    return table


def find(table: pd.DataFrame, **keys: str) -> pd.Series:
    """The one published row that has these values. Raises ClaimError for none or several."""
    unknown = set(keys) - set(table.columns)
    if unknown:
        raise ClaimError(f"published rows have no column {', '.join(sorted(unknown))}")
    rows = table[np.logical_and.reduce([table[k] == str(v) for k, v in keys.items()])]
    if len(rows) != 1:
        raise ClaimError(f"{len(rows)} published rows for {keys}")
    return rows.iloc[0]


def published_value(claim: Claim, table: pd.DataFrame) -> tuple[float | None, str, float | None]:
    """The published difference on the claim's working scale, its provenance, the share of the paper's run.

    The working scale is log ratio for `ratio`, a fraction for `points`. (None, "", None) where the paper
    prints no number.
    """
    if not claim.published:
        return None, "", None
    shared = {k: v for k, v in claim.published.items() if k not in ("a", "b")}
    rows = [
        find(table, paper=PAPERS[claim.paper], **{**shared, **claim.published[side]})
        for side in ("a", "b")
        if side in claim.published
    ]
    values = [row["value"] for row in rows]
    if claim.unit == "ratio":
        value = math.log(values[0]) - (math.log(values[1]) if len(values) == 2 else 0.0)
    else:
        value = values[0] - (values[1] if len(values) == 2 else 0.0)
        value = value / 100 if claim.unit == "points" else value  # printed in per cent
    share = None
    if claim.at == "published":
        whole = find(table, paper=PAPERS[claim.paper], table_or_figure="setup", metric="train_steps")
        share = float(rows[0]["step"]) / float(whole["value"])
    return float(value), "; ".join(dict.fromkeys(row["provenance"] for row in rows)), share
