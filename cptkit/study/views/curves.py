"""Curves over steps: what all figures of the study share.

A line is the mean over seeds, its band the t interval of the mean (or lowest to highest). Steps are drawn on
a symlog axis, since probes are dense early. The start is a dashed line. Published values are hollow marks at
the same *share* of the run: a point at step 5,000 of the paper's 10,000 stands at the middle of ours.

Departure from the paper: its figures show one run without a band.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullFormatter

from cptkit.study import stats
from cptkit.study.views import style

Band = Literal["t", "minmax"]
CHANCE = {"color": "#222222", "lw": 1.4, "ls": ":"}
THIN = {"color": "#444444", "lw": 0.9, "ls": (0, (4, 2))}


def published_points(
    published: pd.DataFrame, metric: str, *, model: str = "Llama 2 7B", language: str = "eu"
) -> pd.DataFrame:
    """P1's values of a published metric: arm, share of the run (0..1), value (fractions), provenance.

    `published` is `claims.published()`. Final values of Table 2 and points read off the README curves.
    """
    rows = published[
        (published["paper"] == "2506.00288")
        & (published["model"] == model)
        & (published["language"] == language)
        & (published["metric"] == metric)
    ]
    whole = published[(published["paper"] == "2506.00288") & (published["metric"] == "train_steps")]
    arms = {
        "base": "base",
        f"CPT {language}+en (20% English)": "mix20",
        f"CPT {language}+en": "mix20",
        f"CPT {language} only": "none",
    }
    rows = rows.assign(arm=rows["setting"].map(arms), step=pd.to_numeric(rows["step"], errors="coerce"))
    rows = rows.dropna(subset=["arm", "step", "value"])
    return pd.DataFrame(
        {
            "arm": rows["arm"],
            "share": rows["step"] / float(whole["value"].iloc[0]),
            "value": rows["value"].where(rows["unit"] != "%", rows["value"] / 100),
            "provenance": rows["provenance"],
        }
    ).reset_index(drop=True)


def summary(frame: pd.DataFrame, metric: str, keys: Sequence[str], band: Band = "t") -> pd.DataFrame:
    """Mean, low, high and n over seeds of a metric, one row per combination of `keys`.

    Rows where it was not measured are left out. Raises KeyError for an unknown metric, StatsError when a seed
    has several values at one place (a sweep that was not filtered), which a mean would hide.
    """
    if metric not in frame:
        raise KeyError(f"the frame has no column {metric!r}")
    places = [*keys, "seed", "run"]
    measured = frame[[*places, metric]].dropna(subset=[metric]).drop_duplicates(places)
    rows = []
    for key, group in measured.groupby(list(keys), sort=True):
        values = group[metric]
        if not group["seed"].is_unique:
            place = ", ".join(f"{k} {v}" for k, v in zip(keys, key, strict=True))
            raise stats.StatsError(f"several runs of one seed at {place}: filter the frame to one experiment")
        over = stats.interval(values)
        low, high = (values.min(), values.max()) if band == "minmax" else (over.low, over.high)
        rows.append((*key, over.mean, low, high, over.n))
    return pd.DataFrame(rows, columns=[*keys, "mean", "low", "high", "n"]).assign(metric=metric)


def order(names: Iterable[str]) -> list[str]:
    """Known arms in the order of the study, then the others by name."""
    known = {name: i for i, name in enumerate(style.ARMS)}
    return sorted(set(names), key=lambda n: (known.get(n, len(known)), n))


def draw(ax: Axes, table: pd.DataFrame, x: str, arm: str, *, thin: bool = False) -> None:
    """One arm's mean and band, or its mean as a thin dashed line, from a `summary`."""
    look, rows = style.arm_style(arm), table[table["arm"] == arm]
    if thin:
        ax.plot(rows[x], rows["mean"], **{**THIN, "color": look.colour}, zorder=2)
        return
    marker = look.marker if len(rows) <= 40 else ""
    ax.plot(
        rows[x], rows["mean"], color=look.colour, label=look.label, lw=1.7, zorder=3,
        marker=marker, ms=5, mec="white", mew=0.5,
    )  # fmt: skip
    ax.fill_between(rows[x], rows["low"], rows["high"], color=look.colour, alpha=0.16, lw=0, zorder=1)


