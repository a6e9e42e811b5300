"""The arms of P2: what differs between them and what does not, and that the grid is as cheap as it says."""

from __future__ import annotations

import dataclasses

import pandas as pd
import pytest

from cptkit.data.weights import Constant
from cptkit.study import experiments
from cptkit.study.arms import paper2, replay
from cptkit.study.profiles import load_profile
from cptkit.train import forks
from cptkit.train.config import ConfigError
from cptkit.train.spec import run_id


def grid(lab):
    plan = lab.profile.scaling
    rates = {(name, arm): 1e-3 for name in plan.sizes for arm in ("cpt", "scratch")}
    return paper2.grid(lab, rates)


def test_sizes_are_crossed_with_budgets_in_both_arms(lab):
    arms, plan = grid(lab), lab.profile.scaling
    cells = {(a.arm, a.labels["size"], a.spec.tokens) for a in arms}
    assert len(cells) == len(arms) == 2 * len(plan.sizes) * len(plan.budgets)
    assert {a.spec.tokens for a in arms} == {int(b) for b in plan.budgets}
    assert len(plan.sizes) >= 6
    assert len(plan.budgets) >= 5
    weights = sorted({a.labels["N"] for a in arms})
    assert weights[0] < 3.1e4
    assert weights[-1] > 1.8e6


def test_the_arms_of_a_size_differ_in_their_start_alone(lab):
    by_cell = {(a.arm, a.labels["size"], a.spec.tokens): a.spec for a in grid(lab)}
    for (arm, size, tokens), spec in by_cell.items():
        if arm == "cpt":
            scratch = by_cell["scratch", size, tokens]
            assert dataclasses.replace(spec, model=scratch.model) == scratch
            assert not scratch.model.start
            assert spec.model.start


def test_every_base_has_seen_as_many_source_tokens(lab):
    starts = {a.spec.model.start for a in grid(lab) if a.arm == "cpt"}
    assert len(starts) == len(lab.profile.scaling.sizes)
    assert {s.split("-")[1] for s in starts} == {str(int(lab.profile.scaling.pretraining))}


def test_budgets_of_a_trunk_share_all_but_their_decay(lab):
    trunks: dict[str, list] = {}
    for arm in grid(lab):
        trunks.setdefault(arm.labels["trunk"], []).append(arm.spec)
    for specs in trunks.values():
        longest = specs[0]
        assert longest.steps == max(s.steps for s in specs)
        for spec in specs[1:]:
            shared = forks.shared_steps(longest, spec)
            assert shared >= 0.75 * spec.steps


def test_text_is_repeated_at_most_four_times_where_a_law_is_fitted(lab):
    specs = [a.spec for a in [*grid(lab), *replay.shares(lab), *replay.held_out(lab)]]
    assert {spec.max_epochs for spec in specs} == {4.0}


def test_cost_is_counted_before_anything_runs(lab):
    table = paper2.cost(lab).set_index("size")
    plan, smallest = lab.profile.scaling, paper2.shapes_of(lab.profile.scaling)["27k"]
    each = smallest.flops_per_token(1024, lab.profile.run.length)
    sweeps = 2 * len(plan.rates) * plan.sweep
    assert table.loc["27k", "arms, FLOPs"] == pytest.approx(each * (2 * sum(plan.budgets) + sweeps))
    longest = max(plan.budgets)
    trunk = longest + plan.schedule.decay * (sum(plan.budgets) - longest)
    assert table.loc["27k", "shared, FLOPs"] == pytest.approx(each * (2 * trunk + sweeps))
    assert table.loc["all", "hours"] == pytest.approx(table["hours"].iloc[:-1].sum())


def test_best_rates_are_per_size_and_arm():
    rows = [
        {"size": "a", "arm": arm, "lr_peak": rate, "loss": loss}
        for arm, losses in (("cpt", (1.0, 2.0)), ("scratch", (3.0, 2.5)))
        for rate, loss in zip((1e-3, 3e-3), losses, strict=True)
    ]
    assert paper2.best_rates(pd.DataFrame(rows)) == {("a", "cpt"): 1e-3, ("a", "scratch"): 3e-3}


