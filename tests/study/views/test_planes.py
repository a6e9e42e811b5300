"""Planes, end values over a setting, event times: what they draw is what is in the frame."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cptkit.study import fronts, stats
from cptkit.study.views import evidence, planes, tables
from tests.study.views.test_figures import mixing

numbers = st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), min_size=1, max_size=12)


@given(numbers)
def test_the_front_is_what_no_other_point_beats(points):
    x, y = np.array(points, dtype=float).T
    expected = [
        not any(a >= x[i] and b >= y[i] and (a, b) != (x[i], y[i]) for a, b in points) for i in range(len(x))
    ]
    assert fronts.pareto(x, y).tolist() == expected


def test_half_change_up_or_down():
    steps = [0, 1, 2, 4, 8]
    assert stats.half_change(steps, [1.0, 0.9, 0.4, 0.2, 0.0]) == 2
    assert stats.half_change(steps, [0.0, 0.1, 0.2, 0.9, 1.0]) == 4
    assert stats.half_change(steps, [0.0, 0.6, 1.0, 0.1, 0.0]) == 1  # back again: the furthest counts
    assert np.isnan(stats.half_change(steps, [0.5, 0.51, 0.5, 0.5, 0.5]))


def test_ends_are_last_probes_and_one_start():
    ends = stats.ends(mixing())
    assert len(ends) == 1 + 9
    assert set(ends[ends["arm"] != "base"]["step"]) == {400}
    assert ends[ends["arm"] == "base"]["step"].tolist() == [0]


def test_headline_keeps_each_arms_rate_with_the_most_runs():
    frame = pd.concat([mixing(), mixing(("none",), (0,), rate=3e-4), mixing(("slow",), rate=1e-5)])
    kept = stats.headline(frame)
    assert kept.groupby("arm")["lr_peak"].unique().map(list).to_dict() == {
        "none": [1e-3], "mix20": [1e-3], "mix50": [1e-3], "slow": [1e-5],
    }  # fmt: skip
    with pytest.raises(stats.StatsError, match="have as many runs"):
        stats.headline(pd.concat([mixing(), mixing(rate=3e-4)]))


def test_a_plane_saves_the_points_and_the_front(tmp_path):
    planes.plane(mixing(), tmp_path)
    data = pd.read_csv(tmp_path / "plane.csv")
    first = data[data["panel"].str.startswith("ppl.target")].set_index("arm")
    ends = stats.ends(mixing())
    means = ends[ends["arm"] == "mix20"][["ppl.target.perplexity", "copain.accuracy"]].mean()
    assert first.loc["mix20", ["x", "y"]].tolist() == pytest.approx(means.tolist())
    assert not first.loc["base", "front"]
    assert first["front"].any()
    assert (tmp_path / "plane.png").stat().st_size > 10_000


def test_end_values_over_a_setting(tmp_path):
    frame = pd.concat([mixing(rate=r) for r in (1e-4, 1e-3)])
    figure = planes.against(
        frame, "lr_peak", ["ppl.target.perplexity", "copain.accuracy", "no.such"], tmp_path, "rates",
        title="t", xlabel="rate", logx=True,
    )  # fmt: skip
    data = pd.read_csv(tmp_path / "rates.csv")
    assert set(data["metric"]) == {"ppl.target.perplexity", "copain.accuracy"}
    assert len(data) == 2 * 3 * 2
    assert len(figure.axes) == 2
    planes.groups(
        frame.assign(condition=frame["lr_peak"].map("{:g}".format)), "condition", ["copain.accuracy"],
        tmp_path, title="t",
    )  # fmt: skip
    assert len(pd.read_csv(tmp_path / "groups.csv")) == 6


def train_rows(frame: pd.DataFrame) -> pd.DataFrame:
    """Rates of every step of every run, so that what is spent can be summed."""
    rows = []
    for (arm, seed, run), _ in frame.groupby(["arm", "seed", "run"]):
        rows += [
            {"arm": arm, "seed": seed, "run": run, "kind": "train", "step": s, "lr": 1.0}
            for s in range(1, 401)
        ]
    return pd.DataFrame(rows)


def test_event_times_are_probed_steps_and_the_share_of_the_rate_spent(tmp_path):
    frame = mixing(("none", "mix20"))
    frame = pd.concat([stats.probes(frame), train_rows(frame)]).assign(warmup=20)
    table = evidence.event_table(frame)
    falls = table[(table["arm"] == "none") & (table["event"] == "Copain")]
    assert set(falls["step"]) <= {4.0, 8.0}  # it falls as 1 - exp(-step / 8)
    assert falls["spent"].tolist() == pytest.approx((falls["step"] / 400).tolist())
    kept = table[(table["arm"] == "mix20") & (table["event"] == "English perplexity")]
    assert len(kept) == 3
    evidence.event_times(frame, tmp_path)
    summary = evidence.event_summary(frame, tmp_path)
    assert {"step", "spent", "seeds"} <= set(summary)
    assert (tmp_path / "event_times.png").exists()


def test_other_readings_of_distance_and_where_it_is(tmp_path):
    frame = mixing(("none", "mix20"))
    frame["drift.global_l2"] = 3 * frame["drift.mean_l2"]
    frame["drift.relative"] = frame["drift.mean_l2"] / 10
    evidence.distances(frame, tmp_path)
    data = pd.read_csv(tmp_path / "drift_definitions.csv")
    assert set(data["metric"]) == {"drift.mean_l2", "drift.global_l2", "drift.relative", "drift.layers"}
    evidence.heat_map(frame, tmp_path)
    layers = pd.read_csv(tmp_path / "drift_layers.csv")
    assert set(layers["arm"]) == {"none", "mix20"}
    planes.trajectories(frame, frame, tmp_path)
    assert (tmp_path / "matched_drift.png").exists()
    figure = evidence.over_steps(frame, ["copain.accuracy", "drift.mean_l2"], tmp_path, switches={"none": 20})
    assert any(line.get_xdata()[0] == 20 for line in figure.axes[0].lines)


def test_contrasts_are_paired_by_seed():
    frame = mixing(("none", "mix20"), (0, 1))
    table = tables.contrasts(frame, [("mix20", "none"), ("mix20", "absent")])
    assert len(table) == 4
    ends = stats.ends(frame).set_index(["arm", "seed"])["copain.accuracy"]
    expected = 100 * (ends.loc["mix20"] - ends.loc["none"]).mean()
    assert table.set_index("measure").loc["Copain", "ours"] == pytest.approx(expected)
    ratio = table.set_index("measure").loc["target perplexity"]
    assert ratio["unit"] == "ratio"
    assert ratio["low"] < ratio["ours"] < ratio["high"]
