"""A model's greedy answer to a prompt, where it is one of a few strings: exact match without `generate`.

`answers_fast` equals `answers_generate`, the model's own greedy decoding cut at the stop string and stripped,
but for rounding in near-ties. It reads all prompts in one pass of large right-padded batches. Then it adds
greedy tokens, from the key-value cache, to those rows whose text so far could still become one of the
strings, in whatever pieces the tokenizer cuts it, and ends at the token that settles the answer: mostly one
to three, where `generate` goes on to the end.

The design asked for a check by teacher forcing, with `generate` where another tokenisation might match. That
reads the prompt again for every option whose first token is the one chosen: for all of them where a space or
a digit is a token of its own (Llama 2, SmolLM2). The cache reads each prompt once, and needs no rule about
tokenisations.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from cptkit.eval import forward
from cptkit.eval.forward import evaluating, hidden, logits, pad

OPEN = object()  # the text so far does not settle the answer


def settle(text: str, options: Sequence[str], stop: str, ended: bool):
    """What an answer that begins with `text` is: one of `options`, None (none of them), or OPEN.

    The answer is the text before the stop string, stripped; `ended` says that no more text will come. OPEN
    exactly where some further text could still make it an option, or a character is incomplete.
    """
    if ended or stop in text:
        answer = text.split(stop, 1)[0].strip()
        return answer if answer in options else None
    if "\ufffd" in text:
        return OPEN
    text = text.lstrip()
    for option in options:
        if option.startswith(text):
            return OPEN
        if text.startswith(option):
            rest = text[len(option) :]
            spaces = len(rest) - len(rest.lstrip())
            if any(stop.startswith(rest[n:]) for n in range(spaces + 1)):
                return OPEN
    return None


class _Questions:
    """What both ways of answering share: token ids, options, the end of an answer, the limit of tokens."""

    def __init__(self, model, tokenizer, prompts, options, stop) -> None:
        self.tokenizer, self.options, self.stop = tokenizer, options, stop
        self.prompts = forward.prompt_ids(tokenizer, prompts)
        whole = sorted({f" {option}{stop}" for some in options for option in some})
        self.limit = 2 + max(map(len, forward.prompt_ids(tokenizer, whole)), default=0)
        config = getattr(forward.bare(model), "generation_config", None)
        ends = getattr(config, "eos_token_id", None)
        self.ends = {tokenizer.eos_token_id, *(ends if isinstance(ends, list) else [ends])} - {None}
        self._texts: dict[tuple[int, ...], str] = {}
        forward.check(model, self.prompts, extra=self.limit)

    def answer(self, i: int, ids: Sequence[int]):
        """The answer to question `i` of which `ids` have been generated so far (see `settle`)."""
        end = next((n for n, token in enumerate(ids) if token in self.ends), None)
        key = tuple(ids[:end])
        if key not in self._texts:
            self._texts[key] = self.tokenizer.decode(
                list(key), skip_special_tokens=True, clean_up_tokenization_spaces=False
            )
        ended = end is not None or len(ids) >= self.limit
        return settle(self._texts[key], self.options[i], self.stop, ended)


def answers_fast(
    model: nn.Module,
    tokenizer,
    prompts: Sequence[str],
    options: Sequence[Sequence[str]],
    stop: str,
    *,
    max_tokens: int = 8192,
) -> list[str | None]:
    """The greedy answer to each prompt where it is one of its options, else None.

    An answer ends at the stop string, at EOS, or two tokens after the longest option could have ended.
    `max_tokens` bounds the padded tokens of a batch. A model whose state is not a cache of attention keys is
    handed to `answers_generate`.

    Raises:
        EvalError: a prompt longer than the model reads, a token id beyond its embedding.
    """
    if not forward.can_cache(model):
        return answers_generate(model, tokenizer, prompts, options, stop)
    asked = _Questions(model, tokenizer, prompts, options, stop)
    lengths = [len(prompt) for prompt in asked.prompts]
    if max(lengths, default=0) + asked.limit > forward.window(model):
        max_tokens = 1  # padding would shift a sliding window: no padding, then
    answers: list[str | None] = [None] * len(prompts)
    with evaluating(model):
        for batch in forward.batches(lengths, max_tokens):
            _answer_batch(model, asked, batch, answers)
    return answers


def _answer_batch(model, asked: _Questions, live: list[int], answers: list[str | None]) -> None:
    """Fill in `answers` of the questions `live`, whose rows shrink as they settle."""
    device = forward.device_of(model)
    cache = forward.new_cache()
    ids, mask = pad([asked.prompts[i] for i in live], device)
    places = mask.sum(1)  # the position of each row's next token
    last = hidden(model, ids, cache=cache)[torch.arange(len(live), device=device), places - 1]
    said: dict[int, list[int]] = {i: [] for i in live}
    while True:
        keep = []
        for row, token in enumerate(logits(model, last).argmax(-1).tolist()):
            said[live[row]].append(token)
            answer = asked.answer(live[row], said[live[row]])
            if answer is OPEN:
                keep.append(row)
            else:
                answers[live[row]] = answer
        if not keep:
            return
        if len(keep) < len(live):
            rows = torch.tensor(keep, device=device)
            cache.batch_select_indices(rows)
            live, mask, places = [live[row] for row in keep], mask[rows], places[rows]
        mask = torch.cat([mask, mask.new_ones(len(live), 1)], 1)
        tokens = torch.tensor([said[i][-1:] for i in live], device=device)
        last = hidden(model, tokens, places[:, None], mask, cache)[:, -1]
        places = places + 1


def answers_generate(
    model: nn.Module,
    tokenizer,
    prompts: Sequence[str],
    options: Sequence[Sequence[str]],
    stop: str,
    *,
    max_tokens: int = 1,
) -> list[str | None]:
    """The same answers by the model's own greedy `generate`: the reference, and the way for any model.

    Left-padded batches of at most `max_tokens` padded prompt tokens; the default is one prompt at a time.
    """
    from transformers import GenerationConfig

    asked = _Questions(model, tokenizer, prompts, options, stop)
    settings = GenerationConfig(
        max_new_tokens=asked.limit,
        do_sample=False,
        num_beams=1,
        repetition_penalty=1.0,
        no_repeat_ngram_size=0,
        eos_token_id=sorted(asked.ends),
        pad_token_id=min(asked.ends),
    )
    answers: list[str | None] = [None] * len(prompts)
    device = forward.device_of(model)
    with evaluating(model):
        for batch in forward.batches([len(prompt) for prompt in asked.prompts], max_tokens):
            ids, mask = pad([asked.prompts[i] for i in batch], device, left=True)
            rows = forward.bare(model).generate(
                input_ids=ids, attention_mask=mask, generation_config=settings
            )
            for i, row in zip(batch, rows[:, ids.shape[1] :].tolist(), strict=True):
                answers[i] = asked.answer(i, [*row, min(asked.ends)])  # an end, so that nothing stays open
    return answers
