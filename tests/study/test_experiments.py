"""Profiles, arms and the running of what is missing."""

from __future__ import annotations

import dataclasses
import json

import pandas as pd
import pytest

from cptkit.study import experiments, store
from cptkit.study.profiles import load_profile, packaged, profile_files
from cptkit.study.store import Arm
from cptkit.study.views import overview
from cptkit.train import trainer
from cptkit.train.config import ConfigError
from cptkit.train.schedule import Schedule
from cptkit.train.spec import run_id
from tests.conftest import tiny_run

TINY = {  # smaller still than smoke
    "base.pretraining.steps": 4,
    "run.steps": 4,
    "run.sequences": 4,
    "run.probes.steps": [0, 1, 2, 4],
    "run.probes.documents": 4,
    "run.probes.copain.per_task": 8,
    "run.probes.copain.held_out_rules": False,
    "bilingual.steps": 4,
    "transfer.steps": 4,
    "transfer.every": 2,
}


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    return experiments.open_study("smoke", TINY, root=tmp_path_factory.mktemp("study"), progress=False)


@pytest.fixture(scope="module")
def trained(study):
    return study.train_all(experiments.english_mixing(study))


def test_budgets_of_one_trunk_train_their_beginning_once(tmp_path, cache, monkeypatch):
    """And give the runs that each would be alone (tests/train/test_forks.py)."""
    schedule = Schedule("wsd", peak=3e-3, warmup=2, floor=0.0, decay=0.25)
    arms = [Arm("grid", "cpt", 0, tiny_run(steps=n, schedule=schedule)) for n in (16, 8, 4)]
    study = experiments.open_study("smoke", root=tmp_path, progress=False)
    (tmp_path / "cache").symlink_to(cache)
    seen: dict[int, list[int]] = {}
    real = trainer._Run._train_step

    def counted(self):
        row = real(self)
        seen.setdefault(self.spec.steps, []).append(self.step)
        return row

    monkeypatch.setattr(trainer._Run, "_train_step", counted)
    folders = [folder for _, folder in study.train_all(arms)]
    assert seen == {16: list(range(1, 17)), 8: [7, 8], 4: [4]}
    assert not any((folder / "forks").exists() for folder in folders)
    frame = store.load(zip(arms, folders, strict=True), "smoke")
    short = frame[(frame["run"] == folders[1].name) & (frame["kind"] == "train")]
    assert short["step"].tolist() == list(range(1, 9))


@pytest.mark.parametrize("name", sorted(packaged()))
def test_every_packaged_profile_is_whole(name):
    profile = load_profile(name)
    assert profile.name == name
    assert profile.measurement is (name != "smoke")
    assert profile.run.schedule.peak not in profile.english_mixing.rates
    assert set(profile.english_mixing.rate_arms) <= set(profile.english_mixing.arms)
    assert profile.run.probes.steps[:6] == (0, 1, 2, 4, 8, 16)


def test_a_profile_can_take_out_what_it_inherits():
    assert "constant rate" in load_profile("lab").curriculum.conditions
    assert "constant rate" not in load_profile("smoke").curriculum.conditions
    assert load_profile("smoke").averaging.few_lists is None
    assert load_profile("smoke").averaging.lists.params == load_profile("lab").averaging.lists.params


def test_a_profile_says_only_what_differs_from_the_one_it_extends():
    lab, smoke = load_profile("lab"), load_profile("smoke")
    assert smoke.run.steps != lab.run.steps
    assert smoke.run.length == lab.run.length
    assert smoke.target.train.params == lab.target.train.params
    assert [f.stem for f in profile_files("smoke")] == ["smoke", "lab"]


def test_mistakes_in_profiles_name_the_key():
    with pytest.raises(ConfigError, match="unknown profile 'labb'; did you mean 'lab'"):
        load_profile("labb")
    with pytest.raises(ConfigError, match=r"run\.stepz'; did you mean 'steps'"):
        load_profile("lab", {"run.stepz": 3})
    with pytest.raises(ConfigError, match="is a value, not a table"):
        load_profile("lab", {"run.steps.more": 3})


def test_arms_share_start_and_data_order(study, trained):
    arms = [a for a, _ in trained]
    assert len({a.spec.model for a in arms}) == 1
    orders = {}
    for arm in arms:
        mixture = study.mixture(arm)
        drawn = [mixture.next_step() for _ in range(arm.spec.steps)]
        orders.setdefault(arm.seed, []).append([i for step in drawn for name, i in step if name == "target"])
    for seed, lists in orders.items():
        shortest = min(map(len, lists))
        assert all(order[:shortest] == lists[0][:shortest] for order in lists), seed
    assert orders[0][0] != orders[1][0]


