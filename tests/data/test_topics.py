"""The topic classifier against known topics; corpora labelled once, whole, in parallel as in one process."""

from __future__ import annotations

import dataclasses
from collections import Counter

import numpy as np
import pytest

from cptkit.data import corpora, topics
from cptkit.data.corpus import CorpusSpec
from cptkit.data.documents import DataError, Document
from cptkit.data.topics import UNKNOWN, TopicError
from tests.conftest import world


def documents(split: str, megabytes: float = 0.3) -> list[Document]:
    return list(corpora.read_documents(world("l2", split, megabytes), None))


@pytest.fixture(scope="module")
def classifier():
    return topics.train_linear(documents("train")[:400])


def test_it_knows_topics_it_was_not_shown(classifier):
    found = topics.report(classifier, documents("validation")[:300])
    assert found.documents == 300
    assert found.accuracy > 0.9  # eleven topics, and words of their own
    assert found.unknown == 0
    assert found.confusion.to_numpy().sum() == 300
    diagonal = sum(found.confusion.loc[t, t] for t in found.confusion.index if t in found.confusion)
    assert diagonal / 300 == pytest.approx(found.accuracy)
    assert 0 <= found.error < 0.3
    assert found.calibration["documents"].sum() == 300


class Fixed:
    """A classifier that says what it is told, to check the report by hand."""

    labels = ("a", "b")
    fingerprint = "fixed"

    def probabilities(self, texts):
        p = np.array([float(t) for t in texts])
        return np.stack([p, 1 - p], axis=1)


def test_the_report_by_hand():
    known = [Document(str(p), str(n), "xx", topic=t) for n, (p, t) in enumerate(
        [(0.95, "a"), (0.95, "b"), (0.65, "a"), (0.65, "a"), (0.25, "b")]
    )]  # fmt: skip
    found = topics.report(Fixed(), known, threshold=0.7)
    assert found.unknown == pytest.approx(0.4)
    assert found.accuracy == pytest.approx(2 / 3)  # of 0.95/a, 0.95/b, 0.25/b
    # bins by confidence: two at 0.65 (both right), one at 0.75 (right), two at 0.95 (one right)
    assert found.error == pytest.approx((2 * 0.35 + 1 * 0.25 + 2 * 0.45) / 5)
    assert found.confusion.loc["a", UNKNOWN] == 2
    assert found.confusion.loc["b", "a"] == 1


def test_a_labelled_corpus_keeps_every_text_and_divides_by_topic(classifier, tmp_path):
    spec = world("l2", "train", 0.1)
    labelled = topics.assign(spec, classifier, tmp_path, threshold=0.9)
    read = list(corpora.read_documents(labelled, tmp_path))
    plain = list(corpora.read_documents(spec, tmp_path))
    assert [(d.id, d.text) for d in read] == [(d.id, d.text) for d in plain]
    counts = Counter(d.topic for d in read)
    assert counts[UNKNOWN] > 0
    for topic, count in counts.items():
        part = list(corpora.read_documents(dataclasses.replace(labelled, topic=topic), tmp_path))
        assert len(part) == count
        assert {d.topic for d in part} == {topic}
    with pytest.raises(DataError, match="no train document"):
        list(corpora.read_documents(dataclasses.replace(labelled, topic="astrology"), tmp_path))


def test_in_processes_as_in_one_and_only_once(classifier, tmp_path, monkeypatch):
    spec = world("l2", "train", 0.1)
    alone = topics.assign(spec, classifier, tmp_path / "a")
    many = topics.assign(spec, classifier, tmp_path / "b", workers=2)
    assert alone == many
    files = [corpora.made_file(alone.path, tmp_path / n).read_bytes() for n in "ab"]
    assert files[0] == files[1]
    monkeypatch.setattr(topics, "_in_parallel", None)
    assert topics.assign(spec, classifier, tmp_path / "a") == alone
    other = topics.train_linear(documents("train")[:300])
    with pytest.raises(TypeError):
        topics.assign(spec, other, tmp_path / "a")


@pytest.mark.parametrize("error", [0.0, 0.3, 1.0])
def test_errors_of_an_exact_rate(error, tmp_path):
    spec = world("l2", "train", 0.1)
    wrong = list(corpora.read_documents(topics.misled(spec, error, tmp_path), tmp_path))
    right = list(corpora.read_documents(spec, tmp_path))
    assert [d.text for d in wrong] == [d.text for d in right]
    moved = sum(a.topic != b.topic for a, b in zip(wrong, right, strict=True))
    assert moved == round(error * len(right))


def test_the_topics_of_a_world_are_its_documents_own():
    spec = world("l2", "train", 0.1)
    whole = list(corpora.read_documents(spec, None))
    law = list(corpora.read_documents(dataclasses.replace(spec, topic="law"), None))
    assert law == [d for d in whole if d.topic == "law"]


def test_a_topic_changes_the_fingerprint_and_none_does_not(tmp_path):
    """A corpus without a topic keeps the fingerprint it had before topics existed."""
    spec = world("l2", "train", 0.1)
    known = "165d9ba91b66d581"
    assert corpora.fingerprint(spec, tmp_path)[:16] == known
    assert corpora.fingerprint(dataclasses.replace(spec, topic="law"), tmp_path)[:16] != known


def test_what_cannot_be_learnt_or_read_is_refused(tmp_path):
    with pytest.raises(TopicError, match="two topics"):
        topics.train_linear([Document("x", "1", "xx", topic="a")] * 4)
    with pytest.raises(TopicError, match="no document"):
        topics.report(Fixed(), [Document("0.5", "1", "xx")])
    with pytest.raises(TopicError, match="needs one of several topics"):
        topics.misled(CorpusSpec("lists", "zxx", megabytes=0.01), 0.1, tmp_path)
    with pytest.raises(DataError, match="make the corpus again"):
        list(corpora.read_documents(CorpusSpec("made", "l2", path="gone"), tmp_path))
    assert not [p for p in (tmp_path / "made").iterdir()]
