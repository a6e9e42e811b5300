"""Feedback rules against hand calculation and a brute-force loop; bad measurements are refused."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import brentq

from cptkit.data.corpus import CorpusSpec
from cptkit.data.feedback import ExcessLoss, FeedbackError, TopicFeedback, bounded
from cptkit.data.weights import Constant, Dynamic, MixtureError, Phase, Phases

SHARES = {"law": 0.5, "arts": 0.3, "sports": 0.2}


def test_the_first_measurement_moves_nothing():
    assert TopicFeedback().update(SHARES, [{"law": 9.0, "arts": 8.0, "sports": 7.0}]) == pytest.approx(SHARES)


def test_by_hand():
    """law 10 -> 11, arts 20 -> 18, sports 8 -> 8; the largest change is 2, so d = 0.5, -1, 0."""
    measured = [{"law": 10.0, "arts": 20.0, "sports": 8.0}, {"law": 11.0, "arts": 18.0, "sports": 8.0}]
    rule = TopicFeedback(alpha=0.4, importance={"arts": 2.0})
    # f = 1.2, 0.2, 1: products 0.6, 0.06, 0.2, with a sum of 0.86
    wanted = {"law": 0.6 / 0.86, "arts": 0.06 / 0.86, "sports": 0.2 / 0.86}
    assert rule.update(SHARES, measured) == pytest.approx(wanted)
    relative = TopicFeedback(alpha=1.0, normalise="relative").update(SHARES, measured)
    # d = 0.1, -0.1, 0: products 0.55, 0.27, 0.2, with a sum of 1.02
    assert relative == pytest.approx({"law": 0.55 / 1.02, "arts": 0.27 / 1.02, "sports": 0.2 / 1.02})
    summed = TopicFeedback(alpha=3.0, normalise="sum").update(SHARES, measured)
    # d = 1/3, -2/3, 0: f = 2, -1 (held at 0.001), 1: products 1, 0.0003, 0.2
    assert summed["law"] == pytest.approx(1 / 1.2003)
    assert summed["arts"] == pytest.approx(0.0003 / 1.2003)


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_smoothed_rounds_equal_a_loop_over_single_ones(data):
    """Every source measured in every round: the rule folded by hand, one number at a time."""
    k, rounds = data.draw(st.integers(2, 5)), data.draw(st.integers(2, 6))
    names = [f"t{i}" for i in range(k)]
    alpha, smoothing = data.draw(st.floats(0, 2)), data.draw(st.floats(0, 0.9))
    seed = data.draw(st.integers(0, 1000))
    table = np.exp(np.random.default_rng(seed).normal(1, 0.5, (rounds, k)))
    shares = dict(zip(names, np.full(k, 1 / k), strict=True))
    rule = TopicFeedback(alpha=alpha, smoothing=smoothing, normalise="largest")
    found = rule.update(shares, [dict(zip(names, row, strict=True)) for row in table])
    smooth = None
    for before, after in itertools.pairwise(table):
        change = (after - before) / np.abs(after - before).max()
        smooth = change if smooth is None else smoothing * smooth + (1 - smoothing) * change
    raised = np.maximum(1 + alpha * smooth, 1e-3) / k
    assert list(found.values()) == pytest.approx(raised / raised.sum())


def test_a_source_without_new_evidence_keeps_its_share():
    """B22: a source that was not measured is not punished for it."""
    measured = [{"law": 10.0, "arts": 20.0, "sports": 8.0}, {"law": 11.0, "arts": 18.0}]
    found = TopicFeedback(alpha=0.5).update(SHARES, measured)
    assert found["sports"] == pytest.approx(0.2)
    assert found["law"] > 0.5
    assert sum(found.values()) == pytest.approx(1.0)
    # A source measured for the first time has no change yet.
    late = TopicFeedback(alpha=0.5).update(
        SHARES, [{"law": 10.0, "arts": 20.0}, {"law": 11.0, "arts": 18.0, "sports": 5.0}]
    )
    assert late["sports"] == pytest.approx(0.2)


@pytest.mark.parametrize("rule", [TopicFeedback(), ExcessLoss(dict.fromkeys(SHARES, 1.0))])
@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf])
def test_a_perplexity_that_is_none_is_an_error(rule, bad):
    with pytest.raises(FeedbackError, match="perplexity of 'arts'"):
        rule.update(
            SHARES, [{"law": 2.0, "arts": 2.0, "sports": 2.0}, {"law": 2.0, "arts": bad, "sports": 2.0}]
        )


def test_excess_loss_by_hand():
    reference = {"law": 1.0, "arts": 2.0, "sports": 3.0}
    measured = [{"law": math.exp(1.5), "arts": math.exp(2.0), "sports": math.exp(2.0)}]
    found = ExcessLoss(reference, eta=2.0, uniform=0.1).update(SHARES, measured)
    raised = np.array([0.5 * math.e, 0.3, 0.2])
    wanted = 0.9 * raised / raised.sum() + 0.1 / 3
    assert list(found.values()) == pytest.approx(wanted)
    with pytest.raises(FeedbackError, match="no reference loss for arts"):
        ExcessLoss({"law": 1.0, "sports": 1.0}).update(SHARES, measured)


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.floats(1e-4, 1.0), min_size=2, max_size=8), st.floats(0.0, 0.12), st.floats(0.5, 1.0)
)  # fmt: skip
def test_bounds_keep_the_sum_and_the_proportions_inside(raw, floor, cap):
    """Against a root finder: one scale for all, clipped."""
    names = [f"t{i}" for i in range(len(raw))]
    shares = dict(zip(names, (np.array(raw) / sum(raw)).tolist(), strict=True))
    found = bounded(shares, floor, cap)
    values = np.array(list(found.values()))
    assert values.sum() == pytest.approx(1.0)
    assert (values >= floor - 1e-9).all()
    assert (values <= cap + 1e-9).all()
    s = np.array(list(shares.values()))
    scale = brentq(lambda t: np.clip(s * t, floor, cap).sum() - 1, 1e-9, 1e9)
    assert values == pytest.approx(np.clip(s * scale, floor, cap), abs=1e-6)


def test_floor_and_cap_are_shares_of_what_is_divided():
    half = {name: share / 2 for name, share in SHARES.items()}
    measured = [{"law": 10.0, "arts": 20.0, "sports": 8.0}, {"law": 11.0, "arts": 18.0, "sports": 8.0}]
    rule = TopicFeedback(alpha=1.0, floor=0.1, cap=0.6)
    whole = rule.update(SHARES, measured)
    assert whole["arts"] == pytest.approx(0.1)
    assert whole["law"] == pytest.approx(0.6)
    assert rule.update(half, measured) == pytest.approx({name: share / 2 for name, share in whole.items()})


def test_no_source_is_lost_however_often_the_rule_says_so():
    """B22: with a floor, shares do not go one-hot; without, the same measurements take all."""
    measured = [{"law": 10.0 + n, "arts": 10.0 - n / 10, "sports": 10.0 - n / 10} for n in range(40)]
    for floor, least in ((0.05, 0.05), (0.0, 0.0)):
        shares, rule = dict(SHARES), TopicFeedback(alpha=0.5, floor=floor)
        for n in range(1, 40):
            shares = rule.update(shares, measured[: n + 1])
        assert min(shares.values()) == pytest.approx(least, abs=1e-6)
    assert shares["law"] == pytest.approx(1.0, abs=1e-6)


def test_bounds_that_cannot_hold_are_refused():
    with pytest.raises(FeedbackError, match="3 shares"):
        bounded(SHARES, 0.4, 1.0)
    with pytest.raises(FeedbackError, match="3 shares"):
        bounded(SHARES, 0.0, 0.3)
    with pytest.raises(FeedbackError, match="floor and cap"):
        TopicFeedback(floor=0.5, cap=0.2)
    with pytest.raises(FeedbackError, match="smoothing"):
        TopicFeedback(smoothing=1.0)


# ---- as weights of a mixture ----


def text(topic: str) -> CorpusSpec:
    return CorpusSpec("world", "l2", split="validation", megabytes=0.01, params={"seed": 0})


def dynamic(**more) -> Dynamic:
    weights = {"english": 0.2, "law": 0.4, "arts": 0.24, "sports": 0.16}
    return Dynamic(Constant(weights), 10, TopicFeedback(alpha=0.5), {t: text(t) for t in SHARES}, **more)


def test_sources_that_are_not_fed_back_keep_their_share():
    measured = [{"law": 10.0, "arts": 20.0, "sports": 8.0}, {"law": 11.0, "arts": 18.0, "sports": 8.0}]
    weights = dynamic()
    found = weights.next(10, weights.at(0), measured)
    assert found["english"] == 0.2
    assert sum(found.values()) == pytest.approx(1.0)
    alone = TopicFeedback(alpha=0.5).update(SHARES, measured)
    assert {t: found[t] / 0.8 for t in SHARES} == pytest.approx(alone)


def test_groups_move_as_one():
    weights = dynamic(groups={"a": ("law", "arts"), "b": ("sports",)})
    measured = [{"law": 10.0, "arts": 20.0, "sports": 8.0}, {"law": 12.0, "arts": 24.0, "sports": 8.0}]
    found = weights.next(10, weights.at(0), measured)
    assert found["law"] / found["arts"] == pytest.approx(0.4 / 0.24)
    assert found["law"] + found["arts"] > 0.64
    # The group's perplexity is that of its mean loss: both fell by a factor of 1.2, the other not at all.
    together = {"a": 0.64, "b": 0.16}
    before = math.exp((0.4 * math.log(10) + 0.24 * math.log(20)) / 0.64)
    wanted = TopicFeedback(alpha=0.5).update(
        together, [{"a": before, "b": 8.0}, {"a": 1.2 * before, "b": 8.0}]
    )
    assert found["sports"] == pytest.approx(wanted["b"])


def test_dynamic_weights_that_make_no_sense_are_refused():
    with pytest.raises(MixtureError, match="positive share of arts"):
        Dynamic(
            Constant({"law": 1.0, "arts": 0.0}), 10, TopicFeedback(), {t: text(t) for t in ("law", "arts")}
        )
    with pytest.raises(MixtureError, match="two sources"):
        Dynamic(Constant({"law": 1.0}), 10, TopicFeedback(), {"law": text("law")})
    with pytest.raises(MixtureError, match="exactly once"):
        dynamic(groups={"a": ("law",), "b": ("sports",)})
    with pytest.raises(MixtureError, match="every"):
        Dynamic(
            Constant({"law": 0.5, "arts": 0.5}), 0, TopicFeedback(), {t: text(t) for t in ("law", "arts")}
        )


def test_in_the_next_phase_the_topics_divide_what_it_gives_them():
    first = {"english": 0.2, "law": 0.4, "arts": 0.24, "sports": 0.16}
    second = {"english": 0.7, "law": 0.1, "arts": 0.06, "sports": 0.04, "questions": 0.1}
    texts = {t: text(t) for t in SHARES}
    weights = Dynamic(Phases((Phase(0, first), Phase(20, second))), 10, TopicFeedback(alpha=0.5), texts)
    measured = [{"law": 10.0, "arts": 20.0, "sports": 8.0}, {"law": 11.0, "arts": 18.0, "sports": 8.0}]
    before = weights.next(10, first, measured)
    same = [measured[0], measured[0]]
    after = weights.next(20, before, same)  # nothing changed: the division stays
    assert after["english"] == 0.7
    assert after["questions"] == 0.1
    assert {t: after[t] / 0.2 for t in SHARES} == pytest.approx({t: before[t] / 0.8 for t in SHARES})
    with pytest.raises(MixtureError, match="inside of an interval"):
        Dynamic(Phases((Phase(0, first), Phase(15, second))), 10, TopicFeedback(), texts)
    with pytest.raises(MixtureError, match="step 20: feedback needs"):
        Dynamic(Phases((Phase(0, first), Phase(20, {"english": 1.0}))), 10, TopicFeedback(), texts)
