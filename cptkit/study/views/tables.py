"""Tables of the papers with ours beside the published numbers: P1 Tables 2, 3 and 4, and LoRA in their form.

Departure from the paper: English perplexity and the 50 % arm, which P1 does not report.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from cptkit.study import stats
from cptkit.study.claims import FIRST_HAND, PAPERS, ClaimError, find
from cptkit.study.views import style
from cptkit.study.views.curves import summary
from cptkit.train.folder import write

COLUMNS = {  # column of P1's Tables 2 to 4: our metric, the published metric, per cent?
    "target perplexity": ("ppl.target.perplexity", "validation_perplexity", False),
    "English perplexity": ("ppl.source.perplexity", None, False),
    "downstream accuracy": ("choices.target.accuracy", "downstream_accuracy_avg", True),
    "Copain": ("copain.accuracy", "copain_exact_match", True),
}
PUBLISHED = {  # arm: (table, setting) of the published row; {} is the language's code
    "base": ("Table 2", "base"),
    "mix20": ("Table 2", "CPT {}+en (20% English)"),
    "none": ("Table 2", "CPT {} only"),
    "early10": ("Table 3", "CPT curriculum: {}+en for the first 10% of steps then {} only"),
    "ema92_1": ("Table 4", "CPT {} only with EMA (alpha 0.92; eta 1)"),
    "ema92_10": ("Table 4", "CPT {} only with EMA (alpha 0.92; eta 10)"),
}


def paper_table(
    frame: pd.DataFrame,
    published: pd.DataFrame,
    folder: Path | None = None,
    *,
    arms: Sequence[str],
    name: str,
    title: str,
    model: str = "Llama 2 7B",
    language: str = "eu",
) -> pd.DataFrame:
    """Each arm at the end of its runs, ours (mean ± half of the t interval) beside the published values.

    † marks a value not read first-hand. Returned as text for reading; the numbers, one row per cell, go to
    `<name>.csv` in `folder` and the table itself to `<name>.html`. An arm without runs has dashes.
    """
    ends = stats.ends(frame)
    cells, numbers = [], []
    for arm in arms:
        rows = ends[ends["arm"] == arm]
        line = {"arm": style.arm_style(arm).label}
        for column, (metric, printed, percent) in COLUMNS.items():
            ours = summary(rows, metric, ["step"]).tail(1) if metric in rows else pd.DataFrame()
            row = {"arm": arm, "column": column, "metric": metric}
            if len(ours):
                row |= ours.iloc[0][["step", "mean", "low", "high", "n"]].to_dict()
            if printed and arm in PUBLISHED:
                row |= _published(published, arm, printed, model, language)
            numbers.append(row)
            line[column] = _cell(row, percent)
            if printed:
                line[f"{column}, published"] = _published_cell(row, percent)
        line["seeds"] = rows["seed"].nunique()
        cells.append(line)
    table = pd.DataFrame(cells).set_index("arm")
    if folder is not None:
        folder = Path(folder)
        style.save_numbers(pd.DataFrame(numbers), folder / f"{name}.csv")
        caption = f"<p>Published: P1 {title}, {model}, {language}; † read second-hand. ± 95 % interval.</p>"
        write(folder / f"{name}.html", f'<meta charset="utf-8">\n{table.to_html()}\n{caption}\n')
    return table


def english_mixing_table(
    frame: pd.DataFrame,
    published: pd.DataFrame,
    folder: Path | None = None,
    *,
    arms: Sequence[str] = ("base", "mix20", "none", "mix50"),
    **choice: str,
) -> pd.DataFrame:
    """P1 Table 2, as `paper_table` gives it."""
    return paper_table(
        frame, published, folder, arms=arms, name="table2_english_mixing", title="Table 2", **choice
    )


def curriculum_table(
    frame: pd.DataFrame, published: pd.DataFrame, folder: Path | None = None, **choice: str
) -> pd.DataFrame:
    """P1 Table 3: the arms in the order of the English tokens they spend."""
    arms = dict.fromkeys(["base", *frame.sort_values("english")["arm"]])
    return paper_table(
        frame, published, folder, arms=list(arms), name="table3_curriculum", title="Tables 2 and 3", **choice
    )


def averaging_table(
    frame: pd.DataFrame, published: pd.DataFrame, folder: Path | None = None, **choice: str
) -> pd.DataFrame:
    """P1 Table 4: each average beside plain training at the rate it amounts to."""
    arms = dict.fromkeys(["base", *frame["arm"]])
    return paper_table(
        frame, published, folder, arms=list(arms), name="table4_averaging", title="Tables 2 and 4", **choice
    )


def lora_table(
    frame: pd.DataFrame, published: pd.DataFrame, folder: Path | None = None, **choice: str
) -> pd.DataFrame:
    """LoRA at each arm's best rate beside full training, in the form of P1's tables."""
    arms = dict.fromkeys(["base", *frame["arm"]])
    return paper_table(frame, published, folder, arms=list(arms), name="lora", title="Table 2", **choice)


def advantages(
    parts: Sequence[pd.DataFrame], folder: Path | None = None, name: str = "advantages"
) -> pd.DataFrame:
    """Means over seeds of `fronts.advantage`, in points, with t intervals; one row per arm (and language).

    `outside` counts runs whose place on the axis plain training never came to: they have no advantage to
    state.
    """
    found = [part for part in parts if len(part)]
    if not found:
        return pd.DataFrame()
    runs = pd.concat(found, ignore_index=True)
    keys, rows = [k for k in ("language", "arm") if k in runs], []
    for key, part in runs.groupby(keys, sort=False):
        known = part["advantage"].dropna()
        over = stats.interval(100 * known) if len(known) else stats.Interval(*[math.nan] * 3, 0)
        means = part.select_dtypes("number").drop(columns=["seed", "advantage"]).mean()
        rows.append(
            dict(zip(keys, key, strict=True)) | means.to_dict()
            | {"advantage": over.mean, "low": over.low, "high": over.high, "seeds": over.n,
               "outside": len(part) - len(known)}
        )  # fmt: skip
    return style.keep_table(pd.DataFrame(rows), folder, name)


def contrasts(
    frame: pd.DataFrame,
    pairs: Sequence[tuple[str, str]],
    folder: Path | None = None,
    *,
    name: str = "contrasts",
) -> pd.DataFrame:
    """Differences of arms at the end, paired by seed, with 95 % t intervals: points, and for perplexities
    ratios.

    `pairs` are (a, b): a minus b, or a over b. An arm that is not there is left out, as is a pair without a
    common seed.
    """
    ends, rows = stats.ends(frame), []
    for a, b in pairs:
        for column, (metric, _, percent) in COLUMNS.items():
            sides = [ends[ends["arm"] == arm].set_index("seed")[metric].dropna() for arm in (a, b)]
            common = sides[0].index.intersection(sides[1].index)
            if common.empty:
                continue
            found = stats.paired(sides[0][common], sides[1][common], log=not percent)
            shown = found.map(lambda v: 100 * v) if percent else found.map(math.exp)
            labels = " - " if percent else " / "
            rows.append({
                "comparison": labels.join(style.arm_style(arm).label for arm in (a, b)), "measure": column,
                "unit": "points" if percent else "ratio", "ours": shown.mean, "low": shown.low,
                "high": shown.high, "seeds": found.n,
            })  # fmt: skip
    return style.keep_table(pd.DataFrame(rows), folder, name)


def _published(
    published: pd.DataFrame, arm: str, metric: str, model: str, language: str
) -> dict[str, float | str]:
    table, setting = PUBLISHED[arm]
    keys = {"table_or_figure": table, "setting": setting.format(language, language), "metric": metric}
    try:
        row = find(published, paper=PAPERS["P1"], model=model, language=language, **keys)
    except ClaimError:  # the paper has no such cell, or we have not seen it
        return {}
    return {
        "published": row["value"] / (100 if row["unit"] == "%" else 1),
        "provenance": row["provenance"],
    }


def _cell(row: Mapping[str, Any], percent: bool) -> str:
    if "mean" not in row:
        return "–"
    factor, digits = (100, 1) if percent else (1, 2)
    text = f"{factor * row['mean']:.{digits}f}" + (" %" if percent else "")
    half = (row["high"] - row["low"]) / 2
    return text if math.isnan(half) else f"{text} ± {factor * half:.{digits}f}"


def _published_cell(row: Mapping[str, Any], percent: bool) -> str:
    if "published" not in row:
        return "–"
    text = f"{100 * row['published']:.2f} %" if percent else f"{row['published']:.2f}"
    return text if row["provenance"] in FIRST_HAND else f"{text} †"
