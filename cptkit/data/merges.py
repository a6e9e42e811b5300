"""More pieces for an existing BPE tokenizer, without moving one that it has.

Training goes on where the tokenizer's own stopped: its pieces of the target text are the alphabet, and the
most frequent neighbours are merged, again and again, never across a word. The new merges come after all old
ones, so a text is first cut as it ever was and then joined further; text in which no new pair occurs is cut
exactly as before. Every new piece is two older ones, so that its embedding has something to start from
(`train/vocabulary.py`).

Old ids stay: added tokens (end of text, chat marks) are written into the vocabulary with the ids they have,
and new ids begin behind the largest. Works on byte-level BPE (GPT-2, Llama 3, SmolLM2) and on
SentencePiece-like BPE (Llama 2, Gemma). The result is a plain tokenizer of Hugging Face form.

Cost: pure Python, about 10 s for 1,000 merges of 3 MB of text.
"""

from __future__ import annotations

import copy
import heapq
import itertools
import json
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from tokenizers import Tokenizer

from cptkit.data.framing import TokenError, rows_needed

SPACE = "\u2581"  # SentencePiece's mark of a word's beginning


@dataclass(frozen=True)
class Merge:
    """Two pieces, as the vocabulary spells them, that become one; and how often they stood together."""

    left: str
    right: str
    count: int

    @property
    def piece(self) -> str:
        return self.left + self.right


def learn(tokenizer, texts: Iterable[str], count: int, least: int = 2) -> list[Merge]:
    """Up to `count` merges, the most frequent first, each seen at least `least` times when it is made.

    Raises TokenError for a tokenizer that is not a fast BPE.
    """
    model = _bpe(tokenizer)
    known = set(tokenizer.get_vocab())
    words = [[list(pieces), n] for pieces, n in _words(tokenizer.backend_tokenizer, model, texts).items()]
    pairs: Counter = Counter()
    places: dict[tuple[str, str], set[int]] = defaultdict(set)
    for w, (pieces, n) in enumerate(words):
        for pair in itertools.pairwise(pieces):
            pairs[pair] += n
            places[pair].add(w)
    heap = [(-n, pair) for pair, n in pairs.items()]
    heapq.heapify(heap)
    found: list[Merge] = []
    while heap and len(found) < count:
        n, pair = heapq.heappop(heap)
        if -n != pairs[pair]:  # an old count: it stands in the heap again if it still counts
            if pairs[pair] >= least:
                heapq.heappush(heap, (-pairs[pair], pair))
            continue
        if -n < least:
            break
        piece = pair[0] + pair[1]
        if piece in known:  # spelt alike by other merges: joining these too would change old text
            pairs[pair] = 0
            continue
        found.append(Merge(*pair, -n))
        known.add(piece)
        changed = _join(words, places.pop(pair), pair, piece, pairs, places)
        for other in changed:
            heapq.heappush(heap, (-pairs[other], other))
    return found


def _join(words, at, pair, piece, pairs, places) -> set[tuple[str, str]]:
    """Replace `pair` by `piece` in the words `at`, with counts and places; the pairs that grew."""
    grown = set()
    for w in at:
        pieces, n = words[w]
        before = Counter(itertools.pairwise(pieces))
        joined, k = [], 0
        while k < len(pieces):
            if k + 1 < len(pieces) and (pieces[k], pieces[k + 1]) == pair:
                joined.append(piece)
                k += 2
            else:
                joined.append(pieces[k])
                k += 1
        words[w][0] = joined
        after = Counter(itertools.pairwise(joined))
        for other, times in (before - after).items():
            pairs[other] -= n * times
        for other, times in (after - before).items():
            pairs[other] += n * times
            places[other].add(w)
            grown.add(other)
    pairs[pair] = 0
    return grown


def _bpe(tokenizer):
    """The model inside a fast BPE tokenizer."""
    model = getattr(getattr(tokenizer, "backend_tokenizer", None), "model", None)
    if type(model).__name__ != "BPE":
        raise TokenError(f"only a fast BPE tokenizer can be extended, not {type(tokenizer).__name__}")
    return model


def _words(backend: Tokenizer, model, texts: Iterable[str]) -> Counter:
    """Words as tuples of the tokenizer's pieces, with how often each occurs."""
    counts: Counter = Counter()
    for text in texts:
        if backend.normalizer is not None:
            text = backend.normalizer.normalize_str(text)
        if backend.pre_tokenizer is not None:
            counts.update(word for word, _ in backend.pre_tokenizer.pre_tokenize_str(text))
        else:
            counts.update(_spaced(text))
    return Counter({tuple(t.value for t in model.tokenize(word)): n for word, n in counts.items() if word})


def _spaced(text: str) -> list[str]:
    """Words of a text without a pre-tokenizer: each with the mark of its beginning."""
    parts = text.split(SPACE)
    return [parts[0], *(SPACE + part for part in parts[1:])] if parts[0] else [SPACE + p for p in parts[1:]]


def extend(tokenizer, merges: Iterable[Merge]):
    """A new tokenizer that also knows these merges; old pieces keep their ids.

    Raises TokenError where a merge's parts are unknown.
    """
    _bpe(tokenizer)
    rules = json.loads(tokenizer.backend_tokenizer.to_str())
    vocabulary, old = rules["model"]["vocab"], rules["model"]["merges"]
    as_text = bool(old) and isinstance(old[0], str)
    for token in rules["added_tokens"]:  # or a longer vocabulary would move them when the file is read
        vocabulary.setdefault(token["content"], token["id"])
    place = rows_needed(tokenizer)
    for merge in merges:
        if merge.left not in vocabulary or merge.right not in vocabulary:
            raise TokenError(f"{merge.left!r} and {merge.right!r} are not both pieces of the tokenizer")
        if merge.piece in vocabulary:
            raise TokenError(f"{merge.piece!r} is a piece already")
        vocabulary[merge.piece] = place
        old.append(f"{merge.left} {merge.right}" if as_text else [merge.left, merge.right])
        place += 1
    new = copy.deepcopy(tokenizer)
    new._tokenizer = Tokenizer.from_str(json.dumps(rules))
    return new
