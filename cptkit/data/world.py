"""The lab world: facts, two invented languages that tell them, and documents, all from one seed.

Nothing is downloaded and any size can be made, at 3 to 4 MB of text a second on one core. What it models:

- **Facts.** `(entity, relation) -> value`. Entities belong to one of 11 topics; their frequency follows a
  power law, so a loss curve has a long tail and a scaling law has something to fit.
- **Languages** (`languages.py`). `l1` stands for English; any other code is a target at `similarity`.
- **Kinds of document.** `l1`: prose, question-answer lists and pattern lists (`patterns.py`). Any other
  language: prose only. So in-context learning is something the base model has and the target text does
  not teach. That is the modelled assumption, not a finding.
- **Held out.** Validation documents come from their own stream. A quarter of the facts is never asked in
  question form in any language (`asked`): multiple choice is about those. A share of the entities is
  *local*: target-language text alone speaks of them, as Basque text does of Basque matters.
- **Fair questions.** Entities come in blocks of four neighbours in frequency. In a block the four values of
  a relation differ, and its four questions offer the same four values: whoever answers by the frequency
  of a word, not by knowing the fact, scores exactly one quarter.

Everything is a pure function of the parameters, the language, the split and the seed. `VERSION` enters
every fingerprint and must change when the text does.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import random
from bisect import bisect
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cache, cached_property, lru_cache

from cptkit.data.documents import ChoiceItem, DataError, Document
from cptkit.data.languages import Language, unit_hash
from cptkit.data.patterns import pattern_list

VERSION = 1
TOPICS = ("physics", "biology", "medicine", "law", "history", "geography",
          "computing", "finance", "psychology", "arts", "sports")  # fmt: skip
GENERAL = "general"  # the topic of words that every topic uses
FORMS = ("question", "cloze")
BLOCK = 4


@dataclass(frozen=True)
class World:
    """Parameters of one world. Equal parameters give equal text, on every machine.

    `similarity` is that of every language but `l1`; `pattern_share` and `question_share` are shares of the
    documents of `l1`, the rest is prose.
    """

    seed: int = 0
    similarity: float = 0.3
    entities: int = 16
    relations: int = 4
    values: int = 8
    nouns: int = 40
    verbs: int = 12
    adjectives: int = 10
    pattern_share: float = 0.35
    question_share: float = 0.2
    unasked_share: float = 0.25
    local_share: float = 0.25

    def __post_init__(self) -> None:
        if self.entities % BLOCK or self.values < BLOCK:
            raise DataError(f"entities come in blocks of {BLOCK}, which need as many values")

    @property
    def fingerprint(self) -> str:
        return hashlib.sha256(json.dumps([VERSION, asdict(self)]).encode()).hexdigest()[:16]

    # ---- concepts and facts -------------------------------------------------------------------------

    @cached_property
    def concepts(self) -> list[str]:
        kinds = {"noun": self.nouns, "verb": self.verbs, "adjective": self.adjectives}
        names = [f"{k}/{t}/{i}" for t in (GENERAL, *TOPICS) for k, n in kinds.items() for i in range(n)]
        for t in TOPICS:
            names += [f"entity/{t}/{i}" for i in range(self.entities)]
            names += [f"relation/{t}/{i}" for i in range(self.relations)]
            names += [f"value/{t}/{r}/{v}" for r in range(self.relations) for v in range(self.values)]
        return names + [f"word/{w}" for w in ("the", "of", "is", "its", "that", "when", "in", "with", "then")]

    def block_values(self, topic: str, block: int, relation: int) -> list[int]:
        """The values, indices below `values` and all different, of one relation over a block of entities."""
        rng = random.Random(f"{self.seed}/fact/{topic}/{block}/{relation}")
        return rng.sample(range(self.values), BLOCK)

    def fact(self, topic: str, entity: int, relation: int) -> int:
        """The value of one fact."""
        return self.block_values(topic, entity // BLOCK, relation)[entity % BLOCK]

    def asked(self, topic: str, entity: int, relation: int) -> bool:
        """Whether source-language text may ask this fact in question form."""
        return unit_hash(self.seed, "asked", topic, entity // BLOCK, relation) >= self.unasked_share

    def local(self, topic: str, entity: int) -> bool:
        """Whether target-language text alone speaks of this entity."""
        return unit_hash(self.seed, "local", topic, entity // BLOCK) < self.local_share

    @lru_cache(maxsize=8)  # noqa: B019 - a handful of languages per world, and worlds are few and small
    def voice(self, lang: str) -> Voice:
        return Voice(self, Language(lang, 1.0 if lang == "l1" else self.similarity, self.seed))

    # ---- documents ----------------------------------------------------------------------------------

    def documents(
        self, lang: str, split: str = "train", *, megabytes: float | None = None, kind: str | None = None
    ) -> Iterator[Document]:
        """Documents of one language; `split` names an independent stream ("train", "validation", ...).

        `megabytes` (of UTF-8 text, 1e6 bytes) bounds the stream, which is endless without it. `kind`
        restricts it to "prose", "questions" or "patterns"; a target language has prose alone.
        """
        if lang != "l1" and kind not in (None, "prose"):
            raise DataError(f"{lang} has prose only: the target text of this world teaches no {kind}")
        rng = random.Random(f"{self.fingerprint}/{lang}/{split}/{kind}")
        voice, left = self.voice(lang), float("inf") if megabytes is None else megabytes * 1e6
        for n in itertools.count():
            if left <= 0:
                return
            topic = TOPICS[voice.pick_topic(rng)]
            u = rng.random()
            chosen = kind or (
                "prose"
                if lang != "l1" or u >= self.pattern_share + self.question_share
                else "patterns"
                if u < self.pattern_share
                else "questions"
            )
            if chosen == "patterns":
                text, topic = pattern_list(rng), ""
            else:
                text = voice.prose(topic, rng) if chosen == "prose" else voice.questions(topic, rng)
            left -= len(text)  # the invented alphabets are ASCII: characters are bytes
            yield Document(text, f"world/{lang}/{split}/{n}", lang, chosen, topic)

    # ---- questions ----------------------------------------------------------------------------------

    def choices(self, lang: str, count: int, form: str = "question", seed: int = 0) -> list[ChoiceItem]:
        """`count` four-way questions about facts never asked anywhere, in `lang`.

        `form` "question" is the layout of the source language's question lists (`? ... :`), which target
        text never shows; "cloze" is the beginning of a prose sentence. `group` is "shared" for facts that
        both languages tell and "local" for those that target text alone tells. Distractors are other
        values of the same relation, spelt in the language, and whole blocks are
        asked: `count` is rounded down to a multiple of four.
        """
        count -= count % BLOCK
        if form not in FORMS:
            raise DataError(f"unknown form {form!r}: one of {', '.join(FORMS)}")
        rng = random.Random(f"{self.seed}/choices/{seed}")  # the same facts in every language and form
        facts = [f for f in self._facts() if not self.asked(*f) and (lang != "l1" or not self.local(*f[:2]))]
        # Frequent entities first: a fact of the long tail has been told once or never at this scale.
        facts = sorted(facts, key=lambda f: (f[1] // BLOCK, f[0], f[2]))[:count]
        return [self._item(lang, form, fact, rng) for fact in rng.sample(facts, len(facts))]

    def shots(self, lang: str, count: int, form: str = "question", seed: int = 0) -> list[ChoiceItem]:
        """Solved examples in `lang` about facts that may be asked, so never one of `choices`."""
        rng = random.Random(f"{self.seed}/shots/{seed}")
        facts = [f for f in self._facts() if self.asked(*f) and not self.local(*f[:2]) and f[1] < 8]
        return [self._item(lang, form, fact, rng) for fact in rng.sample(facts, count)]

    def _facts(self) -> list[tuple[str, int, int]]:
        return [(t, e, r) for t in TOPICS for e in range(self.entities) for r in range(self.relations)]

    def _item(self, lang: str, form: str, fact: tuple[str, int, int], rng: random.Random) -> ChoiceItem:
        topic, entity, relation = fact
        voice, right = self.voice(lang), self.fact(*fact)
        values = self.block_values(topic, entity // BLOCK, relation)
        rng.shuffle(values)
        ask = voice.question if form == "question" else voice.statement_opening
        group = "local" if self.local(topic, entity) else "shared"
        return ChoiceItem(
            question=ask(topic, entity, relation),
            candidates=tuple(voice.value(topic, relation, v) for v in values),
            answer=values.index(right),
            id=f"{topic}/{entity}/{relation}",
            group=group,
        )


class Voice:
    """A world told in one language: the words of its concepts, and sentences made of them."""

    def __init__(self, world: World, language: Language) -> None:
        self.world, self.language = world, language
        words = language.lexicon(world.concepts)
        self.word = {c.split("/")[1]: w for c, w in words.items() if c.startswith("word/")}
        self._lexicon: dict[str, dict[str, list[str]]] = {}
        for concept, word in words.items():
            kind, topic, *_ = concept.split("/")
            if kind != "word":
                self._lexicon.setdefault(kind, {}).setdefault(topic, []).append(word)
        self._values = {
            (t, r): [language.value(words[f"value/{t}/{r}/{v}"]) for v in range(world.values)]
            for t in TOPICS
            for r in range(world.relations)
        }
        self._entity = self._lexicon["entity"]
        self._relation = self._lexicon["relation"]
        of = self.word["of"]
        self._attribute = {
            (t, r): [language.attribute(self._relation[t][r], e, of) for e in self._entity[t]]
            for t in TOPICS
            for r in range(world.relations)
        }
        # Each verb takes few objects, the same few in every language: meaning, to be learnt and transferred.
        self._objects = {
            (t, v): [int(unit_hash(world.seed, "object", t, v, k) * world.nouns) for k in range(5)]
            for t in (GENERAL, *TOPICS)
            for v in range(world.verbs)
        }
        self._topic_law = _power_law(len(TOPICS), 0.5)
        self._entity_law = _power_law(world.entities, 1.0)
        self._noun_law = _power_law(world.nouns, 1.0)
        self._verb_law = _power_law(world.verbs, 0.7)
        self._local = {t: [world.local(t, e) for e in range(world.entities)] for t in TOPICS}

    def pick_topic(self, rng: random.Random) -> int:
        return bisect(self._topic_law, rng.random())

    def value(self, topic: str, relation: int, value: int) -> str:
        return self._values[topic, relation][value]

    def question(self, topic: str, entity: int, relation: int) -> str:
        return f"? {self._attribute[topic, relation][entity]} :"

    def statement_opening(self, topic: str, entity: int, relation: int) -> str:
        is_ = self.word["is"]
        return f"{self.word['the']} {self._attribute[topic, relation][entity]} {is_}"

    def prose(self, topic: str, rng: random.Random) -> str:
        """One document about one entity of `topic`: about two thirds of its sentences tell facts."""
        entity = self._pick_entity(topic, rng)
        name, word, random_ = self._entity[topic][entity], self.word, rng.random
        out, relations = [], self.world.relations
        first = int(random_() * relations)
        for n in range(rng.randint(4, 9)):
            u = random_()
            relation = (first + n) % relations  # a document repeats itself little
            if u < 0.38 or n == 0:
                value = self._values[topic, relation][self.world_fact(topic, entity, relation)]
                out.append(f"{self.statement_opening(topic, entity, relation)} {value} .")
            elif u < 0.52:
                # The possessor stands sentences back: what is told can be learnt only by reading on.
                value = self._values[topic, relation][self.world_fact(topic, entity, relation)]
                out.append(f"{word['its']} {self._relation[topic][relation]} {word['is']} {value} .")
            elif u < 0.62:
                other = self._pick_entity(topic, rng)
                value = self._values[topic, relation][self.world_fact(topic, other, relation)]
                out.append(f"{self.statement_opening(topic, other, relation)} {value} .")
            elif u < 0.67:
                out.append(
                    f"{word['when']} {self._clause(topic, rng)} {word['then']} {self._clause(topic, rng)} ."
                )
            elif u < 0.79:
                out.append(f"{self._clause(topic, rng, subject=name)} .")
            else:
                out.append(f"{self._clause(topic, rng)} .")
        return " ".join(out)

    def questions(self, topic: str, rng: random.Random) -> str:
        """One list of questions with answers, about facts that may be asked."""
        rows = []
        while len(rows) < 6:
            entity, relation = self._pick_entity(topic, rng), int(rng.random() * self.world.relations)
            if self.world.asked(topic, entity, relation):
                value = self._values[topic, relation][self.world_fact(topic, entity, relation)]
                rows.append(f"{self.question(topic, entity, relation)} {value} ;")
        return " ".join(rows)

    @cache  # noqa: B019 - bounded by the number of facts
    def world_fact(self, topic: str, entity: int, relation: int) -> int:
        return self.world.fact(topic, entity, relation)

    def _pick_entity(self, topic: str, rng: random.Random) -> int:
        while True:
            entity = bisect(self._entity_law, rng.random())
            if self.language.code != "l1" or not self._local[topic][entity]:
                return entity

    def _clause(self, topic: str, rng: random.Random, subject: str | None = None) -> str:
        random_, language = rng.random, self.language
        source = GENERAL if random_() < 0.25 else topic
        verb = bisect(self._verb_law, random_())
        obj = self._objects[source, verb][int(random_() ** 2 * 5)]
        plural = subject is None and random_() < 0.35
        if subject is None:
            noun = bisect(self._noun_law, random_())
            subject = self._noun_phrase(topic, noun, plural, rng)
            if random_() < 0.2:
                inner = bisect(self._verb_law, random_())
                inner_obj = self._lexicon["noun"][topic][self._objects[topic, inner][0]]
                subject = language.with_relative(
                    subject, self.word["that"], self._lexicon["verb"][topic][inner], plural, inner_obj
                )
        place = ""
        if random_() < 0.3:
            place = self._lexicon["noun"][GENERAL][bisect(self._noun_law, random_())]
        return language.clause(
            subject, self._lexicon["verb"][source][verb], plural,
            self._noun_phrase(source, obj, False, rng), place, self.word["in"],
        )  # fmt: skip

    def _noun_phrase(self, topic: str, noun: int, plural: bool, rng: random.Random) -> str:
        adjective = None
        if rng.random() < 0.4:
            adjective = self._lexicon["adjective"][topic][int(rng.random() ** 2 * self.world.adjectives)]
        # A noun's class is a property of its meaning here, so that agreement can transfer.
        return self.language.noun_phrase(self._lexicon["noun"][topic][noun], adjective, plural, noun % 2)


def _power_law(n: int, exponent: float) -> list[float]:
    """Cumulative probabilities of ranks 0..n-1, proportional to (rank + 1) ** -exponent."""
    weights = [(k + 1) ** -exponent for k in range(n)]
    total = sum(weights)
    cumulative = list(itertools.accumulate(w / total for w in weights))
    return cumulative[:-1]  # bisect over n-1 inner edges yields 0..n-1, whatever rounding does at 1.0