def step_axis(ax: Axes, last: int) -> None:
    """Symlog, with 0, the powers of ten and the last step as ticks."""
    ax.set_xscale("symlog", linthresh=1, linscale=0.4)
    powers = [10**k for k in range(1 + int(math.log10(last)))]
    # A power of ten close to the last step would collide with it.
    ax.set_xticks([0, *(p for p in powers if last / p >= 2.5), last])
    ax.xaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:,.0f}"))
    ax.xaxis.set_minor_formatter(NullFormatter())
    ax.set_xlim(-0.2, last * 1.4)


def log_ticks(low: float, high: float, multiples: Sequence[int]) -> list[float]:
    """These multiples of the powers of ten, from `low` to `high`."""
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    return [m * 10.0**d for d in decades for m in multiples if low <= m * 10.0**d <= high]


def token_axis(ax: Axes) -> None:
    """A logarithmic x axis with at most five ticks, each a factor of two or more apart, written 300k, 2M."""
    _few_ticks(ax)
    ax.xaxis.set_major_formatter(FuncFormatter(_tokens))


def flops_axis(ax: Axes) -> None:
    """A logarithmic x axis with at most five ticks, written as powers of ten with their factor."""
    _few_ticks(ax)
    ax.xaxis.set_major_formatter(FuncFormatter(_power))


def _few_ticks(ax: Axes) -> None:
    ax.set_xscale("log")
    low, high = ax.get_xlim()
    for multiples in ((1, 2, 5), (1, 3), (1,)):
        ticks = log_ticks(low, high, multiples)
        if len(ticks) <= 5:
            break
    ax.set_xticks(ticks[:: math.ceil(len(ticks) / 5) or 1])
    ax.set_xticks([], minor=True)
    ax.set_xlim(low, high)


def _tokens(value: float, _: int) -> str:
    for size, letter in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:g}{letter}"
    return f"{value:g}"


def _power(value: float, _: int) -> str:
    digits = math.floor(math.log10(value) + 1e-9)
    factor = f"{value / 10**digits:.3g}"
    return f"$10^{{{digits}}}$" if factor == "1" else f"${factor}\\times 10^{{{digits}}}$"


def plain_log_axis(ax: Axes) -> None:
    """A logarithmic y axis with numbers that people read (2, 5, 10, 20), not powers."""
    ax.set_yscale("log")
    low, high = ax.get_ylim()
    ticks: list[float] = []
    for choice in ((1,), (1, 3), (1, 2, 5)):
        ticks = log_ticks(low, high, choice)
        if len(ticks) >= 3:
            break
    else:  # less than about one decade: even steps are easier to read
        ticks = [t for t in MaxNLocator(5).tick_values(low, high) if low <= t <= high]
    ax.set_yticks(ticks)
    ax.set_yticks([], minor=True)
    ax.set_ylim(low, high)
    ax.yaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:,.0f}" if v >= 1000 else f"{v:.6g}"))


def percent_axis(axis: Axis) -> None:
    """Shares in per cent. Where all that is drawn is 0, matplotlib would invent shares below it."""
    axis.set_major_formatter(FuncFormatter(lambda v, _: f"{100 * v:.6g} %"))
    if not axis.get_data_interval().any():
        getattr(axis.axes, f"set_{axis.axis_name}lim")(-0.005, 0.1)


def _marks(ax: Axes, published: pd.DataFrame, last: int) -> pd.DataFrame:
    """Hollow marks at the same share of the run; returns what was drawn."""
    for (arm, provenance), rows in published.groupby(["arm", "provenance"]):
        marker, _ = style.PROVENANCE[provenance]
        many = len(rows) > 5
        ax.plot(
            rows["share"] * last, rows["value"], ls="none", marker=marker, mfc="none", zorder=4,
            mec=style.arm_style(arm).colour, mew=0.7 if many else 1.4, ms=3 if many else 8,
        )  # fmt: skip
    drawn = published.assign(step=published["share"] * last, mean=published["value"], metric="published")
    return drawn.drop(columns=["value", "share"])