def test_none_needs_no_source_text(study, trained):
    none = next(a for a, _ in trained if a.arm == "none")
    assert set(none.spec.sources) == {"target"}


def test_the_second_call_trains_nothing(study, trained, monkeypatch, capsys):
    monkeypatch.setattr(trainer, "_Run", None)
    again = study.train_all(experiments.english_mixing(study))
    assert [f for _, f in again] == [f for _, f in trained]
    assert "0 to train" in capsys.readouterr().out


def test_the_frame_has_a_row_per_run_and_step_and_keeps_names_as_text(study, trained):
    frame = store.load(trained, study.profile.name)
    probes = frame[frame["kind"] == "probe"]
    assert len(probes) == len(trained) * 4
    assert set(frame["arm"]) == {"none", "mix20", "mix50"}
    start = probes[probes["step"] == 0]
    assert start["copain.accuracy"].nunique() == 1
    assert start["ppl.target.perplexity"].nunique() == 1
    named = store.load([(dataclasses.replace(trained[0][0], arm="nan"), trained[0][1])], "no")
    assert named["arm"].eq("nan").all()
    assert named["profile"].eq("no").all()


def test_audits_say_what_was_delivered(trained):
    table = store.audits(trained)
    spec = trained[0][0].spec
    row = table[(table["arm"] == "mix50") & (table["source"] == "source")].iloc[0]
    assert row["tokens"] == spec.tokens / 2
    assert table["arm"].value_counts()["none"] == sum(a.arm == "none" for a, _ in trained)
    assert set(store.durations(trained)) >= {"train", "probes", "steps"}


def test_two_names_of_one_run_are_trained_once(tmp_path):
    study = dataclasses.replace(experiments.open_study("smoke", root=tmp_path), progress=False)
    spec = tiny_run(steps=2)
    pairs = study.train_all([Arm("a", "x", 0, spec), Arm("b", "y", 0, spec)])
    assert pairs[0][1] == pairs[1][1] == study.runs / run_id(spec, study.cache)
    assert len(list(study.runs.iterdir())) == 1


def test_a_cut_metrics_file_is_read_up_to_the_cut_and_a_broken_one_is_not(tmp_path):
    rows = [json.dumps({"step": n, "kind": "train", "loss": 1.0}) for n in range(3)]
    (tmp_path / "metrics.jsonl").write_text("\n".join([*rows, '{"step": 3, "ki']))
    assert list(store.read_metrics(tmp_path)["step"]) == [0, 1, 2]
    (tmp_path / "metrics.jsonl").write_text("\n".join([rows[0], "{", rows[1]]))
    with pytest.raises(ValueError, match="line 2"):
        store.read_metrics(tmp_path)


def test_transfer_repeats_the_best_rate_with_every_seed(study):
    frame = experiments.transfer(study)
    runs = frame.drop_duplicates("run")
    languages = study.profile.transfer.languages
    assert set(frame["language"]) == set(languages)
    for (_, _), part in runs.groupby(["language", "arm"]):
        assert part["lr_peak"].nunique() == 3
        best = part[part["seed"] == 1]["lr_peak"]
        assert len(best) == 1
        ends = frame[frame["run"].isin(part[part["seed"] == 0]["run"]) & (frame["step"] == 4)]
        ends = ends.dropna(subset=["ppl.target.nats_per_token"])
        assert best.iloc[0] == ends.loc[ends["ppl.target.nats_per_token"].idxmin(), "lr_peak"]
    table = overview.transfer_table(frame)
    assert len(table) == 2 * len(languages)


def test_a_profile_without_an_experiment_has_no_arms(study):
    bare = dataclasses.replace(
        study, profile=dataclasses.replace(study.profile, transfer=None, bilingual=None)
    )
    assert experiments.transfer(bare).empty
    assert experiments.bilingual(bare) == []
    assert bare.run([]).empty


def test_overview_of_the_lab(study):
    base = overview.base_frame(study)
    assert overview.finished(base).overall.chance == pytest.approx((5 / 3 + 2 / 4) / 7)
    assert set(overview.samples(study)["kind"]) == {"prose", "questions", "patterns"}
    table = overview.fertility(study, documents=10).set_index("language")
    assert (
        table.loc[study.profile.source.name, "bytes_per_token"]
        > table.loc[study.profile.target.name, "bytes_per_token"]
    )
    assert isinstance(overview.emergence(base.query("step == 0")), str)
    assert len(overview.together([base, pd.DataFrame()])) == len(base)
