"""A forked run is the run that a lone training gives, bit for bit."""

from __future__ import annotations

import dataclasses
import shutil

import pytest

from cptkit.train import forks
from cptkit.train.averaging import Shadow
from cptkit.train.schedule import Schedule
from cptkit.train.spec import run_id
from cptkit.train.trainer import train
from tests.conftest import tiny_run
from tests.train.test_trainer import same

WSD = Schedule("wsd", peak=3e-3, warmup=2, floor=0.0, decay=0.25)


def wsd(steps: int, **changes):
    return tiny_run(steps=steps, schedule=WSD, **changes)


def test_what_two_lengths_share():
    assert forks.shared_steps(wsd(8), wsd(16)) == forks.shared_steps(wsd(16), wsd(8)) == 6
    rates = [[WSD.rate(s, n) for s in range(8)] for n in (8, 16)]
    assert rates[0][:6] == rates[1][:6]
    assert rates[0][6] != rates[1][6]
    cosine = dataclasses.replace(WSD, kind="cosine")
    assert forks.shared_steps(*(tiny_run(steps=n, schedule=cosine) for n in (8, 16))) <= 3  # the warm-up
    constant = dataclasses.replace(WSD, kind="constant")
    assert forks.shared_steps(*(tiny_run(steps=n, schedule=constant) for n in (8, 16))) == 7


@pytest.mark.parametrize(
    "change",
    [
        {"seed": 5},
        {"schedule": dataclasses.replace(WSD, peak=1e-3)},
        {"schedule": dataclasses.replace(WSD, decay=0.5)},
        {"sequences": 3},
        {"averaging": Shadow(half_life=3.0)},
    ],
)
def test_any_other_difference_shares_nothing(change):
    assert forks.shared_steps(wsd(8), dataclasses.replace(wsd(16), **change)) == 0


@pytest.mark.parametrize("changes", [{}, {"averaging": Shadow(half_life=3.0)}])
def test_a_fork_is_the_lone_run(tmp_path, cache, changes):
    short, long = wsd(8, **changes), wsd(16, **changes)
    alone = train(short, runs=tmp_path / "alone", cache=cache, progress=False)
    runs = tmp_path / "forked"
    donor = train(long, runs=runs, cache=cache, progress=False, keep={6})
    heir = runs / run_id(short, cache)
    assert forks.hand_on(donor, 6, heir)
    assert not forks.hand_on(donor, 5, heir)
    seen: list[int] = []
    assert train(short, runs=runs, cache=cache, progress=False, on_step=seen.append) == heir
    assert seen == [7, 8]  # the first six steps were not trained again
    assert same(alone, heir)
    assert same(train(long, runs=tmp_path / "alone", cache=cache, progress=False), donor)


def test_a_damaged_fork_is_not_handed_on(tmp_path, cache):
    donor = train(wsd(8), runs=tmp_path, cache=cache, progress=False, keep={3})
    file = forks.place(donor) / "step-00000003" / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1])
    assert not forks.hand_on(donor, 3, tmp_path / "heir")
    assert not (tmp_path / "heir").exists()


def test_a_run_that_is_further_keeps_what_it_has(tmp_path, cache):
    donor = train(wsd(8), runs=tmp_path, cache=cache, progress=False, keep={3})
    done = shutil.copytree(donor, tmp_path / "copy")
    before = (done / "metrics.jsonl").read_bytes()
    assert forks.hand_on(donor, 3, done)
    assert (done / "metrics.jsonl").read_bytes() == before
    assert not (done / "checkpoints").exists()
