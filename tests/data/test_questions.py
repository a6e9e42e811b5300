"""Capital questions and continuations: on a small game and small pages made here, and on the real ones."""

from __future__ import annotations

import builtins
import math
import os
from collections import Counter
from pathlib import Path

import pytest

from cptkit.data import packages, questions
from cptkit.data.documents import ChoiceItem, DataError, Document

CACHE = Path(os.environ.get("CPTKIT_CACHE", Path(__file__).parents[2] / "cache"))

# country, capital, and both in Basque as the (invented) game has them; CLDR says Frantzia, Txina, Aljeria.
COUNTRIES = [
    ("France", "Paris", "Frantses", "Paris "),
    ("China", "Beijing", "Kina", "Pekin"),
    ("Peru", "Lima", "Peru", "Lima"),
    ("The Gambia", "Banjul", "Ganbia (jokoa)", "Banjul"),
    ("Gambia", "Banjul", "Ganbia", "Banjul"),  # the same country under a second name
    ("Kuwait", "Kuwait City", "Kuwait", "Kuwait hiria"),  # gives itself away
    ("Nowhere Land", "Erewhon", "Inongo", "Herrialdea"),  # not in CLDR
    ("Germany", "Berlin", "Alemania", ""),  # the capital is not translated
    ("Antarctica", "None", "Antartika", ""),
    ("Japan", "Tokyo", "Japon", "Tokio"),
]


@pytest.fixture
def game(tmp_path: Path) -> Path:
    polib = pytest.importorskip("polib", reason="capital questions need the extra: pip install cptkit[real]")
    pytest.importorskip("babel", reason="capital questions need the extra: pip install cptkit[real]")
    share = tmp_path / "packages/kgeography-data/usr/share"
    maps, locale = share / "kgeography", share / "locale/eu/LC_MESSAGES"
    maps.mkdir(parents=True)
    locale.mkdir(parents=True)
    catalogue = polib.POFile()

    def say(context: str, english: str, basque: str) -> None:
        catalogue.append(polib.POEntry(msgctxt=context, msgid=english, msgstr=basque))

    say("@title:group", "The capital of %1 is...", "%1-ko hiriburua hau da...")
    for name in questions.MAPS:
        rows = [c for c in COUNTRIES if (c[0] == "Japan") == (name == "asia")]
        if name not in ("africa", "asia"):
            rows = COUNTRIES[:1]  # repeated on other maps, where the game says it differently
        divisions = "".join(
            f"<division><name>{country}</name><capital>{capital}</capital></division>"
            for country, capital, *_ in rows
        )
        (maps / f"{name}.kgm").write_text(f"<map><division><name>Water</name></division>{divisions}</map>")
        for country, capital, *basque in rows:
            for english, translated in zip((country, capital), basque, strict=True):
                say(f"{name}.kgm", english, translated if name in ("africa", "asia") else "WRONG MAP")
    catalogue.save_as_mofile(str(locale / "kgeography.mo"))
    return tmp_path


def right(item: ChoiceItem) -> str:
    return item.candidates[item.answer]


def test_capitals_by_hand(game: Path) -> None:
    asked = {i.id.split("/")[2]: i for i in questions.capitals("eu", game)}
    assert {k: (i.question, right(i), i.group) for k, i in asked.items()} == {
        "France": ("Frantzia-ko hiriburua hau da", "Paris", "different-spelling"),
        "China": ("Txina-ko hiriburua hau da", "Pekin", "different-spelling"),
        "Peru": ("Peru-ko hiriburua hau da", "Lima", "same-spelling"),
        "The Gambia": ("Gambia-ko hiriburua hau da", "Banjul", "same-spelling"),
        "Nowhere Land": ("Inongo-ko hiriburua hau da", "Herrialdea", "different-spelling"),
        "Japan": ("Japonia-ko hiriburua hau da", "Tokio", "different-spelling"),
    }
    capitals = {"Paris", "Pekin", "Lima", "Banjul", "Herrialdea", "Tokio"}
    assert all(len(i.candidates) == 4 and set(i.candidates) <= capitals for i in asked.values())
    plain = questions.capitals("eu", game, wording="plain")
    assert {i.question for i in plain} >= {"Zein da Frantzia herrialdearen hiriburua?"}


def test_capitals_are_parallel_and_seeded(game: Path) -> None:
    english = {i.id.split("/")[2]: i for i in questions.capitals("en", game)}
    basque = questions.capitals("eu", game)
    assert english["France"].question == "The capital of France is"
    assert right(english["Germany"]) == "Berlin"
    order = [name for name in english if name != "Germany"]
    assert [i.id.split("/")[2] for i in basque] == order
    assert [i.answer for i in basque] == [english[name].answer for name in order]
    assert questions.capitals("eu", game) == basque
    assert questions.capitals("eu", game, seed=1) != basque


