"""The figures of P2's scaling study: loss against compute, what CPT saves, where to spend a budget, gamma.

Sizes are shades from light (small) to dark (large); CPT is drawn through, scratch dashed. Marks are runs,
lines between them only join; curves of a law are thin. Published laws stand in a figure of their own, as
their N is another quantity than ours (`laws/closed_form.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from cptkit.study.laws import closed_form, uncertainty
from cptkit.study.laws.closed_form import FLOPS_PER_WEIGHT, Law
from cptkit.study.views import style
from cptkit.study.views.curves import flops_axis, legend, percent_axis, plain_log_axis, token_axis
from cptkit.study.views.frontier import Laws, envelope, measured_transfer

LOOK = {"cpt": ("-", "s", style.ARMS["cpt"].label), "scratch": ("--", "o", style.ARMS["scratch"].label)}
AXES = {"N": "N, weights without embeddings", "D": "target tokens"}
ENVELOPE = {"cpt": style.ARMS["cpt"].colour, "scratch": style.ARMS["scratch"].colour}


def _shades(names: list[str]) -> dict[str, tuple[float, ...]]:
    return dict(zip(names, colormaps["viridis_r"](np.linspace(0.12, 0.95, len(names))), strict=True))


def _compute(ax: Axes) -> None:
    flops_axis(ax)
    ax.set_xlabel("compute of the run, 6 N D FLOPs")


def _names(points: pd.DataFrame) -> list[str]:
    return list(points.sort_values("N")["size"].drop_duplicates())


def loss_against_compute(points: pd.DataFrame, folder: Path | None = None, enlarged: str = "") -> Figure:
    """P2 Figure 1: every size, both arms, with the envelopes; and one size enlarged (the largest)."""
    names, shades = _names(points), _shades(_names(points))
    enlarged = enlarged or names[-1]
    data = [points.assign(panel="all")]
    with style.drawing():
        fig = style.new(11.0, 5.2)
        left, right = fig.subplots(1, 2)
        for ax, chosen in ((left, names), (right, [enlarged])):
            for size in chosen:
                for arm, (line, marker, _) in LOOK.items():
                    rows = points[(points["size"] == size) & (points["arm"] == arm)].sort_values("D")
                    ax.plot(
                        rows["flops"], rows["loss"], ls=line, marker=marker, ms=5, color=shades[size], lw=1.5,
                        mec="white", mew=0.5, label=size if arm == "cpt" else None,
                    )  # fmt: skip
            _compute(ax)
        for arm, (line, _, _) in LOOK.items():
            k, e, best = envelope(points, arm)
            if np.isfinite(k):
                x = np.geomspace(best["flops"].min(), best["flops"].max(), 50)
                left.plot(x, k * x**e, color=ENVELOPE[arm], ls=line, lw=2.6, alpha=0.45)
                data.append(pd.DataFrame({"panel": "envelope", "arm": arm, "flops": x, "loss": k * x**e}))
        left.set(title="All sizes, with the lowest loss per compute", ylabel="target loss, nats a token")
        right.set_title(f"{enlarged} enlarged: {_saving_words(points, enlarged)}")
        for ax in (left, right):
            plain_log_axis(ax)
        legend(fig, notes={label: {"color": "#444444", "ls": line, "marker": marker, "ms": 5}
                           for line, marker, label in LOOK.values()})  # fmt: skip
        return style.save(fig, pd.concat(data, ignore_index=True), folder, "fig1_loss_against_compute")


def _saving_words(points: pd.DataFrame, size: str) -> str:
    rows = measured_transfer(points[points["size"] == size])
    known = rows.dropna(subset=["saved"])
    if known.empty:
        return "no loss that both reach"
    return f"CPT saves {100 * known['saved'].iloc[-1]:.0f} % of the tokens"


def transfer(points: pd.DataFrame, found: Laws, folder: Path | None = None) -> Figure:
    """P2 Figure 2: FLOPs saved at equal loss, and effectively transferred tokens, over CPT's tokens by size.

    Marks are measured (runs of scratch interpolated), lines the joint law; where CPT is below scratch's best
    there is no mark, as nobody knows.
    """
    names, shades, measured = _names(points), _shades(_names(points)), measured_transfer(points)
    tokens = np.geomspace(points["D"].min(), points["D"].max(), 40)
    data = [measured.assign(panel="measured")]
    with style.drawing():
        fig = style.new(11.0, 4.8)
        axes = fig.subplots(1, 2)
        for size in names:
            rows = measured[measured["size"] == size]
            N = float(rows["N"].iloc[0])
            lines = {
                "saved": closed_form.saved(found.scratch, found.cpt, N, tokens),
                "transferred": closed_form.transferred(found.scratch, found.cpt, N, tokens),
            }
            for ax, (column, line) in zip(axes, lines.items(), strict=True):
                ax.plot(tokens, line, color=shades[size], lw=1.1)
                ax.plot(rows["D"], rows[column], ls="none", marker="s", ms=6, color=shades[size],
                        mec="white", mew=0.5, label=size)  # fmt: skip
            data.append(pd.DataFrame({"panel": "law", "size": size, "N": N, "D": tokens, **lines}))
        for ax in axes:
            token_axis(ax)
            ax.set_xlabel("target tokens of CPT")
        percent_axis(axes[0].yaxis)
        axes[0].set_ylim(min(0.0, float(np.nanmin(measured["saved"].to_numpy(), initial=0.0)) - 0.05), 1.03)
        axes[0].set(title="Compute saved at equal loss and size", ylabel="share of scratch's FLOPs")
        axes[1].set_yscale("log")
        axes[1].set(title="Effectively transferred tokens", ylabel="tokens of scratch beyond those of CPT")
        legend(fig, notes={"joint law": {"color": "#444444", "lw": 1.1}})
        return style.save(fig, pd.concat(data, ignore_index=True), folder, "fig2_transfer")


def allocation(points: pd.DataFrame, found: Laws, folder: Path | None = None) -> Figure:
    """P2 Figure 4: iso-loss contours of both laws in the plane of compute and N, with both frontiers.

    Bands are the 95 % interval of the optimal N over runs.
    """
    p = found.fit.points
    low, high = float((FLOPS_PER_WEIGHT * p.N * p.D).min()), float((FLOPS_PER_WEIGHT * p.N * p.D).max())
    flops, sizes = np.geomspace(low / 3, high * 8, 60), np.geomspace(p.N.min() / 3, p.N.max() * 8, 200)
    data = []
    with style.drawing():
        fig = style.new(11.0, 5.0)
        for ax, arm in zip(fig.subplots(1, 2, sharey=True), ("scratch", "cpt"), strict=True):
            law = found.fit.laws[arm]
            for loss in np.linspace(p.loss.min() * 0.98, p.loss.max() * 0.98, 8):
                x = closed_form.contour(law, loss, sizes)
                ax.plot(x, sizes, color="#bbbbbb", lw=0.9, zorder=1)
                data.append(pd.DataFrame({"panel": arm, "line": f"loss {loss:.3g}", "flops": x, "N": sizes}))
            for which in ("scratch", "cpt"):
                best = found.fit.laws[which].optimum(flops)[0]
                drawn = [uncertainty.quantiles(found.draws[which].optimum(c)[0]) for c in flops]
                line, _, label = LOOK[which]
                ax.plot(flops, best, color=ENVELOPE[which], ls=line, lw=2, label=f"best size, {label}")
                ax.fill_between(flops, *np.transpose(drawn), color=ENVELOPE[which], alpha=0.15, lw=0)
                data.append(pd.DataFrame({"panel": arm, "line": f"best {which}", "flops": flops, "N": best}))
            rows = points[points["arm"] == arm]
            ax.plot(rows["flops"], rows["N"], ls="none", marker="o", ms=3.5, color="#222222", label="runs")
            _compute(ax)
            ax.set_yscale("log")
            ax.set_xlim(flops[0], flops[-1])
            ax.set_ylim(sizes[0], sizes[-1])
            ax.set_title(f"Equal loss by the law: {LOOK[arm][2]}")
        fig.axes[0].set_ylabel(AXES["N"])
        legend(fig, notes={"equal loss": {"color": "#bbbbbb"}})
        return style.save(fig, pd.concat(data, ignore_index=True), folder, "fig4_allocation")


def printed_laws(published: pd.DataFrame, sizes: pd.DataFrame, folder: Path | None = None) -> Figure:
    """The printed constants against the printed claim: at 20 tokens a weight CPT stands above scratch.

    Left, both printed laws at D = 20 N over the sizes of Table 4; right, the share of compute the same laws
    say CPT saves over a run, for three sizes, with the band that the text claims (25 to 50 %).
    """
    printed = closed_form.published_laws(published)
    N, data = sizes["size"].to_numpy(), []
    with style.drawing():
        fig = style.new(11.0, 4.8)
        left, right = fig.subplots(1, 2)
        for arm, (line, marker, label) in LOOK.items():
            loss = printed[arm].loss(N, 20 * N)
            left.plot(N, loss, ls=line, marker=marker, ms=4, color=ENVELOPE[arm], label=label)
            data.append(pd.DataFrame({"panel": "D = 20 N", "arm": arm, "N": N, "D": 20 * N, "loss": loss}))
        left.set(title="P2's printed laws at 20 tokens a weight", xlabel="N as P2 prints it",
                 ylabel="loss, nats a token", xscale="log")  # fmt: skip
        chosen = sizes.iloc[[3, len(sizes) // 2, len(sizes) - 1]]
        for row, shade in zip(chosen.itertuples(), _shades(list(chosen["name"])).values(), strict=True):
            D = np.geomspace(0.05, 20, 60) * row.size
            share = closed_form.saved(printed["scratch"], printed["cpt"], row.size, D)
            right.plot(D / row.size, share, color=shade, label=row.name)
            data.append(pd.DataFrame({"panel": "saved", "N": row.size, "D": D, "saved": share}))
        right.axhspan(0.25, 0.5, color="#E69F00", alpha=0.25, lw=0, label="claimed: 25 to 50 %")
        right.axhline(0, color="#222222", lw=1)
        right.set(title="Compute saved by the printed laws", xlabel="CPT tokens a weight", xscale="log",
                  ylabel="share of scratch's FLOPs")  # fmt: skip
        right.set_ylim(-2, 1.02)
        percent_axis(right.yaxis)
        legend(fig)
        return style.save(fig, pd.concat(data, ignore_index=True), folder, "printed_constants")


def rates(sweep: pd.DataFrame, folder: Path | None = None) -> Figure:
    """Final loss over the peak learning rate, by size and arm: each arm at its own best is the comparison."""
    names, shades = _names(sweep), _shades(_names(sweep))
    with style.drawing():
        fig = style.new(7.2, 4.8)
        ax = fig.subplots()
        for size in names:
            for arm, (line, marker, _) in LOOK.items():
                rows = sweep[(sweep["size"] == size) & (sweep["arm"] == arm)].sort_values("lr_peak")
                ax.plot(rows["lr_peak"], rows["loss"], ls=line, marker=marker, ms=4, color=shades[size],
                        label=size if arm == "cpt" else None)  # fmt: skip
                best = rows.loc[rows["loss"].idxmin()]
                ax.plot(best["lr_peak"], best["loss"], marker="o", ms=11, mfc="none", mec=shades[size])
        ax.set(title="Every arm at every rate, the best ringed", xlabel="peak learning rate", xscale="log",
               ylabel="target loss, nats a token")  # fmt: skip
        plain_log_axis(ax)
        legend(fig, notes={label: {"color": "#444444", "ls": line, "marker": marker, "ms": 4}
                           for line, marker, label in LOOK.values()})  # fmt: skip
        columns = ["arm", "size", "N", "D", "lr_peak", "loss"]
        return style.save(fig, sweep[columns], folder, "rates")


def gamma(
    profile: pd.DataFrame, found: Mapping[str, Laws], published: pd.DataFrame, folder: Path | None = None
) -> Figure:
    """What is known of gamma: its profile likelihood, bootstraps over runs and over trunks, P2's value."""
    printed = float(closed_form.published_laws(published)["cpt"].gamma)
    bars = []
    for name, result in found.items():
        for unit, draws in (("runs", result.draws), ("trunks", result.by_trunk)):
            if draws is not None:
                ends = uncertainty.quantiles(draws["cpt"].gamma)
                bars.append((f"{name},\nover {unit}", float(result.cpt.gamma), *ends))
    with style.drawing():
        fig = style.new(9.6, 4.4)
        left, right = fig.subplots(1, 2, sharex=True)
        left.plot(profile["gamma"], profile["F"], color=ENVELOPE["cpt"], lw=1.8)
        inside = profile[profile["inside"]]
        if len(inside):
            left.axvspan(
                inside["gamma"].min(), inside["gamma"].max(), color=ENVELOPE["cpt"], alpha=0.15, lw=0
            )
        left.set_ylim(0, max(10.0, 4 * float(profile["F"].median()) if len(inside) == 0 else 20.0))
        left.set(title="Profile likelihood (least squares)", xlabel="gamma", ylabel="F against the best fit")
        for place, (_, value, low, high) in enumerate(bars):
            right.errorbar(value, place, xerr=[[max(value - low, 0)], [max(high - value, 0)]], marker="o",
                           color=ENVELOPE["cpt"], capsize=3)  # fmt: skip
        right.set_yticks(range(len(bars)), [name for name, *_ in bars])
        right.set_ylim(-0.6, len(bars) - 0.4)
        right.invert_yaxis()
        right.set(title="Bootstrap, 95 %", xlabel="gamma")
        for ax in (left, right):
            ax.axvline(0, color="#222222", lw=1)
            ax.axvline(printed, color="#D55E00", lw=1.2, ls=":", label="P2")
        legend(fig)
        data = pd.concat(
            [profile.assign(panel="profile"),
             pd.DataFrame(bars, columns=["fit", "gamma", "low", "high"]).assign(panel="bootstrap")],
            ignore_index=True,
        )  # fmt: skip
        return style.save(fig, data, folder, "gamma")


