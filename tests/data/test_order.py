"""Orders keep every sequence, do what their name says, and depend on scores and seed alone."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cptkit.data.order import Buckets, OrderError, Paced, Sorted

ORDERS = [Sorted(), Sorted(descending=True), Buckets(), Buckets(5, 0.0), Paced(), Paced(0.01, 1.0, 1.0)]


def scored(n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.integers(0, 10 * n + 1, n), rng.normal(3, 1, n)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 200), st.sampled_from(ORDERS), st.integers(0, 5))
def test_an_order_is_a_permutation_and_the_same_every_time(n, order, seed):
    used, scores = scored(n, seed)
    found = order.arrange(used, scores, seed)
    assert sorted(found.tolist()) == sorted(used.tolist())
    assert (order.arrange(used, scores, seed) == found).all()


def test_sorted_both_ways_and_ties_stay_as_they_came():
    used, scores = np.array([7, 3, 9, 1]), np.array([2.0, 1.0, 2.0, 3.0])
    assert Sorted().arrange(used, scores, 0).tolist() == [3, 7, 9, 1]
    assert Sorted(descending=True).arrange(used, scores, 0).tolist() == [1, 7, 9, 3]


def test_buckets_rise_and_are_random_inside():
    used, scores = np.arange(400), np.random.default_rng(1).permutation(400).astype(float)
    found = scores[Buckets(4, 0.0).arrange(used, scores, 0)]
    for k in range(4):
        part = found[100 * k : 100 * k + 100]
        assert set(part) == set(np.arange(100 * k, 100 * k + 100.0))
        assert not (np.diff(part) > 0).all()


def test_the_mixed_share_stands_anywhere():
    used, scores = np.arange(1000), np.random.default_rng(1).permutation(1000).astype(float)
    found = scores[Buckets(4, 0.4).arrange(used, scores, 0)]
    early = found[:250]
    # 60 % of the first stage's places hold its own, the rest a fair sample of everything.
    assert (early < 250).mean() == pytest.approx(0.6 + 0.4 * 0.25, abs=0.06)
    assert (early >= 750).mean() == pytest.approx(0.4 * 0.25, abs=0.04)
    everywhere = scores[Buckets(4, 1.0).arrange(used, scores, 0)]
    assert abs(np.corrcoef(np.arange(1000), everywhere)[0, 1]) < 0.1


def test_paced_never_shows_what_is_not_open_yet():
    """Against the formula of the paper, place by place."""
    n, order = 500, Paced(start=0.05, by=0.5)
    used, scores = np.arange(n), np.random.default_rng(2).permutation(n).astype(float)
    found = scores[order.arrange(used, scores, 3)]
    for place, rank in enumerate(found):
        t = place / n
        open_ = min(1.0, (t / 0.5 * (1 - 0.05**2) + 0.05**2) ** 0.5)
        assert rank < max(np.ceil(open_ * n), place + 1)
    assert found[:50].mean() < found.mean() / 2
    assert found.tolist() != sorted(found)
    assert order.competence(0.0) == pytest.approx(0.05)
    assert order.competence(0.5) == pytest.approx(1.0)


@pytest.mark.parametrize("order", ORDERS)
def test_scores_that_are_none_or_too_few_are_refused(order):
    with pytest.raises(OrderError, match="not finite"):
        order.arrange(np.arange(3), np.array([1.0, np.nan, 2.0]), 0)
    with pytest.raises(OrderError, match="have"):
        order.arrange(np.arange(3), np.array([1.0, 2.0]), 0)


def test_parameters_that_make_no_sense_are_refused():
    for make in (lambda: Buckets(1), lambda: Buckets(3, 1.5), lambda: Paced(0.0), lambda: Paced(by=0.0)):
        with pytest.raises(OrderError):
            make()
