"""Forgetting laws: known constants come back, predictions beat the wrong form, shares are recommended."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from cptkit.study.laws import forgetting
from cptkit.study.laws.forgetting import FORMS, ForgettingError

START = 2.0
TRUTH = {
    "recovery (ours)": [1.5, 0.3, 60.0, 0.9, 0.6],
    "forgetting": [0.8, 0.4, 30.0, 0.7],
    "D-CPT": [1.2, 0.3, 0.5, 0.4, 0.25, 0.02, 0.3],
    "constant": [0.4],
}
SHARES = (0.0, 0.01, 0.05, 0.1, 0.2, 0.5, 0.8)
STEPS = (16, 32, 64, 128, 200)


def curves(name: str, shares=SHARES, steps=STEPS, noise: float = 0.0, seed: int = 0) -> pd.DataFrame:
    form = next(f for f in FORMS if f.name == name)
    rng, rows = np.random.default_rng(seed), []
    for share in shares:
        for step in (0, *steps):
            D = step * 4096.0
            loss = START
            if step:
                args = np.array([D / 1e6]), np.array([share]), START
                loss = float(form.loss(np.log(TRUTH[name]), *args)[0]) * np.exp(rng.normal(0, noise))
            rows.append(
                {
                    "arm": f"{share}",
                    "share": share,
                    "seed": 0,
                    "run": f"r{share}",
                    "step": step,
                    "D": D,
                    "source": loss,
                }
            )
    return pd.DataFrame(rows)


@pytest.mark.parametrize("form", FORMS, ids=lambda f: f.name)
def test_exact_curves_are_met(form):
    table = curves(form.name)
    found = forgetting.fit(form, forgetting.usable(table, 16), forgetting.start_of(table))
    assert found.error < 1e-6
    if form.name == "recovery (ours)":
        assert list(found.constants.values()) == pytest.approx(TRUTH[form.name], rel=0.02)


def test_the_right_form_predicts_what_was_not_fitted():
    table, unseen = curves("recovery (ours)", noise=0.003), curves("recovery (ours)", shares=(0.3,))
    longer = curves("recovery (ours)", steps=(300, 400))
    rows = forgetting.usable(table, 16)
    laws = {form.name: forgetting.fit(form, rows, START, starts=20) for form in FORMS}
    sets = {"share": unseen[unseen["step"] > 0], "longer": longer[longer["step"] > 0]}
    scores = forgetting.errors(laws, sets).set_index("form")
    for label in sets:
        assert scores[label].idxmin() == "recovery (ours)"
        assert scores.loc["recovery (ours)", label] < 2
        assert scores.loc["constant", label] > 5


def test_without_replay_recovery_is_a_power_and_with_it_turns():
    law = forgetting.Fitted(FORMS[0], np.log(TRUTH["recovery (ours)"]), START, 0.0)
    D = np.geomspace(1e4, 1e9, 200)
    rise = np.log(law.loss(D, 0.0) - START)
    assert np.polyfit(np.log(D), rise, 1)[0] == pytest.approx(0.3, abs=1e-3)
    excess = law.loss(D, 0.2) - START
    peak = int(excess.argmax())
    assert 0 < peak < 199
    assert np.diff(np.log(excess))[-1] / np.diff(np.log(D))[-1] == pytest.approx(0.3 - 0.6, abs=0.01)


def test_the_recommended_share_loses_exactly_the_tolerance():
    law = forgetting.Fitted(FORMS[0], np.log(TRUTH["recovery (ours)"]), START, 0.0)
    share = forgetting.share_for(law, 1e6, 0.1)
    assert law.loss(1e6, share) - START == pytest.approx(0.1, abs=1e-4)
    assert forgetting.share_for(law, 1e6, 10.0) == 0.0
    assert np.isnan(forgetting.share_for(law, 1e6, 1e-6))


def test_the_interval_is_over_runs_and_holds_the_truth():
    table = curves("recovery (ours)", noise=0.01)
    rows = forgetting.usable(table, 16)
    found = forgetting.fit(FORMS[0], rows, START)
    draws = forgetting.bootstrap(found, rows, 60)
    interval = forgetting.recommended(found, draws, 8e5, 0.2)
    exact = forgetting.share_for(
        forgetting.Fitted(FORMS[0], np.log(TRUTH["recovery (ours)"]), START, 0.0), 8e5, 0.2
    )
    assert interval.low < exact < interval.high
    assert interval.low <= interval.mean <= interval.high
    assert interval.high - interval.low < 0.2


def test_the_critical_ratio_lies_between_the_shares_that_bracket_it():
    table = curves("recovery (ours)")
    law = forgetting.Fitted(FORMS[0], np.log(TRUTH["recovery (ours)"]), START, 0.0)
    found = forgetting.critical_ratio(table, START, 0.2)
    assert len(found) >= 4
    for row in found.itertuples():
        exact = 1 - forgetting.share_for(law, row.D, 0.2)
        below = max(s for s in SHARES if s <= 1 - exact + 1e-9)
        above = min(s for s in SHARES if s >= 1 - exact - 1e-9)
        assert below - 1e-9 <= 1 - row.ratio <= above + 1e-9
    e0, e1, s = forgetting.fit_critical(found)
    fitted = e0 + e1 * (found["D"].to_numpy() / 1e6) ** s
    assert fitted == pytest.approx(found["ratio"].to_numpy(), abs=0.03)
    assert np.isnan(forgetting.fit_critical(found.head(2))[0])


def test_curves_that_cannot_be_fitted_are_refused():
    with pytest.raises(ForgettingError, match="three"):
        forgetting.usable(curves("forgetting", shares=(0.0, 0.2)), 16)
    with pytest.raises(ForgettingError, match="step 0"):
        forgetting.start_of(curves("forgetting").query("step > 0"))
