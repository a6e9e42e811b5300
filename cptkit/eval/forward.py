"""The forward pass of a probe: hidden states first, logits only where a probe reads them.

Logits of a whole batch are the largest tensor of an evaluation (8,192 tokens of a 128,000-piece vocabulary
are 4 GB in fp32), and a probe looks at few of them. So `hidden` runs the decoder and `logits` applies the
output embeddings to the rows that matter; `nats` does that in slices of bounded size.

Probes run inside training. `evaluating` puts the model in evaluation mode under `torch.inference_mode` and
puts every module back afterwards; autocast is left to the caller. Batches are made by a budget of padded
tokens over rows sorted by length, with padding on the right: a causal model's real tokens never see it.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise

import torch
from torch import Tensor, nn

LOGITS_AT_ONCE = 1 << 24  # numbers: 64 MB in fp32


class EvalError(ValueError):
    """Something that cannot be evaluated honestly; the message says what to change."""


def bare(model: nn.Module) -> nn.Module:
    """The Hugging Face causal LM inside `torch.compile`, data-parallel and LoRA wrappers.

    LoRA layers stay in place, so that what is evaluated is the adapted model.
    """
    while True:
        if isinstance(getattr(model, "_orig_mod", None), nn.Module):
            model = model._orig_mod
        elif isinstance(getattr(model, "module", None), nn.Module):
            model = model.module
        elif hasattr(model, "get_base_model"):
            model = model.get_base_model()
        else:
            return model


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Evaluation mode without gradients; each module's own mode is restored, also after an error."""
    before = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        with torch.inference_mode():
            yield
    finally:
        for module, training in before:
            module.training = training


def hidden(
    model: nn.Module,
    input_ids: Tensor,
    position_ids: Tensor | None = None,
    attention_mask: Tensor | None = None,
    cache=None,
) -> Tensor:
    """Last hidden states [B, T, H] of token ids [B, T], after the final norm, before the output embeddings.

    `attention_mask` is [B, tokens seen so far + T] (1 = real token) or a ready 4-d mask; without one every
    token sees all before it, which is right for right-padded rows. `cache` is a `DynamicCache` that the
    tokens are added to (see `new_cache`).
    """
    decoder = bare(model).base_model
    arguments = {"input_ids": input_ids, "use_cache": cache is not None}
    if position_ids is not None:
        arguments["position_ids"] = position_ids
    if attention_mask is not None:
        arguments["attention_mask"] = attention_mask
    if cache is not None:  # transformers renamed the argument on the way from 5.0 to 5.24
        accepted = inspect.signature(decoder.forward).parameters
        arguments["cache" if "cache" in accepted else "past_key_values"] = cache
    return decoder(**arguments).last_hidden_state


def logits(model: nn.Module, selected: Tensor) -> Tensor:
    """Logits [N, V] of hidden states [N, H], as the model's own forward would give them.

    fp32, or fp64 for a model in fp64. Cohere's and Granite's scales and Gemma's soft cap are applied in the
    model's own precision, as the model does, so that even ties are the same.
    """
    model = bare(model)
    scores = model.get_output_embeddings()(selected)
    config = model.config.get_text_config()
    if isinstance(multiplier := getattr(model, "logit_scale", None), int | float):
        scores = scores * multiplier
    if divisor := getattr(config, "logits_scaling", None):
        scores = scores / divisor
    if cap := getattr(config, "final_logit_softcapping", None):
        scores = torch.tanh(scores / cap) * cap
    return scores if scores.dtype == torch.float64 else scores.float()


