"""Perplexity of held-out documents, weighted by tokens and by bytes.

The sum of nats over the sum of tokens (never a mean of batch means), and over the sum of UTF-8 bytes, which
compares across tokenizers and languages. Sums are float64, so the result does not depend on the batch.

`prepare` tokenises once; `perplexity` is the probe that training repeats. Every document is framed as the
model was trained. BOS is never a target; EOS is one unless `score_eos` is false (it has no bytes). Without a
BOS there is nothing before the first token: it is not scored, and its bytes are not counted.

A document longer than `max_length` is cut in chunks that each begin with BOS (where there is one) and the
last `overlap` tokens of the chunk before, as context only: every token is scored exactly once, with less
context than in one long pass. The paper does not say how it cut; it scored packed sequences of 4,096.

Costs one forward pass over the tokens, and logits in slices of 64 MB.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn

from cptkit.data.framing import encode, framing
from cptkit.eval.forward import EvalError, batches, check, device_of, evaluating, hidden, nats, pad


@dataclass(frozen=True, slots=True)
class TokenTexts:
    """Token rows ready to score. `context[i]` leading tokens of `rows[i]` are read and not scored.

    Raises:
        EvalError: nothing to score, or a row that does not start with `bos` (where the model has one):
            a model trained with BOS is off by orders of magnitude without it.
    """

    rows: tuple[tuple[int, ...], ...]
    context: tuple[int, ...]
    bytes: int
    documents: int
    bos: int | None = None

    def __post_init__(self) -> None:
        if not self.rows:
            raise EvalError(
                "no text to score: all documents are empty, or of one token without a BOS before it"
            )
        if any(not 1 <= c < len(row) for row, c in zip(self.rows, self.context, strict=True)):
            raise EvalError("each row needs at least one token of context and one to score")
        if self.bos is not None and any(row[0] != self.bos for row in self.rows):
            raise EvalError(
                f"a row does not start with BOS (token {self.bos}), which this model expects: add it"
            )


def prepare(
    tokenizer,
    texts: Sequence[str],
    max_length: int | None = None,
    *,
    overlap: int = 1,
    score_eos: bool = True,
) -> TokenTexts:
    """Tokenise documents for `perplexity`, in chunks of at most `max_length` tokens (default: whole).

    Empty documents are left out (compare `documents`).

    Raises:
        EvalError: `max_length` leaves no room for new tokens; no overlap and no BOS to start a chunk with;
            a text that is not valid Unicode.
    """
    frame = framing(tokenizer)
    head = () if frame.bos is None else (frame.bos,)
    if overlap < 0 or overlap + len(head) < 1:
        raise EvalError("without a BOS, a chunk needs an overlap of at least one token to start from")
    if max_length is not None and max_length <= len(head) + overlap:
        raise EvalError(f"max_length {max_length} leaves no room beside BOS and an overlap of {overlap}")
    texts = [text for text in texts if text]
    sizes = [_utf8(text, n) for n, text in enumerate(texts)]
    room = sys.maxsize if max_length is None else max_length - len(head)
    rows, context, size, documents = [], [], 0, 0
    for ids, text_size in zip(encode(tokenizer, texts, frame), sizes, strict=True):
        body = ids[len(head) : None if score_eos else -1]
        start, done = 0, 0 if head else 1  # a chunk's first token; the tokens that need no more scoring
        if done >= len(body):
            continue
        documents += 1
        size += text_size if head else len(tokenizer.decode(ids[1:-1], skip_special_tokens=False).encode())
        while done < len(body):
            stop = min(len(body), start + room)
            rows.append((*head, *body[start:stop]))
            context.append(len(head) + done - start)
            start, done = stop - overlap, stop
    return TokenTexts(tuple(rows), tuple(context), size, documents, frame.bos)


def _utf8(text: str, number: int) -> int:
    try:
        return len(text.encode())
    except UnicodeEncodeError as error:
        raise EvalError(f"document {number} ({text[:40]!a}...): {error}") from None


@dataclass(frozen=True, slots=True)
class Perplexity:
    """Sums over a set of documents, and the three ways to divide them."""

    nats: float
    tokens: int
    bytes: int
    documents: int

    @property
    def per_token(self) -> float:
        """Nats per token."""
        return self.nats / self.tokens

    @property
    def perplexity(self) -> float:
        """exp of nats per token; infinite where that overflows."""
        return math.exp(self.per_token) if self.per_token < 700 else math.inf

    @property
    def bits_per_byte(self) -> float:
        return self.nats / math.log(2) / self.bytes if self.bytes else math.nan

    def metrics(self, prefix: str) -> dict[str, float]:
        """Columns of the metrics frame: `<prefix>.perplexity`, `.bits_per_byte`, `.nats_per_token`."""
        return {
            f"{prefix}.perplexity": self.perplexity,
            f"{prefix}.bits_per_byte": self.bits_per_byte,
            f"{prefix}.nats_per_token": self.per_token,
        }


def perplexity(model: nn.Module, texts: TokenTexts, *, max_tokens: int = 8192) -> Perplexity:
    """Score `texts` in batches of at most `max_tokens` padded tokens.

    Raises:
        EvalError: a token beyond the embedding, a row longer than the model reads.
    """
    check(model, texts.rows)
    device = device_of(model)
    total, tokens = 0.0, 0
    with evaluating(model):
        for batch in batches([len(row) for row in texts.rows], max_tokens):
            ids, mask = pad([texts.rows[i] for i in batch], device)
            first = torch.tensor([texts.context[i] for i in batch], device=device)[:, None]
            scored = mask.bool() & (torch.arange(ids.shape[1], device=device) >= first)
            states = hidden(model, ids)[:, :-1][scored[:, 1:]]
            total += float(nats(model, states, ids[scored]).sum())
            tokens += len(states)
    return Perplexity(total, tokens, texts.bytes, texts.documents)
