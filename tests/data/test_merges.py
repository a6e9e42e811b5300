"""Merges learnt on top of a tokenizer: against a brute-force loop; nothing old moves."""

from __future__ import annotations

import itertools
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from cptkit.data import merges
from cptkit.data.framing import TokenError
from cptkit.data.merges import Merge
from cptkit.train import models as cptkit_models
from tests.conftest import tiny_run

TEXT = "demilel mera zorim demilel zorim mera, mera demilel! zorimak zorimak zorimak"


@pytest.fixture(scope="module")
def tokenizer(cache):
    return cptkit_models.train_tokenizer(tiny_run().model.tokenizer, cache)


def brute_force(words: dict[tuple[str, ...], int], known: set[str], count: int, least: int) -> list[Merge]:
    """Count all pairs again after every merge; ties as the heap breaks them, by spelling."""
    words, known, found = dict(words), set(known), []
    banned = set()
    while len(found) < count:
        pairs = Counter()
        for pieces, n in words.items():
            for pair in itertools.pairwise(pieces):
                pairs[pair] += n
        options = [(-n, pair) for pair, n in pairs.items() if pair not in banned and n >= least]
        if not options:
            return found
        n, pair = min(options)
        if pair[0] + pair[1] in known:
            banned.add(pair)
            continue
        found.append(Merge(*pair, -n))
        known.add(pair[0] + pair[1])
        joined = {}
        for pieces, times in words.items():
            new, k = [], 0
            while k < len(pieces):
                two = k + 1 < len(pieces) and (pieces[k], pieces[k + 1]) == pair
                new.append(pieces[k] + pieces[k + 1] if two else pieces[k])
                k += 2 if two else 1
            joined[tuple(new)] = joined.get(tuple(new), 0) + times
        words = joined
    return found


@settings(max_examples=40, deadline=None)
@given(st.lists(st.text("abcd", min_size=1, max_size=8), min_size=1, max_size=12), st.integers(1, 12))
def test_learnt_merges_are_those_of_a_brute_force_loop(words, count):
    alphabet = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(["<e>", *"abcd"])}, merges=[]))
    alphabet.pre_tokenizer = pre_tokenizers.Whitespace()
    fast = PreTrainedTokenizerFast(tokenizer_object=alphabet, eos_token="<e>")
    found = merges.learn(fast, [" ".join(words)], count)
    counted = Counter(tuple(word) for word in words)
    assert found == brute_force(counted, set(fast.get_vocab()), count, 2)


def test_old_pieces_keep_their_ids_through_a_file(tokenizer, tmp_path):
    more = merges.learn(tokenizer, [TEXT * 3], 12)
    longer = merges.extend(tokenizer, more)
    longer.save_pretrained(tmp_path)
    again, before = AutoTokenizer.from_pretrained(tmp_path), tokenizer.get_vocab()
    for made in (longer, again):
        vocabulary = made.get_vocab()
        assert all(vocabulary[piece] == place for piece, place in before.items())
        assert sorted(set(vocabulary.values()) - set(before.values())) == list(range(320, 332))
        assert made.eos_token_id == tokenizer.eos_token_id
        ids = made(TEXT, add_special_tokens=False)["input_ids"]
        assert len(ids) < len(tokenizer(TEXT, add_special_tokens=False)["input_ids"])
        assert made.decode(ids) == TEXT
    assert len(tokenizer) == 320  # the one we began with is as it was


def test_text_without_a_new_pair_is_cut_as_before(tokenizer):
    longer = merges.extend(tokenizer, merges.learn(tokenizer, ["zzqx zzqx"] * 3, 3))
    for text in ("demilel mera 7 3 > 7 ;", "naïve\n\ttab"):
        assert longer(text)["input_ids"] == tokenizer(text)["input_ids"]


def test_added_tokens_behind_the_vocabulary_stay_where_they_are():
    """Llama 3's form: marks of a chat have ids behind the vocabulary, which a longer one would move."""
    inner = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate("abcd")}, merges=[]))
    inner.add_special_tokens(["<end>", "<chat>"])
    fast = PreTrainedTokenizerFast(tokenizer_object=inner, eos_token="<end>")
    assert fast.convert_tokens_to_ids(["<end>", "<chat>"]) == [4, 5]
    longer = merges.extend(fast, [Merge("a", "b", 9), Merge("ab", "c", 5)])
    assert longer.convert_tokens_to_ids(["<end>", "<chat>", "ab", "abc"]) == [4, 5, 6, 7]
    assert longer("abcd<end>ab")["input_ids"] == [7, 3, 4, 6]


def test_words_marked_as_sentencepiece_does():
    """Llama 2's form: no pre-tokenizer, a mark before each word; no merge crosses it."""
    mark = merges.SPACE
    inner = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(["<s>", mark, *"abc"])}, merges=[]))
    inner.normalizer = normalizers.Sequence([normalizers.Prepend(mark), normalizers.Replace(" ", mark)])
    inner.decoder = decoders.Sequence([decoders.Replace(mark, " "), decoders.Fuse()])
    fast = PreTrainedTokenizerFast(tokenizer_object=inner, eos_token="<s>")
    found = merges.learn(fast, ["ab ab ab cab"], 10)
    assert [m.piece for m in found] == ["ab", f"{mark}ab"]


def test_what_cannot_be_extended_is_refused(tokenizer):
    words = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel({"<e>": 0}, unk_token="<e>")), eos_token="<e>"
    )
    with pytest.raises(TokenError, match="fast BPE"):
        merges.learn(words, ["a"], 1)
    with pytest.raises(TokenError, match="not both pieces"):
        merges.extend(tokenizer, [Merge("never", "seen", 1)])
    piece = next(p for p in tokenizer.get_vocab() if len(p) == 2)
    with pytest.raises(TokenError, match="already"):
        merges.extend(tokenizer, [Merge(piece[0], piece[1], 1)])
