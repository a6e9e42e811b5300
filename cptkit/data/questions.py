"""Real questions with four answers: capitals of countries, and what comes next on a help page.

`capitals` asks for facts that an English model may know already, so it measures whether knowledge can be
reached in the new language. The facts, the names of the cities and the wording of the question are those of
the game KGeography (GPL-2+), as its translators wrote them, slips included; names of countries are those of
CLDR where the country is found there, because some of the game's are not standard. Many names are spelt as
in English (in Basque 4 of 10 countries), which makes an item easy for the wrong reason: `group` keeps the
two kinds apart.

`continuations` is made from held-out text of the training domain: given three paragraphs of a page,
which of four paragraphs of like length, all from the same module of the help, is the next one?

Capital items have the same order, facts and distractors in every language (where the names are translated),
so that scores can be compared item by item. Cost: well under a second each; the game's data are a download
of 11 MB, once.
"""

from __future__ import annotations

import random
import re
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable
from difflib import SequenceMatcher
from itertools import islice
from pathlib import Path
from xml.etree import ElementTree

from cptkit.data.documents import ChoiceItem, DataError, Document
from cptkit.data.packages import fetch, page_of

#: language -> (catalogue of the game, own wording of the question)
CAPITALS = {
    "en": (None, "What is the capital of {}?"),
    "eu": ("eu", "Zein da {} herrialdearen hiriburua?"),
    "ar": ("ar", "ما هي عاصمة {}؟"),
    "fr": ("fr", "Quelle est la capitale du pays suivant : {} ?"),
    "ru": ("ru", "Как называется столица страны {}?"),
    "zh": ("zh_CN", "{}的首都是哪里？"),
}
MAPS = ("africa", "asia", "europe", "southamerica", "oceania", "caribbean", "world")
GAME_WORDING = "The capital of %1 is..."


def capitals(lang: str, cache: Path, seed: int = 0, wording: str = "game") -> list[ChoiceItem]:
    """What is the capital of each country? About 200 items with one right and three wrong capitals.

    `wording` is "game" (an opening that the answer completes, in the words of the game's translators) or
    "plain" (a full question). Groups: "same-spelling" and "different-spelling", by the country's name against
    English. Left out: capitals that look like their country in English (Kuwait City), and a second country
    for the same capital (the game has some countries under two names).
    Raises `DataError` for a language that the game lacks, a missing package or a missing `[real]` extra.
    """
    if lang not in CAPITALS:
        raise DataError(f"no capitals in {lang!r}; the game has {', '.join(CAPITALS)}")
    if wording not in ("game", "plain"):
        raise DataError(f"wording {wording!r} is neither 'game' nor 'plain'")
    try:
        import polib
        from babel import Locale
    except ImportError as error:
        raise DataError(f"capital questions need {error.name}: pip install 'cptkit[real]'") from None

    share = fetch("kgeography-data", cache) / "usr/share"
    facts = _facts(share / "kgeography")
    catalogue, plain = CAPITALS[lang]
    if catalogue:
        file = polib.mofile(str(share / f"locale/{catalogue}/LC_MESSAGES/kgeography.mo"))
        words = {(e.msgctxt, e.msgid): e.msgstr for e in file if e.msgstr}
    else:
        words = {(f"{where}.kgm", name): name for c, (where, city) in facts.items() for name in (c, city)}
        words["@title:group", GAME_WORDING] = GAME_WORDING
    opening = words["@title:group", GAME_WORDING].rstrip(" .…").replace("%1", "{}")
    english, local = Locale("en").territories, Locale(lang).territories
    codes = {_plain_name(name): code for code, name in english.items() if code.isalpha()}

    names: dict[str, tuple[str, str]] = {}  # country in English -> country, capital in the language
    for country, (where, city) in facts.items():
        asked, answer = words.get((f"{where}.kgm", country)), words.get((f"{where}.kgm", city))
        if asked and answer:
            names[country] = (local.get(codes.get(_plain_name(country)), asked), answer.strip())

    # Drawn over all countries, so that a country not translated here does not change the others' items.
    order = sorted(facts)
    random.Random(f"capitals/{seed}").shuffle(order)
    items = []
    for country in order:
        if country not in names:
            continue
        rng = random.Random(f"capitals/{seed}/{country}")
        asked, answer = names[country]
        candidates = [answer]
        for other in rng.sample(sorted(facts), len(facts)):
            if len(candidates) == 4:
                break
            if other in names and names[other][1] not in candidates:
                candidates.append(names[other][1])
        place = rng.randrange(4)
        candidates[0], candidates[place] = candidates[place], candidates[0]
        code = codes.get(_plain_name(country))
        same = asked.casefold() in (country.casefold(), english.get(code, country).casefold())
        question = (opening if wording == "game" else plain).format(asked)
        group = "same-spelling" if same else "different-spelling"
        items.append(ChoiceItem(question, tuple(candidates), place, f"capitals/{lang}/{country}", group))
    return items


