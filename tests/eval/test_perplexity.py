from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cptkit.eval import perplexity as pp
from cptkit.eval.forward import EvalError
from cptkit.eval.perplexity import TokenTexts, perplexity, prepare
from tests.eval import tiny

TEXTS = ["the river runs to the sea", "Bilbo", "日本 and é", "this town " * 12, "a\n\nb", "12, 5 -> 12\n"]
NAMES = ["digits split", "digits grouped, BOS", "metaspace"]


@pytest.fixture(scope="module")
def models(tokenizers):
    return {name: tiny.llama(len(t), initializer_range=0.1).double() for name, t in tokenizers.items()}


def brute(model, rows, context):
    """Nats and tokens, one row at a time, position by position, with a softmax written out."""
    total, tokens = 0.0, 0
    for row, first in zip(rows, context, strict=True):
        with torch.no_grad():
            logits = model(torch.tensor([row])).logits[0]
        for t in range(first, len(row)):
            scores = logits[t - 1].tolist()
            largest = max(scores)
            total += math.log(math.fsum(math.exp(s - largest) for s in scores)) + largest - scores[row[t]]
            tokens += 1
    return total, tokens


@pytest.mark.parametrize("name", NAMES)
def test_against_brute_force_for_every_batch_size(tokenizers, models, name):
    model, texts = models[name], prepare(tokenizers[name], TEXTS)
    total, tokens = brute(model, texts.rows, texts.context)
    for max_tokens in (1, 64, 200, 10**6):
        result = perplexity(model, texts, max_tokens=max_tokens)
        assert result.nats == pytest.approx(total, rel=1e-9)
        assert result.tokens == tokens
        assert result.per_token == pytest.approx(total / tokens, rel=1e-9)
        assert result.perplexity == pytest.approx(math.exp(total / tokens), rel=1e-8)


def test_what_is_scored(tokenizers):
    framed = prepare(tokenizers["digits grouped, BOS"], TEXTS)
    assert framed.bytes == sum(len(text.encode()) for text in TEXTS)
    assert all(row[0] == 0 and row[-1] == 1 and 0 not in row[1:] for row in framed.rows)
    assert framed.context == (1,) * len(TEXTS)
    without_eos = prepare(tokenizers["digits grouped, BOS"], TEXTS, score_eos=False)
    assert [row[:-1] for row in framed.rows] == list(without_eos.rows)
    bare = prepare(tokenizers["digits grouped"], ["Bilbo 日", "x"])  # "x" has one token, then EOS
    pieces = [tokenizers["digits grouped"](text)["input_ids"] for text in ("Bilbo 日", "x")]
    assert bare.rows == tuple((*p, 1) for p in pieces)
    assert bare.bytes == len("Bilbo 日".encode()) - len(tokenizers["digits grouped"].decode(pieces[0][:1]))


def test_bits_per_byte_of_a_uniform_model(tokenizers):
    """All logits zero: log2 V bits a token, by hand."""
    tokenizer = tokenizers["digits split"]
    model = tiny.llama(len(tokenizer)).double()
    torch.nn.init.zeros_(model.lm_head.weight)
    texts = prepare(tokenizer, ["12345678"])  # eight tokens and EOS; the first cannot be scored
    result = perplexity(model, texts)
    assert (result.tokens, result.bytes, result.documents) == (8, 7, 1)
    assert result.perplexity == pytest.approx(len(tokenizer))
    assert result.bits_per_byte == pytest.approx(8 / 7 * math.log2(len(tokenizer)))
    assert result.metrics("ppl.target") == {
        "ppl.target.perplexity": result.perplexity,
        "ppl.target.bits_per_byte": result.bits_per_byte,
        "ppl.target.nats_per_token": result.per_token,
    }


def test_documents_do_not_see_each_other(tokenizers, models):
    name = "digits grouped, BOS"
    whole = perplexity(models[name], prepare(tokenizers[name], TEXTS))
    parts = [perplexity(models[name], prepare(tokenizers[name], [text])) for text in reversed(TEXTS)]
    assert whole.nats == pytest.approx(math.fsum(p.nats for p in parts), rel=1e-12)
    assert whole.tokens == sum(p.tokens for p in parts)
    assert whole.bytes == sum(p.bytes for p in parts)


@pytest.mark.parametrize("name", ["digits split", "digits grouped, BOS"])
@settings(max_examples=40, deadline=None)
@given(st.integers(3, 30), st.integers(0, 6))
def test_chunks_score_every_token_once(tokenizers, name, max_length, overlap):
    tokenizer, bos = tokenizers[name], "BOS" in name
    if overlap + bos < 1 or max_length <= bos + overlap:
        with pytest.raises(EvalError):
            prepare(tokenizer, TEXTS, max_length, overlap=overlap)
        return
    whole, cut = prepare(tokenizer, TEXTS), prepare(tokenizer, TEXTS, max_length, overlap=overlap)
    scored = [token for row, c in zip(cut.rows, cut.context, strict=True) for token in row[c:]]
    assert scored == [token for row, c in zip(whole.rows, whole.context, strict=True) for token in row[c:]]
    assert max(map(len, cut.rows)) <= max_length
    assert (cut.bytes, cut.documents) == (whole.bytes, whole.documents)
    assert not bos or {row[0] for row in cut.rows} == {0}
    later = [c for c in cut.context if c > 1]
    assert all(c <= bos + overlap for c in later)


def test_context_of_a_chunk_is_what_came_before_it(tokenizers):
    whole = prepare(tokenizers["metaspace"], TEXTS[3:4]).rows[0]
    cut = prepare(tokenizers["metaspace"], TEXTS[3:4], 12, overlap=3)
    assert len(cut.rows) > 2
    assert cut.rows[1][:4] == (0, *cut.rows[0][-3:])
    assert cut.rows[1][1:] == whole[9:20]


def test_refusals(tokenizers, models):
    with pytest.raises(EvalError, match="BOS"):
        TokenTexts(((5, 6),), (1,), 2, 1, bos=0)
    with pytest.raises(EvalError, match="no text"):
        prepare(tokenizers["metaspace"], ["", ""])
    with pytest.raises(EvalError, match="context"):
        TokenTexts(((0,),), (1,), 0, 1)
    with pytest.raises(EvalError, match="surrogates"):
        prepare(tokenizers["metaspace"], ["ok", "bad \ud800"])
    with pytest.raises(EvalError, match="reads at most"):
        perplexity(models["metaspace"], prepare(tokenizers["metaspace"], ["1" * 600]))
    with pytest.raises(EvalError, match="do not match"):
        perplexity(tiny.llama(300), prepare(tokenizers["digits grouped"], TEXTS))


def test_overflow_is_infinite():
    assert pp.Perplexity(1e6, 1, 1, 1).perplexity == math.inf
