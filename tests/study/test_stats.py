from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from cptkit.study import stats
from cptkit.study.stats import Interval, StatsError

finite = st.floats(-1e6, 1e6)


@settings(deadline=None, max_examples=50)
@given(st.lists(finite, min_size=2, max_size=12), st.floats(0.5, 0.99))
def test_interval_is_scipys(values, level):
    ours = stats.interval(values, level)
    low = high = ours.mean
    if se := scipy.stats.sem(values):
        low, high = scipy.stats.t.interval(level, len(values) - 1, np.mean(values), se)
    assert (ours.low, ours.high) == pytest.approx((low, high), rel=1e-9, abs=1e-6)
    assert ours.n == len(values)


def test_interval_of_three_by_hand():
    # mean 2, sd 1, t(2, 0.975) = 4.302653, half width 4.302653 / sqrt(3)
    ours = stats.interval([1.0, 2.0, 3.0])
    assert (ours.mean, ours.low, ours.high) == pytest.approx((2, 2 - 2.484138, 2 + 2.484138), abs=1e-6)


def test_one_value_has_no_bounds():
    ours = stats.interval([4.0])
    assert ours.mean == 4.0
    assert ours.n == 1
    assert math.isnan(ours.low)
    assert math.isnan(ours.high)
    assert not ours.bounded


@pytest.mark.parametrize("values", [[], [1.0, math.nan], [1.0, math.inf]])
def test_bad_values_are_refused(values):
    with pytest.raises(StatsError):
        stats.interval(values)
    with pytest.raises(StatsError):
        stats.bootstrap(values)


@pytest.mark.parametrize("level", [0.0, 1.0, 95])
def test_level_is_a_fraction(level):
    with pytest.raises(StatsError):
        stats.interval([1.0, 2.0], level)


def test_coverage_of_three_seeds():
    rng = np.random.default_rng(0)
    draws = rng.normal(5.0, 2.0, size=(2000, 3))
    inside = [(i := stats.interval(d)).low <= 5.0 <= i.high for d in draws]
    assert np.mean(inside) == pytest.approx(0.95, abs=0.015)  # 3 standard errors


def test_bootstrap_is_repeatable_and_close_to_scipys():
    values = np.random.default_rng(1).exponential(size=200)
    ours = stats.bootstrap(values, 0.9, draws=8000, seed=3)
    assert ours == stats.bootstrap(values, 0.9, draws=8000, seed=3)
    theirs = scipy.stats.bootstrap(
        (values,), np.mean, confidence_level=0.9, method="percentile", n_resamples=8000, rng=5
    ).confidence_interval
    assert (ours.low, ours.high) == pytest.approx((theirs.low, theirs.high), abs=0.01)


def test_bootstrap_of_another_statistic():
    values = np.arange(101.0)
    ours = stats.bootstrap(values, statistic=lambda rows: np.median(rows, axis=1))
    assert ours.mean == 50.0
    assert ours.low < 50.0 < ours.high


# ------------------------------------------------------------------------------------------------ pairing


def test_paired_is_the_interval_of_differences():
    a, b = {0: 3.0, 1: 5.0, 2: 4.0}, {2: 1.5, 0: 1.0, 1: 2.0}
    assert stats.paired(a, b) == stats.interval([2.0, 3.0, 2.5])
    assert stats.paired(pd.Series(a), pd.Series(b)) == stats.paired(a, b)


def test_pairing_removes_what_seeds_share():
    seeds = np.random.default_rng(2).normal(0, 100, 3)
    a = dict(enumerate(seeds + np.array([1.0, 1.1, 0.9])))
    b = dict(enumerate(seeds))
    ours = stats.paired(a, b)
    assert ours.low > 0
    assert ours.mean == pytest.approx(1.0)


def test_paired_logarithms_are_ratios():
    a, b = {0: 2.0, 1: 8.0}, {0: 1.0, 1: 2.0}
    ours = stats.paired(a, b, log=True).map(math.exp)
    assert ours.mean == pytest.approx(math.sqrt(8))  # geometric mean of 2 and 4


@pytest.mark.parametrize(
    ("a", "b", "log", "said"),
    [
        ({0: 1.0, 1: 2.0}, {0: 1.0}, False, r"only in a \[1\]"),
        ({0: 1.0}, {0: 1.0, 3: 2.0}, False, r"only in b \[3\]"),
        ({0: 1.0, 7: math.nan}, {0: 1.0, 7: 2.0}, False, "seed 7: not finite"),
        ({0: 1.0, 7: 0.0}, {0: 1.0, 7: 2.0}, True, "seed 7: a ratio needs positive"),
        (pd.Series([1.0, 2.0], index=[4, 4]), {4: 1.0}, False, "seed twice"),
        ({}, {}, False, "no values"),
    ],
)
def test_what_cannot_be_paired_raises(a, b, log, said):
    with pytest.raises(StatsError, match=said):
        stats.paired(a, b, log=log)


