"""Passages to question-answer text: ask a generator, parse, reject with a reason, keep what is new.

A generator is anything with a name that turns passages into raw text (`generators.py`: the lab world's own
and an OpenAI-compatible endpoint; `eval/instruct.py`: a local model). `synthesise` writes one JSON line per
outcome, a pair or a rejection with its reason, as it goes: killed and started again, it asks for the
passages that are missing. `text_of` makes training text of the pairs: near-duplicates are dropped and
counted, and a single evaluation item in them is an error (P3, arXiv 2407.18743, says nothing of either).
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Protocol

from cptkit.data import corpora
from cptkit.data.corpus import CorpusSpec
from cptkit.data.documents import ChoiceItem, DataError, Document
from cptkit.data.leaks import near_duplicates, refuse_leaks

LONGEST = 4_000  # characters of a question or an answer
SHORTEST = 1
LABEL = r"[ \t]*[#>*_\-\d.() \t]*"  # list marks, numbers and emphasis before a label
PARTS = re.compile(
    rf"^{LABEL}(question|problem|answer|solution)\b[*_ \t]*[:：][*_]*", re.IGNORECASE | re.MULTILINE
)
ASKING = ("question", "problem")


class SynthesisError(DataError):
    """Synthetic text that cannot be made or used; the message says why."""


class Generator(Protocol):
    """`name` stands for everything that decides its output: it becomes part of what is made."""

    name: str

    def generate(self, passages: Sequence[Document]) -> list[str]:
        """Raw text for each passage, in order."""
        ...


@dataclass(frozen=True)
class Pair:
    """One question with its answer. `source` is the id of its passage."""

    question: str
    answer: str
    source: str
    generator: str
    discipline: str = ""


def parse(raw: str, passage: Document, generator: str, discipline: str = "") -> tuple[list[Pair], list[str]]:
    """(pairs, reasons for what could not be used) of a generator's text, which may hold several pairs.

    Reasons: "no text", "no question", "no answer" (a question that none follows), "too long", "copied" (a
    question that is a piece of the passage), "repeated" within this text.
    """
    if not raw.strip():
        return [], ["no text"]
    found = list(PARTS.finditer(raw))
    ends = [match.start() for match in found[1:]] + [len(raw)]
    told = [
        (match.group(1).lower() in ASKING, raw[match.end() : end].strip())
        for match, end in zip(found, ends, strict=False)
    ]
    if not any(asks for asks, _ in told):
        return [], ["no question"]
    pairs, reasons, seen = [], [], set()
    for n, (asks, question) in enumerate(told):
        if not asks:
            continue
        answer = told[n + 1][1] if n + 1 < len(told) and not told[n + 1][0] else ""
        reason = _why_not(question, answer, passage.text, seen)
        if reason:
            reasons.append(reason)
        else:
            seen.add(question)
            pairs.append(Pair(question, answer, passage.id, generator, discipline))
    return pairs, reasons


def _why_not(question: str, answer: str, passage: str, seen: set[str]) -> str:
    if len(question) < SHORTEST:
        return "no question"
    if len(answer) < SHORTEST:
        return "no answer"
    if max(len(question), len(answer)) > LONGEST:
        return "too long"
    if len(question) > 40 and question in passage:
        return "copied"
    return "repeated" if question in seen else ""


@dataclass
class Summary:
    """What came of the passages asked about so far."""

    passages: int = 0
    pairs: int = 0
    rejected: Counter = field(default_factory=Counter)

    def __str__(self) -> str:
        why = ", ".join(f"{n} {reason}" for reason, n in self.rejected.most_common()) or "none"
        return f"{self.pairs} pairs from {self.passages} passages; rejected: {why}"


def synthesise(
    passages: Iterable[Document],
    generator: Generator,
    place: Path,
    *,
    discipline: str = "",
    batch: int = 8,
    progress: Callable[[int], object] | None = None,
) -> Summary:
    """Ask for every passage that `place` (JSON lines) does not know, append the outcomes, and sum up.

    `progress` is called with the number of passages just done. Raises SynthesisError for two passages of
    one id, or a file that another generator has written.
    """
    place = Path(place)
    place.parent.mkdir(parents=True, exist_ok=True)
    done = {row["source"] for row in _rows(place, generator.name)}
    waiting, ids = [], set()
    for passage in passages:
        if passage.id in ids:
            raise SynthesisError(f"two passages have the id {passage.id!r}")
        ids.add(passage.id)
        if passage.id not in done:
            waiting.append(passage)
    with place.open("a", encoding="utf-8") as file:
        for first in range(0, len(waiting), batch):
            some = waiting[first : first + batch]
            for passage, raw in zip(some, generator.generate(some), strict=True):
                pairs, reasons = parse(raw, passage, generator.name, discipline)
                rows = [asdict(pair) for pair in pairs]
                rows += [_rejected(passage, generator, reason, raw) for reason in reasons]
                for left, row in enumerate(reversed(rows)):
                    row["left"] = left  # 0 ends a passage: what a kill left of one is asked again
                file.write("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
                file.flush()
            if progress:
                progress(len(some))
    return summary(place)


def _rejected(passage: Document, generator: Generator, reason: str, raw: str) -> dict:
    return {"source": passage.id, "generator": generator.name, "rejected": reason, "raw": raw[:LONGEST]}


def _rows(place: Path, generator: str = "") -> list[dict]:
    """The rows of whole passages; what a kill left of one behind them is cut off the file."""
    if not place.exists():
        return []
    rows, lines, whole = [], place.read_text(encoding="utf-8").splitlines(keepends=True), 0
    for number, line in enumerate(lines, 1):
        try:
            rows.append(json.loads(line))
        except ValueError:
            if number < len(lines):
                raise SynthesisError(f"{place}: line {number} is not JSON") from None
            break
        if line.endswith("\n") and rows[-1]["left"] == 0:
            whole = number
    if whole < len(lines):
        place.write_text("".join(lines[:whole]), encoding="utf-8")
    for row in rows[:whole]:
        if generator and row["generator"] != generator:
            raise SynthesisError(f"{place} was written by {row['generator']}, not by {generator}")
    return rows[:whole]


def summary(place: Path) -> Summary:
    """Counts over the whole file."""
    found, sources = Summary(), set()
    for row in _rows(place):
        sources.add(row["source"])
        if "rejected" in row:
            found.rejected[row["rejected"]] += 1
        else:
            found.pairs += 1
    found.passages = len(sources)
    return found


def pairs(place: Path) -> list[Pair]:
    """All pairs of the file, in order."""
    kept = [row for row in _rows(place) if "rejected" not in row]
    return [Pair(**{key: row[key] for key in Pair.__dataclass_fields__}) for row in kept]


# ---- training text ----------------------------------------------------------------------------------

TEMPLATES = {
    "plain": ("{question}\n{answer}", "\n\n"),
    "labelled": ("Question: {question}\nAnswer: {answer}", "\n\n"),
    "lab": ("{question} {answer} ;", " "),  # the question lists of the lab world's source language
}


def text_of(
    place: Path,
    lang: str,
    cache: Path,
    items: Sequence[ChoiceItem],
    *,
    template: str = "plain",
    threshold: float = 0.8,
    n: int = 8,
) -> tuple[CorpusSpec, dict[str, int]]:
    """The pairs as a corpus, a document a passage, and counts: documents, pairs, near-duplicates dropped.

    `items` are all that the runs will be evaluated on: one of them in the text raises LeakError. Raises
    SynthesisError where nothing is left.
    """
    form, between = TEMPLATES[template]
    documents = [
        Document(
            between.join(form.format(question=p.question, answer=p.answer) for p in some),
            f"synthetic/{source}",
            lang,
            "questions",
            topic,
        )
        for (source, topic), some in _by_passage(pairs(place))
    ]
    repeated = set(near_duplicates([d.text for d in documents], threshold))
    kept = [d for n_, d in enumerate(documents) if n_ not in repeated]
    if not kept:
        raise SynthesisError(f"{place}: no pair to train on")
    refuse_leaks([d.text for d in kept], items, str(place), n)
    digest = hashlib.sha256("\0".join(f"{d.id}\0{d.topic}\0{d.text}" for d in kept).encode())
    counts = {"documents": len(kept), "pairs": len(pairs(place)), "near-duplicates": len(repeated)}
    return corpora.make(digest.hexdigest()[:24], lang, lambda: kept, cache), counts


def _by_passage(found: Iterable[Pair]) -> Iterator[tuple[tuple[str, str], list[Pair]]]:
    for key, some in groupby(found, key=lambda p: (p.source, p.discipline)):
        yield key, list(some)
