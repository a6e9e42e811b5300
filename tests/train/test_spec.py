"""RunSpec: what TOML may say, and what the id of a run depends on."""

from __future__ import annotations

import tomllib

import pytest

from cptkit.data.weights import Constant, Linear, Phase, Phases, Switch
from cptkit.train.config import ConfigError, from_dict, to_dict
from cptkit.train.spec import PAPER_STEPS, ModelSpec, ProbesSpec, RunSpec, load_spec
from tests.conftest import tiny_run

HALF, MIX20, ONLY = {"target": 0.5, "english": 0.5}, {"target": 0.8, "english": 0.2}, {"target": 1.0}
SCHEDULES = [
    Constant(MIX20),
    Switch(HALF, ONLY, 6),
    Linear(HALF, MIX20, 3, 15),
    Phases((Phase(0, HALF), Phase(9, MIX20))),
]


def with_mixture(table: dict) -> RunSpec:
    return from_dict(RunSpec, to_dict(tiny_run()) | {"mixture": table})


def test_a_spec_survives_its_own_file(tmp_path):
    spec = tiny_run(micro_sequences=2, max_epochs=3.0, precision="bf16")
    (tmp_path / "run.toml").write_text(spec.dumps())
    assert load_spec(tmp_path / "run.toml") == spec


def test_mixtures_from_toml_and_back():
    table = tomllib.loads("""
        [a]
        kind = "constant"
        weights = {target = 0.8, english = 0.2}
        [b]
        kind = "switch"
        before = {target = 0.5, english = 0.5}
        after = {target = 1}
        step = 6
        [c]
        kind = "linear"
        start = {target = 0.5, english = 0.5}
        end = {target = 0.8, english = 0.2}
        first = 3
        last = 15
        [d]
        kind = "phases"
        phases = [{start = 0, weights = {target = 0.5, english = 0.5}},
                  {start = 9, weights = {target = 0.8, english = 0.2}}]
    """)
    for written, schedule in zip(table.values(), SCHEDULES, strict=True):
        assert with_mixture(written).mixture == schedule
        assert to_dict(schedule) == written


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"kind": "constnat", "weights": ONLY}, "mixture.kind: 'constnat' is not one of 'constant'"),
        ({"weights": ONLY}, "mixture.kind: None"),
        ({"kind": "constant", "weigths": ONLY}, "'mixture.weigths'; did you mean 'weights'"),
        ({"kind": "constant"}, "missing key 'mixture.weights'"),
        ({"kind": "constant", "weights": {"target": 0.7}}, "must sum to 1"),
        ({"kind": "constant", "weights": ONLY, "step": 3}, "unknown key 'mixture.step'"),
        ({"kind": "switch", "before": HALF, "after": ONLY, "step": 2.5}, "mixture.step: expected int"),
        ({"kind": "switch", "before": HALF, "after": ONLY, "step": -1}, "step must be a whole number"),
        ({"kind": "linear", "start": HALF, "end": ONLY, "first": 5, "last": 5}, "first < last"),
        ({"kind": "phases", "phases": []}, "start at step 0"),
        ({"kind": "phases", "phases": [{"start": 1, "weights": ONLY}]}, "start at step 0"),
        ({"kind": "phases", "phases": [{"start": 0, "weights": ONLY}] * 2}, "ever later steps"),
        ({"kind": "phases", "phases": [{"strat": 0, "weights": ONLY}]}, "did you mean 'start'"),
    ],
)
def test_bad_mixtures_are_refused(table, message):
    with pytest.raises(ConfigError, match=message):
        with_mixture(table)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"lenght": 64}, "did you mean 'length'"),
        ({"steps": 0}, "at least 1"),
        ({"micro_sequences": 5}, "between 1 and sequences"),
        ({"sources": {}}, "at least one source"),
        ({"model": {}}, "`start` .* or `tokenizer`"),
        ({"schedule": {"kind": "cosine", "peak": "1e-4"}}, "schedule.peak: expected float"),
        ({"probes": {"perplexity": {"eu": {"kind": "files", "lang": "eu"}}}}, "probes.perplexity.eu"),
    ],
)
def test_mistakes_name_the_key(change, message):
    with pytest.raises(ConfigError, match=message):
        from_dict(RunSpec, to_dict(tiny_run()) | change)


def test_a_started_model_brings_its_tokenizer():
    with pytest.raises(ConfigError, match="brings its own tokenizer"):
        ModelSpec(start="gpt2", tokenizer=tiny_run().model.tokenizer)


def test_probes_are_due_at_listed_steps_and_at_the_end():
    probes = ProbesSpec(steps=(0, 1, 2, 4))
    assert [s for s in range(8) if probes.due(s, 7)] == [0, 1, 2, 4, 7]
    assert PAPER_STEPS[:13] == (*range(1, 11), 30, 50, 80)
    assert PAPER_STEPS[-1] == 10000
