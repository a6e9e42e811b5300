"""P2's language study: what arms share, gains by hand, and the order of closeness."""

from __future__ import annotations

import dataclasses

import numpy as np
import pandas as pd
import pytest

from cptkit.study import experiments
from cptkit.study.arms import languages, paper2
from cptkit.study.profiles import load_profile
from cptkit.study.views import language_figures
from cptkit.train.config import ConfigError
from cptkit.train.spec import ModelSpec

LOSS = languages.LOSS


def curve(
    arm: str, language: str, rate: float, seed: int, losses: list[float], accuracy: float
) -> list[dict]:
    return [
        {
            "kind": "probe", "arm": arm, "language": language, "similarity": None, "size": "", "seed": seed,
            "run": f"{arm} {language} {rate} {seed}", "lr_peak": rate, "step": step, "tokens": 1000.0 * step,
            LOSS: loss, languages.BITS: loss / 2, "choices.target.accuracy": accuracy if step else 0.25,
            "choices.target.chance": 0.25,
        }
        for step, loss in enumerate(losses)
    ]  # fmt: skip


@pytest.fixture
def frame():
    rows = []
    for seed in (0, 1, 2):
        shift = 0.01 * seed
        for language, better in (("near", 1.0), ("far", 0.4)):
            scratch = [9.0, 8.0 + shift, 7.0 + shift, 6.0 + shift]
            cpt = [9.0, 8.0 - better + shift, 7.0 - better + shift, 6.0 - better + shift]
            rows += curve("scratch", language, 3e-3, seed, scratch, 0.3)
            rows += curve("cpt", language, 3e-3, seed, cpt, 0.4)
        if seed == 0:  # a worse rate, which must not be taken
            rows += curve("cpt", "near", 1e-3, seed, [9.0, 8.9, 8.8, 8.7], 0.9)
    return pd.DataFrame(rows)


def test_gains_by_hand(frame):
    gained = languages.gains(frame).set_index(["language", "seed"])
    row = gained.loc[("near", 0)]
    # scratch ends at 6.0 after 3,000 tokens; CPT is there after 2,000 (7.0 - 1.0)
    assert row["saved"] == pytest.approx(1 / 3)
    assert row["transferred"] == pytest.approx(1000)
    assert row["loss_saved"] == pytest.approx(1.0)
    assert row["accuracy_cpt"] == 0.4
    assert row["accuracy_start"] == 0.25
    # 6.0 lies 0.6 of the way from 6.6 to 5.6: 2,600 tokens
    assert gained.loc[("far", 0), "saved"] == pytest.approx(1 - 2600 / 3000)
    assert len(gained) == 6


def test_a_language_without_scratch_has_no_gain(frame):
    assert languages.gains(frame[frame["arm"] == "cpt"]).empty


def test_what_the_ledger_gets(frame):
    measures = pd.DataFrame({"language": ["near", "far"], "pieces": [0.9, 0.1]})
    found = languages.estimates(languages.gains(frame), measures)
    assert found["languages.least"].mean == pytest.approx(1 - 2600 / 3000, abs=0.01)
    assert found["languages.closest"].mean == pytest.approx(1 / 3 - 400 / 3000, abs=0.01)
    assert found["languages.accuracy"].mean == pytest.approx(0.1)
    assert found["languages.closest"].n == 3
    nothing = languages.estimates(pd.DataFrame(), measures)
    assert all(isinstance(reason, str) for reason in nothing.values())


def test_rank_correlation_is_one_for_one_order():
    gained = pd.DataFrame({"language": list("abc"), "saved": [0.1, 0.5, 0.9], "loss_saved": [3.0, 2.0, 1.0]})
    measures = pd.DataFrame(
        {
            "language": list("abc"), "setting": [0.0, 0.5, 1.0], "script": [1.0, 1.0, 1.0],
            "ngrams": [0.1, 0.2, 0.9], "words": [0.3, 0.2, 0.1], "pieces": [0.1, 0.9, 0.5],
            "fertility": [2.0, 1.5, 1.0],
        }
    )  # fmt: skip
    table = languages.ranks(gained, measures).set_index("measure")
    assert table.loc["ngrams", "with tokens saved"] == pytest.approx(1)
    assert table.loc["words", "with tokens saved"] == pytest.approx(-1)
    assert table.loc["pieces", "with loss saved"] == pytest.approx(-0.5)
    assert "script" not in table.index  # the same for all: no order


def test_figures_draw_and_write_their_numbers(frame, tmp_path):
    gained = languages.gains(frame)
    measures = pd.DataFrame(
        {
            "language": ["near", "far"], "setting": [np.nan, np.nan], "script": [1.0, 0.2],
            "ngrams": [0.9, 0.1], "words": [0.5, 0.1], "pieces": [0.9, 0.1], "fertility": [1.1, 2.0],
        }
    )  # fmt: skip
    figure = language_figures.against_closeness(gained, measures, tmp_path)
    assert len(figure.axes) == 5  # no setting here
    language_figures.accuracies(gained, tmp_path)
    table = language_figures.gains_table(gained, tmp_path).set_index("language")
    assert table.loc["near", "saved_low"] <= table.loc["near", "saved"] <= table.loc["near", "saved_high"]
    trained = language_figures.trained_table(frame, tmp_path).set_index(["language", "arm"])
    assert trained.loc[("near", "cpt"), "rate"] == 3e-3
    assert {p.name for p in tmp_path.glob("*.csv")} == {
        "closeness.csv",
        "fig3_accuracy.csv",
        "gains.csv",
        "trained.csv",
    }
    assert isinstance(language_figures.against_closeness(pd.DataFrame(), measures), str)


# ---- arms ----


@pytest.fixture
def lab(tmp_path, monkeypatch):
    monkeypatch.setattr(experiments.Study, "base", lambda self: ModelSpec(start="run:base"))
    return experiments.open_study("lab", root=tmp_path, progress=False)


def test_arms_of_a_language_differ_in_their_start_alone(lab):
    starts = paper2.starts(lab, "83k")
    one, other = (
        languages._arm(lab, "83k", arm, "similarity 0.6", 3e-3, 1, model).spec
        for arm, model in starts.items()
    )
    assert dataclasses.replace(one, model=other.model) == other
    assert one.model != other.model
    asked = one.probes.choices["target"]
    assert asked.shots == 0
    assert asked.corpus.params["similarity"] == 0.6


def test_the_lab_has_four_similarities_and_two_sizes():
    plan = load_profile("lab").languages
    assert len(set(plan.similarity.values())) >= 4
    assert len(plan.sizes) >= 2
    assert set(plan.sizes) <= set(load_profile("lab").scaling.sizes)
    real = load_profile("lab-real").languages
    assert {"fr", "ru", "zh", "id", "eu"} == set(real.languages)
    assert len(real.seeds) == 3


def test_scratch_without_a_shape_to_start_from_is_refused(tmp_path):
    overrides = {"languages.arms": ["cpt", "scratch"], "languages.rates": [1e-4, 3e-4, 1e-3]}
    study = experiments.open_study("smol", overrides, root=tmp_path, progress=False)
    with pytest.raises(ConfigError, match="no start for scratch"):
        languages.run(study)


@pytest.mark.parametrize("change", [{"trained": ("xx",)}, {"arms": ("lora",)}, {"rates": (1e-3,)}])
def test_a_plan_that_cannot_be_run_is_refused(change):
    with pytest.raises(ConfigError):
        dataclasses.replace(load_profile("lab").languages, **change)
