"""The figures and tables of P2's replay study: both compute axes, laws of forgetting, recommendations.

Shares of source text are shades from light (none) to dark (most), the same in every panel.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from cptkit.study import stats
from cptkit.study.laws import forgetting
from cptkit.study.laws.forgetting import Fitted
from cptkit.study.laws.uncertainty import quantiles
from cptkit.study.views import style
from cptkit.study.views.curves import flops_axis, legend, plain_log_axis, summary, token_axis

LANGUAGES = (("source", "English"), ("target", "Target language"))


def _shades(shares: Sequence[float]) -> dict[float, tuple[float, ...]]:
    shares = sorted(shares)
    return dict(zip(shares, colormaps["plasma_r"](np.linspace(0.12, 0.95, len(shares))), strict=True))


def _label(share: float) -> str:
    return f"{100 * share:g} % English"


def _mean(curves: pd.DataFrame, column: str) -> pd.DataFrame:
    """Mean over seeds of one share at each step, with all compute columns."""
    measured = curves.dropna(subset=[column])
    return measured.groupby(["share", "step"], as_index=False).mean(numeric_only=True)


def loss_against_compute(curves: pd.DataFrame, folder: Path | None = None) -> Figure:
    """P2 Figure 5 on both axes: above compute of that language's tokens, as P2 draws it, below of all tokens.

    On the upper axis target loss hardly depends on the share; on the lower one, which is what a run costs, a
    run with 80 % English has seen a fifth of the target.
    """
    shades, data = _shades(curves["share"].unique()), []
    with style.drawing():
        fig = style.new(10.4, 8.2)
        axes = fig.subplots(2, 2)
        for row, which in zip(axes, ("own", "all"), strict=True):
            for ax, (language, title) in zip(row, LANGUAGES, strict=True):
                for share, colour in shades.items():  # in order, also where a panel lacks some
                    ax.plot([], [], color=colour, marker="o", ms=3.5, label=_label(share))
                x = f"flops.{language}" if which == "own" else "flops"
                table = _mean(curves, language)
                for share, part in table[table[x] > 0].groupby("share"):
                    ax.plot(part[x], part[language], color=shades[share], marker="o", ms=3.5, lw=1.5)
                if language == "source":
                    start = forgetting.start_of(curves)
                    ax.axhline(start, color="#000000", lw=1.1, ls="--", label=style.ARMS["base"].label)
                flops_axis(ax)
                plain_log_axis(ax)
                words = "this language's tokens" if which == "own" else "all tokens"
                ax.set(title=title, xlabel=f"FLOPs of {words}", ylabel="nats a token")
                data.append(table.assign(panel=f"{language}, {which}", x=table[x], loss=table[language]))
        legend(fig)
        columns = ["panel", "share", "step", "D", "x", "loss"]
        table = pd.concat(data, ignore_index=True)[columns]
        return style.save(fig, table, folder, "fig5_loss_against_compute")


def laws(
    curves: pd.DataFrame,
    unseen: pd.DataFrame,
    found: Mapping[str, Fitted],
    folder: Path | None = None,
    first: int = 1,
) -> Figure:
    """Source loss over tokens with each fitted law, one panel a law; hollow marks were not fitted to.

    `first` is the step from which probes were fitted; what lies before is drawn pale.
    """
    shades = _shades([*curves["share"].unique(), *unseen["share"].unique()])
    data = []
    with style.drawing():
        fig = style.new(5.0 * len(found), 4.9)
        axes = fig.subplots(1, len(found), sharey=True, squeeze=False)[0]
        for ax, (name, law) in zip(axes, found.items(), strict=True):
            for seen, table in ((True, _mean(curves, "source")), (False, _mean(unseen, "source"))):
                for share, part in table[table["step"] > 0].groupby("share"):
                    _run(ax, part, share, shades[share], seen, first)
                    used = part[part["step"] >= first]
                    D = np.geomspace(used["D"].min(), used["D"].max(), 60)
                    loss = law.loss(D, share)
                    ax.plot(D, loss, color=shades[share], lw=1.4, ls="-" if seen else "--")
                    data.append(pd.DataFrame({"panel": name, "share": share, "D": D, "law": loss}))
            ax.axhline(law.start, color="#000000", lw=1.0, ls=":")
            token_axis(ax)
            place = f", {law.form.place}" if law.form.place else ""
            ax.set(title=f"{name}{place}", xlabel="tokens, all languages")
        plain_log_axis(axes[0])
        axes[0].set_ylabel("English loss, nats a token")
        hollow = {"color": "#444444", "marker": "o", "mfc": "none", "ls": "--"}
        legend(fig, notes={"not fitted to": hollow})
        return style.save(fig, pd.concat(data, ignore_index=True), folder, "laws")


def _run(ax: Axes, part: pd.DataFrame, share: float, colour: tuple, seen: bool, first: int) -> None:
    used = part["step"] >= first
    for rows, alpha in ((part[used], 1.0), (part[~used], 0.25)):
        ax.plot(rows["D"], rows["source"], ls="none", marker="o", ms=5, color=colour, alpha=alpha,
                mfc=colour if seen else "none", label=_label(share) if alpha == 1.0 else None)  # fmt: skip


def recommendation(
    frame: pd.DataFrame,
    law: Fitted,
    draws: list[Fitted],
    D: float,
    tolerances: Sequence[float],
    folder: Path | None = None,
    points: float = 0.05,
) -> pd.DataFrame:
    """The smallest share that keeps the source within each tolerance (law, interval), and what Copain says.

    Copain's row is the smallest share that was run whose mean stays within `points` of the start, none where
    no share does or the start was not measured: what it asks for need not be what the loss asks for.
    """
    rows = []
    for tolerance in tolerances:
        value = forgetting.recommended(law, draws, D, tolerance)
        label = f"source loss at most {tolerance:g} nats above the start"
        rows.append({"keep": label, "share": value.mean, "low": value.low, "high": value.high})
    if "copain.accuracy" in frame:
        ends = stats.ends(frame)
        start = ends[ends["arm"] == "base"]["copain.accuracy"].mean()
        table = summary(ends[ends["arm"] != "base"], "copain.accuracy", ["share"])
        enough = table[table["mean"] >= start - points]["share"]
        share = float(enough.min()) if len(enough) else np.nan
        label = f"Copain within {100 * points:g} points of the start (shares that were run)"
        rows.append({"keep": label, "share": share, "low": np.nan, "high": np.nan})
    return style.keep_table(pd.DataFrame(rows), folder, "recommended")


def predictions(
    found: Mapping[str, Fitted], arms: Mapping[str, tuple[float, float]], folder: Path | None = None
) -> pd.DataFrame:
    """What each law says of runs before they are trained: arm -> (share, tokens)."""
    rows = [
        {"arm": arm, "share": share, "D": D}
        | {name: float(law.loss(D, share)) for name, law in found.items()}
        for arm, (share, D) in arms.items()
    ]
    return style.keep_table(pd.DataFrame(rows), folder, "predictions")


def errors_table(
    found: Mapping[str, Fitted], sets: Mapping[str, pd.DataFrame], folder: Path | None = None
) -> pd.DataFrame:
    """Root mean squared error of each law in per cent of the loss: where it was fitted, and where not."""
    return style.keep_table(forgetting.errors(found, sets), folder, "errors")


def best_predictor(found: Mapping[str, Fitted], sets: Mapping[str, pd.DataFrame]) -> str:
    """The law with the lowest mean error on the sets after the first, which is the one it was fitted to."""
    table = forgetting.errors(found, sets).set_index("form")
    return str(table[list(sets)[1:]].mean(axis=1).idxmin())


def constants_table(
    found: Mapping[str, Fitted], draws: Mapping[str, list[Fitted]], folder: Path | None = None
) -> pd.DataFrame:
    """The constants of every law with their intervals over runs."""
    rows = []
    for name, law in found.items():
        for k, constant in enumerate(law.form.constants):
            low, high = quantiles(np.exp([draw.theta[k] for draw in draws[name]]))
            value = float(np.exp(law.theta[k]))
            rows.append({"form": name, "constant": constant, "value": value, "low": low, "high": high})
    return style.keep_table(pd.DataFrame(rows), folder, "constants")


def critical_table(
    curves: pd.DataFrame, unseen: pd.DataFrame, start: float, tolerance: float, folder: Path | None = None
) -> pd.DataFrame:
    """The critical mixture ratio at each probe, its fitted law, and what that says of the longer runs."""
    table = forgetting.critical_ratio(curves, start, tolerance)
    e0, e1, s = forgetting.fit_critical(table)
    longest = float(unseen["D"].max())
    if longest > curves["D"].max():
        beyond = forgetting.critical_ratio(unseen[unseen["D"] == longest], start, tolerance)
        end = pd.DataFrame({"step": [unseen["step"].max()], "D": [longest]})
        table = pd.concat([table, end.assign(ratio=beyond["ratio"].mean())], ignore_index=True)
    return style.keep_table(
        table.assign(law=e0 + e1 * (table["D"] / forgetting.UNIT) ** s), folder, "critical_ratio"
    )


def ends_table(frame: pd.DataFrame, folder: Path | None = None, name: str = "ends") -> pd.DataFrame:
    """Each arm at its end: both losses and the accuracies, mean over its seeds."""
    metrics = {
        "ppl.target.nats_per_token": "target, nats",
        "ppl.source.nats_per_token": "English, nats",
        "copain.accuracy": "Copain",
        "choices.target.accuracy": "choices, target",
        "choices.source.accuracy": "choices, English",
    }
    ends = stats.ends(frame)
    kept = [m for m in metrics if m in ends]
    table = ends.groupby("arm", sort=False)[kept].mean().rename(columns=metrics)
    table.insert(0, "seeds", ends.groupby("arm")["run"].nunique())
    return style.keep_table(table.reset_index(), folder, name)
