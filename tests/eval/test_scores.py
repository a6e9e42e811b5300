"""Scores of packed sequences against a plain forward pass over each document by itself."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from cptkit.data import corpora
from cptkit.data.tokens import pack
from cptkit.eval import scores
from cptkit.train import models
from tests.conftest import tiny_run, world


@pytest.fixture(scope="module")
def start(cache, tmp_path_factory):
    spec = tiny_run()
    model, tokenizer = models.load(spec.model, cache, tmp_path_factory.mktemp("runs"), length=64, seed=0)
    packed = pack(
        corpora.read_documents(world("l2"), cache), tokenizer, 64, tmp_path_factory.mktemp("p") / "x"
    )
    return model, tokenizer, packed


def by_documents(model, tokenizer, packed, index) -> tuple[float, int, int]:
    """Each document of the sequence alone through the model's own forward, in float64."""
    row = packed.sequence(index)
    starts = [*np.flatnonzero(row["position_ids"] == 0).tolist(), packed.length]
    total, count, targets = 0.0, 0, []
    for a, b in itertools.pairwise(starts):
        ids = torch.tensor(row["input_ids"][a:b])[None]
        with torch.no_grad():
            logits = model(input_ids=ids).logits[0, :-1].double()
        total += float(F.cross_entropy(logits, ids[0, 1:], reduction="sum")) if b - a > 1 else 0.0
        count += b - a - 1
        targets += ids[0, 1:].tolist()
    text = tokenizer.decode(targets, skip_special_tokens=True)
    return total, count, len(text.encode())


def test_a_score_is_that_of_its_documents_one_by_one(start):
    model, tokenizer, packed = start
    indices = [5, 0, 17, 5]
    found = scores.score(model, tokenizer, packed, indices)
    for place, index in enumerate(indices):
        nats, targets, size = by_documents(model, tokenizer, packed, index)
        assert found.nats[place] == pytest.approx(nats, rel=1e-5)
        assert found.targets[place] == targets
        assert found.bytes[place] == size
    assert found.per("token") == pytest.approx(found.nats / found.targets)
    assert found.per("byte") == pytest.approx(found.nats / found.bytes)


def test_what_is_scored_is_kept_and_another_model_is_scored_anew(start, tmp_path, monkeypatch):
    model, tokenizer, packed = start
    first = scores.score(model, tokenizer, packed, range(6), tmp_path)
    asked = []
    real = scores._measure
    monkeypatch.setattr(
        scores, "_measure", lambda m, t, p, i, k: asked.append(i.tolist()) or real(m, t, p, i, k)
    )
    again = scores.score(model, tokenizer, packed, range(4, 8), tmp_path)
    assert asked == [[6, 7]]
    assert again.nats[:2].tolist() == first.nats[4:].tolist()
    with torch.no_grad():
        model.get_output_embeddings().weight.mul_(1.5)
    scores.score(model, tokenizer, packed, range(2), tmp_path)
    assert asked[-1] == [0, 1]
    with torch.no_grad():
        model.get_output_embeddings().weight.div_(1.5)


def test_a_score_that_is_not_finite_is_an_error(start):
    model, tokenizer, packed = start
    weight = model.get_output_embeddings().weight
    before = weight.detach().clone()
    with torch.no_grad():
        weight.fill_(float("nan"))
    with pytest.raises(scores.EvalError, match="not finite"):
        scores.score(model, tokenizer, packed, [0])
    with torch.no_grad():
        weight.copy_(before)
