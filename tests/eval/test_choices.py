from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest
import torch

from cptkit.data.documents import ChoiceItem, DataError
from cptkit.eval import choices
from cptkit.eval.choices import CHOICE_TEMPLATES, NORMALISERS, ChoiceTemplate, evaluate, load_items
from cptkit.eval.forward import EvalError
from tests.eval import tiny

ITEMS = [
    ChoiceItem("the river of this town is", ("Bilbo", "the sea", "a"), 0, "1", "rivers"),
    ChoiceItem("12, 5 ->", ("12", "5"), 0, "2", "numbers"),
    ChoiceItem("Non da?", ("日本 da", "the river runs to the sea", "é", "x"), 3, "3", "rivers"),
    ChoiceItem("name", ("1", "22", "333"), 2, "4", "numbers"),
]
SHOTS = [ChoiceItem("town", ("sea", "river"), 1, "s1"), ChoiceItem("name", ("its", "is"), 0, "s2")]
NAMES = ["digits split", "digits grouped", "digits grouped, BOS", "metaspace"]


@pytest.fixture(scope="module")
def models(tokenizers):
    return {name: tiny.llama(len(t), initializer_range=0.15).double() for name, t in tokenizers.items()}


def brute(model, tokenizer, prompt: str, text: str) -> tuple[float, int]:
    """Nats and count of the tokens of `text` after those of `prompt`: the whole text at once, no cache."""
    alone, ids = tokenizer(prompt)["input_ids"], tokenizer(text)["input_ids"]
    assert ids[: len(alone)] == alone, "pick texts whose border is clean"
    with torch.no_grad():
        log_probabilities = model(torch.tensor([ids])).logits[0].log_softmax(-1)
    positions = range(len(alone), len(ids))
    return -sum(float(log_probabilities[t - 1, ids[t]]) for t in positions), len(positions)


@pytest.mark.parametrize("name", NAMES)
def test_against_whole_texts_without_a_cache(tokenizers, models, name):
    tokenizer, model, template = (
        tokenizers[name],
        models[name],
        ChoiceTemplate(between="\n", header="Galdera\n"),
    )
    result = evaluate(model, tokenizer, ITEMS, SHOTS, template, max_tokens=250)
    values = {normaliser: [] for normaliser in NORMALISERS}
    label_nats = label_tokens = 0
    for item in ITEMS:
        shots = "town river\n" + ("name its\n" if item.id != "4" else "")  # its own question: left out
        prompt = "Galdera\n" + shots + item.question
        rows = [brute(model, tokenizer, prompt, f"{prompt} {c}") for c in item.candidates]
        label_nats += rows[item.answer][0]
        label_tokens += rows[item.answer][1]
        sizes = {
            "sum": [1 for _ in rows],
            "token": [t for _, t in rows],
            "byte": [len(bytes(c, "utf-8")) for c in item.candidates],
            "character": [len(c) for c in item.candidates],
        }
        for normaliser, size in sizes.items():
            scores = [n / s for (n, _), s in zip(rows, size, strict=True)]
            values[normaliser].append(scores.index(min(scores)))
    assert result.predictions == {n: tuple(v) for n, v in values.items()}
    assert result.label_perplexity == pytest.approx(math.exp(label_nats / label_tokens), rel=1e-9)
    for normaliser, predicted in values.items():
        assert result.accuracy[normaliser] == sum(
            p == item.answer for p, item in zip(predicted, ITEMS, strict=True)
        ) / len(ITEMS)
    assert result.chance == pytest.approx((1 / 3 + 1 / 2 + 1 / 4 + 1 / 3) / 4)


@pytest.mark.parametrize("name", NAMES)
def test_batches_do_not_matter(tokenizers, models, name):
    template = CHOICE_TEMPLATES["plain"]
    texts = [template.texts(item.question, item.candidates) for item in ITEMS]
    results = [choices.score(models[name], tokenizers[name], texts, max_tokens=m) for m in (1, 150, 10**6)]
    flat = [torch.tensor([n for some in r.nats for n in some], dtype=torch.float64) for r in results]
    torch.testing.assert_close(flat[0], flat[1], rtol=1e-9, atol=0)
    torch.testing.assert_close(flat[0], flat[2], rtol=1e-9, atol=0)