def nats(model: nn.Module, selected: Tensor, targets: Tensor) -> Tensor:
    """Surprisal in nats, float64 [N] on the CPU, of token ids [N] given hidden states [N, H]."""
    rows = max(1, LOGITS_AT_ONCE // bare(model).get_output_embeddings().weight.shape[0])
    parts = []
    for some, wanted in zip(selected.split(rows), targets.split(rows), strict=True):
        scores = logits(model, some)
        parts.append(scores.logsumexp(-1) - scores.gather(-1, wanted[:, None])[:, 0])
    return torch.cat(parts).cpu().double() if parts else torch.zeros(0, dtype=torch.float64)


def new_cache():
    """An empty key-value cache that keeps all positions, also in sliding-window layers."""
    from transformers import DynamicCache

    return DynamicCache()


def can_cache(model: nn.Module) -> bool:
    """Whether prompts of unequal length can share a batch and a cache: attention with explicit positions.

    A recurrent state has swallowed the padding by the time the next token comes, and position schemes that
    count the tokens seen would count it.
    """
    model = bare(model)
    kinds = set(getattr(model.config.get_text_config(), "layer_types", None) or ())
    attention_only = all("attention" in kind and "linear" not in kind for kind in kinds)
    accepted = inspect.signature(model.base_model.forward).parameters
    return not getattr(model, "_is_stateful", False) and attention_only and "position_ids" in accepted


def check(model: nn.Module, rows: Sequence[Sequence[int]], extra: int = 0) -> None:
    """Refuse token rows that the model cannot read.

    Raises:
        EvalError: a token id beyond the embedding, or a row (plus `extra` tokens to come) beyond the
            model's longest input.
    """
    model = bare(model)
    size = model.get_input_embeddings().weight.shape[0]
    limit = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    longest = max((len(row) for row in rows), default=0) + extra
    largest = max((max(row) for row in rows if row), default=0)
    if largest >= size:
        raise EvalError(
            f"token id {largest}, but the embedding has {size} rows: tokenizer and model do not match"
        )
    if limit is not None and longest > limit:
        raise EvalError(
            f"{longest} tokens, but the model reads at most {limit}: fewer shots or shorter texts"
        )


def window(model: nn.Module) -> float:
    """Tokens that the narrowest sliding-window layer sees; infinite where there is none."""
    return getattr(bare(model).config.get_text_config(), "sliding_window", None) or float("inf")


def batches(lengths: Sequence[int], max_tokens: int) -> list[list[int]]:
    """Indices of rows in batches of at most `max_tokens` padded tokens (at least one row), longest first.

    Longest first, so that a batch too large for the memory fails at once and not at the end.
    """
    order = sorted(range(len(lengths)), key=lambda i: -lengths[i])
    starts = [0]
    for position in range(1, len(order)):
        rows = position - starts[-1] + 1
        if rows * lengths[order[starts[-1]]] > max_tokens:
            starts.append(position)
    return [order[a:b] for a, b in pairwise([*starts, len(order)]) if b > a]


def pad(rows: Sequence[Sequence[int]], device, left: bool = False) -> tuple[Tensor, Tensor]:
    """Token ids [B, T] and a mask [B, T] (1 = real token), padded with token 0 to the longest row."""
    longest = max(map(len, rows))
    fill = [[0] * (longest - len(row)) for row in rows]
    pairs = [(f, row) if left else (row, f) for f, row in zip(fill, rows, strict=True)]
    ids = torch.tensor([[*a, *b] for a, b in pairs], dtype=torch.long)
    places = torch.arange(longest)[None]
    sizes = torch.tensor([len(row) for row in rows])[:, None]
    mask = (places >= longest - sizes) if left else (places < sizes)
    return ids.to(device), mask.long().to(device)


def device_of(model: nn.Module) -> torch.device:
    """Where the model's inputs belong."""
    return bare(model).get_input_embeddings().weight.device


def prompt_ids(tokenizer, texts: Sequence[str]) -> list[list[int]]:
    """Token ids of texts that go on: BOS by the tokenizer's convention, no EOS, a literal "<s>" is text."""
    from cptkit.data.framing import encode, framing

    return [ids[:-1] for ids in encode(tokenizer, list(texts), framing(tokenizer))]
