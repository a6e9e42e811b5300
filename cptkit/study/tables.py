"""Tables of the papers with ours beside the published numbers. P1 Table 2 so far.

Departure from the paper: English perplexity and the 50 % arm, which P1 does not report.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from . import stats, style
from .claims import FIRST_HAND
from .curves import published_points, summary

TABLE2 = {  # column of P1's Table 2: our metric, the published metric, per cent?
    "target perplexity": ("ppl.target.perplexity", "validation_perplexity", False),
    "English perplexity": ("ppl.source.perplexity", None, False),
    "downstream accuracy": ("choices.target.accuracy", "downstream_accuracy_avg", True),
    "Copain": ("copain.accuracy", "copain_exact_match", True),
}


def english_mixing_table(
    frame: pd.DataFrame,
    published: pd.DataFrame,
    folder: Path | None = None,
    *,
    arms: Sequence[str] = ("base", "mix20", "none", "mix50"),
    model: str = "Llama 2 7B",
    language: str = "eu",
) -> pd.DataFrame:
    """P1 Table 2: each arm at the end of its runs, ours (mean ± half of the t interval) beside the published.

    † marks a value not read first-hand. Returned as text for reading; the numbers, one row per cell, go to
    `table2_english_mixing.csv` in `folder` and the table itself to `.html`.
    """
    frame = stats.probes(frame)
    cells, numbers = [], []
    for arm in arms:
        rows = stats.start(frame) if arm == "base" else frame[frame["arm"] == arm]
        rows = rows[rows["step"] == rows["step"].max()]
        line = {"arm": style.arm_style(arm).label}
        for column, (metric, printed, percent) in TABLE2.items():
            ours = summary(rows, metric, ["step"]).tail(1) if metric in rows else pd.DataFrame()
            row = {"arm": arm, "column": column, "metric": metric}
            if len(ours):
                row |= ours.iloc[0][["step", "mean", "low", "high", "n"]].to_dict()
            marks = published_points(published, printed, model=model, language=language) if printed else None
            if marks is not None:
                final = marks[(marks["arm"] == arm) & (marks["provenance"] != "digitised")]
                if len(final) == 1:
                    row |= {"published": final["value"].iloc[0], "provenance": final["provenance"].iloc[0]}
            numbers.append(row)
            line[column] = _cell(row, percent)
            if printed:
                line[f"{column}, published"] = _published_cell(row, percent)
        cells.append(line)
    table = pd.DataFrame(cells).set_index("arm")
    if folder is not None:
        folder = Path(folder)
        style.save_numbers(pd.DataFrame(numbers), folder / "table2_english_mixing.csv")
        caption = f"<p>Published: P1 Table 2, {model}, {language}; † read second-hand. ± 95 % interval.</p>"
        partial = folder / "table2_english_mixing.html.partial"
        partial.write_text(f'<meta charset="utf-8">\n{table.to_html()}\n{caption}\n', encoding="utf-8")
        os.replace(partial, folder / "table2_english_mixing.html")
    return table


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
