"""Language-free lists: in-context rules over numbers and letters, to be replayed instead of English.

If what continued pretraining loses is in-context learning and not English, text without a word of any
language may keep it. A document is one hidden rule over short lists, line after line, as in the lab's pattern
lists; but no rule here is one of Copain's seven, or can be put together from order or parity, which all seven
are made of. Rules copy, move, drop, repeat, count and look up; many answer with a whole list.

`agreement` and `shown` are the check of that: the share of Copain's items that a rule here would answer
alike, and the items of Copain that stand, list and answer, in a text (none, with `keep_out`).

Cost: about 3 MB of text a second on one core.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import random
import string
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field

from cptkit.data.copain_items import generate
from cptkit.data.documents import DataError, Document

VERSION = 1
Rule = Callable[[Sequence[str], "Draw"], Sequence[str]]


@dataclass(frozen=True)
class Draw:
    """What one document fixes: a position, a shift, a mapping of the alphabet onto itself, a constant."""

    position: int
    shift: int
    mapping: dict[str, str]
    constant: str


RULES: dict[str, Rule] = {
    "element_at": lambda e, d: [e[d.position]],
    "all_but_element_at": lambda e, d: [*e[: d.position], *e[d.position + 1 :]],
    "copy": lambda e, d: e,
    "reverse": lambda e, d: e[::-1],
    "rotate": lambda e, d: [*e[d.shift :], *e[: d.shift]],
    "swap_ends": lambda e, d: [e[-1], *e[1:-1], e[0]],
    "swap_first_two": lambda e, d: [e[1], e[0], *e[2:]],
    "ends": lambda e, d: [e[0], e[-1]],
    "inner": lambda e, d: e[1:-1],
    "double_first": lambda e, d: [e[0], *e],
    "double_each": lambda e, d: [x for x in e for _ in (0, 1)],
    "append_constant": lambda e, d: [*e, d.constant],
    "replace_at": lambda e, d: [*e[: d.position], d.constant, *e[d.position + 1 :]],
    "count": lambda e, d: [str(len(e))],
    "map_each": lambda e, d: [d.mapping[x] for x in e],
    "map_element_at": lambda e, d: [d.mapping[e[d.position]]],
    "repeated": lambda e, d: [next(x for x in e if e.count(x) == 2)],
    "unrepeated": lambda e, d: [x for x in e if e.count(x) == 1],
    "other_kind": lambda e, d: [next(x for x in e if x.isalpha() != e[-1].isalpha())],
    "position_of_repeated": lambda e, d: [str(1 + next(i for i, x in enumerate(e) if e.count(x) == 2))],
}
"""Families of rules, none of which compares or orders elements, or asks for their parity."""
REPEATING = ("repeated", "unrepeated", "position_of_repeated")

FORMATS = {  # between elements, before the answer, after a line
    "lab": ((" ", " > ", " ; "),),
    "mixed": tuple(itertools.product((", ", " ", " | "), (" -> ", " = ", ": ", " => "), ("\n", "; "))),
}


@dataclass(frozen=True)
class Lists:
    """One stream of such documents.

    `families` names rules (empty: all), `high` the largest number (9 or 99, as in the Copain that is asked),
    `format` "lab" (the lab's own line) or "mixed" (separators drawn anew for each document). `keep_out` are
    arguments of `copain_items.generate` (seed, per_task, low, high): no line shows one of those items, list
    and answer.
    """

    seed: int = 0
    families: tuple[str, ...] = ()
    high: int = 9
    format: str = "lab"
    keep_out: dict[str, int] = field(default_factory=dict)
    lines: tuple[int, int] = (8, 16)

    def __post_init__(self) -> None:
        object.__setattr__(self, "families", tuple(self.families))
        object.__setattr__(self, "lines", tuple(self.lines))
        if unknown := set(self.families) - set(RULES):
            raise DataError(f"lists: unknown families {sorted(unknown)}; known: {', '.join(RULES)}")
        if self.format not in FORMATS or self.high < 9:
            raise DataError(f"lists: format is one of {', '.join(FORMATS)}, high at least 9")

    @property
    def fingerprint(self) -> str:
        return hashlib.sha256(json.dumps([VERSION, asdict(self)]).encode()).hexdigest()[:16]

    def documents(self, split: str = "train", *, megabytes: float | None = None) -> Iterator[Document]:
        """Documents of one stream per `split`; endless without `megabytes` (10^6 bytes)."""
        kept = generate(**self.keep_out) if self.keep_out else []
        avoid = frozenset((item.elements, item.target) for item in kept)
        rng = random.Random(f"{self.fingerprint}/{split}")
        left = float("inf") if megabytes is None else megabytes * 1e6
        for n in itertools.count():
            if left <= 0:
                return
            name = rng.choice(self.families or tuple(RULES))
            text = self._document(name, rng, avoid)
            left -= len(text)
            yield Document(text, f"lists/{split}/{n}", "zxx", name)

    def _document(self, name: str, rng: random.Random, avoid: frozenset) -> str:
        between, before, after = rng.choice(FORMATS[self.format])
        numbers = [str(n) for n in range(self.high + 1)]
        alphabet = rng.choice((numbers, list(string.ascii_lowercase)))
        length = rng.choice((3, 4))
        image = rng.sample(alphabet, len(alphabet))
        draw = Draw(
            rng.randrange(length),
            rng.randrange(1, length),
            dict(zip(alphabet, image, strict=True)),
            rng.choice(alphabet),
        )
        rows: list[str] = []
        wanted = rng.randint(*self.lines)
        if name.startswith("map"):  # few enough symbols that their images have been seen
            alphabet = rng.sample(alphabet, length + 2)
        while len(rows) < wanted:  # ends: a rule that moves or maps has far more lists than Copain has items
            elements = self._elements(name, alphabet, length, rng)
            answer = RULES[name](elements, draw)
            if (tuple(elements), between.join(answer)) not in avoid:
                rows.append(between.join(elements) + before + between.join(answer))
        return after.join(rows) + after.rstrip(" ")

    def _elements(self, name: str, alphabet: list[str], length: int, rng: random.Random) -> list[str]:
        if name == "count":
            return rng.sample(alphabet, rng.randint(2, 6))
        if name in REPEATING:
            elements = rng.sample(alphabet, length - 1)
            elements.append(rng.choice(elements))
        elif name == "other_kind":
            letters = alphabet[0].isalpha()
            elements = rng.sample(alphabet, length - 1)
            odd = rng.choice(string.digits if letters else string.ascii_lowercase)
            elements.insert(rng.randrange(length - 1), odd)  # never last: the last says what is usual
            return elements
        else:
            return rng.sample(alphabet, length)
        rng.shuffle(elements)
        return elements


def agreement(items: Sequence[tuple[Sequence[str], str]]) -> dict[str, float]:
    """Per family, the largest share of `items` (elements, answer) that it answers alike, whatever it fixes.

    1 would be the same rule. A third or a quarter is what picking any one place of the list gives.
    """
    found = {}
    for name, rule in RULES.items():
        best = 0.0
        for position in range(3):
            draw = Draw(position, 1 + position % 2, {x: x for e, _ in items for x in e}, "")
            hits = 0
            for elements, answer in items:
                try:
                    hits += list(rule(list(elements), draw)) == [answer]
                except StopIteration:  # no element is repeated: the rule has no answer
                    continue
            best = max(best, hits / len(items))
        found[name] = best
    return found


def shown(text: str, items: Sequence[tuple[Sequence[str], str]], format: str = "lab") -> int:
    """How many of `items` stand in `text`, list and answer, in any of the format's separators."""
    found = read_lines(text, format)
    return sum((tuple(elements), answer) in found for elements, answer in items)


def read_lines(text: str, format: str = "lab") -> set[tuple[tuple[str, ...], str]]:
    """Every (elements, answer) that stands in `text`, in any of the format's separators."""
    lines: set[tuple[tuple[str, ...], str]] = set()
    for between, before, after in FORMATS[format]:
        for line in text.split(after.strip(" ") or after):
            elements, mark, answer = line.strip().partition(before)
            if mark:
                lines.add((tuple(elements.split(between)), answer.strip()))
    return lines
