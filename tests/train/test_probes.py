"""Probes in a run: the same items everywhere, right columns, no shot among the items."""

from __future__ import annotations

import json

import pytest
import torch

from cptkit.data.documents import DataError
from cptkit.eval import copain, drift, perplexity
from cptkit.train import models
from cptkit.train.probes import Probes, choice_items, copain_items
from cptkit.train.spec import ChoicesProbe, CopainProbe, ProbesSpec
from tests.conftest import tiny_run, world


@pytest.fixture(scope="module")
def tiny(cache):
    return models.load(tiny_run().model, cache, cache, length=128, seed=0)


SPEC = ProbesSpec(
    perplexity={"target": world("l2", "validation", 0.004), "source": world("l1", "validation", 0.004)},
    documents=6,
    copain=CopainProbe(per_task=8, high=9, template="lab", held_out_rules=True),
    choices={
        "target": ChoicesProbe("world", world("l2"), count=8, shots=2, template="lab"),
        "target_cloze": ChoicesProbe(
            "world", world("l2"), form="cloze", count=8, shots=2, template="lab-prose"
        ),
    },
)


def test_every_column_of_the_data_dictionary_is_there(tiny, cache):
    model, tokenizer = tiny
    probes = Probes(SPEC, model, tokenizer, drift.snapshot(model), cache, 128)
    found = probes.measure(model)
    for column in (
        "ppl.target.perplexity", "ppl.target.bits_per_byte", "ppl.source.nats_per_token",
        "copain.accuracy", "copain.chance", "copain.in_list", "copain.max_integer_in_list.accuracy",
        "held_out.accuracy", "held_out.second_largest.chance", "choices.target.accuracy",
        "choices.target.label_perplexity", "choices.target_cloze.chance", "choices.target.accuracy_byte",
        "drift.mean_l2", "drift.global_l2", "drift.relative", "drift.layer.0",
    ):  # fmt: skip
        assert isinstance(found[column], float), column
    assert found["drift.global_l2"] == 0.0
    assert found["choices.target.chance"] == 0.25
    assert found == probes.measure(model)  # nothing in a probe is random, and none leaves a trace


def test_the_model_is_left_as_it_was(tiny, cache):
    model, tokenizer = tiny
    model.train()
    before = {n: p.clone() for n, p in model.named_parameters()}
    state = torch.get_rng_state()
    Probes(SPEC, model, tokenizer, drift.snapshot(model), cache, 128).measure(model)
    assert model.training
    assert torch.equal(state, torch.get_rng_state())
    assert all(torch.equal(p, before[n]) and p.grad is None for n, p in model.named_parameters())


def test_perplexity_is_that_of_the_documents_one_by_one(tiny, cache):
    model, tokenizer = tiny
    found = Probes(SPEC, model, tokenizer, drift.snapshot(model), cache, 128).measure(model)
    from cptkit.data.corpora import read_documents

    texts = [d.text for d in read_documents(SPEC.perplexity["target"], cache)][:6]
    nats = count = 0
    for text in texts:
        one = perplexity.perplexity(model, perplexity.prepare(tokenizer, [text], 128))
        nats, count = nats + one.nats, count + one.tokens
    assert found["ppl.target.nats_per_token"] == pytest.approx(nats / count, rel=1e-6)


def test_held_out_rules_are_right_and_no_copain_task():
    items = copain_items(SPEC.copain)
    assert len(items["copain"]) == 56
    assert not {i.key for i in items["held_out"]} & set(copain.TASKS)
    for item in items["held_out"]:
        if item.task == "second_largest":
            assert item.target == sorted(item.elements)[1]
    assert set(copain_items(CopainProbe(per_task=2))) == {"copain"}


def test_choices_from_a_file_keep_shots_apart(tmp_path, cache):
    path = tmp_path / "questions.jsonl"
    rows = [{"question": f"q{n}", "candidates": ["a", "b", "c"], "answer": n % 3} for n in range(10)]
    path.write_text("\n".join(map(json.dumps, rows)))
    items, shots = choice_items(ChoicesProbe(str(path), shots=3, count=50), cache)
    assert len(items) == 7
    assert len(shots) == 3
    assert not {i.question for i in items} & {s.question for s in shots}
    assert choice_items(ChoicesProbe(str(path), shots=3, count=50), cache) == (items, shots)


@pytest.mark.parametrize(
    ("probe", "message"),
    [
        (ChoicesProbe("world"), "need `corpus`"),
        (ChoicesProbe("continuations"), "need `corpus`"),
        (ChoicesProbe("quiz"), "a JSONL file"),
        (ChoicesProbe("gone.jsonl"), "gone.jsonl"),
    ],
)
def test_what_cannot_be_asked_is_an_error(probe, message, cache):
    with pytest.raises((DataError, FileNotFoundError), match=message):
        choice_items(probe, cache)
