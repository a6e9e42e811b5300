"""An encoder from random weights learns the lab topics, behind the interface of the light classifier."""

from __future__ import annotations

import numpy as np
import pytest
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers
from transformers import BertConfig, BertForSequenceClassification, PreTrainedTokenizerFast

from cptkit.data import corpora, topics
from cptkit.data.documents import Document
from cptkit.data.topics import TopicError
from cptkit.train.encoder import train_encoder
from tests.conftest import world


@pytest.fixture(scope="module")
def documents():
    return [
        d
        for d in corpora.read_documents(world("l2", "train", 0.3), None)
        if d.topic in ("law", "arts", "sports")
    ]


@pytest.fixture(scope="module")
def start(documents, tmp_path_factory):
    folder = tmp_path_factory.mktemp("bert")
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer, tokenizer.pre_tokenizer = normalizers.Lowercase(), pre_tokenizers.Whitespace()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    tokenizer.train_from_iterator(
        [d.text for d in documents], trainers.WordPieceTrainer(vocab_size=600, special_tokens=special)
    )
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]"
    ).save_pretrained(folder)
    config = BertConfig(
        vocab_size=600, hidden_size=48, num_hidden_layers=2, num_attention_heads=2, intermediate_size=96
    )
    BertForSequenceClassification(config).save_pretrained(folder)
    return str(folder)


def test_it_learns_topics_and_labels_a_corpus(start, documents, tmp_path):
    classifier = train_encoder(start, documents, epochs=8, rate=2e-3, length=64)
    held_out = [
        d
        for d in corpora.read_documents(world("l2", "validation", 0.1), None)
        if d.topic in classifier.labels
    ]
    found = topics.report(classifier, held_out)
    assert found.accuracy > 0.8
    chances = classifier.probabilities([d.text for d in held_out[:5]])
    assert chances.shape == (5, 3)
    assert chances.sum(axis=1) == pytest.approx(np.ones(5))
    labelled = topics.assign(world("l2", "train", 0.02), classifier, tmp_path)
    assert {d.topic for d in corpora.read_documents(labelled, tmp_path)} <= set(classifier.labels)


def test_one_topic_is_none(start):
    with pytest.raises(TopicError, match="two topics"):
        train_encoder(start, [Document("a", "1", "xx", topic="law")])
