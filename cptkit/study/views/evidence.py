"""The chain of evidence of P1: what falls first, what the weights do meanwhile, and the way back.

`event_times` asks when half of each change has happened; `distances` shows four readings of "distance from
the start" side by side; `heat_map` where in the model it happens; `merging` what lies between the start and
the end.

Cost: `merging` is one round of probes per point, kept in the run's folder; the rest is drawing.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import pandas as pd
import torch
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from cptkit.eval.drift import snapshot
from cptkit.study import stats
from cptkit.study.experiments import Study
from cptkit.study.store import Arm
from cptkit.study.views import style
from cptkit.study.views.curves import (
    draw,
    legend,
    log_ticks,
    order,
    panel,
    plain_log_axis,
    step_axis,
    summary,
)
from cptkit.study.views.planes import AXES
from cptkit.train import models
from cptkit.train.config import to_dict
from cptkit.train.folder import write
from cptkit.train.probes import Probes
from cptkit.train.spec import ModelSpec

EVENTS = {  # metric: (name, compared as a logarithm)
    "ppl.target.perplexity": ("target perplexity", True),
    "copain.accuracy": ("Copain", False),
    "copain.in_list": ("answers in the list", False),
    "ppl.source.perplexity": ("English perplexity", True),
    "choices.target.label_perplexity": ("perplexity of the right answer", True),
    "choices.target.accuracy": ("multiple choice, target", False),
    "drift.mean_l2": ("distance from the start", False),
}
LEAST = 0.05  # a change below this (a share, or of a logarithm) has no time


def event_table(frame: pd.DataFrame, by: Sequence[str] = ("arm", "warmup")) -> pd.DataFrame:
    """One row per run and metric: the first probed step at which half of its change has happened.

    The change is from the start to the value furthest from it; `step` is NaN where it is below `LEAST`.
    `spent` is the share of the sum of all learning rates used by then: the clock that a warm-up stretches.
    """
    rows = []
    for run, part in stats.probes(frame).groupby("run", sort=False):
        rates = frame[(frame["run"] == run) & (frame["kind"] == "train")].set_index("step")["lr"]
        for metric, (name, log) in EVENTS.items():
            if metric not in part:
                continue
            seen = part.dropna(subset=[metric])
            values = seen[metric].map(math.log) if log else seen[metric]
            step = stats.half_change(seen["step"].to_numpy(), values.to_numpy(), LEAST)
            spent = rates[rates.index <= step].sum() / rates.sum() if len(rates) else math.nan
            place = {key: part[key].iloc[0] for key in by if key in part}
            rows.append(
                place | {"seed": part["seed"].iloc[0], "event": name, "step": step,
                         "spent": math.nan if math.isnan(step) else spent}
            )  # fmt: skip
    return pd.DataFrame(rows)


def event_times(frame: pd.DataFrame, folder: Path | None = None, name: str = "event_times") -> Figure:
    """When half of each change has happened: one panel per warm-up, a point per seed and arm."""
    table = event_table(frame)
    events = [e for e, _ in EVENTS.values() if e in set(table["event"])]
    lengths = sorted(table["warmup"].unique(), reverse=True)
    with style.drawing():
        fig = style.new(4.6 * len(lengths) + 1.4, 0.42 * len(events) + 2.2)
        axes = fig.subplots(1, len(lengths), sharey=True, squeeze=False)[0]
        for ax, length in zip(axes, lengths, strict=True):
            for k, arm in enumerate(order(table["arm"])):
                look, rows = style.arm_style(arm), table[(table["arm"] == arm) & (table["warmup"] == length)]
                rows = rows.dropna(subset=["step"])
                places = [events.index(e) + (k - 0.5) * 0.24 for e in rows["event"]]
                ax.plot(rows["step"], places, ls="none", marker=look.marker, ms=7, alpha=0.7,
                        color=look.colour, label=look.label)  # fmt: skip
            step_axis(ax, int(frame["step"].max()))
            ax.set(title=f"warm-up of {length} steps", xlabel="step by which half of the change has happened")
        axes[0].set_yticks(range(len(events)), events)
        axes[0].invert_yaxis()
        legend(fig)
        return style.save(fig, table, folder, name)


def event_summary(
    frame: pd.DataFrame, folder: Path | None = None, name: str = "event_summary"
) -> pd.DataFrame:
    """Median over seeds of the step, and of the share of all learning rates spent, at half of each change."""
    table = event_table(frame)
    found = table.groupby(["warmup", "arm", "event"], sort=False)[["step", "spent"]].median()
    found["seeds"] = table.dropna(subset=["step"]).groupby(["warmup", "arm", "event"])["seed"].nunique()
    found = found.sort_values(["warmup", "arm", "step"], ascending=[False, True, True]).reset_index()
    return style.keep_table(found, folder, name)


def over_steps(
    frame: pd.DataFrame,
    metrics: Sequence[str],
    folder: Path | None = None,
    name: str = "over_steps",
    *,
    switches: Mapping[str, int] | None = None,
) -> Figure:
    """Metrics over steps, one panel each; a dotted line in an arm's colour where its mixture switches."""
    rows, data = stats.probes(frame), []
    with style.drawing():
        fig = style.new(4.3 * len(metrics), 4.8)
        for ax, metric in zip(fig.subplots(1, len(metrics), squeeze=False)[0], metrics, strict=True):
            how = AXES[metric]
            seen = rows[rows["step"] > 0] if metric.startswith("drift") else rows
            data.append(
                panel(ax, seen, metric, title=how.title, ylabel="", logy=how.log, percent=how.percent)
            )
            for arm, step in (switches or {}).items():
                if arm in set(rows["arm"]):
                    ax.axvline(step, color=style.arm_style(arm).colour, lw=1.1, ls=":", zorder=1)
        legend(fig)
        return style.save(fig, pd.concat(data, ignore_index=True), folder, name)


