"""Simulated studies: coverage of the intervals (nominal 90 %), power, and grids that cannot show gamma."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from cptkit.study.laws import power, scaling
from tests.study.laws.test_scaling import CPT, SCRATCH, crossed


@pytest.mark.parametrize("gamma", [0.0, 0.08])
def test_the_interval_holds_the_truth_nine_times_in_ten(gamma):
    """B68, with gamma = 0 among the truths: 200 studies of 36 runs an arm at 1 % noise."""
    truth = {"scratch": SCRATCH, "cpt": dataclasses.replace(CPT, gamma=gamma)}
    table = power.recovery(truth, *crossed(6, 6), 0.01, studies=200, draws=100).set_index(["arm", "constant"])
    for name in (
        ("scratch", "E"),
        ("scratch", "alpha"),
        ("scratch", "beta"),
        ("cpt", "beta"),
        ("cpt", "gamma"),
    ):
        assert table.loc[name, "covered"] >= 0.9
    row = table.loc[("cpt", "gamma")]
    assert row["estimate"] == pytest.approx(gamma, abs=3 * row["spread"] / np.sqrt(200) + 0.005)


def test_simulated_fits_start_at_the_truth_and_lose_nothing_by_it():
    points, target = power.simulated({"scratch": SCRATCH, "cpt": CPT}, *crossed(), 0.01, 4, seed=2)
    problem, ends = power._estimated(points, target, {"scratch": SCRATCH, "cpt": CPT})
    for study in range(4):
        data = dataclasses.replace(points, loss=np.exp(target[study]))
        full = scaling.fit(data, scaling.TOGETHER)
        value = problem.objective(ends[study][None], target[study][None], np.ones((1, len(data))), 1e-3)[0]
        assert value == pytest.approx(full.objective, rel=5e-3)


def test_noise_costs_power_and_no_noise_costs_none():
    table = power.power(
        {"scratch": SCRATCH, "cpt": CPT}, {"crossed": crossed()}, [0.003, 0.03, 0.3], studies=150
    )
    found = table["power"].tolist()
    assert found[0] > 0.95
    assert found == sorted(found, reverse=True)
    assert found[2] < 0.3


def test_without_gamma_the_power_is_the_level():
    table = power.power(
        {"scratch": SCRATCH, "cpt": CPT}, {"crossed": crossed()}, [0.01], gamma=0.0, studies=600
    )
    assert table["power"][0] == pytest.approx(0.05, abs=0.03)


def test_a_grid_along_one_line_has_no_power_but_a_reason():
    N = np.geomspace(3e4, 2e6, 40)
    table = power.power({"scratch": SCRATCH, "cpt": CPT}, {"D = 20 N": (N, 20 * N)}, [0.001], studies=10)
    assert np.isnan(table["power"][0])
    assert table["note"][0].startswith("unidentified")