def test_capitals_say_what_is_wrong(game: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DataError, match="no capitals in 'id'; the game has en, eu"):
        questions.capitals("id", game)
    with pytest.raises(DataError, match="neither 'game' nor 'plain'"):
        questions.capitals("eu", game, wording="own")
    real_import = builtins.__import__

    def without_babel(name: str, *args, **kwargs):
        if name.startswith("babel"):
            raise ModuleNotFoundError("No module named 'babel'", name="babel")
        return real_import(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without_babel)
    with pytest.raises(DataError, match=r"need babel: pip install 'cptkit\[real\]'"):
        questions.capitals("eu", game)


# ------------------------------------------------------------------------------------------ continuations


def page(name: str, topic: str, lengths: list[int]) -> Document:
    paragraphs = [f"{name}{i}".ljust(n, "x") for i, n in enumerate(lengths)]
    return Document("\n".join(paragraphs), f"set/eu/{topic}/{name}", "eu", topic=topic)


def test_continuations_by_hand() -> None:
    pages = [
        page("a", "calc", [50, 10, 60, 70, 80, 50, 60, 70, 81]),
        page("b", "calc", [90, 70, 78, 82, 83]),
        page("c", "calc", [79, 84, 41, 300]),
        page("d", "draw", [80] * 8),
    ]
    items = questions.continuations(pages, per_page=9)
    first = next(i for i in items if i.id == "continuations/set/eu/calc/a/0")
    a = pages[0].text.split("\n")
    assert first.question == "\n".join([a[0], a[2], a[3]])  # the short one is passed over
    assert right(first) == a[4]
    others = set((pages[1].text + "\n" + pages[2].text).split("\n"))
    assert set(first.candidates) - {a[4]} <= others
    assert all(80 * 2 / 3 <= len(p) <= 120 for p in first.candidates)
    assert {i.group for i in items} == {"calc"}  # 'draw' has no other page to take wrong answers from
    assert {i.id.rsplit("/", 1)[0] for i in questions.continuations(pages)} <= {
        i.id.rsplit("/", 1)[0] for i in items
    }


def test_no_continuation_is_an_error() -> None:
    with pytest.raises(DataError, match="of 1 pages none has 4 paragraphs of 40 characters"):
        questions.continuations([page("a", "calc", [80] * 8)])


def mean_rank(items: list[ChoiceItem]) -> tuple[float, float]:
    """Mean rank by length of the right answer (0 shortest, 3 longest, ties shared) and its standard error."""
    ranks = []
    for item in items:
        lengths = [len(c) for c in item.candidates]
        own = lengths[item.answer]
        ranks.append(sum(n < own for n in lengths) + (lengths.count(own) - 1) / 2)
    return sum(ranks) / len(ranks), math.sqrt(1.25 / len(ranks))


def test_length_does_not_give_the_answer() -> None:
    pages = [page(f"p{n}_", "calc", [45 + (n * 20 + k) * 37 % 2003 for k in range(20)]) for n in range(100)]
    items = questions.continuations(pages, per_page=5)
    assert len(items) > 300
    ranks = Counter(sorted(i.candidates, key=len).index(right(i)) for i in items)  # no two lengths are equal
    places = Counter(i.answer for i in items)
    deviation = math.sqrt(0.25 * 0.75 * len(items))
    for counts in (ranks, places):
        assert all(abs(counts[n] - len(items) / 4) < 4 * deviation for n in range(4)), counts


# ------------------------------------------------------------------------------------------- the real ones


def real(make, *args):
    try:
        return make(*args)
    except DataError as error:
        if any(words in str(error) for words in ("no apt-get", "apt-get could not", "pip install")):
            pytest.skip(f"the real data cannot be had here: {error}")
        raise


@pytest.mark.real
def test_real_capitals() -> None:
    english = {i.id.split("/")[2]: i for i in real(questions.capitals, "en", CACHE)}
    basque = {i.id.split("/")[2]: i for i in real(questions.capitals, "eu", CACHE)}
    assert list(english) == list(basque)
    assert len(basque) >= 190
    assert right(english["China"]) == "Beijing"
    assert basque["Germany"].question == "Alemania-ko hiriburua hau da"
    groups = Counter(i.group for i in basque.values())
    assert 0.3 < groups["same-spelling"] / len(basque) < 0.5
    for item in basque.values():
        assert all(c == c.strip() != "" for c in item.candidates)
        assert right(item) not in item.question
    for lang in ("ar", "fr", "ru", "zh"):
        assert len(real(questions.capitals, lang, CACHE)) >= 160


@pytest.mark.real
def test_real_continuations() -> None:
    held_out = packages.split(real(packages.libreoffice_help, "eu", CACHE))["validation"]
    items = questions.continuations(held_out, per_page=3)
    assert len(items) >= 200
    mean, error = mean_rank(items)
    assert abs(mean - 1.5) < 4 * error
    texts = {d.id: d.text.split("\n") for d in held_out}
    for item in items:
        paragraphs = texts[item.id.removeprefix("continuations/").rsplit("/", 1)[0]]
        assert [c in paragraphs for c in item.candidates] == [n == item.answer for n in range(4)]
        places = [paragraphs.index(p) for p in [*item.question.split("\n"), right(item)]]
        assert places == sorted(places)
