"""Intervals: what is drawn, whether they hold the truth, the test of gamma, budgets."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from scipy.optimize import least_squares

from cptkit.study.laws import scaling, uncertainty
from cptkit.study.laws.scaling import AS_P2, TOGETHER, ScalingError
from tests.study.laws.test_scaling import CPT, points


def test_each_draw_has_as_many_runs_of_each_arm():
    data = points()
    weights = uncertainty.resampled(data, 500, np.random.default_rng(0), by_trunk=False)
    for cpt in (False, True):
        assert (weights[:, data.cpt == cpt].sum(axis=1) == 30).all()
    assert weights.mean() == pytest.approx(1, abs=0.02)
    assert (weights == 0).mean() == pytest.approx((1 - 1 / 30) ** 30, abs=0.02)


def test_trunks_are_drawn_whole():
    """Five budgets of one size share their trunk: they come and go together."""
    data = points()
    trunk = np.unique(np.stack([data.N, data.cpt]), axis=1, return_inverse=True)[1]
    data = dataclasses.replace(data, trunk=trunk)
    weights = uncertainty.resampled(data, 200, np.random.default_rng(0), by_trunk=True)
    for name in np.unique(trunk):
        assert (np.ptp(weights[:, trunk == name], axis=1) == 0).all()
    with pytest.raises(ScalingError, match="too few"):
        uncertainty.resampled(dataclasses.replace(data, trunk=0 * trunk), 10, np.random.default_rng(0), True)


def test_a_draw_is_the_fit_of_what_was_drawn():
    data = points(noise=0.01)
    for protocol in (AS_P2, TOGETHER):
        found = scaling.fit(data, protocol)
        laws = uncertainty.bootstrap(found, 20, seed=4)
        weights = uncertainty.resampled(data, 20, np.random.default_rng(4), False).astype(int)
        for k in (0, 11):
            rows = np.repeat(np.arange(len(data)), weights[k])
            again = scaling.Points(*(getattr(data, f)[rows] for f in ("N", "D", "loss", "cpt", "trunk")))
            alone = scaling.fit(again, protocol).laws["cpt"]
            for name in ("E", "alpha", "beta", "gamma"):
                assert getattr(laws["cpt"], name)[k] == pytest.approx(
                    getattr(alone, name), rel=0.02, abs=3e-3
                )


def test_the_same_seed_gives_the_same_interval():
    found = scaling.fit(points(noise=0.01), AS_P2)
    first, again, other = (uncertainty.bootstrap(found, 50, seed=s)["cpt"].gamma for s in (1, 1, 2))
    assert (first == again).all()
    assert (first != other).any()


def test_the_profile_is_that_of_least_squares():
    """At gamma fixed, scipy's least_squares on the textbook formula reaches the same sum and no lower one."""
    data = points(noise=0.01)
    table = uncertainty.profile(data, [0.0, 0.05, 0.08, 0.2])
    start = [np.log(1.5), np.log(40), 0.3, np.log(200), 0.4, np.log(30), 0.25]
    for row in table.itertuples():

        def residual(x, gamma=row.gamma):
            E, A, alpha, B, beta, other, steep = x
            target = np.exp(B) * data.D**-beta
            cpt = np.exp(other) * data.D**-steep * data.N**-gamma
            return np.log(np.exp(E) + np.exp(A) * data.N**-alpha + np.where(data.cpt, cpt, target)) - np.log(
                data.loss
            )

        alone = least_squares(residual, start, x_scale="jac", ftol=1e-12, xtol=1e-12)
        assert row.sum == pytest.approx(2 * alone.cost, rel=1e-4)
    assert table["inside"].tolist() == [False, True, True, False]


def test_nested_sees_gamma_where_it_is_and_not_where_it_is_not():
    strong = dataclasses.replace(CPT, B=30 * 3e5**0.2, gamma=0.28)
    table = uncertainty.nested(points(noise=0.003, cpt=strong)).set_index("arm")
    assert table.loc["cpt", "p"] < 0.01
    assert table.loc["scratch", "p"] > 0.01
    assert (table["objective, extended form"] <= table["objective, plain form"] * (1 + 1e-6)).all()


def test_a_budget_says_where_it_guesses():
    found = scaling.fit(points(noise=0.01), TOGETHER)
    draws = uncertainty.bootstrap(found, 100)
    inside, outside = 6 * 3e5 * 6e5, 1e18
    table = uncertainty.budget([inside, outside], found, draws).set_index(["flops", "arm"])
    assert len(table) == 4
    assert "compute" not in table.loc[(inside, "scratch"), "outside"]
    assert "compute" in table.loc[(outside, "cpt"), "outside"]
    for row in table.itertuples():
        assert row.loss_low <= row.loss <= row.loss_high
    exact = CPT.best(inside)
    assert table.loc[(inside, "cpt"), "loss"] == pytest.approx(float(exact), rel=0.02)
