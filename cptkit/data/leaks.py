"""Two things that synthetic text must not be: the same text again, or the test.

`near_duplicates` finds texts that repeat an earlier one but for a few words, by MinHash (datasketch). `leaks`
finds evaluation items that stand in a text, by n-grams of words; a run on such text is refused
(`refuse_leaks`), since leaving the pair out in silence would leave its paraphrases in.

Cost: some 2,000 texts a second for MinHash on one core; leaks are one pass over the words.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from cptkit.data.documents import ChoiceItem, DataError

WORD = re.compile(r"\w+", re.UNICODE)
SHINGLE, PERMUTATIONS = 3, 128


class LeakError(DataError):
    """Training text that holds evaluation items; the message names them."""


def words(text: str) -> list[str]:
    return WORD.findall(text.casefold())


def near_duplicates(texts: Sequence[str], threshold: float = 0.8, seed: int = 0) -> list[int]:
    """Indices of texts whose word triples overlap with an earlier one's by `threshold` (Jaccard, estimated).

    A text of fewer than three words is compared whole.
    """
    from datasketch import MinHash, MinHashLSH

    index, kept, repeated = MinHashLSH(threshold=threshold, num_perm=PERMUTATIONS), {}, []
    for n, text in enumerate(texts):
        sketch = MinHash(num_perm=PERMUTATIONS, seed=seed + 1)
        sketch.update_batch([" ".join(gram).encode() for gram in _grams(words(text), SHINGLE)])
        if any(kept[other].jaccard(sketch) >= threshold for other in index.query(sketch)):
            repeated.append(n)
        else:
            kept[n] = sketch
            index.insert(n, sketch)
    return repeated


def leaks(texts: Iterable[str], items: Sequence[ChoiceItem], n: int = 8) -> list[tuple[int, str]]:
    """(index of the text, id of the item) wherever n words in a row of question and answer stand in a text.

    A shorter item must stand there whole. The question alone is no leak where it has fewer than n words: it
    is asked of everybody; with its answer it is one.
    """
    grams: dict[tuple[str, ...], set[str]] = {}
    for item in items:
        told = words(f"{item.question} {item.candidates[item.answer]}")
        for gram in _grams(told, n):
            grams.setdefault(tuple(gram), set()).add(item.id)
    lengths, found = sorted({len(gram) for gram in grams}), []
    for place, text in enumerate(texts):
        said = words(text)
        hit = {
            item
            for length in lengths
            for start in range(len(said) - length + 1)
            for item in grams.get(tuple(said[start : start + length]), ())
        }
        found += [(place, item) for item in sorted(hit)]
    return found


def refuse_leaks(texts: Iterable[str], items: Sequence[ChoiceItem], what: str, n: int = 8) -> None:
    """Raises LeakError where `leaks` finds anything."""
    if found := leaks(texts, items, n):
        some = ", ".join(f"item {item} in text {place}" for place, item in found[:5])
        raise LeakError(f"{what}: {len(found)} evaluation items stand in it: {some}. Take other passages.")


def _grams(said: Sequence[str], n: int) -> list[Sequence[str]]:
    if len(said) <= n:
        return [said] if said else []
    return [said[k : k + n] for k in range(len(said) - n + 1)]
