"""Closed forms against brute force, and P2's printed numbers against P2's printed constants."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar

from cptkit.study import claims
from cptkit.study.laws import closed_form
from cptkit.study.laws.closed_form import Law

SCRATCH = Law(1.5, 40.0, 200.0, 0.3, 0.4)
CPT = Law(1.5, 40.0, 30.0, 0.3, 0.25, 0.08)

constants = st.builds(
    Law,
    E=st.floats(0.5, 3),
    A=st.floats(5, 500),
    B=st.floats(5, 900),
    alpha=st.floats(0.2, 0.6),
    beta=st.floats(0.15, 0.6),
    gamma=st.floats(-0.05, 0.1),
)


@settings(deadline=None, max_examples=50)
@given(constants, st.floats(12, 24))
def test_the_optimum_is_the_lowest_loss_of_its_budget(law, digits):
    flops = 10.0**digits
    N, D = law.optimum(flops)
    assert pytest.approx(flops, rel=1e-9) == 6 * N * D
    found = minimize_scalar(
        lambda n: law.loss(np.exp(n), flops / 6 / np.exp(n)), bracket=(np.log(N) - 3, np.log(N) + 2)
    )
    assert law.loss(N, D) <= found.fun * (1 + 1e-9)
    assert sum(law.exponents) == pytest.approx(1)


@settings(deadline=None, max_examples=50)
@given(constants, st.floats(4, 9), st.floats(5, 11))
def test_tokens_inverts_loss(law, size, budget):
    N, D = 10.0**size, 10.0**budget
    # As far from the floor as float64 can see: the law flattens out.
    if law.loss(N, D) - law.floor(N) > 1e-6:
        assert law.tokens(law.loss(N, D), N) == pytest.approx(D, rel=1e-6)
    assert np.isnan(law.tokens(law.floor(N), N))
    assert closed_form.contour(law, float(law.loss(N, D)), N) == pytest.approx(6 * N * D, rel=1e-4)


def test_no_optimum_where_larger_models_always_win():
    law = Law(1.5, 40.0, 200.0, 0.3, 0.05, 0.08)
    assert np.isnan(law.optimum(1e15)[0])


def test_constants_may_be_draws():
    drawn = Law(*(np.array([getattr(SCRATCH, n), getattr(CPT, n)]) for n in closed_form.CONSTANTS))
    assert drawn.loss(1e5, 1e6).tolist() == [SCRATCH.loss(1e5, 1e6), CPT.loss(1e5, 1e6)]
    assert drawn.best(1e12).tolist() == pytest.approx([float(SCRATCH.best(1e12)), float(CPT.best(1e12))])


def test_transfer_and_saving_are_the_same_thing_seen_twice():
    N, D = np.array([3e4, 5e5]), np.array([1e5, 2e6])
    more = closed_form.transferred(SCRATCH, CPT, N, D)
    assert SCRATCH.loss(N, D + more) == pytest.approx(CPT.loss(N, D))
    assert closed_form.saved(SCRATCH, CPT, N, D) == pytest.approx(more / (D + more))
    assert (
        closed_form.saved(SCRATCH, Law(1.2, 40.0, 30.0, 0.3, 0.25), 1e12, 1e12) == 1.0
    )  # below scratch's floor


def test_saving_at_the_optimum_by_brute_force():
    flops = np.geomspace(1e10, 1e14, 5)
    share = closed_form.saved_at_best(SCRATCH, CPT, flops)
    assert SCRATCH.best(flops / (1 - share)) == pytest.approx(CPT.best(flops), rel=1e-8)
    assert np.isnan(closed_form.saved_at_best(SCRATCH, Law(1.2, 40.0, 30.0, 0.3, 0.25), 1e30))


# ---- what P2 printed ----


def value(**keys: str) -> float:
    return float(claims.find(claims.published(), paper="2407.02118", **keys)["value"])


@pytest.mark.parametrize(("arm", "setting"), closed_form.SETTINGS.items())
def test_p2s_constants_give_p2s_allocation(arm, setting):
    law = closed_form.published_laws(claims.published())[arm]
    printed = [
        value(table_or_figure="Table 2b", setting=setting, metric="a_exponent_N_opt"),
        value(table_or_figure="Table 2b", setting=setting, metric="b_exponent_D_opt"),
        value(table_or_figure="Eq. 8-9", setting=setting, metric="N_opt_coefficient"),
        value(table_or_figure="Eq. 8-9", setting=setting, metric="D_opt_coefficient"),
    ]
    assert [*law.exponents, *law.coefficients] == pytest.approx(printed, rel=6e-3)


def test_p2s_constants_contradict_p2s_claim():
    """The 5.5B example: by the printed laws CPT at 70B tokens is worse than scratch at 110B, not equal."""
    printed = closed_form.published_laws(claims.published())
    cpt, scratch = printed["cpt"].loss(5.5e9, 70e9), printed["scratch"].loss(5.5e9, 110e9)
    assert (float(cpt), float(scratch)) == pytest.approx((2.09, 1.95), abs=0.005)
    assert closed_form.transferred(printed["scratch"], printed["cpt"], 5.5e9, 70e9) < 0


def test_a_published_table_that_lost_a_constant_is_an_error():
    table = claims.published()
    with pytest.raises(claims.ClaimError, match="Table 2a"):
        closed_form.published_laws(table[table["metric"] != "gamma"])
