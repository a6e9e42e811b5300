"""What is read off the grid: transfer against the law that made it, envelopes, what the ledger gets."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from cptkit.study import claims, ledger, sizes
from cptkit.study.laws import closed_form, uncertainty
from cptkit.study.laws.closed_form import Law
from cptkit.study.laws.scaling import Points
from cptkit.study.views import frontier, scaling_figures
from tests.study.laws.test_scaling import CPT, SCRATCH

SIZES = (3e4, 8e4, 2e5, 5e5, 1e6)
BUDGETS = np.geomspace(8e4, 1.3e6, 5)


def study(noise: float = 0.0, cpt: Law = CPT) -> pd.DataFrame:
    rng, rows = np.random.default_rng(0), []
    for N in SIZES:
        for arm, law in (("scratch", SCRATCH), ("cpt", cpt)):
            for D in BUDGETS:
                rows.append(
                    {
                        "arm": arm,
                        "size": f"{N:g}",
                        "N": N,
                        "D": D,
                        "loss": float(law.loss(N, D)) * np.exp(rng.normal(0, noise)),
                        "flops": 6 * N * D,
                        "counted": 7 * N * D,
                        "lr_peak": 1e-3,
                        "trunk": f"{N:g} {arm}",
                        "seed": 0,
                        "run": f"{arm} {N:g} {D:.0f}",
                    }
                )  # fmt: skip
    return pd.DataFrame(rows)


@pytest.fixture(scope="module")
def found():
    return frontier.study_laws(study(noise=0.005), draws=200)


def test_measured_transfer_is_the_laws_where_it_can_be_known():
    near = Law(1.5, 40.0, 60.0, 0.3, 0.27, 0.05)  # ahead of scratch at first, behind it in the end
    table = frontier.measured_transfer(study(cpt=near))
    known = table.dropna(subset=["transferred"])
    assert len(known) >= 10
    for row in known.itertuples():
        exact = float(closed_form.transferred(SCRATCH, near, row.N, row.D))
        # interpolated between budgets a factor of two apart
        assert row.scratch_tokens == pytest.approx(row.D + exact, rel=0.1)
        assert row.saved == pytest.approx(1 - row.D / row.scratch_tokens)


def test_beyond_what_scratch_reached_nothing_is_claimed():
    better = Law(1.2, 10.0, 10.0, 0.3, 0.25)
    table = frontier.measured_transfer(study(cpt=better))
    assert table["bound"].eq("more").any()
    assert table.loc[table["bound"] != "", "saved"].isna().all()


def test_the_envelope_is_a_power_law_through_the_best_runs():
    table = study()
    k, e, best = frontier.envelope(table, "cpt")
    assert -0.3 < e < 0
    for row in best.itertuples():
        cheaper = table[(table["arm"] == "cpt") & (table["flops"] <= row.flops)]
        assert row.loss == cheaper["loss"].min()
        assert k * row.flops**e == pytest.approx(row.loss, rel=0.15)


def test_tables_hold_ours_beside_the_published(found, tmp_path):
    published = claims.published()
    table = frontier.constants_table(found, published, tmp_path).set_index(["fit", "arm", "constant"])
    row = table.loc[("joint", "cpt", "gamma")]
    assert row["published"] == 0.08
    assert row["low"] <= row["ours"] <= row["high"]
    assert "low, trunks" in table
    allocation = frontier.allocation_table(found["joint"], published).set_index(["arm", "quantity"])
    assert allocation.loc[("scratch", "a, exponent of N"), "published"] == 0.429
    assert allocation.loc[("scratch", "a, exponent of N"), "ours"] == pytest.approx(0.4 / 0.7, abs=0.08)
    forms = frontier.nested_table(study(noise=0.005), published)
    assert forms["error, plain form, published"].tolist() == [0.0090, 0.0108]
    assert frontier.envelope_table(study(), published)["exponent, published"].tolist() == [-0.0579, -0.0575]
    assert (tmp_path / "table2a_constants.csv").exists()


def test_the_ledger_gets_intervals_that_hold_the_truth(found):
    estimates = frontier.estimates(found)
    N, D = frontier.middle(found["joint"].fit.points)
    truth = {
        "scaling.gamma": 0.08,
        "scaling.beta": -0.15,
        "scaling.saved": float(closed_form.saved(SCRATCH, CPT, N, D)),
    }
    for name, value in truth.items():
        assert estimates[name].low <= value <= estimates[name].high
        assert estimates[name].n == 50
    frame = study().assign(kind="probe", profile="lab", experiment="scaling", step=1)
    rows = ledger.ledger(frame, ledger.Scale("lab"), "06_scaling", estimates=estimates).set_index("claim")
    assert rows.loc["p2.gamma", "published"] == 0.08
    assert rows.loc["p2.gamma", "verdict"] in ("direction only", "reproduced")
    assert rows.loc["p2.flops-saved", "ours"] == pytest.approx(100 * truth["scaling.saved"], abs=5)
    assert len(rows.loc["p2.gamma", "runs"].split()) > 0


def test_an_estimate_that_is_not_there_says_so():
    frame = study().assign(kind="probe", profile="lab", experiment="scaling", step=1)
    estimates = {"scaling.gamma": "unidentified: D follows N"}
    rows = ledger.ledger(frame, ledger.Scale("lab"), "06_scaling", estimates=estimates).set_index("claim")
    assert rows.loc["p2.gamma", "verdict"] == "not testable at this scale"
    assert "D follows N" in rows.loc["p2.gamma", "note"]
    assert "not estimated here" in rows.loc["p2.flops-saved", "note"]


def test_every_figure_draws_and_writes_its_numbers(found, tmp_path):
    points, published = study(noise=0.005), claims.published()
    profile = uncertainty.profile(Points.of(points), [-0.1, 0.0, 0.1])
    figures = {
        "fig1_loss_against_compute": scaling_figures.loss_against_compute(points, tmp_path),
        "fig2_transfer": scaling_figures.transfer(points, found["joint"], tmp_path),
        "fig4_allocation": scaling_figures.allocation(points, found["joint"], tmp_path),
        "gamma": scaling_figures.gamma(profile, found, published, tmp_path),
        "rates": scaling_figures.rates(points, tmp_path),
        "residuals": scaling_figures.residuals(points, found["joint"], tmp_path),
        "printed_constants": scaling_figures.printed_laws(published, sizes.printed(published), tmp_path),
    }
    for name, figure in figures.items():
        assert len(figure.axes) >= 1
        for kind in ("png", "svg", "csv"):
            assert (tmp_path / f"{name}.{kind}").stat().st_size > 0


def test_power_says_that_one_line_cannot_show_gamma(found):
    table = frontier.power_table(found["joint"], study(), 40)
    assert table[table["grid"].str.startswith("one line")]["power"].isna().all()
    assert table[table["grid"] == "ours"]["power"].notna().all()
