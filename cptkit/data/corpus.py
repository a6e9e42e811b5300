"""The name of a text: where one corpus in one language comes from, as data. `corpora.py` reads it."""

from __future__ import annotations

from dataclasses import dataclass, field

from cptkit.data import packages
from cptkit.data.documents import DataError

KINDS = ("files", "hub", "lists", "made", "package", "world")
GENERATED = ("lists", "world")  # their splits are streams of their own, with any name
SPLITS = ("train", "validation", "test")
UNITS = ("file", "block", "line")


@dataclass(frozen=True)
class CorpusSpec:
    """One corpus in one language.

    `split` is cut here, by hash: packages by page (the same in every language), everything else by text, so
    that equal texts are on one side. With both shares 0, `train` is everything. Generated text (the world,
    lists) has its own splits. `topic` keeps the documents of one topic of what is left, so that the topics
    of a corpus divide it.
    """

    kind: str
    lang: str
    path: str = ""  # files: file, folder or glob; hub: data set or folder; package: name; made: key
    split: str = "train"
    validation: float = 0.0  # share of documents held out for validation
    test: float = 0.0
    megabytes: float | None = None  # stop after so many 10^6 bytes of UTF-8 text
    text_field: str = "text"  # JSON lines, Parquet, hub
    topic_field: str | None = None
    unit: str = "file"  # txt: one document a file, a block between blank lines, or a line
    max_bytes: int = 10_000_000  # a longer document is left out
    max_skipped: float = 0.1  # a larger share of unusable records is an error
    config: str | None = None  # hub
    hub_split: str = "train"  # hub: the data set's own split
    revision: str | None = None  # hub: a commit, so that the data cannot change
    params: dict = field(default_factory=dict)  # world, lists
    topic: str | None = None

    def __post_init__(self) -> None:
        for name, allowed in (("kind", KINDS), ("split", SPLITS), ("unit", UNITS)):
            if getattr(self, name) not in allowed and not (name == "split" and self.kind in GENERATED):
                raise DataError(f"corpus: {name} {getattr(self, name)!r} is not one of {', '.join(allowed)}")
        if self.kind == "package" and self.path not in packages.SETS:
            raise DataError(f"corpus: package set {self.path!r} is not one of {', '.join(packages.SETS)}")
        if self.kind in ("files", "hub", "made") and not self.path:
            raise DataError(f"corpus: kind {self.kind!r} needs a path")
        if self.megabytes is not None and not self.megabytes > 0:
            raise DataError(f"corpus: megabytes must be positive, not {self.megabytes}")
        packages.side("", self.validation, self.test)

    @property
    def name(self) -> str:
        topic = "" if self.topic is None else f", topic {self.topic}"
        return f"{self.kind} corpus {self.path or self.params} ({self.lang}{topic})"
