"""What P3's notebooks show of the data: shares over the run, loss by topic, regret, and what a score prefers.

A topic has one colour in all panels of a figure, and its name at the end of its line: eleven lines are too
many for a legend alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib import colormaps
from matplotlib.figure import Figure

from cptkit.data import topics as labels
from cptkit.study import stats
from cptkit.study.arms.topics import regret
from cptkit.study.views import style
from cptkit.study.views.curves import draw, legend, order, percent_axis, summary

SHARE, PREFIX = ".share", "feedback."
MIXTURE_METRICS = (
    "topics.mean",
    "topics.weighted",
    "topics.worst",
    "ppl.source.perplexity",
    "copain.accuracy",
    "choices.target.accuracy",
)
PROXY_METRICS = {
    "ppl.target.nats_per_token": "target loss",
    "choices.target.accuracy": "multiple choice",
    "ppl.source.nats_per_token": "English loss",
}
ORDER_METRICS = (
    "ppl.target.perplexity",
    "ppl.source.perplexity",
    "copain.accuracy",
    "choices.target.accuracy",
    "choices.target_cloze.accuracy",
)


def _topics(columns: Sequence[str], ending: str) -> list[str]:
    return [
        c.removeprefix(PREFIX).removesuffix(ending)
        for c in columns
        if c.startswith(PREFIX) and c.endswith(ending)
    ]


def _colours(names: Sequence[str]) -> dict[str, tuple[float, ...]]:
    shades = colormaps["turbo"](np.linspace(0.05, 0.95, len(names)))
    return dict(zip(names, map(tuple, shades), strict=True))


def _short(source: str) -> str:
    return source.split(".", 1)[-1]


def shares(frame: pd.DataFrame, folder: Path | None = None, name: str = "shares") -> Figure | str:
    """Shares of the topics over the run, a panel for each arm whose shares are fed back, first seed."""
    rows = frame[frame["kind"] == "feedback"]
    if rows.empty:
        return "No shares were fed back here."
    rows = rows[rows["seed"] == rows["seed"].min()]
    topics, arms = _topics(rows.columns, SHARE), order(rows["arm"])
    colours = _colours(topics)
    with style.drawing():
        columns = min(3, len(arms))
        height = -(-len(arms) // columns)
        fig = style.new(4.2 * columns + 0.6, 3.2 * height + 0.8)
        axes = fig.subplots(height, columns, squeeze=False, sharey=True).ravel()
        for ax in axes[len(arms) :]:
            ax.remove()
        for ax, arm in zip(axes, arms, strict=False):
            part = rows[rows["arm"] == arm].sort_values("step")
            for topic in topics:
                line = part[["step", f"{PREFIX}{topic}{SHARE}"]].dropna()
                if len(line):
                    ax.step(*line.to_numpy().T, where="post", color=colours[topic], label=_short(topic))
            percent_axis(ax.yaxis)
            ax.set(title=style.arm_style(arm).label, xlabel="step", ylabel="share of tokens")
            ax.label_outer()
        legend(fig)
        data = rows[["arm", "seed", "step", *(f"{PREFIX}{t}{SHARE}" for t in topics)]]
        return style.save(fig, data, folder, name)


def by_topic(
    frame: pd.DataFrame, base: str = "proportional", folder: Path | None = None, name: str = "by_topic"
) -> Figure:
    """Loss of every topic at the end minus that of the arm `base`, nats a token: a row an arm.

    Paired by seed where both arms have it, mean over seeds.
    """
    ends = stats.ends(frame).set_index(["arm", "seed"])
    columns = [
        c
        for c in ends.columns
        if c.startswith("ppl.target.") and c.endswith(".nats_per_token") and c.count(".") == 3
    ]
    apart = {}
    for arm in order(ends.index.get_level_values("arm")):
        if arm in (base, "base"):
            continue
        common = ends.loc[arm].index.intersection(ends.loc[base].index)
        apart[arm] = (ends.loc[arm].loc[common, columns] - ends.loc[base].loc[common, columns]).mean()
    table = pd.DataFrame(apart).T.rename(columns=lambda c: c.split(".")[2])
    with style.drawing():
        fig = style.new(0.75 * len(columns) + 3.2, 0.42 * len(table) + 2.0)
        ax = fig.subplots()
        limit = max(float(table.abs().max().max()), 1e-6)
        image = ax.imshow(table, cmap="RdBu_r", vmin=-limit, vmax=limit, aspect="auto")
        for (y, x), value in np.ndenumerate(table.to_numpy()):
            dark = abs(value) > 0.6 * limit
            ax.text(
                x,
                y,
                f"{value:+.2f}",
                ha="center",
                va="center",
                fontsize=8,
                color="white" if dark else "black",
            )
        ax.set_xticks(range(len(table.columns)), table.columns, rotation=45, ha="right")
        ax.set_yticks(range(len(table)), [style.arm_style(a).label for a in table.index])
        ax.grid(False)
        ax.set(title=f"Loss by topic against {style.arm_style(base).label.lower()}")
        fig.colorbar(image, ax=ax, label="nats a token")
        return style.save(fig, table.rename_axis("arm").reset_index(), folder, name)


def regrets(frame: pd.DataFrame, folder: Path | None = None, name: str = "regret") -> Figure:
    """Mean loss over topics minus that of the best fixed mixture in hindsight, at each probe and so far."""
    table = regret(frame).assign(run=lambda t: t["arm"] + t["seed"].astype(str))
    with style.drawing():
        fig = style.new(10.2, 4.8)
        data = []
        for ax, (metric, title) in zip(
            fig.subplots(1, 2),
            (("regret", "At each probe"), ("cumulated", "Mean over the probes so far")),
            strict=True,
        ):
            found = summary(table, metric, ("arm", "step"))
            for arm in order(found["arm"]):
                draw(ax, found, "step", arm)
            ax.axhline(0, color="#000000", lw=1.0, ls="--")
            ax.set(title=title, xlabel="step", ylabel="nats a token above the best fixed mixture")
            data.append(found)
        legend(fig)
        return style.save(fig, pd.concat(data, ignore_index=True), folder, name)


def mixture_table(frame: pd.DataFrame, folder: Path | None = None, name: str = "mixtures") -> pd.DataFrame:
    """Arms at the end: loss over topics three ways, the source's perplexity, Copain, choices, mean regret."""
    table, lost = _ends_table(frame, MIXTURE_METRICS), regret(frame)
    if len(lost):
        last = lost.sort_values("step").groupby(["arm", "seed"]).tail(1).groupby("arm")
        for column, what in (("regret", "regret"), ("mean regret", "cumulated")):
            table[column] = table.index.map(last[what].mean())
    return style.keep_table(_named(table), folder, name)


