"""Generation: greedy as a plain loop is, scores as the library and a hand give them, failures counted."""

from __future__ import annotations

import pytest
import torch

from cptkit.data import packages, parallel
from cptkit.data.documents import DataError
from cptkit.data.parallel import Translated
from cptkit.data.world import World
from cptkit.eval import generation
from cptkit.eval.generation import Answer
from cptkit.train import models
from tests.conftest import tiny_run

PAIRS = [Translated(f"one {n}", f"bat {n}", str(n)) for n in range(12)]


@pytest.fixture(scope="module")
def tiny(cache, tmp_path_factory):
    model, tokenizer = models.load(tiny_run().model, cache, tmp_path_factory.mktemp("r"), length=512, seed=3)
    return model.eval(), tokenizer


def by_hand(model, tokenizer, prompt: str, limit: int) -> str:
    """One argmax after the other, without a cache, a batch or `generate`."""
    ids = torch.tensor([tokenizer(prompt, add_special_tokens=False)["input_ids"]])
    start = ids.shape[1]
    for _ in range(limit):
        with torch.no_grad():
            token = model(input_ids=ids).logits[:, -1:].argmax(-1)
        ids = torch.cat([ids, token], 1)
        text = tokenizer.decode(ids[0, start:], skip_special_tokens=True)
        if token.item() == tokenizer.eos_token_id or "\n" in text:
            break
    return tokenizer.decode(ids[0, start:], skip_special_tokens=True).lstrip(" ").split("\n")[0].strip()


def test_what_is_written_is_the_greedy_continuation_of_each_prompt_alone(tiny):
    model, tokenizer = tiny
    texts = ["demilel mera", "zorim demilel mera zorim " * 3, "7 3 > 7 ;"]
    found = generation.write(model, tokenizer, texts, limit=10, max_tokens=10_000)
    assert [a.text for a in found] == [by_hand(model, tokenizer, t, 10) for t in texts]


def test_prompts_have_solved_shots_in_either_direction():
    shots, asked = generation.chosen(PAIRS, 2, 3)
    assert len(asked) == 3
    assert not {p.id for p in shots} & {p.id for p in asked}
    there = generation.prompts(asked, shots, ("English", "Basque"))
    back = generation.prompts(asked, shots, ("English", "Basque"), reverse=True)
    assert there[0].endswith(f"English: {asked[0].source}\nBasque:")
    assert back[0].endswith(f"Basque: {asked[0].target}\nEnglish:")
    assert f"Basque: {shots[0].target}\n\n" in there[0]
    assert f"English: {shots[1].source}\n\n" in back[0]


def test_scores_and_failures_by_hand():
    right = "the heron waits in shallow water and strikes"
    answers = [
        Answer(right, True),
        Answer("", True),
        Answer("bat bat bat bat bat bat", False),
        Answer("hitza da hau", True),
    ]
    found = generation.score(answers, [right] * 4, lambda text: text.startswith("the"))
    assert found.count == 4
    assert (found.empty, found.loops, found.cut, found.other_language) == (0.25, 0.25, 0.25, 0.5)
    assert 0 < found.bleu < found.chrf < 60
    perfect = generation.score([Answer(right, True)], [right])
    assert perfect.chrf == pytest.approx(100)
    assert perfect.bleu == pytest.approx(100)
    assert "version:" in perfect.signature
    assert perfect.metrics("eu")["eu.chrf"] == pytest.approx(100)


@pytest.mark.parametrize(
    ("text", "looping"),
    [
        ("a b c d e f g h", False),
        ("no no no no", True),
        ("no no no yes no", False),
        ("it is so it is so it is so it is so", True),
        ("it is so it is so it is so", False),
        ("well " + "and then we go " * 4, True),
        ("", False),
    ],
)
def test_what_is_a_loop(text, looping):
    assert generation.loops(text) is looping


def test_distinct_pieces():
    assert generation.distinct(["a b c", "d e f"]) == 1.0
    assert generation.distinct(["a b a b a b"]) == pytest.approx(2 / 5)


def test_real_languages_are_told_apart():
    basque = generation.real_language("eu", ["en", "fr"])
    assert basque("Hau euskaraz idatzitako esaldi bat da.")
    assert not basque("This is a sentence written in English.")


def test_invented_languages_are_told_apart_by_their_words():
    world = World(similarity=0.0)
    texts = {
        lang: [d.text for d, _ in zip(world.documents(lang), range(200), strict=False)]
        for lang in ("l1", "l2")
    }
    ours = generation.lexicon_language(texts["l2"], texts["l1"])
    fact = parallel.facts(world, "l2", 1)[0]
    assert ours(fact.target)
    assert not ours(fact.source)


def test_facts_are_the_same_in_both_languages():
    same = World(similarity=1.0)
    assert all(p.source.split()[-2] == p.target.split()[-2] for p in parallel.facts(same, "l2", 20))
    found = parallel.facts(World(), "l2", 40)
    assert len({p.id for p in found}) == 40
    assert not any(World().local(p.id.split("/")[0], int(p.id.split("/")[1])) for p in found)
    assert found == parallel.facts(World(), "l2", 40)


def test_translation_end_to_end(tiny):
    model, tokenizer = tiny
    found, rows = generation.translate(
        model, tokenizer, PAIRS, ("English", "Basque"), shots=2, count=4, limit=6
    )
    assert found.count == len(rows) == 4
    assert all(asked.startswith("one") and reference.startswith("bat") for asked, reference, _ in rows)


@pytest.mark.real
def test_real_paragraphs_are_translations_from_held_out_pages(package_cache):
    found = parallel.help_paragraphs("fr", package_cache)
    assert len(found) > 500
    training = {
        packages.page_of(d)
        for d in packages.libreoffice_help("fr", package_cache)
        if packages.side(packages.page_of(d), 0.1, 0.0) == "train"
    }
    for pair in found:
        page = pair.id.split("#")[0]
        assert f"libreoffice_help/{page}" not in training
        assert pair.source != pair.target
    french = generation.real_language("fr", ["en"])
    assert sum(french(p.target) for p in found[:200]) > 180
    with pytest.raises(DataError, match="no help text in 'ar'"):
        parallel.help_paragraphs("ar", package_cache)
