"""Pairs of texts that say the same in two languages: held-out help paragraphs, and facts of the lab world.

A help paragraph is paired by its page and its id, which translators keep. Kept are paragraphs of at least
`least` English words that are translated, of pages on the asked side of the split: the same side in which
their pages are held out from training (`packages.side`).

Cost: parsing both packages, some 6 s; a second call in one process reads them again.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path

from cptkit.data import packages
from cptkit.data.documents import DataError
from cptkit.data.world import TOPICS, World


@dataclass(frozen=True, slots=True)
class Translated:
    """One text in two languages; `id` says where it stands."""

    source: str
    target: str
    id: str


def help_paragraphs(
    lang: str,
    cache: Path,
    *,
    split: str = "validation",
    validation: float = 0.1,
    test: float = 0.0,
    least: int = 8,
    longest: int = 60,
) -> list[Translated]:
    """English and `lang` paragraphs of the LibreOffice help, in page order, each English text once.

    Raises DataError for a language that the help lacks.
    """
    if lang not in packages.LIBREOFFICE_HELP or lang == "en":
        known = ", ".join(code for code in packages.LIBREOFFICE_HELP if code != "en")
        raise DataError(f"no help text in {lang!r} to pair with English; there are {known}")
    english, other = (_by_place(code, cache) for code in ("en", lang))
    found, seen = [], set()
    for (page, place), text in english.items():
        told = other.get((page, place))
        words = len(packages.WORD.findall(text))
        if told is None or told == text or text in seen or not least <= words <= longest:
            continue
        if packages.side(f"libreoffice_help/{page}", validation, test) == split:
            seen.add(text)
            found.append(Translated(text, told, f"{page}#{place}"))
    return found


def _by_place(lang: str, cache: Path) -> dict[tuple[str, str], str]:
    """(page, id of the paragraph) -> its text."""
    package, folder = packages.LIBREOFFICE_HELP[lang]
    root = packages.fetch(package, cache) / "usr/share/libreoffice/help" / folder / "text"
    found = {}
    for path in sorted(root.rglob("*.html")):
        page = path.relative_to(root).as_posix().removesuffix(".html")
        for place, text in packages.help_places(packages.parsed(path)):
            found.setdefault((page, place), text)
    return found


def facts(world: World, lang: str, count: int, seed: int = 0) -> list[Translated]:
    """Statements of facts that both languages tell, in the source language and in `lang`."""
    source, target, rng = world.voice("l1"), world.voice(lang), random.Random(f"{seed}/parallel")
    every = [
        (topic, e, r)
        for topic in TOPICS
        for e in range(world.entities)
        for r in range(world.relations)
        if not world.local(topic, e)
    ]
    return [
        Translated(_told(source, fact), _told(target, fact), "/".join(map(str, fact)))
        for fact in rng.sample(every, min(count, len(every)))
    ]


def _told(voice, fact: tuple[str, int, int]) -> str:
    topic, _, relation = fact
    value = voice.value(topic, relation, voice.world.fact(*fact))
    return f"{voice.statement_opening(*fact)} {value} ."
