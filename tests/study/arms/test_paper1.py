"""The arms of notebooks 01 to 04: equal budgets, shared runs, one thing changed at a time."""

from __future__ import annotations

import dataclasses

import pandas as pd
import pytest

from cptkit.data.weights import Switch
from cptkit.study import checks, experiments, fronts, profiles, store
from cptkit.study.arms import beyond, paper1, paper2, replay
from cptkit.study.checks import CheckError
from cptkit.study.profiles import load_profile, packaged
from cptkit.study.store import Arm
from cptkit.study.views import evidence, tables
from cptkit.train.averaging import Feedback, Released, Shadow
from cptkit.train.spec import ModelSpec, run_id
from tests.study.test_experiments import TINY


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    return experiments.open_study("smoke", TINY, root=tmp_path_factory.mktemp("study"), progress=False)


@pytest.fixture(scope="module")
def lab(study):
    """The arms of the lab, planned with the tiny study's base model: nothing is trained."""
    profile = load_profile("lab")
    base = study.base()

    class Planned(experiments.Study):
        def base(self):
            return base

    return Planned(profile, study.root, False)


def english_tokens(arm: Arm) -> float:
    spec = arm.spec
    shares = [spec.mixture.at(step).get("source", 0.0) for step in range(spec.steps)]
    return sum(shares) * spec.sequences * spec.length


def test_early_late_and_even_cost_the_same_english_tokens(lab):
    arms = {arm.arm: arm for arm in paper1.curriculum(lab) if arm.seed == 0}
    assert {"none", "early1", "early5", "early10", "early20", "late10", "even", "mix20"} == set(arms)
    costs = {name: english_tokens(arm) for name, arm in arms.items()}
    assert costs["early10"] == pytest.approx(costs["late10"]) == pytest.approx(costs["even"])
    assert costs["early20"] == pytest.approx(2 * costs["early10"])
    for name, arm in arms.items():
        assert arm.labels["english"] == pytest.approx(costs[name], abs=1)
        assert arm.spec.schedule == lab.profile.run.schedule  # one unbroken schedule across the switch
    assert paper1.switches(arms.values()) == {
        "early1": 2, "early5": 10, "early10": 20, "early20": 40, "late10": 180,
    }  # fmt: skip


def test_all_seeds_for_the_headline_and_one_for_the_rest(lab):
    for make, headline in (
        (paper1.curriculum, {"none", "early10", "early20", "late10", "even", "mix20"}),
        (paper1.averaging, {"none", "mix20", "ema92_1", "ema92_10", "low92"}),
    ):
        seeds = (
            pd.DataFrame([{"arm": a.arm, "seed": a.seed} for a in make(lab)]).groupby("arm")["seed"].nunique()
        )
        assert {arm for arm, n in seeds.items() if n == 3} == headline
        assert set(seeds) == {1, 3}


def test_averaging_every_step_shares_the_run_of_its_control(lab):
    arms = [a for a in paper1.averaging(lab) if a.seed == 0]
    ids = {a.arm: run_id(a.spec, lab.cache) for a in arms}
    assert ids["ema92_1"] == ids["low92"]
    assert ids["ema992_1"] == ids["low992"]
    assert len(set(ids.values())) == len(ids) - 2
    specs = {a.arm: a.spec for a in arms}
    peak = lab.profile.run.schedule.peak
    assert specs["low92"].schedule.peak == pytest.approx(0.08 * peak)
    assert specs["released"].schedule.peak == pytest.approx(1.08 * peak)
    assert specs["released"].averaging is None
    assert specs["ema92_10"].averaging == Feedback(0.92, 10)
    assert specs["mix20_low"].schedule == specs["low92"].schedule


def test_plain_leaves_alone_what_has_no_equal(lab):
    spec = paper1.averaging(lab)[0].spec
    for rule, same in (
        (Feedback(0.9, 2), True),
        (Shadow(alpha=0.9), True),
        (Released(), False),
        (None, True),
    ):
        changed = dataclasses.replace(spec, averaging=rule)
        assert (paper1.plain(changed) == changed) is same


def test_the_rate_sweep_spans_two_decades_and_reuses_notebook_01(lab):
    arms = paper1.rate_sweep(lab)
    for name in ("none", "mix20"):
        rates = {a.spec.schedule.peak for a in arms if a.arm == name}
        assert len(rates) >= 5
        assert max(rates) / min(rates) >= 100
    known = {run_id(a.spec, lab.cache) for a in experiments.english_mixing(lab)}
    swept = {run_id(a.spec, lab.cache) for a in arms}
    assert len(known & swept) == 10  # 2 arms x 3 seeds at the own rate, 2 rates x 2 arms of the sweep


