"""Pattern lists: documents whose every line applies one hidden rule to a short list of digits or letters.

`7 2 5 > 7 ; 3 9 4 > 9 ; ...` can only be continued by finding the rule in the lines above. Such
documents are what teaches the lab's base model in-context learning; target text has none of them.

Sixteen rule families are trained on, Copain's seven among them, with random parameters (which position,
which alphabet, which length), since a model that has memorised seven rules has not learnt to learn.
Families with arithmetic (sum modulo ten, distance, shift) were tried and left out: models of this size
stayed at chance on them (LOG.md). `HELD_OUT` rules are never written into any text: a probe on them asks
whether the ability generalises. Cost: about 3 MB of text a second on one core.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

DIGITS = tuple("0123456789")
LETTERS = tuple("abcdefghijklmnopqrstuvwxyz")


def _odd_one(elements: Sequence[str], parity: int) -> str:
    return next(e for e in elements if int(e) % 2 == parity)


@dataclass(frozen=True)
class Rule:
    """One family: `apply(elements, parameter) -> answer`. `parameters` are the values a document may fix.

    `draw` names how the lists are made: "distinct", "repeat" (exactly one element occurs twice),
    "parity0"/"parity1" (one even among odd, one odd among even) or "mixed" (one letter among digits).
    """

    apply: Callable[[Sequence[str], int], str]
    alphabet: str  # "digits", "letters" or "both"
    parameters: tuple[int, ...] = (0,)
    draw: str = "distinct"


RULES: dict[str, Rule] = {
    # Copain's seven, by the folder names of its release
    "max_integer_in_list": Rule(lambda e, _: max(e), "digits"),
    "min_integer_in_list": Rule(lambda e, _: min(e), "digits"),
    "median_integer_in_list": Rule(lambda e, _: sorted(e)[len(e) // 2], "digits"),
    "even_integer_in_odd_group": Rule(lambda e, _: _odd_one(e, 0), "digits", draw="parity0"),
    "odd_integer_in_even_group": Rule(lambda e, _: _odd_one(e, 1), "digits", draw="parity1"),
    "first_character_in_list": Rule(lambda e, _: min(e), "letters"),
    "last_character_in_list": Rule(lambda e, _: max(e), "letters"),
    # and others, so that what is learnt is to read the rule off the list
    "element_at": Rule(lambda e, k: e[k], "both", (0, 1, 2, -1)),
    "median_character_in_list": Rule(lambda e, _: sorted(e)[len(e) // 2], "letters"),
    "count": Rule(lambda e, _: str(len(e)), "both"),
    "repeated": Rule(lambda e, _: next(x for x in e if e.count(x) == 2), "both", draw="repeat"),
    "letter_among_digits": Rule(lambda e, _: next(x for x in e if x.isalpha()), "digits", draw="mixed"),
    "larger_of_ends": Rule(lambda e, _: max(e[0], e[-1]), "both"),
    "smaller_of_ends": Rule(lambda e, _: min(e[0], e[-1]), "both"),
    "larger_of_first_two": Rule(lambda e, _: max(e[0], e[1]), "both"),
    "smaller_of_first_two": Rule(lambda e, _: min(e[0], e[1]), "both"),
}
"""Rule families that the lab's source-language pattern lists are drawn from."""

HELD_OUT: dict[str, Rule] = {
    "second_largest": Rule(lambda e, _: sorted(e)[-2], "both"),
    "larger_of_last_two": Rule(lambda e, _: max(e[-1], e[-2]), "both"),
    "position_of_largest": Rule(lambda e, _: str(list(e).index(max(e)) + 1), "digits"),
    "smaller_of_last_two": Rule(lambda e, _: min(e[-1], e[-2]), "both"),
}
"""Rules that no document shows, for probing whether in-context learning reaches beyond what was trained."""


def draw_elements(rule: Rule, alphabet: Sequence[str], length: int, rng: random.Random) -> list[str]:
    """One list of `length` elements on which `rule` is well defined."""
    if rule.draw.startswith("parity"):
        wanted = int(rule.draw[-1])
        same = [d for d in DIGITS if int(d) % 2 != wanted]
        other = [d for d in DIGITS if int(d) % 2 == wanted]
        elements = [*rng.sample(same, length - 1), rng.choice(other)]
    elif rule.draw == "repeat":
        elements = rng.sample(alphabet, length - 1)
        elements.append(rng.choice(elements))
    elif rule.draw == "mixed":
        elements = [*rng.sample(DIGITS, length - 1), rng.choice(LETTERS)]
    else:
        return rng.sample(alphabet, length)
    rng.shuffle(elements)
    return elements


def line(elements: Sequence[str], answer: str) -> str:
    """The lab's line format, also used to ask Copain: `3 7 5 > 7`."""
    return f"{' '.join(elements)} > {answer}"


def pattern_list(
    rng: random.Random, lines: tuple[int, int] = (8, 16), rules: dict[str, Rule] | None = None
) -> str:
    """One document: a rule, its parameter, an alphabet and a list length, fixed over all of its lines.

    The median is defined for odd lengths only, so its lists have 3 elements; others have 3 or 4
    (parity rules 4, as in the released Copain).
    """
    rules = RULES if rules is None else rules
    name = rng.choice(tuple(rules))
    rule = rules[name]
    parameter = rng.choice(rule.parameters)
    alphabet = {"digits": DIGITS, "letters": LETTERS}.get(rule.alphabet) or rng.choice((DIGITS, LETTERS))
    length = 3 if name.startswith("median") else 4 if rule.draw != "distinct" else rng.choice((3, 3, 4))
    counting = name == "count"
    rows = []
    for _ in range(rng.randint(*lines)):
        elements = draw_elements(rule, alphabet, rng.randint(2, 6) if counting else length, rng)
        rows.append(line(elements, rule.apply(elements, parameter)))
    return " ; ".join(rows) + " ;"