def classifier(report: labels.Report, folder: Path | None = None, name: str = "classifier") -> Figure:
    """Confusion of a topic classifier on held-out documents, and how far its confidence can be believed."""
    with style.drawing():
        fig = style.new(10.6, 4.8)
        left, right = fig.subplots(1, 2, width_ratios=(1.3, 1))
        counts = report.confusion
        rows = counts.div(counts.sum(axis=1), axis=0)
        left.imshow(rows, cmap="Blues", vmin=0, vmax=1, aspect="auto")
        for (y, x), value in np.ndenumerate(counts.to_numpy()):
            if value:
                white = rows.to_numpy()[y, x] > 0.6
                left.text(
                    x,
                    y,
                    str(value),
                    ha="center",
                    va="center",
                    fontsize=8,
                    color="white" if white else "black",
                )
        left.set_xticks(range(len(counts.columns)), counts.columns, rotation=45, ha="right")
        left.set_yticks(range(len(counts)), counts.index)
        left.grid(False)
        title = f"{100 * report.accuracy:.1f} % right of {report.documents} documents"
        left.set(title=title, xlabel="predicted", ylabel="true")
        table = report.calibration
        right.plot([0, 1], [0, 1], color="#666666", ls=":", lw=1.2)
        right.plot(table["confidence"], table["accuracy"], color="#0072B2", marker="o")
        right.set(
            title=f"Calibration error {report.error:.3f}", xlabel="confidence", ylabel="share that is right"
        )
        percent_axis(right.xaxis)
        percent_axis(right.yaxis)
        return style.save(fig, table, folder, name)


