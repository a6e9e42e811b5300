"""Text to token ids: what surrounds a document by the model's own convention, and nothing twice.

Exactly one EOS ends every document and exactly one BOS begins it where the model knows one; a special token
that is spelled out in a text stays text.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass

from cptkit.data.documents import DataError


class TokenError(DataError):
    """A tokenizer, a packing or an attention backend that cannot be used; the message says what to do."""


@dataclass(frozen=True, slots=True)
class Framing:
    """What surrounds every document: `bos` before it (None where the model knows none), `eos` after."""

    bos: int | None
    eos: int


def framing(tokenizer) -> Framing:
    """The framing of documents by the model's own convention.

    BOS belongs to it where the tokenizer's own call puts it first, or where `add_bos_token` says so (set
    that attribute to overrule). Having a `bos_token` is not enough: GPT-2 and SmolLM2 name one and never
    use it. EOS ends every document, whether the tokenizer's call adds it (few do) or not.

    Raises:
        TokenError: the tokenizer has no EOS.
    """
    bos, eos = tokenizer.bos_token_id, tokenizer.eos_token_id
    if eos is None:
        raise TokenError("the tokenizer has no EOS, which must part the documents: set its eos_token")
    first = tokenizer("a", verbose=False)["input_ids"][:1]
    by_convention = bos is not None and (first == [bos] or getattr(tokenizer, "add_bos_token", False) is True)
    return Framing(bos if by_convention else None, eos)


def encode(tokenizer, texts: list[str], framing: Framing) -> list[list[int]]:
    """Token ids of each text with exactly one BOS (if any) before and one EOS after.

    A special token spelled out in a text ("</s>" in a page about HTML) stays text.

    Raises:
        TokenError: the tokenizer turns text into its own BOS or EOS all the same.
    """
    if not texts:
        return []
    encoded = tokenizer(
        texts,
        add_special_tokens=False,
        split_special_tokens=True,
        return_attention_mask=False,
        return_token_type_ids=False,
        verbose=False,
    )["input_ids"]
    for text, ids in zip(texts, encoded, strict=True):
        if framing.eos in ids or framing.bos in ids:
            raise TokenError(
                f"the tokenizer makes a BOS or EOS out of the text {text[:80]!r}: they are ordinary pieces "
                "of its vocabulary; take the literal out of the text or use another tokenizer"
            )
    before = [] if framing.bos is None else [framing.bos]
    return [[*before, *ids, framing.eos] for ids in encoded]


def tokenizer_fingerprint(tokenizer) -> str:
    """16 hex digits that change with whatever changes token ids: vocabulary, rules, framing."""
    if tokenizer.is_fast:
        rules = json.loads(tokenizer.backend_tokenizer.to_str())
        rules.update(truncation=None, padding=None)  # left behind by its last call, not part of it
    else:
        rules = {"class": type(tokenizer).__name__, "vocabulary": tokenizer.get_vocab()}
    text = json.dumps([rules, asdict(framing(tokenizer))], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def check_vocabulary(tokenizer_or_packed, model_embedding_rows: int) -> None:
    """Refuse a tokenizer (or a packing made with one) that has ids beyond the model's embedding.

    An embedding with more rows than the tokenizer has ids is padded for speed, and fine.

    Raises:
        TokenError: some id has no row.
    """
    needed = getattr(tokenizer_or_packed, "vocabulary", None) or rows_needed(tokenizer_or_packed)
    if needed > model_embedding_rows:
        raise TokenError(
            f"the tokenizer has {needed:,} ids, the model's embedding only {model_embedding_rows:,} rows: "
            f"use the model's own, or call model.resize_token_embeddings({needed}) and train the new rows"
        )


def rows_needed(tokenizer) -> int:
    """Embedding rows for all ids. The largest id counts: an added token may leave a gap before it."""
    return max(len(tokenizer), 1 + max(tokenizer.get_vocab().values()))