def test_a_condition_changes_one_thing(lab):
    arms = paper1.conditions(lab)
    own = {a.arm: a.spec for a in arms if a.labels["condition"] == "as it is"}
    assert {run_id(s, lab.cache) for s in own.values()} <= {
        run_id(a.spec, lab.cache) for a in paper1.curriculum(lab)
    }
    for arm in arms:
        plain = dataclasses.replace(arm.spec, probes=own[arm.arm].probes)
        if arm.labels["condition"].startswith(("rate", "constant")):
            assert dataclasses.replace(plain, schedule=own[arm.arm].schedule) == own[arm.arm]
        if arm.labels["condition"].startswith("similarity"):
            assert plain.sources["target"].params["similarity"] == 0.9
            assert dataclasses.replace(plain, sources=own[arm.arm].sources) == own[arm.arm]


def test_only_another_shape_has_another_base(tmp_path, cache, monkeypatch):
    """A condition changes the probes; a base with other probes would be another run, trained for nothing."""

    def named(self):
        return ModelSpec(start="run:" + run_id(experiments.base_run(self.profile), cache))

    monkeypatch.setattr(experiments.Study, "base", named)
    changes = {
        "close": {"similarity": 0.9},
        "short": {"steps": 100},
        "slow": {"schedule": {"kind": "constant", "peak": 1e-4}},
        "larger": {"shape": {"hidden": 128, "layers": 4, "heads": 4, "feed_forward": 320}},
    }
    study = experiments.open_study("lab", {"curriculum.conditions": changes}, root=tmp_path, progress=False)
    starts: dict[str, set[str]] = {}
    for arm in paper1.conditions(study):
        starts.setdefault(arm.labels["condition"], set()).add(arm.spec.model.start)
    own = study.base().start
    assert all(starts[name] == {own} for name in ("as it is", "close", "short", "slow"))
    assert len(starts["larger"]) == 1
    assert starts["larger"] != {own}


def test_another_similarity_is_another_language_in_text_and_questions():
    profile = profiles.with_similarity(load_profile("lab"), 0.7)
    probes = profile.run.probes
    assert profile.target.train.params["similarity"] == 0.7
    assert probes.perplexity["target"].params["similarity"] == 0.7
    assert "similarity" not in probes.perplexity["source"].params
    assert probes.choices["target"].corpus.params["similarity"] == 0.7
    assert "similarity" not in probes.choices["source"].corpus.params
    with pytest.raises(ValueError, match="similarity"):
        profiles.with_similarity(load_profile("smol"), 0.7)


def test_restraints_have_controls_in_every_language(lab):
    arms = beyond.restraints(lab)
    for arm in arms:
        similarity = arm.spec.sources["target"].params["similarity"]
        assert similarity == (arm.labels["similarity"] or 0.3)
        assert "source" not in arm.spec.sources
    plan = lab.profile.averaging
    here = {a.arm for a in arms if a.labels["similarity"] is None}
    assert here == {*plan.restraints, *(f"l2sp_{p:g}" for p in plan.penalties)}
    assert {a.arm for a in arms if a.labels["similarity"] == 0.9} == {*plan.elsewhere, "none"}
    further = [a for a in arms if a.labels["similarity"] == 0.9 and a.arm == "none"]
    assert len(further) == 3 * len(lab.profile.averaging.control_rates)


def test_lists_and_english_are_replayed_at_equal_tokens(lab):
    arms = beyond.list_replay(lab)
    shares = {"English": set(), "lists": set()}
    for arm in arms:
        if arm.labels["replay"] in shares:
            shares[arm.labels["replay"]].add(arm.labels["share"])
            name = "source" if arm.labels["replay"] == "English" else "lists"
            assert arm.spec.mixture.at(0)[name] == pytest.approx(arm.labels["share"])
    assert shares["English"] == shares["lists"] == {0.01, 0.05, 0.2}


@pytest.mark.parametrize("name", sorted(packaged()))
def test_every_profile_can_plan_its_arms(name, study, monkeypatch):
    profile = load_profile(name)
    base = study.base()
    monkeypatch.setattr(experiments.Study, "base", lambda self: base)
    planned = experiments.Study(profile, study.root, False)
    for make in (paper1.warmups, paper1.curriculum, paper1.conditions, paper1.averaging, paper1.equivalence,
                 paper1.rate_sweep, beyond.restraints, beyond.list_replay, paper1.lora_arms):  # fmt: skip
        for arm in make(planned):
            assert isinstance(arm, Arm)
            if isinstance(arm.spec.mixture, Switch):
                assert 0 < arm.spec.mixture.step < arm.spec.steps
    if profile.scaling is not None:
        assert paper2.cost(planned)["hours"].gt(0).all()
        rates = {(n, a): 1e-3 for n in paper2.shapes_of(profile.scaling) for a in ("scratch", "cpt")}
        assert len(paper2.grid(planned, rates)) == len(rates) * len(profile.scaling.budgets)
    if profile.replay is not None:
        for make in (replay.shares, replay.held_out, replay.others):
            assert all(isinstance(arm, Arm) for arm in make(planned))


# ---- with runs ----


