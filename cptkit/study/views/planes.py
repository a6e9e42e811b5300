"""What was learnt against what was kept, and what an arm ends with as a setting changes.

`plane` is the figure that all of P1 comes down to: each arm is a point, target language one way, what the
model could do before the other way, and the arms that no other beats at both are joined (the Pareto front).
`against` draws end values over a setting: a learning rate, a share, a place between two models.

Points are means over seeds with t intervals; an arm with one seed has none. Numbers go to the CSV beside it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from cptkit.study import stats
from cptkit.study.fronts import pareto
from cptkit.study.views import style
from cptkit.study.views.curves import draw, legend, log_ticks, order, percent_axis, plain_log_axis, summary


@dataclass(frozen=True)
class Axis:
    """How a metric is drawn; `better` is 1 where more is better, -1 where less is, 0 where neither."""

    label: str
    percent: bool = False
    log: bool = False
    better: int = 0

    @property
    def title(self) -> str:
        return self.label[0].upper() + self.label[1:]


AXES = {
    "ppl.target.perplexity": Axis("target perplexity", log=True, better=-1),
    "ppl.source.perplexity": Axis("English perplexity", log=True, better=-1),
    "copain.accuracy": Axis("Copain", percent=True, better=1),
    "choices.target.accuracy": Axis("multiple choice, target", percent=True, better=1),
    "choices.target.label_perplexity": Axis("perplexity of the right answer", log=True, better=-1),
    "drift.relative": Axis("distance, share of the start", log=True),
    "drift.mean_l2": Axis("distance, mean over tensors", log=True),
}
FAR = 50  # times the rest: what is further away on a logarithmic axis is said in words, not drawn
PLANES = (
    ("ppl.target.perplexity", "copain.accuracy"),
    ("choices.target.accuracy", "ppl.source.perplexity"),
)


def plane(
    frame: pd.DataFrame,
    folder: Path | None = None,
    name: str = "plane",
    *,
    title: str = "Learnt against kept",
    planes: Sequence[tuple[str, str]] = PLANES,
) -> Figure:
    """One panel per pair (learnt, kept) of metrics: the arms at their end, the start, and the Pareto front.

    The better corner is at the upper right of every panel. `frame` has one run per arm and seed.
    """
    ends = stats.ends(frame)
    data = []
    with style.drawing():
        fig = style.new(5.4 * len(planes), 5.6)
        for ax, (x, y) in zip(fig.subplots(1, len(planes), squeeze=False)[0], planes, strict=True):
            table = _points(ends, x, y)
            near = table["x"] <= FAR * table["x"].min() if AXES[x].log else table["x"].notna()
            for arm in order(table["arm"][near]):
                _point(ax, table[table["arm"] == arm].iloc[0])
            front = table[table["front"] & near].sort_values("x")
            ax.plot(front["x"], front["y"], color="#888888", lw=1, ls="--", zorder=1, label="Pareto front")
            if not near.all():
                beyond = ",\n".join(style.arm_style(arm).label for arm in order(table["arm"][~near]))
                ax.text(
                    0.02, 0.02, f"further left: {beyond}", transform=ax.transAxes, fontsize=7.5, va="bottom"
                )
            ax.set(xlabel=_worded(x), ylabel=_worded(y))
            _scale(ax, x, y)
            data.append(table.assign(panel=f"{x} / {y}"))
        fig.suptitle(title, x=0.01, ha="left", fontsize=12)
        legend(fig)
        return style.save(fig, pd.concat(data, ignore_index=True), folder, name)


def _points(ends: pd.DataFrame, x: str, y: str) -> pd.DataFrame:
    sides = [
        summary(ends, metric, ["arm"]).drop(columns="metric").set_index("arm").add_prefix(f"{side}_")
        for side, metric in (("x", x), ("y", y))
    ]
    table = sides[0].join(sides[1], how="inner").rename(columns={"x_mean": "x", "y_mean": "y"}).reset_index()
    arms = table["arm"] != "base"  # the start is not an arm one can choose
    table["front"] = False
    signs = [AXES[m].better or 1 for m in (x, y)]
    table.loc[arms, "front"] = pareto(signs[0] * table.loc[arms, "x"], signs[1] * table.loc[arms, "y"])
    return table


def _point(ax: Axes, row: pd.Series) -> None:
    look = style.arm_style(row["arm"])
    errors = {
        f"{s}err": [[row[s] - row[f"{s}_low"]], [row[f"{s}_high"] - row[s]]]
        for s in "xy"
        if not math.isnan(row[f"{s}_low"])
    }
    ax.errorbar(
        row["x"], row["y"], **errors, color=look.colour, marker=look.marker or "*", ls="none",
        ms=10 if row["arm"] == "base" else 7, mec="white", mew=0.6, elinewidth=0.8, label=look.label,
    )  # fmt: skip


def _worded(metric: str) -> str:
    axis = AXES[metric]
    return axis.label + {1: " (more is better)", -1: " (less is better; axis reversed)", 0: ""}[axis.better]


def _scale(ax: Axes, x: str, y: str) -> None:
    for axis, metric, which in ((ax.xaxis, x, "x"), (ax.yaxis, y, "y")):
        how = AXES[metric]
        if how.log:
            _log(ax, which)
        if how.percent:
            percent_axis(axis)
        if how.better < 0:
            (ax.invert_xaxis if which == "x" else ax.invert_yaxis)()


def _log(ax: Axes, which: str) -> None:
    """Plain numbers on a logarithmic axis, on either side."""
    if which == "y":
        plain_log_axis(ax)
        return
    ax.set_xscale("log")
    ticks = log_ticks(*ax.get_xlim(), (1, 2, 3, 5))
    ax.set_xticks(ticks[:: max(1, math.ceil(len(ticks) / 7))])
    ax.set_xticks([], minor=True)
    ax.xaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:,.6g}"))


def against(
    frame: pd.DataFrame,
    x: str,
    metrics: Sequence[str],
    folder: Path | None = None,
    name: str = "against",
    *,
    title: str,
    xlabel: str,
    logx: bool = False,
) -> Figure | str:
    """The end values of `metrics` over the column `x`, one panel per metric, one line per arm.

    An empty frame (an experiment that the profile leaves out) is answered in words.
    """
    if frame.empty:
        return "This profile leaves it out."
    ends = stats.ends(frame)
    start, rows = ends[ends["arm"] == "base"], ends[ends["arm"] != "base"]
    metrics = [m for m in metrics if m in rows]
    columns = 2 if len(metrics) == 4 else min(3, len(metrics))
    height = math.ceil(len(metrics) / columns)
    data = []
    with style.drawing():
        fig = style.new(3.7 * columns + 0.4, 3.3 * height + 0.9)
        axes = fig.subplots(height, columns, squeeze=False).ravel()
        for ax in axes[len(metrics) :]:
            ax.remove()
        for ax, metric in zip(axes, metrics, strict=False):
            how, table = AXES[metric], summary(rows, metric, ("arm", x))
            for arm in order(table["arm"]):
                draw(ax, table, x, arm)
            level = start[metric].mean()
            far = how.log and level > FAR * table["mean"].max()  # a line up there would flatten the rest
            if not (math.isnan(level) or metric.startswith("drift") or far):
                ax.axhline(level, color="#000000", lw=1.1, ls="--", zorder=2, label=style.ARMS["base"].label)
            if logx:
                ax.set_xscale("log")
            elif rows[x].max() >= 1000:
                ax.xaxis.set_major_locator(MaxNLocator(4))
                ax.xaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:,.0f}"))
            if how.log and table["mean"].min() > 0:
                plain_log_axis(ax)
            if how.percent:
                percent_axis(ax.yaxis)
            ax.set(title=how.title, xlabel=xlabel)
            data.append(table)
        fig.suptitle(title, x=0.01, ha="left", fontsize=12)
        legend(fig)
        return style.save(fig, pd.concat(data, ignore_index=True), folder, name)


def trajectories(
    frame: pd.DataFrame,
    points: pd.DataFrame,
    folder: Path | None = None,
    name: str = "matched_drift",
    *,
    x: str = "drift.relative",
    metrics: Sequence[str] = ("copain.accuracy", "ppl.target.perplexity"),
    title: str = "At equal distance from the start",
) -> Figure:
    """The way of each arm of `frame` over its steps in (distance, metric), with the ends of `points`."""
    ways, ends = stats.probes(frame), stats.ends(points)
    ways = ways[(ways["step"] > 0) & (ways["arm"] != "base")]
    ends = ends[ends["arm"] != "base"]
    data = []
    with style.drawing():
        fig = style.new(5.0 * len(metrics), 4.9)
        for ax, metric in zip(fig.subplots(1, len(metrics), squeeze=False)[0], metrics, strict=True):
            for arm in order(ways["arm"]):
                look, part = style.arm_style(arm), ways[ways["arm"] == arm]
                for n, (_, run) in enumerate(part.groupby("run")):
                    label = f"{look.label}, over its steps" if n == 0 else None
                    ax.plot(run[x], run[metric], color=look.colour, lw=1, alpha=0.7, marker=".", label=label)
            table = _points(ends, x, metric)
            for arm in order(table["arm"]):
                _point(ax, table[table["arm"] == arm].iloc[0])
            ax.set(xlabel=AXES[x].label, ylabel=AXES[metric].label)
            _log(ax, "x")
            if AXES[metric].log:
                plain_log_axis(ax)
            if AXES[metric].percent:
                percent_axis(ax.yaxis)
            data += [
                table.assign(panel=metric),
                ways[["arm", "seed", "step", x, metric]].assign(panel=metric),
            ]
        fig.suptitle(title, x=0.01, ha="left", fontsize=12)
        legend(fig)
        return style.save(fig, pd.concat(data, ignore_index=True), folder, name)


def groups(
    frame: pd.DataFrame,
    group: str,
    metrics: Sequence[str],
    folder: Path | None = None,
    name: str = "groups",
    *,
    title: str,
) -> Figure | str:
    """End values as points, one row of a panel per value of `group`, one colour per arm; see `against`."""
    if frame.empty:
        return "This profile leaves it out."
    ends = stats.ends(frame)
    ends = ends[ends["arm"] != "base"]
    names = list(dict.fromkeys(ends[group]))
    data = []
    with style.drawing():
        fig = style.new(3.6 * len(metrics) + 1.6, 0.5 * len(names) + 2.2)
        axes = fig.subplots(1, len(metrics), sharey=True, squeeze=False)[0]
        for ax, metric in zip(axes, metrics, strict=True):
            table = summary(ends, metric, ("arm", group))
            for arm in order(table["arm"]):
                look, rows = style.arm_style(arm), table[table["arm"] == arm]
                places = [names.index(v) for v in rows[group]]
                marks = {"ls": "none", "marker": look.marker, "ms": 8}
                ax.plot(rows["mean"], places, color=look.colour, label=look.label, **marks)
            if AXES[metric].log:
                _log(ax, "x")
            if AXES[metric].percent:
                percent_axis(ax.xaxis)
            ax.set(title=AXES[metric].title)
            data.append(table)
        axes[0].set_yticks(range(len(names)), names)
        axes[0].set_ylim(len(names) - 0.5, -0.5)
        fig.suptitle(title, x=0.01, ha="left", fontsize=12)
        legend(fig)
        return style.save(fig, pd.concat(data, ignore_index=True), folder, name)