def test_a_profile_without_the_section_says_so(tmp_path):
    study = experiments.open_study("smol", root=tmp_path, progress=False)
    with pytest.raises(ConfigError, match=r"no \[scaling\] section"):
        paper2.rate_sweep(study)
    with pytest.raises(ConfigError, match=r"no \[replay\] section"):
        replay.shares(study)


def test_runs_that_share_their_beginning_are_held_against_whole_ones(tmp_path):
    study = experiments.open_study("smoke", root=tmp_path, progress=False)
    plan, start = study.profile.scaling, study.profile.base.pretraining.model
    budgets = sorted(plan.budgets, reverse=True)
    arms = [
        paper2.run_of(study, name, "scratch", budget, 1e-3, start)
        for name in list(paper2.shapes_of(plan))[:1]
        for budget in budgets
    ]
    study.run(arms)
    table = paper2.alone(study, arms)
    assert table["equal"].tolist() == [True]
    assert table["D"].tolist() == [sorted(arm.spec.tokens for arm in arms)[1]]
    assert table["loss, alone"].iloc[0] == table["loss, in the grid"].iloc[0]
    metrics = study.runs / run_id(arms[-2].spec, study.cache) / "metrics.jsonl"
    metrics.write_text(metrics.read_text().replace('"lr": 0.001', '"lr": 0.0011'))
    assert not paper2.alone(study, arms)["equal"].any()


# ---- replay ----


def test_replay_arms_differ_in_their_share_alone(lab):
    arms = replay.shares(lab)
    plan = lab.profile.replay
    assert {a.labels["share"] for a in arms} == set(plan.shares) >= {0.0, 0.01, 0.05, 0.1, 0.2, 0.5, 0.8}
    for arm in arms:
        weights = arm.spec.mixture.at(0)
        assert weights.get("source", 0.0) == pytest.approx(arm.labels["share"])
        assert arm.spec.schedule.kind == "constant"
        assert arm.spec.steps == plan.steps
    assert sum(a.labels["share"] == 0.2 for a in arms) == 3


def test_what_is_predicted_is_not_among_what_is_fitted(lab):
    fitted = {(a.labels["share"], a.spec.steps) for a in replay.shares(lab)}
    unseen = {(a.labels["share"], a.spec.steps) for a in replay.held_out(lab)}
    assert not fitted & unseen
    assert {steps for _, steps in unseen} == {lab.profile.replay.steps, lab.profile.replay.longer_steps}
    assert replay.unseen(lab)["mix30"] == (0.3, lab.profile.replay.steps * 4096)


def test_other_text_is_replayed_at_equal_tokens(lab):
    for arm in replay.others(lab):
        assert isinstance(arm.spec.mixture, Constant)
        assert arm.spec.mixture.at(0)["target"] == pytest.approx(1 - lab.profile.replay.replayed)
    langs = {c.lang for a in replay.others(lab) for c in a.spec.sources.values()}
    assert langs == {"l1", "l2", "l3"}


def test_curves_carry_both_compute_axes():
    frame = pd.DataFrame(
        {
            "kind": "probe", "arm": "mix20", "share": 0.2, "seed": 0, "run": "r", "step": [0, 10],
            "tokens": [0, 1000], "ppl.target.nats_per_token": [3.0, 2.0],
            "ppl.source.nats_per_token": [1.0, 1.2],
        }
    )  # fmt: skip
    table = replay.curves(frame, weights=100)
    assert table["flops"].tolist() == [0, 6e5]
    assert table["flops.target"].iloc[-1] == pytest.approx(0.8 * 6e5)
    assert table["flops.source"].iloc[-1] == pytest.approx(0.2 * 6e5)
    assert replay.with_language_tokens(frame)["target_tokens"].tolist() == [0, 800]


@pytest.mark.parametrize("change", [{"held_out": 0.2}, {"longer": (0.3,)}])
def test_a_plan_that_would_predict_what_it_saw_is_refused(change):
    with pytest.raises(ConfigError):
        dataclasses.replace(load_profile("lab").replay, **change)