def preferences(
    table: pd.DataFrame, folder: Path | None = None, name: str = "what_a_score_prefers"
) -> Figure:
    """Each score against how repetitive a sequence is and how long its pieces are."""
    looks = (("repeated", "share that compression takes away"), ("bytes_per_token", "bytes a token"))
    units = (("per_token", "nats a token"), ("per_byte", "nats a byte"))
    with style.drawing():
        fig = style.new(8.6, 7.0)
        axes = fig.subplots(2, 2, sharex="col", sharey="row")
        for row, (unit, ylabel) in zip(axes, units, strict=True):
            for ax, (look, xlabel) in zip(row, looks, strict=True):
                rank = table[[look, unit]].corr("spearman").iloc[0, 1]
                ax.plot(table[look], table[unit], ls="none", marker=".", ms=4, alpha=0.5, color="#0072B2")
                ax.set(xlabel=xlabel, ylabel=ylabel, title=f"rank correlation {rank:+.2f}")
                ax.label_outer()
        return style.save(fig, table, folder, name)


def order_table(frame: pd.DataFrame, folder: Path | None = None, name: str = "orders") -> pd.DataFrame:
    """Arms at the end: perplexity of both languages, Copain and choices, means and half of the t interval."""
    return style.keep_table(_named(_ends_table(frame, ORDER_METRICS)), folder, name)


def _ends_table(frame: pd.DataFrame, metrics: Sequence[str]) -> pd.DataFrame:
    """By arm: seeds, and of each metric that was measured the mean over them and half of its t interval."""
    ends, rows = stats.ends(frame), {}
    for arm in order(ends["arm"]):
        part = ends[ends["arm"] == arm]
        rows[arm] = {"seeds": part["seed"].nunique()}
        for metric in (m for m in metrics if m in part and part[m].notna().any()):
            over = stats.interval(part[metric].dropna())
            rows[arm] |= {metric: over.mean, f"{metric}, half interval": (over.high - over.low) / 2}
    return pd.DataFrame.from_dict(rows, orient="index")


def _named(table: pd.DataFrame) -> pd.DataFrame:
    return table.rename(lambda arm: style.arm_style(arm).label).rename_axis("arm").reset_index()


def stages_table(frame: pd.DataFrame, folder: Path | None = None, name: str = "stages") -> pd.DataFrame | str:
    """P3's recipe and what it is made of, at the end, as `order_table`."""
    return order_table(frame, folder, name) if len(frame) else "This profile has no stages."


def proxies(frame: pd.DataFrame, folder: Path | None = None, name: str = "proxies") -> Figure | str:
    """Each arm on a smaller model against the same arm on the larger: losses and choices, one row a proxy."""
    ends = stats.ends(frame)
    own = ends[(ends["size"] == "own") & (ends["arm"] != "base")].set_index("arm")
    small = [size for size in ends["size"].unique() if size != "own"]
    if not small:
        return "This profile has no smaller sizes."
    metrics = [m for m in PROXY_METRICS if m in own and own[m].notna().any()]
    data = []
    with style.drawing():
        fig = style.new(4.6 * len(metrics) + 0.4, 4.2 * len(small) + 0.8)
        panels = fig.subplots(len(small), len(metrics), squeeze=False)
        for row, size in zip(panels, small, strict=True):
            proxy = ends[ends["size"] == size].set_index("arm")
            for ax, metric in zip(row, metrics, strict=True):
                both = pd.DataFrame({"own": own[metric], "proxy": proxy[metric]}).dropna()
                rank = both.corr("spearman").iloc[0, 1]
                for arm, point in both.iterrows():
                    look = style.arm_style(arm)
                    ax.plot(
                        point["proxy"], point["own"], ls="none", marker=look.marker, ms=7,
                        color=look.colour, label=look.label,
                    )  # fmt: skip
                words = PROXY_METRICS[metric]
                ax.set(title=f"rank correlation {rank:+.2f}", xlabel=f"{words}, {size}", ylabel=words)
                data.append(both.assign(metric=metric, size=size).reset_index())
        legend(fig)
        return style.save(fig, pd.concat(data, ignore_index=True), folder, name)