def residuals(points: pd.DataFrame, found: Laws, folder: Path | None = None) -> Figure:
    """log L minus the joint law's, over N and over D: what the law does not say."""
    names, shades = _names(points), _shades(_names(points))
    fitted = _fitted(points, found.fit.laws)
    table = points.assign(residual=np.log(points["loss"]) - np.log(fitted))
    with style.drawing():
        fig = style.new(9.6, 4.2)
        axes = fig.subplots(1, 2, sharey=True)
        for ax, x in zip(axes, ("N", "D"), strict=True):
            for size in names:
                for arm, (_, marker, _) in LOOK.items():
                    rows = table[(table["size"] == size) & (table["arm"] == arm)]
                    ax.plot(rows[x], rows["residual"], ls="none", marker=marker, ms=5, color=shades[size],
                            mfc=shades[size] if arm == "cpt" else "none",
                            label=size if arm == "cpt" else None)  # fmt: skip
            ax.axhline(0, color="#222222", lw=1)
            ax.set(xscale="log", xlabel=AXES[x])
        percent_axis(axes[0].yaxis)
        axes[0].set(title="Loss above the joint law", ylabel="log L - log of the law")
        legend(fig, notes={label: {"color": "#444444", "ls": "none", "marker": marker, "ms": 5,
                                   "mfc": "#444444" if marker == "s" else "none"}
                           for _, marker, label in LOOK.values()})  # fmt: skip
        return style.save(fig, table[["arm", "size", "N", "D", "loss", "residual"]], folder, "residuals")


def _fitted(points: pd.DataFrame, fitted: Mapping[str, Law]) -> np.ndarray:
    N, D = points["N"].to_numpy(float), points["D"].to_numpy(float)
    return np.where(points["arm"] == "cpt", fitted["cpt"].loss(N, D), fitted["scratch"].loss(N, D))
