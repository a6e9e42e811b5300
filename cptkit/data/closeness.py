"""How close two texts are, measured on the texts themselves: letters, n-grams, words, word pieces.

P2 orders French, Russian and Chinese by their kinship with English without measuring it (2407.02118, Fig. 3).
Here each measure is a number between 0 (nothing in common) and 1 (the same text), from samples of both:

    script    share of the other text's letters that are of a script which the first text uses
    ngrams    cosine of the counts of letter trigrams, case and everything but letters left out
    words     share of the other text's words that occur in the first one
    pieces    share of the other text's tokens that the first text uses at least once in ten thousand

`pieces` needs a tokenizer, which comes from outside: this room knows none. Cost: a second a megabyte.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import lru_cache

from cptkit.data.documents import DataError

RARE = 1e-4  # a piece that is rarer than this in the first text is not one that a model has learnt there
WORD = re.compile(r"[^\W\d_]+")


@lru_cache(maxsize=100_000)
def script(letter: str) -> str:
    """The first word of a letter's Unicode name, which for letters is its script ("LATIN", "CJK")."""
    return unicodedata.name(letter, "?").split(" ")[0]


def letters(text: str) -> str:
    """Letters alone, case folded."""
    return "".join(c for c in text.casefold() if c.isalpha())


def script_share(first: str, other: str, least: float = 0.01) -> float:
    """Share of `other`'s letters in a script that makes up at least `least` of `first`'s letters."""
    used = Counter(map(script, _some(letters(first))))
    common = {name for name, count in used.items() if count >= least * used.total()}
    found = Counter(map(script, _some(letters(other))))
    return sum(count for name, count in found.items() if name in common) / found.total()


def ngram_cosine(first: str, other: str, n: int = 3) -> float:
    """Cosine of the counts of letter n-grams."""
    a, b = (_ngrams(_some(letters(text)), n) for text in (first, other))
    lengths = math.sqrt(sum(v * v for v in a.values()) * sum(v * v for v in b.values()))
    return sum(count * b[gram] for gram, count in a.items() if gram in b) / lengths if lengths else 0.0


def word_share(first: str, other: str) -> float:
    """Share of `other`'s words (with repetition, case folded) that `first` has.

    Words are runs of letters, so in a script without spaces they are clauses.
    """
    known = set(WORD.findall(first.casefold()))
    found = _some(WORD.findall(other.casefold()))
    return sum(word in known for word in found) / len(found)


def piece_share(first: Sequence[int], other: Iterable[int]) -> float:
    """Share of `other`'s token ids that make up at least `RARE` of `first`'s."""
    counts = Counter(_some(first))
    known = {piece for piece, count in counts.items() if count >= RARE * counts.total()}
    found = _some(list(other))
    return sum(piece in known for piece in found) / len(found)


def _ngrams(text: str, n: int) -> Counter:
    return Counter(text[k : k + n] for k in range(len(text) - n + 1))


def _some(found: Sequence) -> Sequence:
    if not len(found):
        raise DataError("a text without letters or words cannot be compared")
    return found
