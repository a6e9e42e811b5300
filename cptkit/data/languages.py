"""Invented languages: a lexicon, a grammar and a morphology, at a chosen similarity to the first one.

`similarity` in [0, 1] is the share of cognates and of shared grammar. Every word and every grammatical
feature has its own fixed threshold and is taken from the first language when the similarity exceeds it,
so a language of similarity 0.5 contains all that one of 0.3 shares, and more. This is the analogue of
French, Russian and Chinese seen from English (arXiv 2407.02118, Fig. 3).

A clause has agreement (verb with its subject's number, adjective with its noun's class), an optional
relative clause and a preposition or postposition phrase, so that its grammar takes many tokens to learn.
"""

from __future__ import annotations

import random
import zlib
from dataclasses import dataclass
from functools import cached_property

ONSETS = {
    "l1": tuple("bdfgklmnprstv"),
    "other": ("h", "j", "z", "ts", "tx", "rr", "ll", "ks", "dz", "x", "zh", "nd", "mb"),
}
VOWELS = {"l1": tuple("aeiou"), "other": (*"aeiou", "ai", "au", "ei")}
CODAS = {"l1": ("", "", "", "n", "r", "s", "l"), "other": ("", "", "k", "z", "n", "tz")}

FEATURES = ("order", "adjective", "genitive", "adposition", "relative")
SUFFIXES = {  # name: (first language, any other language)
    "plural": ("s", "ek"),
    "verb": ("a", "uz"),
    "verb_plural": ("an", "uzte"),
    "class0": ("o", "ix"),
    "class1": ("e", "ax"),
    "object": ("", "tza"),
    "possessor": ("", "ren"),
    "value": ("", "da"),
}


def unit_hash(*parts: object) -> float:
    """A number in [0, 1) that depends on `parts` alone, on every machine and in every process."""
    return zlib.crc32("|".join(map(str, parts)).encode()) / 2**32


@dataclass(frozen=True)
class Language:
    """One language. `code` "l1" is the first; any other code is its own language at `similarity` to it."""

    code: str
    similarity: float
    seed: int

    def __post_init__(self) -> None:
        if not 0 <= self.similarity <= 1:
            raise ValueError(f"similarity must lie in [0, 1], not {self.similarity}")

    def shares(self, *what: object) -> bool:
        """Whether this language takes `what` (a concept, a feature, a suffix) from the first one."""
        return self.code == "l1" or unit_hash(self.seed, self.code, "share", *what) < self.similarity

    def lexicon(self, concepts: list[str]) -> dict[str, str]:
        """Stems for `concepts`: one each, distinct, cognates spelt as in the first language."""
        first = _coin(concepts, "l1", self.seed, syllables=2, taken=set())
        if self.code == "l1":
            return first
        own = _coin(concepts, self.code, self.seed, syllables=2, taken=set(first.values()))
        return {c: first[c] if self.shares("word", c) else own[c] for c in concepts}

    @cached_property
    def suffix(self) -> dict[str, str]:
        # A suffix the first language lacks is a difference of grammar: it goes when that is shared.
        return {name: pair[0] if self.shares("suffix", name) else pair[1] for name, pair in SUFFIXES.items()}

    @cached_property
    def grammar(self) -> dict[str, bool]:
        """Feature -> whether it is as in the first language.

        Thresholds are spread evenly here, not hashed: with five features chance alone could leave a
        language of similarity 0 or 0.5 with all of them or none.
        """
        ranked = sorted(FEATURES, key=lambda f: unit_hash(self.seed, self.code, "feature", f))
        cut = {f: (k + 0.5) / len(FEATURES) for k, f in enumerate(ranked)}
        return {f: self.code == "l1" or cut[f] < self.similarity for f in FEATURES}

    def noun_phrase(self, noun: str, adjective: str | None, plural: bool, klass: int) -> str:
        s = self.suffix
        head = noun + s["plural"] if plural else noun
        if adjective is None:
            return head
        modifier = adjective + s["class1" if klass else "class0"]
        return f"{modifier} {head}" if self.grammar["adjective"] else f"{head} {modifier}"

    def clause(
        self, subject: str, verb: str, plural: bool, obj: str, place: str = "", place_word: str = ""
    ) -> str:
        s = self.suffix
        verb = verb + s["verb_plural" if plural else "verb"]
        if place:
            place = f" {place_word} {place}" if self.grammar["adposition"] else f" {place} {place_word}"
        obj = obj + s["object"]
        return f"{subject} {verb} {obj}{place}" if self.grammar["order"] else f"{subject}{place} {obj} {verb}"

    def with_relative(self, noun_phrase: str, that: str, verb: str, plural: bool, obj: str) -> str:
        """`NP that V obj`, or `obj V that NP` in a language whose relative clause precedes its noun."""
        verb = verb + self.suffix["verb_plural" if plural else "verb"]
        inner = f"{verb} {obj}" if self.grammar["order"] else f"{obj} {verb}"
        return (
            f"{noun_phrase} {that} {inner}" if self.grammar["relative"] else f"{inner} {that} {noun_phrase}"
        )

    def attribute(self, relation: str, possessor: str, of: str) -> str:
        """`relation of possessor`, or `possessor-ren relation`."""
        possessor = possessor + self.suffix["possessor"]
        return f"{relation} {of} {possessor}" if self.grammar["genitive"] else f"{possessor} {relation}"

    def value(self, stem: str) -> str:
        return stem + self.suffix["value"]


def _coin(concepts: list[str], code: str, seed: int, syllables: int, taken: set[str]) -> dict[str, str]:
    """Distinct words for `concepts` by the phonology of `code`, none of them in `taken`."""
    rng = random.Random(f"{seed}/lexicon/{code}")
    kind = "l1" if code == "l1" else "other"
    onsets, vowels, codas = ONSETS[kind], VOWELS[kind], CODAS[kind]
    taken, words = set(taken), {}
    for concept in concepts:
        while True:
            n = syllables + (rng.random() < 0.35)
            word = "".join(rng.choice(onsets) + rng.choice(vowels) for _ in range(n)) + rng.choice(codas)
            if word not in taken:
                break
        taken.add(word)
        words[concept] = word
    return words
