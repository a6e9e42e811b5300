"""The figures and tables of notebooks 00 and 01: one function each, from the frame to picture and numbers.

Every function returns the figure and, where `folder` is given, writes `<name>.png`, `.svg` and `.csv` there
(`style.save`). What a line, a band, a dashed line and a hollow mark are: see `curves`.

Departures from the paper: English perplexity, chance and the share of answers in the list are drawn too;
P1 reports none of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from cptkit.study import stats
from cptkit.study.views import style
from cptkit.study.views.curves import (
    CHANCE,
    curves,
    draw,
    legend,
    order,
    panel,
    percent_axis,
    published_points,
    summary,
    token_axis,
)
from cptkit.study.views.tables import english_mixing_table

__all__ = [
    "choices_bars",
    "copain",
    "copain_tasks",
    "curves",
    "downstream",
    "drift",
    "english_mixing_table",
    "fertility",
    "label_perplexity",
    "learning_rates",
    "perplexity",
    "transfer",
]  # fmt: skip

TASKS = {
    "max_integer_in_list": "largest\nnumber",
    "min_integer_in_list": "smallest\nnumber",
    "median_integer_in_list": "median\nnumber",
    "even_integer_in_odd_group": "even\namong odd",
    "odd_integer_in_even_group": "odd\namong even",
    "first_character_in_list": "first\nletter",
    "last_character_in_list": "last\nletter",
}
NAMES = {
    "copain.accuracy": "Copain",
    "choices.target.accuracy": "Multiple choice in the target language",
    "ppl.target.perplexity": "Target perplexity",
    "ppl.source.perplexity": "English perplexity",
}
SETS = {
    "target": "target, choice",
    "target_cloze": "target, cloze",
    "target_continuation": "target, continuation",
    "source": "English, choice",
}


def _chance(frame: pd.DataFrame, column: str) -> dict[str, float]:
    value = frame[column].mean() if column in frame else math.nan
    return {} if math.isnan(value) else {"chance": float(value)}


def _points(published: pd.DataFrame | None, metric: str, **choice: str) -> pd.DataFrame | None:
    return None if published is None else published_points(published, metric, **choice)


def perplexity(
    frame: pd.DataFrame, folder: Path | None = None, published: pd.DataFrame | None = None
) -> Figure:
    """P1 Fig. 1a, and beside it the English perplexity that P1 does not report. Logarithmic."""
    frame = stats.probes(frame)
    sides = [("target", "Target validation text", _points(published, "validation_perplexity"))]
    if "ppl.source.perplexity" in frame:
        sides.append(("source", "English validation text", None))
    with style.drawing():
        fig = style.new(4.6 * len(sides) + 0.4, 4.4)
        data = [
            panel(
                ax,
                frame,
                f"ppl.{which}.perplexity",
                title=title,
                ylabel="perplexity",
                logy=True,
                published=marks,
            )
            for ax, (which, title, marks) in zip(
                fig.subplots(1, len(sides), squeeze=False)[0], sides, strict=True
            )
        ]
        legend(fig, published=sides[0][2])
        return style.save(fig, pd.concat(data, ignore_index=True), folder, "fig1a_perplexity")


def downstream(
    frame: pd.DataFrame, folder: Path | None = None, published: pd.DataFrame | None = None
) -> Figure:
    """P1 Fig. 1b: few-shot multiple choice in the target language, with chance."""
    return curves(
        frame, "choices.target.accuracy", title="Multiple choice in the target language", ylabel="accuracy",
        percent=True, hlines=_chance(frame, "choices.target.chance"), folder=folder, name="fig1b_downstream",
        published=_points(published, "downstream_accuracy_avg"),
    )  # fmt: skip


def copain(frame: pd.DataFrame, folder: Path | None = None, published: pd.DataFrame | None = None) -> Figure:
    """P1 Fig. 2: Copain, with chance, and the share of answers that are in the list as thin lines."""
    return curves(
        frame, "copain.accuracy", title="In-context learning (Copain)", ylabel="exact match", percent=True,
        hlines=_chance(frame, "copain.chance"), folder=folder, name="fig2_copain",
        published=_points(published, "copain_exact_match"),
        thin=("copain.in_list", "answer is in the list") if "copain.in_list" in frame else None,
    )  # fmt: skip


def label_perplexity(frame: pd.DataFrame, folder: Path | None = None) -> Figure:
    """P1 Fig. 3: perplexity of the right answer given the prompt. Logarithmic."""
    return curves(
        frame, "choices.target.label_perplexity", title="Right answer given the prompt, target language",
        ylabel="perplexity", logy=True, folder=folder, name="fig3_label_perplexity",
    )  # fmt: skip


def drift(frame: pd.DataFrame, folder: Path | None = None) -> Figure:
    """P1 Fig. 4: L2 distance from the start, mean over tensors, over steps; and by layer at the end."""
    frame = stats.probes(frame)
    frame = frame[frame["step"] > 0]  # a distance of 0 has no place on a logarithmic axis
    names = [c.removeprefix("drift.layer.") for c in frame if c.startswith("drift.layer.")]
    layers = sorted(int(name) for name in names if name.isdigit())  # "rest" is embeddings and norms
    with style.drawing():
        fig = style.new(9.6 if layers else 5.2, 4.4)
        axes = fig.subplots(1, 2 if layers else 1, squeeze=False)[0]
        data = [panel(axes[0], frame, "drift.mean_l2", title="Distance from the start",
                      ylabel="L2, mean over tensors", logy=True)]  # fmt: skip
        if layers:
            data.append(_layers(axes[1], frame, layers))
        legend(fig)
        return style.save(fig, pd.concat(data, ignore_index=True), folder, "fig4_drift")


def _layers(ax: Axes, frame: pd.DataFrame, layers: Sequence[int]) -> pd.DataFrame:
    last = frame[frame["step"] == frame["step"].max()]
    table = pd.concat([summary(last, f"drift.layer.{k}", ["arm"]).assign(layer=k) for k in layers])
    for arm in order(table["arm"]):
        draw(ax, table, "layer", arm)
    ax.set_ylim(bottom=0)
    ax.xaxis.get_major_locator().set_params(integer=True)
    ax.set(title=f"By layer, at step {last['step'].max():,}", xlabel="layer", ylabel="L2 over the layer")
    return table.assign(panel="layers", step=last["step"].max())


def learning_rates(
    frame: pd.DataFrame,
    folder: Path | None = None,
    metric: str = "copain.accuracy",
    name: str = "learning_rates",
) -> Figure:
    """A metric over steps, one panel per peak learning rate: how much is lost depends on it."""
    accuracy = metric.endswith("accuracy")
    return curves(
        frame, metric, by="lr_peak", title=f"{NAMES.get(metric, metric)} by learning rate",
        ylabel=metric.rsplit(".", 1)[-1].replace("_", " "),
        percent=accuracy, logy=not accuracy, folder=folder, name=name,
        hlines=_chance(frame, metric.replace("accuracy", "chance")) if accuracy else None,
    )  # fmt: skip


def fertility(table: pd.DataFrame, folder: Path | None = None, name: str = "fertility") -> Figure:
    """Bars per language (column `language`, a code), one panel per numeric column, named as the column is."""
    columns = [c for c in table.select_dtypes("number").columns]
    with style.drawing():
        fig = style.new(3.4 * len(columns) + 1, 0.42 * len(table) + 1.5)
        axes = fig.subplots(1, len(columns), sharey=True, squeeze=False)[0]
        names = [style.language(code) for code in table["language"]]
        for ax, column in zip(axes, columns, strict=True):
            bars = ax.barh(range(len(table)), table[column], color="#0072B2", height=0.62)
            ax.bar_label(bars, fmt="{:.2f}", padding=3, fontsize=9)
            ax.margins(x=0.16)
            ax.set_title(column.replace("_", " "))
            ax.grid(axis="y", visible=False)
        axes[0].set_yticks(range(len(table)), names)
        axes[0].invert_yaxis()
        return style.save(fig, table, folder, name)


def transfer(
    frame: pd.DataFrame,
    folder: Path | None = None,
    metric: str = "ppl.target.nats_per_token",
    name: str = "transfer",
) -> Figure:
    """Target loss over tokens, CPT and from scratch (arms `cpt`, `scratch`), one panel per `language`.

    Each arm at its best learning rate. Over each panel: the tokens that CPT needs for the loss that both
    reach, against scratch (geometric mean over seeds). Panels stand in the order of `similarity`, where
    the languages have one. Raises StatsError where an arm is missing.
    """
    frame = stats.probes(frame)
    if "language" not in frame:
        frame = frame.assign(language=[f"similarity {s:g}" for s in frame["similarity"]])
    similarity = pd.to_numeric(frame.groupby("language", sort=False)["similarity"].first())
    data = []
    with style.drawing():
        fig = style.new(3.3 * len(similarity) + 0.9, 4.2)
        axes = fig.subplots(1, len(similarity), sharey=True, squeeze=False)[0]
        for ax, (language, near) in zip(axes, similarity.sort_values(kind="stable").items(), strict=True):
            part = frame[frame["language"] == language]
            best = {arm: stats.best_rate(part[part["arm"] == arm], metric) for arm in ("cpt", "scratch")}
            for arm, rows in best.items():
                rate = rows["lr_peak"].iloc[0] if "lr_peak" in rows else math.nan
                line = summary(rows[rows["tokens"] > 0], metric, ("arm", "tokens"))
                draw(ax, line, "tokens", arm)
                data.append(line.assign(language=language, similarity=near, lr_peak=rate))
            ax.set_title(f"{style.language(str(language))}\n{_saving(best, metric)}")
            ax.set_xlabel("target tokens")
            token_axis(ax)
        axes[0].set_ylabel("nats per token" if metric.endswith("nats_per_token") else metric)
        legend(fig)
        return style.save(fig, pd.concat(data, ignore_index=True), folder, name)


def _saving(best: Mapping[str, pd.DataFrame], metric: str) -> str:
    saved = stats.tokens_saved(best["cpt"], best["scratch"], metric)
    if math.isnan(saved):
        return "no seed in both arms"
    return f"CPT needs {100 * abs(saved):.0f} % {'fewer' if saved > 0 else 'more'} tokens"


def _bars(
    ax: Axes, table: pd.DataFrame, group: str, ticks: Sequence[str], label: Callable[[str], str]
) -> None:
    """Accuracy bars per group value and arm, with error bars, and chance as a line across each group."""
    arms = order(table["arm"])
    width = 0.8 / len(arms)
    for k, arm in enumerate(arms):
        rows = table[table["arm"] == arm].set_index(group).reindex(ticks)
        x = np.arange(len(ticks)) + (k - (len(arms) - 1) / 2) * width
        look = style.arm_style(arm)
        ax.bar(
            x, rows["mean"], width * 0.92, color="#999999" if arm == "base" else look.colour, label=look.label
        )
        seen = rows["low"].notna().to_numpy()  # one run has no interval
        error = np.stack([rows["mean"] - rows["low"], rows["high"] - rows["mean"]])[:, seen]
        ax.errorbar(x[seen], rows["mean"][seen], error, fmt="none", ecolor="#222222", elinewidth=1, capsize=2)
    chance = table.drop_duplicates(group).set_index(group)["chance"].reindex(ticks)
    for i, value in enumerate(chance):
        ax.plot([i - 0.46, i + 0.46], [value, value], **CHANCE)
    ax.set_xlim(-0.6, len(ticks) - 0.4)
    ax.set_xticks(range(len(ticks)), [label(t) for t in ticks])
    ax.set_ylim(0, 1.02)
    percent_axis(ax.yaxis)
    ax.grid(axis="x", visible=False)


def _bar_table(ends: pd.DataFrame, prefix: str, names: Sequence[str], group: str) -> pd.DataFrame:
    parts = []
    for name in names:
        part = summary(ends, f"{prefix}.{name}.accuracy", ["arm"])
        parts.append(part.assign(**{group: name, "chance": ends[f"{prefix}.{name}.chance"].mean()}))
    return pd.concat(parts, ignore_index=True)


def copain_tasks(
    result: Any, folder: Path | None = None, name: str = "copain_tasks", arm: str = "base"
) -> Figure:
    """Copain by task with each task's chance: of each arm at the end and of the start, or of one model.

    `result` is a metrics frame (one experiment), or a `CopainResult` (its `tasks` with accuracy and chance)
    of the one model `arm`.
    """
    if isinstance(result, pd.DataFrame):
        ends = stats.ends(result)
        tasks = [
            c.split(".")[1] for c in ends if c.count(".") == 2 and c.startswith("copain.") and "acc" in c
        ]
        table = _bar_table(ends, "copain", tasks, "task")
    else:
        tasks = list(result.tasks)
        table = pd.DataFrame(
            [{"task": t, "arm": arm, "mean": r.accuracy, "chance": r.chance, "in_list": r.in_list}
             for t, r in result.tasks.items()]
        ).assign(low=math.nan, high=math.nan)  # fmt: skip
    with style.drawing():
        fig = style.new(max(6.4, 1.25 * len(tasks) + 0.8), 4.2)
        ax = fig.subplots()
        _bars(ax, table, "task", tasks, lambda t: TASKS.get(t, t.replace("_", "\n")))
        ax.set(title="Copain by task", ylabel="exact match")
        legend(fig, notes={"chance": CHANCE})
        return style.save(fig, table, folder, name)


def choices_bars(
    frame: pd.DataFrame, folder: Path | None = None, sets: Sequence[str] = tuple(SETS), name: str = "choices"
) -> Figure:
    """Multiple-choice accuracy of each arm at the end, and of the start, by question set, with chance."""
    ends = stats.ends(frame)
    sets = [s for s in sets if f"choices.{s}.accuracy" in ends]
    table = _bar_table(ends, "choices", sets, "set")
    with style.drawing():
        fig = style.new(max(6.4, 1.9 * len(sets) + 0.8), 4.2)
        ax = fig.subplots()
        _bars(ax, table, "set", sets, lambda s: SETS.get(s, s.replace("_", " ")))
        ax.set(title="Multiple choice at the end of each arm", ylabel="accuracy")
        legend(fig, notes={"chance": CHANCE})
        return style.save(fig, table, folder, name)
