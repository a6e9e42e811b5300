"""The two records that flow through the data room, and the ways in which data can be bad.

Everything that reads text yields `Document`; everything that asks a question yields `ChoiceItem`.
Bad input is either a `DataError` (the run must not go on) or a counted skip in `Skips` (one record
is left out, and the count, file and line stay visible).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


class DataError(ValueError):
    """Input that cannot be used; the message names the file, the line or the source."""


@dataclass(frozen=True, slots=True)
class Document:
    """One text. `id` is unique within its corpus and says where the text came from."""

    text: str
    id: str
    lang: str
    kind: str = "prose"
    topic: str = ""


@dataclass(frozen=True, slots=True)
class ChoiceItem:
    """One multiple-choice question: `candidates[answer]` is right. `group` splits a report."""

    question: str
    candidates: tuple[str, ...]
    answer: int
    id: str
    group: str = ""

    def __post_init__(self) -> None:
        if len(set(self.candidates)) != len(self.candidates) or len(self.candidates) < 2:
            raise DataError(f"item {self.id!r}: candidates must be at least two and distinct")
        if not 0 <= self.answer < len(self.candidates):
            raise DataError(f"item {self.id!r}: answer {self.answer} is not one of its candidates")


@dataclass
class Skips:
    """Records left out, counted by reason, with the first few places of each kept for the message."""

    counts: Counter = field(default_factory=Counter)
    places: dict[str, list[str]] = field(default_factory=dict)
    kept: int = 0

    def add(self, reason: str, place: str) -> None:
        self.counts[reason] += 1
        if len(self.places.setdefault(reason, [])) < 5:
            self.places[reason].append(place)

    @property
    def total(self) -> int:
        return sum(self.counts.values())

    def check(self, max_share: float, what: str) -> None:
        """Raise `DataError` when more than `max_share` of the records of `what` were left out."""
        seen = self.kept + self.total
        if seen and self.total > max_share * seen:
            raise DataError(f"{what}: {self.total} of {seen} records are unusable: {self}")

    def __str__(self) -> str:
        return "; ".join(
            f"{n} x {r} (e.g. {', '.join(self.places[r][:3])})" for r, n in self.counts.most_common()
        )