# ------------------------------------------------------------------------------------------------ verdicts


def between(low, high, n=3):
    return Interval((low + high) / 2, low, high, n)


@pytest.mark.parametrize(
    ("ours", "published", "direction", "options", "expected"),
    [
        # effects: sign first, then size by the class of the claim
        (between(0.1, 0.3), 0.2, +1, {}, "direction only"),
        (between(0.1, 0.3), 0.2, +1, {"tolerance": "exact"}, "reproduced"),
        (between(0.1, 0.3), 0.31, +1, {"tolerance": "exact"}, "direction only"),
        (between(0.1, 0.3), 0.31, +1, {"tolerance": "relative", "within": 0.5}, "reproduced"),
        (between(0.1, 0.3), 0.41, +1, {"tolerance": "relative", "within": 0.5}, "direction only"),
        (between(0.6, 0.8), math.log(3.0), +1, {"tolerance": "relative", "log": True}, "reproduced"),
        (between(0.6, 0.8), math.log(3.1), +1, {"tolerance": "relative", "log": True}, "direction only"),
        (between(0.1, 0.3), None, +1, {"tolerance": "exact"}, "direction only"),
        (between(-0.3, -0.1), -0.2, -1, {"tolerance": "exact"}, "reproduced"),
        (between(-0.3, -0.1), 0.2, +1, {"tolerance": "exact"}, "reversed"),
        (between(0.1, 0.3), -0.2, -1, {}, "reversed"),
        (between(-0.1, 0.3), 0.2, +1, {"tolerance": "exact"}, "not seen"),
        (between(0.0, 0.3), 0.2, +1, {}, "not seen"),
        (between(0.0, 0.0), 0.2, +1, {}, "not seen"),
        # equalities: the region decides
        (between(-0.03, 0.05), 0.02, 0, {"region": (-0.07, 0.07)}, "reproduced"),
        (between(-0.03, 0.09), 0.02, 0, {"region": (-0.07, 0.07)}, "not seen"),
        (between(0.08, 0.12), 0.02, 0, {"region": (-0.07, 0.07)}, "reversed"),
        (between(-0.12, -0.08), None, 0, {"region": (-0.07, 0.07)}, "reversed"),
        (between(-0.2, 0.2), None, 0, {"region": (-0.07, 0.07)}, "not seen"),
        (between(0.01, 0.03), None, 0, {"region": (-0.07, 0.07)}, "reproduced"),
        (between(-0.02, 0.9), None, 0, {"region": (-0.05, math.inf)}, "reproduced"),
        (between(-0.5, -0.2), None, 0, {"region": (-0.05, math.inf)}, "reversed"),
        # nothing to say
        (between(0.1, 0.3), 0.2, +1, {"measurable": False}, "not testable at this scale"),
        (Interval(0.2, math.nan, math.nan, 1), 0.2, +1, {}, "not testable at this scale"),
        (Interval(math.nan, math.nan, math.nan, 0), 0.2, +1, {}, "not testable at this scale"),
        (between(0.1, 0.2, n=1), None, 0, {"region": (-1, 1)}, "not testable at this scale"),
    ],
)
def test_verdict_rules(ours, published, direction, options, expected):
    assert stats.verdict(ours, published, direction, **options) == expected
    assert expected in stats.VERDICTS


@pytest.mark.parametrize(
    ("direction", "published", "options"),
    [
        (2, None, {}),
        (1, -0.2, {}),
        (-1, 0.0, {}),
        (1, 0.2, {"tolerance": "loose"}),
        (0, None, {}),
        (0, None, {"region": (0.1, 0.2)}),
    ],
)
def test_verdict_refuses_a_claim_that_makes_no_sense(direction, published, options):
    with pytest.raises(StatsError):
        stats.verdict(between(0.1, 0.3), published, direction, **options)


@settings(deadline=None)
@given(finite, st.floats(0, 1e6), st.sampled_from([1, -1]))
def test_mirroring_an_effect_keeps_its_verdict(mean, half, direction):
    here = stats.verdict(between(mean - half, mean + half), None, direction)
    there = stats.verdict(between(-mean - half, -mean + half), None, -direction)
    assert here == there


def test_no_effect_is_seldom_called_one():
    rng = np.random.default_rng(3)
    called = [
        stats.verdict(stats.interval(d), None, 1) != "not seen" for d in rng.normal(0, 1, size=(1000, 3))
    ]
    assert np.mean(called) < 0.07


# ------------------------------------------------------------------------------------------ half of the fall