@pytest.mark.parametrize("name", NAMES)
def test_trailing_space_of_a_prompt_changes_nothing(tokenizers, models, name):
    """B57: with prompt and candidate tokenised apart, a Llama 2 style tokenizer scored 0 instead of 72 %."""
    spaced = [replace(item, question=item.question + " ") for item in ITEMS]
    a, b = (evaluate(models[name], tokenizers[name], items, SHOTS) for items in (ITEMS, spaced))
    assert a == b
    ended = ChoiceTemplate("{question} ", "{candidate}")
    assert evaluate(models[name], tokenizers[name], ITEMS, SHOTS, ended) == a


def test_candidates_that_merge_with_the_prompt_are_scored_over_the_same_text(tokenizers, models):
    """The 12 is one piece, the 1 and the 2 are two: both are scored from before the 1."""
    tokenizer, model = tokenizers["digits grouped"], models["digits grouped"]
    assert len(tokenizer("12")["input_ids"]) == 1
    scores = choices.score(model, tokenizer, [("x 1", ["x 1 2", "x 12"])])
    ids = tokenizer("x 1 2")["input_ids"]
    with torch.no_grad():
        log_probabilities = model(torch.tensor([ids])).logits[0].log_softmax(-1)
    assert scores.tokens == [[2, 1]]
    expected = -sum(float(log_probabilities[t - 1, ids[t]]) for t in range(len(ids) - 2, len(ids)))
    assert scores.nats[0][0] == pytest.approx(expected, rel=1e-9)


def test_normalisers_can_disagree():
    """B60: one score, three winners."""
    item = ChoiceItem("q", ("日本国", "abcdefg"), 0, "1")
    sums, tokens = [9.0, 14.0], [9, 7]
    best = {n: max((0, 1), key=choices._normalised(n, item, sums, tokens).__getitem__) for n in NORMALISERS}
    assert best == {"sum": 0, "token": 0, "byte": 0, "character": 1}


def test_calibrated(tokenizers, models):
    tokenizer, model = tokenizers["metaspace"], models["metaspace"]
    result = evaluate(model, tokenizer, ITEMS, SHOTS, calibrate=True)
    expected = []
    for item in ITEMS:
        prompt = ("town river\n" + ("name its\n" if item.id != "4" else "")) + item.question
        gains = [
            brute(model, tokenizer, "", f" {c}")[0] - brute(model, tokenizer, prompt, f"{prompt} {c}")[0]
            for c in item.candidates
        ]
        expected.append(gains.index(max(gains)))
    assert result.predictions["calibrated"] == tuple(expected)
    bare = evaluate(models["digits split"], tokenizers["digits split"], ITEMS, calibrate=True)  # no BOS: EOS
    assert "calibrated" in bare.accuracy


def test_groups_and_metrics(tokenizers, models):
    result = evaluate(models["metaspace"], tokenizers["metaspace"], ITEMS)
    assert set(result.groups) == {"rivers", "numbers"}
    for normaliser in NORMALISERS:
        mean = sum(g.accuracy[normaliser] * g.items for g in result.groups.values()) / 4
        assert mean == pytest.approx(result.accuracy[normaliser])
    metrics = result.metrics("choices.target", "byte")
    assert metrics["choices.target.accuracy"] == metrics["choices.target.accuracy_byte"]
    assert metrics["choices.target.rivers.chance"] == pytest.approx((1 / 3 + 1 / 4) / 2)
    assert metrics["choices.target.label_perplexity"] == result.label_perplexity
    one = [replace(item, group="") for item in ITEMS]
    assert evaluate(models["metaspace"], tokenizers["metaspace"], one).groups == {}


