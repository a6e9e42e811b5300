"""Weights that are fed back and orders inside a source, in real runs: what was done, and resume."""

from __future__ import annotations

import dataclasses
import itertools
import json

import numpy as np
import pytest

from cptkit.data.feedback import TopicFeedback
from cptkit.data.order import Paced, Sorted
from cptkit.data.weights import Constant, Dynamic
from cptkit.eval import scores
from cptkit.train import forks, models, trainer
from cptkit.train.config import ConfigError
from cptkit.train.spec import load_spec, run_id
from cptkit.train.trainer import pack_sources, train
from tests.conftest import tiny_run, world
from tests.train.test_trainer import rows, same

TOPICS = ("physics", "law", "sports")


def by_topic(split="train", megabytes=0.3):
    return {t: dataclasses.replace(world("l2", split, megabytes), topic=t) for t in TOPICS}


def dynamic_run(**changes):
    weights = Dynamic(
        Constant({"source": 0.25, "physics": 0.25, "law": 0.25, "sports": 0.25}),
        every=3,
        rule=TopicFeedback(alpha=0.8),
        texts=by_topic("validation", 0.06),
        documents=4,
    )
    return tiny_run(
        sources={"source": world("l1")} | by_topic(), mixture=weights, steps=12, sequences=8, **changes
    )


@pytest.fixture(scope="module")
def dynamic(tmp_path_factory, cache):
    return train(dynamic_run(), runs=tmp_path_factory.mktemp("runs"), cache=cache, progress=False)


def test_shares_follow_what_was_measured(dynamic):
    """The rule recomputed from the log, by hand: f = 1 + alpha d / max |d|."""
    log = [r for r in rows(dynamic) if r["kind"] == "feedback"]
    assert [r["step"] for r in log] == [0, 3, 6, 9]
    shares = np.full(3, 0.25)
    assert [log[0][f"feedback.{t}.share"] for t in TOPICS] == pytest.approx(shares)
    for before, after in itertools.pairwise(log):
        change = np.array(
            [after[f"feedback.{t}.perplexity"] - before[f"feedback.{t}.perplexity"] for t in TOPICS]
        )
        raised = shares * (1 + 0.8 * change / np.abs(change).max())
        shares = 0.75 * raised / raised.sum()
        assert [after[f"feedback.{t}.share"] for t in TOPICS] == pytest.approx(shares)
    assert len({round(s, 4) for s in shares}) == 3  # it did move


def test_what_was_delivered_is_what_was_asked_to_one_sequence(dynamic):
    audit = json.loads((dynamic / "audit.json").read_text())
    log = [r for r in rows(dynamic) if r["kind"] == "feedback"]
    for topic in TOPICS:
        asked = sum(r[f"feedback.{topic}.share"] for r in log) * 3 * 8 * 64
        assert audit["sources"][topic]["asked"] == pytest.approx(asked)
        assert abs(audit["sources"][topic]["tokens"] - asked) < 64
    assert audit["sources"]["source"]["asked"] == pytest.approx(0.25 * 12 * 8 * 64)
    assert audit["max_deviation"] < 2


def interrupted(spec, runs, cache, stops):
    """Killed after each of these steps, and started again."""

    class Killed(Exception):
        pass

    for stop in stops:

        def on_step(step, stop=stop):
            if step == stop:
                raise Killed

        with pytest.raises(Killed):
            train(spec, runs=runs, cache=cache, progress=False, checkpoint_steps=1, on_step=on_step)
    return train(spec, runs=runs, cache=cache, progress=False, checkpoint_steps=1)


def test_resuming_twice_inside_a_dynamic_run_equals_the_uninterrupted_one(dynamic, tmp_path, cache):
    """B24: shares, what was measured and what is owed are all in the checkpoint."""
    again = interrupted(dynamic_run(), tmp_path, cache, [4, 6])
    assert same(again, dynamic)
    assert json.loads((again / "audit.json").read_text()) == json.loads((dynamic / "audit.json").read_text())


def test_a_dynamic_spec_survives_its_file(tmp_path, cache):
    spec = dynamic_run()
    (tmp_path / "spec.toml").write_text(spec.dumps())
    assert load_spec(tmp_path / "spec.toml") == spec
    other = dataclasses.replace(spec, mixture=dataclasses.replace(spec.mixture, documents=5))
    assert run_id(other, cache) != run_id(spec, cache)


# ---- orders ----


def ordered(order, **changes):
    return tiny_run(order={"target": order}, **changes)


def drawn(spec, cache, runs) -> list[int]:
    """The target sequences in the order in which the run reads them."""
    seen = []
    real = trainer._batch

    def spy(packed, pairs):
        seen.extend(i for name, i in pairs if name == "target")
        return real(packed, pairs)

    trainer._batch = spy
    try:
        train(spec, runs=runs, cache=cache, progress=False)
    finally:
        trainer._batch = real
    return seen


def test_sequences_come_by_the_scores_of_the_start_model(tmp_path, cache):
    up = drawn(ordered(Sorted()), cache, tmp_path)
    down = drawn(ordered(Sorted(descending=True, unit="byte")), cache, tmp_path)
    random = drawn(tiny_run(), cache, tmp_path)
    assert sorted(up) == sorted(down) == sorted(random)
    assert up != random
    spec = tiny_run()
    model, tokenizer = models.load(spec.model, cache, tmp_path, length=spec.length, seed=spec.seed)
    packed = pack_sources(spec, tokenizer, cache)["target"]
    found = scores.score(model, tokenizer, packed, up).per("token")
    assert (np.diff(found) >= 0).all()
    found = scores.score(model, tokenizer, packed, down).per("byte")
    assert (np.diff(found) <= 0).all()


def test_resuming_inside_an_ordered_run_equals_the_uninterrupted_one(tmp_path, cache):
    spec = ordered(Paced(start=0.2))
    whole = train(spec, runs=tmp_path / "a", cache=cache, progress=False)
    assert same(interrupted(spec, tmp_path / "b", cache, [5, 8]), whole)


def test_an_order_is_part_of_the_run_and_its_absence_is_not(cache):
    spec = tiny_run()
    assert "order" not in spec.dumps()
    assert run_id(ordered(Sorted()), cache) != run_id(spec, cache)
    with pytest.raises(ConfigError, match="'targte' is not a source"):
        tiny_run(order={"targte": Sorted()})


def test_runs_of_other_lengths_share_nothing_when_ordered():
    """What a run uses, and so what comes first, depends on its length."""
    assert forks.shared_steps(ordered(Sorted()), ordered(Sorted(), steps=24)) == 0