def test_half_fall():
    assert stats.half_fall([0, 1, 2, 4, 8], [0.9, 0.8, 0.5, 0.1, 0.3]) == 2  # half of 0.9 -> 0.1 is 0.5
    assert stats.half_fall([0, 10, 20], [0.9, 0.51, 0.1]) == 20
    assert math.isnan(stats.half_fall([0, 1, 2], [0.9, 0.88, 0.95]))
    with pytest.raises(StatsError):
        stats.half_fall([0, 2, 1], [0.9, 0.5, 0.1])


def test_tokens_ratio_of_a_known_law():
    # loss = 1 + 4 / (1 + e t): a with e = 2 needs half the tokens of b with e = 1, at any loss
    tokens = np.linspace(0, 10, 2001)
    ratio, a, b = stats.tokens_ratio(tokens, 1 + 4 / (1 + 2 * tokens), tokens, 1 + 4 / (1 + tokens))
    assert ratio == pytest.approx(0.5, rel=1e-3)
    assert (a, b) == pytest.approx((5.0, 10.0), rel=1e-3)
    back, _, _ = stats.tokens_ratio(tokens, 1 + 4 / (1 + tokens), tokens, 1 + 4 / (1 + 2 * tokens))
    assert back == pytest.approx(1 / ratio, rel=1e-9)


def test_tokens_ratio_interpolates_and_takes_the_best_so_far():
    # b ends at 2.0 after a bump; a crosses 2.0 halfway between 100 and 200
    ratio, a, b = stats.tokens_ratio([0, 100, 200], [5, 2.5, 1.5], [0, 100, 200, 300], [5, 2.0, 3.0, 2.5])
    assert a == pytest.approx(150)
    assert b == pytest.approx(100)
    assert ratio == pytest.approx(1.5)


def test_tokens_ratio_of_a_start_below_the_other_end_stays_positive():
    ratio, a, _ = stats.tokens_ratio([0, 10, 20], [1.0, 0.9, 0.8], [0, 10, 20], [5, 4, 3])
    assert a == 10
    assert ratio == pytest.approx(0.5)
    with pytest.raises(StatsError):
        stats.tokens_ratio([0, 0], [1, 2], [0, 1], [2, 1])


# ------------------------------------------------------------------------------------------ choosing rows


def test_choosing_rows():
    frame = pd.DataFrame(
        [
            {"arm": arm, "seed": seed, "run": f"{arm}{seed}{lr}", "lr_peak": lr, "step": step, "m": m}
            | {"kind": k}
            for arm in ("none", "mix20")
            for lr, seeds, end in ((1e-3, (0, 1), 2.0), (2e-3, (0,), 1.5))
            for seed in seeds
            for step, m, k in ((4, end, "probe"), (0, 9.0, "probe"), (4, math.nan, "train"))
        ]
    )
    assert set(stats.probes(frame)["kind"]) == {"probe"}
    assert stats.probes(frame)["step"].is_monotonic_increasing
    assert set(stats.headline(frame)["lr_peak"]) == {1e-3}
    assert stats.start(frame)[["arm", "step", "m"]].values.tolist() == [["base", 0, 9.0]]
    assert set(stats.best_rate(frame, "m")["lr_peak"]) == {2e-3}
    with pytest.raises(StatsError, match="as many runs"):
        stats.headline(frame[frame["seed"] == 0])
    with pytest.raises(StatsError, match="not measured"):
        stats.best_rate(frame[frame["kind"] == "train"], "m")


def test_the_best_rate_is_chosen_on_the_seeds_that_all_rates_have():
    rows = [
        {"run": f"{rate}-{seed}", "lr_peak": rate, "seed": seed, "step": 1, "m": loss}
        for rate, seed, loss in ((1e-3, 0, 2.0), (3e-3, 0, 1.9), (3e-3, 1, 2.4), (3e-3, 2, 2.4))
    ]
    best = stats.best_rate(pd.DataFrame(rows), "m")
    assert set(best["lr_peak"]) == {3e-3}  # by the mean over all its seeds, 1e-3 would have won
    assert set(best["seed"]) == {0, 1, 2}


def test_tokens_saved_is_the_geometric_mean_over_common_seeds():
    def run(seed, reached_at):
        return pd.DataFrame({"seed": seed, "tokens": [0, reached_at, 100], "m": [3.0, 1.0, 1.0]})

    scratch = pd.concat([run(0, 100), run(1, 100)]).drop_duplicates()
    cpt = pd.concat([run(0, 25), run(1, 100).drop_duplicates(["tokens"]), run(7, 1)])
    assert stats.tokens_saved(cpt, scratch.drop_duplicates(["seed", "tokens"]), "m") == pytest.approx(0.5)
    assert np.isnan(stats.tokens_saved(run(5, 10), scratch, "m"))
