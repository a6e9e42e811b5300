"""Language-free lists: reproducible, without Copain's rules and items, in the format that is asked."""

from __future__ import annotations

import itertools
import re

import pytest

from cptkit.data import corpora, lists
from cptkit.data.copain_items import TASKS, generate
from cptkit.data.corpus import CorpusSpec
from cptkit.data.documents import DataError
from cptkit.data.lists import Draw, Lists
from cptkit.data.patterns import RULES as PATTERNS

COPAIN = {"seed": 1716480624, "per_task": 150, "low": 0, "high": 9}


def first(made: Lists, n: int = 300, split: str = "train") -> list:
    return list(itertools.islice(made.documents(split), n))


def test_equal_parameters_give_equal_text_and_splits_differ(cache):
    assert first(Lists(), 20) == first(Lists(), 20)
    assert first(Lists(), 20) != first(Lists(seed=1), 20)
    texts = [{d.text for d in first(Lists(), 200, split)} for split in ("train", "gate")]
    assert not texts[0] & texts[1]
    spec = CorpusSpec("lists", "zxx", megabytes=0.02, params={"high": 99})
    read = list(corpora.read_documents(spec, cache))
    assert [d.text for d in read] == [d.text for d in Lists(high=99).documents(megabytes=0.02)]
    assert corpora.fingerprint(spec, cache) != corpora.fingerprint(
        CorpusSpec("lists", "zxx", megabytes=0.02), cache
    )


@pytest.mark.parametrize("form", ["lab", "mixed"])
def test_every_family_is_shown_and_holds_no_word(form):
    documents = first(Lists(format=form, high=99), 600)
    assert {d.kind for d in documents} == set(lists.RULES)
    for document in documents:
        assert not re.search(r"[a-z]{2,}", document.text)
        assert all(int(n) <= 99 for n in re.findall(r"\d+", document.text))


def test_a_documents_lines_follow_one_rule():
    """Read back from the text: one choice of what a document fixes makes every line right."""
    for document in first(Lists(), 200):
        rows = [row.split(" > ") for row in document.text.rstrip(" ;").split(" ; ")]
        rows = [(left.split(), right.split()) for left, right in rows]
        name = document.kind
        if name.startswith(("map", "append", "replace")):
            continue  # these fix a mapping or a constant, checked below
        found = False
        for position, shift in itertools.product(range(4), range(1, 4)):
            draw = Draw(position, shift, {}, "")
            try:
                found |= all(list(lists.RULES[name](e, draw)) == answer for e, answer in rows)
            except IndexError:
                continue
        assert found, document.text


def test_mappings_and_constants_hold_over_a_document():
    for document in first(Lists(families=("map_each", "append_constant")), 60):
        rows = [row.split(" > ") for row in document.text.rstrip(" ;").split(" ; ")]
        if document.kind == "map_each":
            images: dict[str, set[str]] = {}
            for left, right in rows:
                for a, b in zip(left.split(), right.split(), strict=True):
                    images.setdefault(a, set()).add(b)
            assert all(len(image) == 1 for image in images.values())
            assert len(set.union(*images.values())) == len(images)
        else:
            assert len({right.split()[-1] for _, right in rows}) == 1


def test_no_family_is_one_of_copains_rules():
    """Leakage, same rule: over many of its items, no task is answered alike by any family."""
    for task in TASKS:
        items = [(i.elements, i.target) for i in generate(5, 400, tasks=[task])]
        agreement = lists.agreement(items)
        assert max(agreement.values()) < 0.45, (task, agreement)  # one place of three, and chance
    copains = [(i.elements, i.target) for i in generate(5, 400, tasks=["max_integer_in_list"])]
    assert lists.agreement([(e, e[0]) for e, _ in copains])["element_at"] == 1.0  # the check can fail


def test_no_item_of_copain_is_shown():
    """Leakage, same item: by chance many would be, with digits and lists of three."""
    items = [(i.elements, i.target) for i in generate(**COPAIN)]
    for keep_out, expected in ((COPAIN, False), ({}, True)):
        text = [d.text for d in Lists(keep_out=keep_out).documents(megabytes=0.4)]
        assert any(lists.shown(t, items) for t in text) is expected


def test_an_item_is_found_in_any_format():
    items = [(("7", "2", "5"), "7")]
    assert lists.shown("3 1 2 > 3 ; 7 2 5 > 7 ;", items) == 1
    assert lists.shown("3 1 2 > 3 ; 7 2 5 > 5 ;", items) == 0
    for between, before, after in lists.FORMATS["mixed"]:
        text = after.join([between.join(("7", "2", "5")) + before + "7", between.join("12") + before + "2"])
        assert lists.shown(text, items, "mixed") == 1


def test_the_labs_own_lists_hold_copains_rules_and_these_do_not():
    assert set(TASKS) <= set(PATTERNS)
    assert not set(TASKS) & set(lists.RULES)


@pytest.mark.parametrize("wrong", [{"families": ("sort",)}, {"format": "yaml"}, {"high": 3}])
def test_wrong_parameters_are_refused(wrong):
    with pytest.raises(DataError, match="lists"):
        Lists(**wrong)