def distances(frame: pd.DataFrame, folder: Path | None = None, name: str = "drift_definitions") -> Figure:
    """Distance from the start as P1's code reads it (mean over tensors) and three other ways, over steps.

    P1's code divides by one tensor too many, which scales its curve and changes nothing else.
    """
    frame = stats.probes(frame)
    frame = frame[frame["step"] > 0]
    layers = [c for c in frame if c.startswith("drift.layer.") and c.rsplit(".", 1)[1].isdigit()]
    frame = frame.assign(**{"drift.layers": frame[layers].mean(axis=1)})
    kinds = {
        "drift.mean_l2": "mean over tensors (P1's)",
        "drift.global_l2": "over all weights",
        "drift.relative": "share of the start's norm",
        "drift.layers": "mean over layers",
    }
    data = []
    with style.drawing():
        fig = style.new(3.4 * len(kinds), 3.9)
        for ax, (metric, title) in zip(fig.subplots(1, len(kinds)), kinds.items(), strict=True):
            table = summary(frame, metric, ("arm", "step"))
            for arm in order(table["arm"]):
                draw(ax, table, "step", arm)
            ax.set_xscale("log")
            plain_log_axis(ax)
            ax.set(title=title, xlabel="step")
            data.append(table)
        legend(fig)
        return style.save(fig, pd.concat(data, ignore_index=True), folder, name)


def heat_map(frame: pd.DataFrame, folder: Path | None = None, name: str = "drift_layers") -> Figure:
    """Distance from the start by layer ("rest" is embeddings and last norm) and step, one panel an arm."""
    frame = stats.probes(frame)
    frame = frame[(frame["step"] > 0) & (frame["arm"] != "base")]
    columns = [c for c in frame if c.startswith("drift.layer.")]
    labels = [c.rsplit(".", 1)[1] for c in columns]
    places = sorted(range(len(labels)), key=lambda i: int(labels[i]) if labels[i].isdigit() else 1 << 30)
    arms = order(frame["arm"])
    means = frame.groupby(["arm", "step"])[columns].mean()
    positive = means.to_numpy()[means.to_numpy() > 0]
    with style.drawing():
        fig = style.new(3.6 * len(arms) + 1.4, 0.34 * len(labels) + 1.9)
        axes = fig.subplots(1, len(arms), sharey=True, squeeze=False)[0]
        for ax, arm in zip(axes, arms, strict=True):
            table = means.loc[arm]
            image = ax.pcolormesh(
                range(len(table) + 1), range(len(labels) + 1), table.to_numpy().T[places],
                norm=LogNorm(positive.min(), positive.max()), cmap="cividis",
            )  # fmt: skip
            ax.set_xticks(
                [i + 0.5 for i in range(len(table))], [str(s) for s in table.index], rotation=60, fontsize=8
            )
            ax.set(title=style.arm_style(arm).label, xlabel="step")
            ax.grid(visible=False)
        axes[0].set_yticks([i + 0.5 for i in range(len(labels))], [labels[i] for i in places])
        axes[0].set_ylabel("layer")
        ticks = log_ticks(positive.min(), positive.max(), (1, 3))
        bar = fig.colorbar(image, ax=list(axes), label="L2 distance from the start", ticks=ticks)
        bar.ax.yaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:.3g}"))
        bar.ax.minorticks_off()
        return style.save(fig, means.reset_index(), folder, name)


def merging(study: Study, arm: Arm, points: Sequence[float]) -> pd.DataFrame:
    """The probes of (1 - share) x start + share x end of one finished run, for each of `points`.

    One row per point, column `merged` the share; the arm's other columns as in `store.load`. Kept in the
    run's folder, so that a second call measures nothing.
    """
    folder = study.train(arm.spec, str(arm))
    kept, key = folder / "merging.json", {"points": list(points), "probes": to_dict(study.profile.run.probes)}
    found = json.loads(kept.read_text()) if kept.exists() else {}
    if found.get("key") != key:
        length, spec = arm.spec.length, arm.spec
        model, tokenizer = models.load(spec.model, study.cache, study.runs, length=length, seed=spec.seed)
        start = snapshot(model)
        trained = ModelSpec(start=f"run:{folder.name}")
        end = snapshot(models.load(trained, study.cache, study.runs, length=length, seed=spec.seed)[0])
        probes = Probes(study.profile.run.probes, model, tokenizer, start, study.cache, length)
        rows = []
        for share in points:
            with torch.no_grad():
                for name, weight in model.named_parameters():
                    weight.copy_(torch.lerp(start[name], end[name], share))
            rows.append({"merged": share} | probes.measure(model))
        found = {"key": key, "rows": rows}
        write(kept, json.dumps(found))
    labels = {
        "profile": study.profile.name,
        "experiment": "merging",
        "arm": arm.arm,
        "seed": arm.seed,
        "lr_peak": arm.spec.schedule.peak,
        "step": arm.spec.steps,
        "kind": "probe",
    }
    return pd.DataFrame([labels | {"run": f"{folder.name} x {r['merged']:g}"} | r for r in found["rows"]])
