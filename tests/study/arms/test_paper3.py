"""The arms of P3: what differs between them and what does not, and what is made of their frames."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pandas as pd
import pytest

from cptkit.data import corpora
from cptkit.data.feedback import ExcessLoss, TopicFeedback
from cptkit.data.weights import Constant, Dynamic, Phases
from cptkit.data.world import TOPICS
from cptkit.study import experiments
from cptkit.study.arms import orders, synthesis, topics
from cptkit.train.config import ConfigError
from cptkit.train.spec import run_id

SMALL = {
    "target.train.megabytes": 0.2,
    "target.validation.megabytes": 0.05,
    "source.train.megabytes": 0.2,
    "synthesis.count": 40,
}


@pytest.fixture
def small(lab):
    return experiments.open_study("lab", SMALL, root=lab.root, progress=False)


# ---- topics ----


def test_a_division_is_the_whole_text(small):
    division = topics.divide(small)
    documents = list(corpora.read_documents(small.profile.target.train, small.cache))
    assert set(division.size) == set(TOPICS)
    assert sum(division.size.values()) == sum(len(d.text.encode()) for d in documents)
    assert list(division.size.values()) == sorted(division.size.values(), reverse=True)
    parts = [d for c in division.sources.values() for d in corpora.read_documents(c, small.cache)]
    assert sorted(d.id for d in parts) == sorted(d.id for d in documents)


def test_fixed_shares_by_powers_of_size(small):
    division = topics.divide(small)
    for power in (1.0, 0.5, 0.0, -0.5):
        shares = division.shares(power, 0.2)
        assert shares["source"] == 0.2
        assert sum(shares.values()) == pytest.approx(1.0)
        first, last = division.size[TOPICS[0]], division.size[TOPICS[-1]]
        ratio = shares[f"target.{TOPICS[0]}"] / shares[f"target.{TOPICS[-1]}"]
        assert ratio == pytest.approx((first / last) ** power)


def test_mixtures_differ_in_their_weights_alone(small):
    work = topics.open_topics(small)
    arms = work.static() + work.fed_back()
    names = [arm.arm for arm in arms]
    assert names[:6] == ["proportional"] * 3 + ["uniform"] * 3
    assert names.count("dynamic") == 3
    assert {"dynamic, alpha 0.2", "30 % wrong topics", "classifier, 60 labels", "data sets"} <= set(names)
    base = arms[0].spec
    for arm in arms:
        same = dataclasses.replace(arm.spec, mixture=base.mixture, sources=base.sources, seed=base.seed)
        assert same == base
        assert arm.spec.sources["source"] == base.sources["source"]
        assert arm.spec.mixture.at(0)["source"] == 0.2
    of = {arm.arm: arm.spec for arm in arms}
    assert of["proportional"].sources == of["dynamic"].sources == of["data sets"].sources
    assert of["30 % wrong topics"].sources["target.law"].kind == "made"
    assert isinstance(of["dynamic"].mixture, Dynamic)
    assert of["dynamic"].mixture.base == of["proportional"].mixture
    assert of["dynamic"].mixture.rule == TopicFeedback(0.5, floor=0.01)
    assert len({run_id(arm.spec, small.cache) for arm in arms}) == len(arms)


def test_excess_loss_is_against_where_the_proportional_run_ended(small):
    work = topics.open_topics(small)
    columns = {f"ppl.{name}.nats_per_token": 1.0 + k for k, name in enumerate(work.true.held_out)}
    frame = pd.DataFrame(
        [
            {"arm": "proportional", "seed": 0, "run": "a", "kind": "probe", "step": s, "lr_peak": 1e-3}
            | {c: v + (s == 0) for c, v in columns.items()}
            for s in (0, 150)
        ]
    )
    (arm,) = work.excess(frame)
    rule = arm.spec.mixture.rule
    assert isinstance(rule, ExcessLoss)
    assert rule.reference == {
        c.removeprefix("ppl.").removesuffix(".nats_per_token"): v for c, v in columns.items()
    }


def mixtures() -> pd.DataFrame:
    """Two fixed mixtures and a dynamic one over two topics, two seeds: numbers to check by hand."""
    rows = []
    ends = {"proportional": (2.0, 4.0), "uniform": (2.5, 3.0), "dynamic": (2.0, 3.0)}
    for arm, (law, arts) in ends.items():
        for seed in (0, 1):
            for step in (0, 50, 100):
                fall = 1 + (100 - step) / 100
                rows.append(
                    {
                        "arm": arm, "seed": seed, "run": f"{arm}{seed}", "kind": "probe", "step": step,
                        "tokens": 1000 * step, "lr_peak": 1e-3, "profile": "lab", "experiment": "topics",
                        "ppl.target.law.nats_per_token": law * fall + 0.1 * seed,
                        "ppl.target.arts.nats_per_token": arts * fall + 0.1 * seed,
                        "ppl.source.perplexity": 3.0, "copain.accuracy": 0.9,
                        "choices.target.accuracy": 0.3,
                    }
                )  # fmt: skip
    return pd.DataFrame(rows)


DIVISION = topics.Division(None, None, {"law": 300, "arts": 100}, frozenset({"law", "arts"}))


def test_means_over_topics_by_hand():
    frame = topics.with_means(mixtures(), DIVISION)
    row = frame[(frame["arm"] == "proportional") & (frame["seed"] == 0) & (frame["step"] == 100)].iloc[0]
    assert row["topics.mean"] == pytest.approx(3.0)
    assert row["topics.weighted"] == pytest.approx((3 * 2.0 + 4.0) / 4)
    assert row["topics.worst"] == pytest.approx(4.0)


def test_regret_is_from_the_best_fixed_mixture_in_hindsight():
    table = topics.regret(topics.with_means(mixtures(), DIVISION))
    assert set(table["best"]) == {"uniform"}  # 2.75 against 3.0 at the end
    of = table[table["seed"] == 1].set_index(["arm", "step"])
    assert of.loc[("uniform", 100), "regret"] == 0.0
    assert of.loc[("dynamic", 100), "regret"] == pytest.approx(-0.25)
    assert of.loc[("proportional", 100), "regret"] == pytest.approx(0.25)
    assert of.loc[("proportional", 50), "regret"] == pytest.approx(0.25 * 1.5)
    assert of.loc[("proportional", 100), "cumulated"] == pytest.approx((0.375 + 0.25) / 2)
    assert 0 not in table["step"].to_numpy()


# ---- orders ----


def test_orders_read_the_same_text_beside_the_same_source(small):
    arms = orders.orders(small)
    of = {arm.arm: arm.spec for arm in arms}
    assert set(of) == {
        "random",
        "easy to hard",
        "hard to easy",
        "buckets",
        "paced",
        "easy to hard, per byte",
        "subjects",
    }
    assert [a.seed for a in arms if a.arm == "hard to easy"] == [0, 1, 2]
    base = of["random"]
    for name, spec in of.items():
        if name != "subjects":
            assert dataclasses.replace(spec, order=None, seed=base.seed) == base
    assert base.order is None


def test_subjects_follow_each_other_in_proportion(small):
    spec = orders.subjects(small).spec
    division = topics.divide(small)
    assert isinstance(spec.mixture, Phases)
    spent = dict.fromkeys(division.sources, 0.0)
    for step in range(spec.steps):
        weights = spec.mixture.at(step)
        assert weights["source"] == 0.2
        (one,) = (name for name in weights if name != "source")
        spent[one] += 1 / spec.steps
    whole = sum(division.size.values())
    for topic, size in division.size.items():
        assert spent[topics.source_of(topic)] == pytest.approx(size / whole, abs=1 / spec.steps)


def test_preferences_are_rank_correlations():
    rng = np.random.default_rng(0)
    n, repeated = 200, rng.uniform(0, 1, 200)
    table = pd.DataFrame(
        {
            "per_token": np.exp(-repeated),
            "per_byte": rng.normal(size=n),
            "bytes_per_token": rng.normal(size=n),
            "documents": rng.integers(0, 5, n),
            "repeated": repeated,
        }
    )
    found = orders.preferences(table)
    assert found.loc["per_token", "repeated"] == pytest.approx(-1.0)
    assert abs(found.loc["per_byte", "repeated"]) < 0.2


# ---- synthesis ----


@pytest.fixture
def made(small):
    return [synthesis.make(small, error) for error in (0.0, 0.5)]


def test_what_is_made_is_counted_and_made_once(small, made, monkeypatch):
    table = synthesis.counted(made)
    assert table["pairs"].tolist() == [240, 240]
    assert table["documents"].tolist() == [40, 40]
    monkeypatch.setattr(synthesis.generators.WorldTeacher, "generate", None)
    again = synthesis.make(small, 0.5)
    assert again.corpus == made[1].corpus
    assert made[0].corpus != made[1].corpus
    assert list(synthesis.examples(made[0], 3).columns) == ["source", "question", "answer"]


def test_synthetic_text_stands_in_place_of_target_text(small, made):
    arms = synthesis.shares(small, made[0]) + synthesis.errors(small, made)
    of = {(a.arm, a.seed): a.spec for a in arms}
    assert ("20 % synthetic", 2) in of
    assert ("10 % synthetic", 1) not in of
    assert ("20 % synthetic, 50 % wrong", 2) in of
    for (name, _), spec in of.items():
        weights = spec.mixture.at(0)
        assert weights["source"] == 0.2
        assert sum(weights.values()) == pytest.approx(1.0)
        assert spec.tokens == of["no synthetic", 0].tokens
        assert set(spec.sources) == set(weights)
        assert ("synthetic" in weights) == (name != "no synthetic")


def test_the_recipe_and_what_it_is_made_of(small, made):
    of = {a.arm: a.spec for a in synthesis.stages(small, made[0])}
    whole, plan = of["two stages"], small.profile.synthesis.stages
    assert set(of) == {"two stages", "without topics", "without order", "without synthetic", "one stage"}
    assert isinstance(whole.mixture, Dynamic)
    for spec in of.values():
        assert spec.schedule.kind == "wsd"
        assert spec.tokens == whole.tokens
    first, second = whole.mixture.at(plan.switch - 1), whole.mixture.at(plan.switch)
    assert first["source"] == pytest.approx(0.8)
    assert sum(v for k, v in first.items() if k.startswith("target")) == pytest.approx(0.2)
    assert second["synthetic"] == pytest.approx(0.2)
    assert sum(v for k, v in second.items() if k.startswith("target")) == pytest.approx(0.1)
    assert plan.switch % plan.every == 0
    assert set(whole.order) == {name for name in whole.sources if name.startswith("target")}
    assert of["without order"].order is None
    assert isinstance(of["without topics"].mixture, Phases)
    assert set(of["without topics"].sources) == {"source", "target", "synthetic"}
    assert "synthetic" not in of["without synthetic"].sources
    one = of["one stage"].mixture
    assert one.at(0) == one.at(plan.steps - 1)
    spent = {True: 0.0, False: 0.0}
    for step in range(plan.steps):
        spent[True] += whole.mixture.at(step).get("synthetic", 0.0)
        spent[False] += one.at(step)["synthetic"]
    assert spent[True] == pytest.approx(spent[False])


def test_a_teacher_that_cannot_err_is_not_asked_to(small):
    model = dataclasses.replace(small.profile.synthesis, teacher="model")
    study = dataclasses.replace(small, profile=dataclasses.replace(small.profile, synthesis=model))
    with pytest.raises(ConfigError, match="errs on demand"):
        synthesis.teacher(study, 0.3)


def ranked(own: list[float], proxy: list[float]) -> pd.DataFrame:
    rows = []
    for size, values in (("own", own), ("83k", proxy)):
        for k, value in enumerate(values):
            for step in (0, 10):
                rows.append(
                    {
                        "size": size, "arm": f"a{k}", "seed": 0, "run": f"{size}{k}", "kind": "probe",
                        "step": step, "lr_peak": 1e-3, "loss": value + (step == 0),
                    }
                )  # fmt: skip
    return pd.DataFrame(rows)


def test_agreement_of_rankings_by_hand():
    frame = ranked([1.0, 2.0, 3.0, 4.0, 5.0], [0.1, 0.3, 0.2, 0.5, 0.4])
    row = synthesis.agreement(frame, {"loss": -1}, draws=300).iloc[0]
    assert row["rank correlation"] == pytest.approx(0.8)  # 1 - 6 * 4 / (5 * 24)
    assert row["low"] <= 0.8 <= row["high"]
    assert (row["best"], row["best on the proxy"], row["lost"]) == ("a0", "a0", 0.0)
    other = synthesis.agreement(ranked([1.0, 2.0, 3.0], [0.3, 0.1, 0.2]), {"loss": -1}, draws=50).iloc[0]
    assert (other["best on the proxy"], other["lost"]) == ("a1", 1.0)
    assert synthesis.estimates(frame.drop(columns="loss"))["proxy.loss"].startswith("no smaller")


@pytest.mark.parametrize("module", [topics, orders, synthesis])
def test_a_profile_without_the_section_says_so(module):
    study = experiments.open_study("paper", progress=False)
    with pytest.raises(ConfigError, match="nothing to"):
        module.plan_of(study)


def test_fixed_weights_are_constant(small):
    work = topics.open_topics(small)
    assert all(isinstance(arm.spec.mixture, Constant) for arm in work.static())
    assert math.isclose(sum(work.static()[0].spec.mixture.weights.values()), 1.0)
