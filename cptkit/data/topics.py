"""What a document is about: a light classifier, how good it is, and a corpus labelled by it.

P3 (arXiv 2407.18743, Section 3.1) trains TinyBERT on labelled web pages and publishes neither labels nor
accuracy. Here the default is TF-IDF over character n-grams with logistic regression (scikit-learn): any
script, no download, a thousand pages a second on one core. An encoder of Hugging Face form has the same
interface (`train/encoder.py`).

`assign` labels a corpus once, in parallel, into `<cache>/made/<key>.jsonl.gz`, and returns the corpus that
reads it (kind "made"): its topics are sources of a mixture like any others. A document whose best
topic is less likely than `threshold` is "unknown", which is a topic too: no text is lost.

In the lab world the true topic is known. `misled` labels a corpus with errors of an exact rate, so that a
mixture's dependence on its classifier can be measured.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from itertools import islice
from multiprocessing import get_context
from pathlib import Path
from typing import Protocol

import numpy as np
import pandas as pd

from cptkit.data import corpora
from cptkit.data.corpus import CorpusSpec
from cptkit.data.documents import DataError, Document

UNKNOWN = "unknown"
CHUNK = 512  # documents that a worker labels at a time
LETTERS = 4_000  # of a document that the classifier reads: its beginning says what it is about


class TopicError(DataError):
    """Labels or documents that no classifier can be made from or applied to."""


class Classifier(Protocol):
    """`labels` [k], and the probability of each for texts [n]: float64 [n, k], rows sum to one."""

    labels: tuple[str, ...]

    def probabilities(self, texts: Sequence[str]) -> np.ndarray: ...

    @property
    def fingerprint(self) -> str: ...


@dataclass(frozen=True)
class Linear:
    """TF-IDF and logistic regression, as `train_linear` leaves them."""

    labels: tuple[str, ...]
    pipeline: object
    fingerprint: str

    def probabilities(self, texts: Sequence[str]) -> np.ndarray:
        return self.pipeline.predict_proba([text[:LETTERS] for text in texts])


def train_linear(documents: Sequence[Document], *, seed: int = 0, strength: float = 10.0) -> Linear:
    """Learn the `topic` of the documents that have one.

    `strength` is scikit-learn's C, the inverse of the L2 penalty. Raises TopicError for fewer than two
    topics.
    """
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline

    labelled = [d for d in documents if d.topic]
    if len(found := {d.topic for d in labelled}) < 2:
        raise TopicError(f"a classifier needs two topics; there are {len(found)}")
    pipeline = make_pipeline(
        TfidfVectorizer(analyzer="char_wb", ngram_range=(2, 4), sublinear_tf=True, max_features=50_000),
        LogisticRegression(C=strength, max_iter=500, random_state=seed),
    )
    pipeline.fit([d.text[:LETTERS] for d in labelled], [d.topic for d in labelled])
    learnt = json.dumps([[d.topic, d.text] for d in labelled] + [seed, strength, LETTERS])
    return Linear(
        tuple(map(str, pipeline.classes_)), pipeline, hashlib.sha256(learnt.encode()).hexdigest()[:16]
    )


# ---- how good it is ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Report:
    """On documents with a known topic that were not learnt from.

    `confusion` is a frame of counts, true topics by predicted ones (with "unknown"); `calibration` a row a
    bin of confidence: documents, mean confidence, accuracy. `error` is the expected calibration error, the
    mean distance of the two over documents.
    """

    documents: int
    accuracy: float  # of the documents that got a topic
    unknown: float  # share that got none
    confusion: pd.DataFrame
    calibration: pd.DataFrame
    error: float


def report(
    classifier: Classifier, documents: Sequence[Document], threshold: float = 0.0, bins: int = 10
) -> Report:
    """Raises TopicError without documents that have a topic."""
    known = [d for d in documents if d.topic]
    if not known:
        raise TopicError("no document with a known topic to judge a classifier by")
    chances = classifier.probabilities([d.text for d in known])
    labels, confidence = _decide(classifier, chances, threshold)
    best = np.array(classifier.labels)[chances.argmax(axis=1)]
    truth = np.array([d.topic for d in known])
    given, right, rows = labels != UNKNOWN, best == truth, []
    bins_of = np.minimum((confidence * bins).astype(int), bins - 1)
    for k, members in pd.Series(np.arange(len(known))).groupby(bins_of):
        places = members.to_numpy()
        rows.append(
            {
                "from": k / bins,
                "to": (k + 1) / bins,
                "documents": len(places),
                "confidence": confidence[places].mean(),
                "accuracy": right[places].mean(),
            }
        )
    calibration = pd.DataFrame(rows)
    apart = (calibration["confidence"] - calibration["accuracy"]).abs()
    return Report(
        documents=len(known),
        accuracy=float(right[given].mean()) if given.any() else float("nan"),
        unknown=float(1 - given.mean()),
        confusion=pd.crosstab(pd.Series(truth, name="true"), pd.Series(labels, name="predicted")),
        calibration=calibration,
        error=float((apart * calibration["documents"]).sum() / len(known)),
    )


def _decide(classifier: Classifier, chances: np.ndarray, threshold: float) -> tuple[np.ndarray, np.ndarray]:
    confidence = chances.max(axis=1)
    labels = np.array(classifier.labels, dtype=object)[chances.argmax(axis=1)]
    return np.where(confidence >= threshold, labels, UNKNOWN), confidence


# ---- a corpus with labels ---------------------------------------------------------------------------


def assign(
    spec: CorpusSpec, classifier: Classifier, cache: Path, *, threshold: float = 0.0, workers: int = 1
) -> CorpusSpec:
    """The corpus with topics by the classifier; made once, then found by its key.

    `workers` > 1 labels in that many processes.
    """
    key = _key(spec, cache, classifier.fingerprint, threshold)

    def labelled() -> Iterator[Document]:
        chunks = _chunks(corpora.read_documents(spec, cache))
        for documents, chances in _in_parallel(classifier, chunks, workers):
            labels, _ = _decide(classifier, chances, threshold)
            yield from (replace(d, topic=t) for d, t in zip(documents, labels.tolist(), strict=True))

    return corpora.make(key, spec.lang, labelled, cache)


def misled(spec: CorpusSpec, error: float, cache: Path, *, seed: int = 0) -> CorpusSpec:
    """The corpus with its own topics, but a share `error` of its documents, at random, moved to another one.

    Raises TopicError for a document without a topic, or a corpus of one topic.
    """
    if not 0 <= error <= 1:
        raise TopicError(f"error must lie between 0 and 1, not {error}")

    def labelled() -> Iterator[Document]:
        documents = list(corpora.read_documents(spec, cache))
        names = sorted({d.topic for d in documents})
        if "" in names or len(names) < 2:
            raise TopicError(f"{spec.name}: every document needs one of several topics to be misled about")
        rng = random.Random(f"{seed}/{error}")
        wrong = set(rng.sample(range(len(documents)), round(error * len(documents))))
        for n, document in enumerate(documents):
            others = [name for name in names if name != document.topic]
            yield replace(document, topic=rng.choice(others)) if n in wrong else document

    return corpora.make(_key(spec, cache, "misled", error, seed), spec.lang, labelled, cache)


def _key(spec: CorpusSpec, cache: Path, *more: object) -> str:
    text = json.dumps([corpora.fingerprint(spec, cache), *map(str, more)])
    return hashlib.sha256(text.encode()).hexdigest()[:24]


def _chunks(documents: Iterable[Document]) -> Iterator[list[Document]]:
    documents = iter(documents)
    while chunk := list(islice(documents, CHUNK)):
        yield chunk


def _in_parallel(
    classifier: Classifier, chunks: Iterator[list[Document]], workers: int
) -> Iterator[tuple[list[Document], np.ndarray]]:
    if workers <= 1:
        for chunk in chunks:
            yield chunk, classifier.probabilities([d.text for d in chunk])
        return
    with ProcessPoolExecutor(workers, get_context("spawn"), _start, (classifier,)) as pool:
        waiting = []
        for chunk in chunks:
            waiting.append((chunk, pool.submit(_label, [d.text[:LETTERS] for d in chunk])))
            if len(waiting) > 2 * workers:
                done, future = waiting.pop(0)
                yield done, future.result()
        for chunk, future in waiting:
            yield chunk, future.result()


def _start(classifier: Classifier) -> None:
    _label.classifier = classifier  # sent once, not with every chunk


def _label(texts: list[str]) -> np.ndarray:
    return _label.classifier.probabilities(texts)