def test_alarm_of_a_constant_prediction(tokenizers, models):
    """B63: labels that the model never says make it choose one place, whatever the question."""
    items = [ChoiceItem(f"{n}", ("a", "b", "c"), n % 3, str(n)) for n in range(30)]
    model = tiny.llama(len(tokenizers["metaspace"]))
    torch.nn.init.zeros_(model.lm_head.weight)  # all candidates equal, so the first is taken
    uniform = evaluate(model, tokenizers["metaspace"], items)
    assert len(uniform.alarms) == len(NORMALISERS)
    assert "30 of 30 predictions (sum) are candidate 0, right for 10" in uniform.alarms[0]
    assert choices._constant("sum", [0] * 9, [0] * 9) is None
    assert choices._constant("sum", [0] * 95 + [1] * 5, [0] * 100) is None
    assert choices._constant("sum", [1] * 96 + [0] * 4, [0] * 100) is not None
    assert evaluate(models["metaspace"], tokenizers["metaspace"], items[:9]).alarms == ()


def test_templates():
    basque = CHOICE_TEMPLATES["basque"]
    prompt, texts = basque.texts("Zein da?", ["bat", "bi"], basque.before(ITEMS[0], SHOTS[:1]))
    assert prompt == "Galdera: town\nErantzuna: river\n\nGaldera: Zein da?\nErantzuna:"
    assert texts == [prompt + " bat", prompt + " bi"]
    assert ChoiceTemplate().texts("{candidate} ", ["{question}"]) == (
        "{candidate}",
        ["{candidate} {question}"],
    )
    with pytest.raises(EvalError, match="choice template"):
        ChoiceTemplate("q", "{candidate}")


def test_refusals(tokenizers, models):
    model, tokenizer = models["metaspace"], tokenizers["metaspace"]
    with pytest.raises(EvalError, match="no items"):
        evaluate(model, tokenizer, [])
    with pytest.raises(EvalError, match="empty candidate"):
        evaluate(
            model,
            tokenizer,
            [ChoiceItem("q", ("a", ""), 0, "1")],
            template=ChoiceTemplate(answer="{candidate}"),
        )
    with pytest.raises(EvalError, match="reads at most"):
        evaluate(model, tokenizer, [ChoiceItem("1" * 600, ("a", "b"), 0, "1")])
    broken = tiny.llama(len(tokenizer))
    torch.nn.init.constant_(broken.lm_head.weight, math.nan)
    with pytest.raises(EvalError, match="not finite"):
        evaluate(broken, tokenizer, ITEMS)


def test_load_items(tmp_path):
    path = tmp_path / "items.jsonl"
    rows = [
        {"question": "q", "candidates": ["a", "b"], "answer": 1},
        {"question": "r", "candidates": ["日", "b"], "answer": "日", "id": 7, "group": "g", "more": 0},
    ]
    path.write_text("\n\n".join(json.dumps(row) for row in rows), encoding="utf-8")
    assert load_items(path) == [
        ChoiceItem("q", ("a", "b"), 1, "1"),
        ChoiceItem("r", ("日", "b"), 0, "7", "g"),
    ]
    bad = [
        '{"question": "q"',
        "[1]",
        '{"question": "q", "candidates": ["a", "b"]}',
        '{"question": "q", "candidates": "ab", "answer": 0}',
        '{"question": "q", "candidates": ["a", "b"], "answer": "c"}',
        '{"question": "q", "candidates": ["a", "b"], "answer": true}',
        '{"question": "q", "candidates": ["a", "b"], "answer": 2}',
        '{"question": "q", "candidates": ["a", "a"], "answer": 0}',
    ]
    for line in bad:
        path.write_text(json.dumps(rows[0]) + "\n" + line, encoding="utf-8")
        with pytest.raises(DataError, match=r"items\.jsonl:2"):
            load_items(path)
    path.write_text("\n", encoding="utf-8")
    with pytest.raises(DataError, match="no items"):
        load_items(path)