@pytest.fixture(scope="module")
def adapted(study):
    return paper1.lora(study)


def test_lora_runs_its_headline_at_its_best_rate_with_every_seed(study, adapted):
    ends = adapted[adapted["step"] == study.profile.run.steps]
    seeds = ends.groupby("arm")["seed"].nunique()
    assert set(seeds) == {len(study.profile.seeds)}
    assert set(paper1.at_best_rates(adapted, seeds.index)["arm"]) == set(seeds.index)


def test_adapters_are_checked_and_a_broken_one_is_found(study, adapted, monkeypatch):
    table = checks.adapters(study, paper1.lora_arms(study))
    assert len(table) == 2
    assert (table["difference after merging"] < 1e-3).all()
    assert "embed_tokens" in table.set_index("arm")["modules trained"].iloc[1]
    monkeypatch.setattr(checks, "TOLERANCE", 1e6)  # nothing moves that far: as if the adapter were not loaded
    with pytest.raises(CheckError, match="logits moved"):
        checks.adapters(study, paper1.lora_arms(study))


def test_equal_runs_are_named_and_their_differences_are_rounding(study):
    frame = study.run(a for a in paper1.averaging(study) if a.arm in ("ema92_1", "low92", "ema92_10"))
    same = checks.same_runs(frame)
    assert len(same) == len(study.profile.seeds)
    assert "rate x 0.08" in same["arms"].iloc[0]
    table = checks.largest_differences(study.run(paper1.equivalence(study)), "averaging", "lower rate")
    table = table.set_index("measure")
    assert table.loc["ppl.target.perplexity", "largest difference"] < 1e-3
    assert table.loc["drift.mean_l2", "largest difference"] < 1e-4


def test_lists_are_checked_for_leakage_and_a_leak_is_found(study):
    table = checks.leakage(study)
    assert len(table) == 7
    assert not table["items shown"].any()
    plan = study.profile.averaging
    open_lists = dataclasses.replace(plan, lists=dataclasses.replace(plan.lists, params={}))
    leaking = dataclasses.replace(study, profile=dataclasses.replace(study.profile, averaging=open_lists))
    wide = dataclasses.replace(leaking.profile.run.probes.copain, per_task=150)
    run = dataclasses.replace(
        leaking.profile.run, probes=dataclasses.replace(leaking.profile.run.probes, copain=wide)
    )
    leaking = dataclasses.replace(leaking, profile=dataclasses.replace(leaking.profile, run=run))
    with pytest.raises(CheckError, match="give Copain away"):
        checks.leakage(leaking)


def test_merging_begins_at_the_start_and_ends_at_the_end_and_is_kept(study, monkeypatch):
    arm = paper1.curriculum(study)[0]
    merged = evidence.merging(study, arm, (0.0, 0.5, 1.0))
    frame = store.load([(arm, study.train(arm.spec, "arm"))], study.profile.name)
    probes = frame[frame["kind"] == "probe"].set_index("step")
    rows = merged.set_index("merged")
    metric = "ppl.target.nats_per_token"
    assert rows.loc[0.0, metric] == pytest.approx(probes.loc[0, metric], abs=1e-6)
    assert rows.loc[1.0, metric] == pytest.approx(probes.loc[study.profile.run.steps, metric], abs=1e-6)
    assert rows.loc[0.5, "drift.global_l2"] == pytest.approx(rows.loc[1.0, "drift.global_l2"] / 2, rel=1e-4)
    monkeypatch.setattr(evidence, "Probes", None)  # a second call measures nothing
    pd.testing.assert_frame_equal(evidence.merging(study, arm, (0.0, 0.5, 1.0)), merged)


def test_advantage_is_the_distance_from_the_curve_of_plain_training():
    def run(arm, rate, ppl, copain, seed=0):
        return {"arm": arm, "seed": seed, "run": f"{arm}{rate}{seed}", "lr_peak": rate, "step": 10,
                "kind": "probe", "ppl": ppl, "copain": copain}  # fmt: skip

    controls = pd.DataFrame([run("none", 1.0, 4.0, 0.2), run("none", 0.1, 16.0, 0.8)])
    on, above, beyond = run("a", 1.0, 8.0, 0.5), run("b", 1.0, 8.0, 0.7, seed=7), run("c", 1.0, 2.0, 0.9)
    found = fronts.advantage(pd.DataFrame([on, above, beyond]), controls, "ppl", "copain").set_index("arm")
    assert found.loc["a", "advantage"] == pytest.approx(0.0)  # half way in the logarithm
    assert found.loc["b", "advantage"] == pytest.approx(0.2)
    assert pd.isna(
        found.loc["c", "advantage"]
    )  # plain training never learnt so much: nothing to compare with
    table = tables.advantages([found.reset_index()]).set_index("arm")
    assert table.loc["b", "advantage"] == pytest.approx(20.0)
    assert table.loc["c", "outside"] == 1