def _facts(folder: Path) -> dict[str, tuple[str, str]]:
    """{country: (map, capital)} in the game's English."""
    facts: dict[str, tuple[str, str]] = {}
    for where in MAPS:
        for division in ElementTree.parse(folder / f"{where}.kgm").getroot().iter("division"):
            country, city = division.findtext("name"), division.findtext("capital")
            if country and city and city != "None" and country not in facts:
                facts[country] = (where, city)
    cities: set[str] = set()
    kept = {}
    for country, (where, city) in facts.items():
        looks_like_it = SequenceMatcher(None, country.casefold(), city.casefold()).ratio() >= 0.6
        if not looks_like_it and city not in cities:
            cities.add(city)
            kept[country] = (where, city)
    return kept


def _plain_name(country: str) -> str:
    """A form in which the game's and CLDR's English names of a country are equal, for most countries."""
    name = re.sub(r" \(.*\)$", "", country.casefold()).removeprefix("the ")
    return name.replace("saint ", "st. ").replace(" and ", " & ").replace("’", "'")


def continuations(
    documents: Iterable[Document], seed: int = 0, per_page: int = 1, min_chars: int = 40, context: int = 3
) -> list[ChoiceItem]:
    """Which paragraph comes next? From held-out pages, at most `per_page` items each, that do not overlap.

    Paragraphs under `min_chars` characters (labels, names of commands) are passed over. The three wrong ones
    come from other pages of the same topic and are drawn from the closest in length, at most half as long
    again or a third shorter; where there are not three, there is no item. `group` is the topic.
    Raises `DataError` when no page gives an item.
    """
    pages = []
    pool: dict[str, list[tuple[int, str, str]]] = defaultdict(list)  # topic -> (length, paragraph, page)
    for document in documents:
        paragraphs = [p for p in document.text.split("\n") if len(p) >= min_chars]
        pages.append((document, paragraphs))
        pool[document.topic] += [(len(p), p, document.id) for p in paragraphs]
    for entries in pool.values():
        entries.sort()

    items = []
    for document, paragraphs in pages:
        rng = random.Random(f"continuations/{seed}/{page_of(document)}")
        starts = list(range(0, len(paragraphs) - context, context + 1))
        for start in sorted(rng.sample(starts, min(per_page, len(starts)))):
            right = paragraphs[start + context]
            shorter, longer = _neighbours(pool[document.topic], right, document.id)
            # As often the shortest as the longest or in between, so that lengths tell nothing.
            rank = rng.randrange(4)
            if rank > len(shorter) or 3 - rank > len(longer):
                continue
            candidates = [right, *rng.sample(shorter, rank), *rng.sample(longer, 3 - rank)]
            rng.shuffle(candidates)
            items.append(
                ChoiceItem(
                    "\n".join(paragraphs[start : start + context]),
                    tuple(candidates),
                    candidates.index(right),
                    f"continuations/{document.id}/{start}",
                    document.topic,
                )
            )
    if not items:
        raise DataError(
            f"no continuation item: of {len(pages)} pages none has {context + 1} paragraphs of {min_chars} "
            f"characters and three others of like length in its topic"
        )
    return items


def _neighbours(
    entries: list[tuple[int, str, str]], right: str, page: str, count: int = 4
) -> tuple[list[str], list[str]]:
    """Paragraphs of other pages: up to `count` that are the next shorter, and as many the next longer."""

    def nearest(side: Iterable[tuple[int, str, str]]) -> list[str]:
        fitting = (p for n, p, where in side if where != page and 2 * len(right) <= 3 * n <= 4.5 * len(right))
        return list(islice(dict.fromkeys(fitting), count))

    at = bisect_left(entries, (len(right), right, ""))
    others = (entry for entry in entries[at:] if entry[1] != right)
    return nearest(reversed(entries[:at])), nearest(others)
