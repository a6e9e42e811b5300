"""The figures and tables of P2's language study: what CPT gains, against how close the language is.

A point is the mean over seeds with its t interval; sizes of the model have their own marker.
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from cptkit.study import stats
from cptkit.study.arms.languages import BITS, LOSS
from cptkit.study.views import style
from cptkit.study.views.curves import CHANCE, legend, percent_axis

MEASURES = {
    "setting": "similarity (a setting)",
    "script": "letters of a shared script",
    "ngrams": "cosine of letter trigrams",
    "words": "shared words",
    "pieces": "shared word pieces",
    "fertility": "tokens a byte, against the source",
}
COLOURS = {"accuracy_start": "#999999", "accuracy_scratch": "#777777", "accuracy_cpt": "#332288"}
BARS = {
    "accuracy_start": style.ARMS["base"].label,
    "accuracy_scratch": style.ARMS["scratch"].label,
    "accuracy_cpt": style.ARMS["cpt"].label,
}
MARKERS = ("o", "s", "^", "D")


def _interval(values: pd.Series) -> tuple[float, float, float]:
    found = stats.interval(values)
    return found.mean, found.low, found.high


def gains_table(gained: pd.DataFrame, folder: Path | None = None) -> pd.DataFrame:
    """A row per size and language: what CPT saves, mean and 95 % interval over seeds."""
    rows = []
    for (size, language), part in gained.groupby(["size", "language"], sort=False):
        row = {"size": size, "language": language, "seeds": len(part)}
        for column in ("loss_cpt", "loss_scratch", "loss_saved", "saved", "transferred"):
            mean, low, high = _interval(part[column])
            row |= {column: mean, f"{column}_low": low, f"{column}_high": high}
        rows.append(row)
    return style.keep_table(pd.DataFrame(rows), folder, "gains")


def accuracies(gained: pd.DataFrame, folder: Path | None = None) -> Figure | str:
    """P2 Figure 3: zero-shot accuracy per language of the start, of scratch and of CPT, with chance.

    One panel per size. Words where no questions were asked.
    """
    if gained.empty or "accuracy_cpt" not in gained:
        return "This profile asks no questions here."
    data = []
    with style.drawing():
        names = list(dict.fromkeys(gained["language"]))
        sizes = list(dict.fromkeys(gained["size"]))
        fig = style.new(max(6.0, 1.25 * len(names) * len(sizes) + 1.4), 4.3)
        for ax, size in zip(fig.subplots(1, len(sizes), sharey=True, squeeze=False)[0], sizes, strict=True):
            part = gained[gained["size"] == size]
            for k, (column, label) in enumerate(BARS.items()):
                table = part.groupby("language")[column].apply(lambda v: pd.Series(_interval(v))).unstack()
                table = table.loc[names]
                x = np.arange(len(names)) + 0.27 * (k - 1)
                ax.bar(x, table[0], 0.25, color=COLOURS[column], label=label)
                _whiskers(ax, x, table)
                table = table.set_axis(["mean", "low", "high"], axis=1).assign(size=size, arm=label)
                data.append(table.reset_index())
            for i, name in enumerate(names):
                chance = part[part["language"] == name]["chance"].mean()
                ax.plot([i - 0.42, i + 0.42], [chance, chance], **CHANCE)
            ax.set_xticks(range(len(names)), [style.language(name) for name in names])
            ax.grid(axis="x", visible=False)
            ax.set_title(_size(size))
        percent_axis(fig.axes[0].yaxis)
        fig.axes[0].set_ylabel("accuracy, no shots")
        legend(fig, notes={"chance": CHANCE})
        return style.save(fig, pd.concat(data, ignore_index=True), folder, "fig3_accuracy")


def _whiskers(ax: Axes, x: np.ndarray, table: pd.DataFrame) -> None:
    seen = table[1].notna().to_numpy()  # one run has no interval
    if seen.any():
        error = np.stack([table[0] - table[1], table[2] - table[0]])[:, seen]
        ax.errorbar(x[seen], table[0][seen], error, fmt="none", ecolor="#222222", elinewidth=1, capsize=2)


def _size(size: str) -> str:
    return f"{size} weights" if size else "the profile's model"


def against_closeness(
    gained: pd.DataFrame, measures: pd.DataFrame, folder: Path | None = None, column: str = "saved"
) -> Figure | str:
    """Tokens saved by CPT over every measure of closeness, one panel a measure, a marker a size."""
    if gained.empty:
        return "Nothing was trained from scratch here: there is no gain to draw."
    known = [m for m in MEASURES if measures[m].notna().any() and measures[m].nunique() > 1]
    columns = min(3, len(known))
    height = math.ceil(len(known) / columns)
    data = []
    with style.drawing():
        fig = style.new(3.7 * columns + 0.5, 3.4 * height + 0.7)
        axes = fig.subplots(height, columns, sharey=True, squeeze=False).ravel()
        for ax in axes[len(known) :]:
            ax.remove()
        place = measures.set_index("language")
        for ax, measure in zip(axes, known, strict=False):
            for marker, (size, part) in zip(MARKERS, gained.groupby("size", sort=False), strict=False):
                for k, (language, rows) in enumerate(part.groupby("language", sort=False)):
                    x = place.loc[language, measure]
                    mean, low, high = _interval(rows[column])
                    error = None if math.isnan(low) else [[mean - low], [high - mean]]
                    ax.errorbar(x, mean, error, marker=marker, color="#332288", ms=6, mec="white",
                                elinewidth=0.8, label=_size(size) if k == 0 else None)  # fmt: skip
                    if marker == MARKERS[0]:
                        ax.annotate(str(language).removeprefix("similarity "), (x, mean), xytext=(5, 5),
                                    textcoords="offset points", fontsize=8)  # fmt: skip
                    data.append({"measure": measure, "size": size, "language": language, "x": x,
                                 "mean": mean, "low": low, "high": high})  # fmt: skip
            ax.margins(0.12)
            ax.set_xlabel(MEASURES[measure])
        percent_axis(axes[0].yaxis)
        for ax in axes[::columns]:
            ax.set_ylabel("target tokens saved")
        fig.suptitle("What CPT saves, against closeness to the source", x=0.01, ha="left", fontsize=12)
        legend(fig)
        return style.save(fig, pd.DataFrame(data), folder, "closeness")


def trained_table(frame: pd.DataFrame, folder: Path | None = None) -> pd.DataFrame:
    """Every language and arm at its best rate: loss, bits a byte, accuracy before and after, over seeds."""
    rows, accuracy = [], "choices.target.accuracy"
    frame = stats.probes(frame)
    for (size, language, arm), part in frame.groupby(["size", "language", "arm"], sort=False):
        best = stats.best_rate(part, LOSS)
        first, last = best[best["step"] == 0], best[best["step"] == best["step"].max()]
        row = {"size": size, "language": language, "arm": arm, "rate": best["lr_peak"].iloc[0]}
        row["seeds"] = len(last)
        for name, column in (("nats a token", LOSS), ("bits a byte", BITS), ("accuracy", accuracy)):
            if column in best:
                row |= {f"{name}, before": first[column].mean(), f"{name}, after": last[column].mean()}
        rows.append(row)
    return style.keep_table(pd.DataFrame(rows), folder, "trained")