def legend(
    fig: Figure, *, published: pd.DataFrame | None = None, notes: Mapping[str, dict[str, Any]] | None = None
) -> None:
    """One legend under all panels: every label once, then what the hollow marks are."""
    handles: dict[str, Any] = {}
    for ax in fig.axes:
        for handle, label in zip(*ax.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    for label, look in (notes or {}).items():
        handles.setdefault(label, Line2D([], [], **look))
    for provenance in [] if published is None else dict.fromkeys(published["provenance"]):
        marker, label = style.PROVENANCE[provenance]
        handles.setdefault(label, Line2D([], [], ls="none", marker=marker, mfc="none", mec="#444444", ms=7))
    if handles:
        columns = max(1, min(len(handles), int(fig.get_figwidth() // 2.1)))
        fig.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=columns)


def panel(
    ax: Axes,
    frame: pd.DataFrame,
    metric: str,
    *,
    title: str,
    ylabel: str,
    logy: bool = False,
    percent: bool = False,
    band: Band = "t",
    hlines: Mapping[str, float] | None = None,
    published: pd.DataFrame | None = None,
    thin: str | None = None,
) -> pd.DataFrame:
    """One set of axes over steps; returns every number drawn. Arguments as in `curves`."""
    trained = frame[frame["arm"] != "base"]
    table = summary(trained, metric, ("arm", "step"), band)
    drawn = [table]
    for arm in order(table["arm"]):
        draw(ax, table, "step", arm)
    if thin:
        drawn.append(summary(trained, thin, ("arm", "step"), band))
        for arm in order(drawn[-1]["arm"]):
            draw(ax, drawn[-1], "step", arm, thin=True)
    start = stats.start(frame)[metric].mean()  # NaN where there is none
    levels = dict(hlines or {})
    for label, value in levels.items():
        ax.axhline(value, color="#666666", lw=1.2, ls=":", zorder=2, label=label)
    if not math.isnan(start):
        base = style.ARMS["base"]
        ax.axhline(start, color=base.colour, lw=1.1, ls="--", zorder=2, label=base.label)
        levels["base"] = start
    drawn.append(pd.DataFrame({"arm": list(levels), "mean": list(levels.values()), "metric": metric}))
    last = max(1, int(table["step"].max())) if len(table) else 1
    if published is not None and len(published):
        drawn.append(_marks(ax, published, last))
    step_axis(ax, last)
    if logy:
        plain_log_axis(ax)
    if percent:
        percent_axis(ax.yaxis)
    ax.set(title=title, xlabel="step", ylabel=ylabel)
    return pd.concat([d for d in drawn if len(d)], ignore_index=True).assign(panel=title)


def curves(
    frame: pd.DataFrame,
    metric: str,
    *,
    title: str,
    ylabel: str,
    name: str,
    folder: Path | None = None,
    by: str | None = None,
    logy: bool = False,
    percent: bool = False,
    band: Band = "t",
    hlines: Mapping[str, float] | None = None,
    published: pd.DataFrame | None = None,
    thin: tuple[str, str] | None = None,
) -> Figure:
    """A metric over steps, one line per arm; `by` a column: one panel per value of it.

    `hlines` maps labels to values; `published` is from `published_points`; `thin` = (metric, label) is drawn
    in thin dashed lines of the arms' colours. Saved as `folder/name` (png, svg, csv) where a folder is given.
    Raises KeyError for an unknown metric.
    """
    frame = stats.probes(frame)
    panels = [(title, frame)]
    if by is not None:
        word = "learning rate" if by == "lr_peak" else by.replace("_", " ")
        values = sorted(frame[by].dropna().unique())
        panels = [
            (f"{word} {v:g}" if isinstance(v, float) else f"{word} {v}", frame[frame[by] == v])
            for v in values
        ]
    columns = min(3, len(panels))
    rows = math.ceil(len(panels) / columns)
    with style.drawing():
        fig = style.new(6.8 if by is None else 3.5 * columns + 0.8, 4.4 if rows == 1 else 3.1 * rows + 0.9)
        axes = fig.subplots(rows, columns, sharey=True, squeeze=False).ravel()
        for ax in axes[len(panels) :]:
            ax.remove()
        data = [
            panel(
                ax, part, metric, title=label, ylabel=ylabel if i % columns == 0 else "", percent=percent,
                band=band, hlines=hlines, published=published, thin=thin and thin[0],
            )
            for i, (ax, (label, part)) in enumerate(zip(axes, panels, strict=False))
        ]  # fmt: skip
        if logy:  # after all panels: they share this axis
            plain_log_axis(axes[0])
        if by is not None:
            fig.suptitle(title, x=0.01, ha="left", fontsize=12)
        legend(fig, published=published, notes={thin[1]: THIN} if thin else None)
        return style.save(fig, pd.concat(data, ignore_index=True), folder, name)
