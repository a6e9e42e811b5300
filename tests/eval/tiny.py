"""Tokenizers and models small enough to make inside a test, with the habits that break evaluation."""

from __future__ import annotations

import json
import random

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

ALPHABET = pre_tokenizers.ByteLevel.alphabet()


def corpus() -> list[str]:
    rng = random.Random(0)
    lines = [
        ", ".join(str(rng.randrange(100)) for _ in range(3)) + f" -> {rng.randrange(100)}\n"
        for _ in range(300)
    ]
    lines += [" ".join(rng.sample("abcdefghijklmnopqrstuvwxyz", 3)) + " > a ; " for _ in range(100)]
    names = ["name", "of", "this", "town", "is", "Bilbo", "and", "its", "river", "runs", "to", "the", "sea"]
    words = [*names, "Galdera", "Erantzuna"]
    return lines + [" ".join(rng.choices(words, k=12)) + ". " for _ in range(200)]


def byte_level(digits: str, bos: bool = False) -> PreTrainedTokenizerFast:
    """Byte-level BPE. `digits`: "each" splits them, "grouped" learns numbers such as "12" as one piece."""
    tokenizer = Tokenizer(models.BPE())
    steps = [pre_tokenizers.ByteLevel(add_prefix_space=False)]
    if digits == "each":
        steps.insert(0, pre_tokenizers.Digits(individual_digits=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps)
    tokenizer.decoder = decoders.ByteLevel()
    special = ["<s>", "</s>"]
    trainer = trainers.BpeTrainer(
        vocab_size=520, special_tokens=special, initial_alphabet=ALPHABET, show_progress=False
    )
    tokenizer.train_from_iterator(corpus(), trainer)
    return _wrapped(tokenizer, bos)


def metaspace() -> PreTrainedTokenizerFast:
    """As Llama 2's: a space mark before the first word, digits one by one, bytes for the unknown, BOS."""
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Metaspace(prepend_scheme="first", split=True),
            pre_tokenizers.Digits(individual_digits=True),
        ]
    )
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    special = ["<s>", "</s>", "<unk>", *(f"<0x{byte:02X}>" for byte in range(256))]
    trainer = trainers.BpeTrainer(vocab_size=520, special_tokens=special, show_progress=False)
    tokenizer.train_from_iterator(corpus(), trainer)
    state = json.loads(tokenizer.to_str())  # the bytes are ordinary pieces, which a trainer cannot be told
    state["added_tokens"] = state["added_tokens"][:3]
    return _wrapped(Tokenizer.from_str(json.dumps(state)), bos=True)


def _wrapped(tokenizer: Tokenizer, bos: bool) -> PreTrainedTokenizerFast:
    if bos:
        ids = [("<s>", tokenizer.token_to_id("<s>"))]
        tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=ids)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>")


def llama(vocabulary: int, seed: int = 0, layers: int = 2, width: int = 48, **settings) -> LlamaForCausalLM:
    """An untrained Llama; the embeddings are made large, so that its answers vary with the prompt."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=width,
        intermediate_size=2 * width,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=settings.pop("max_position_embeddings", 512),
        initializer_range=settings.pop("initializer_range", 0.3),
        bos_token_id=0,
        eos_token_id=1,
        **settings,
    )
    return LlamaForCausalLM(config).eval()


def train(model, prompts: list[list[int]], answers: list[list[int]], steps: int, lr: float = 3e-3) -> None:
    """Learn `answers` by heart, in `steps` optimiser steps on all of them."""
    rows = [p + a for p, a in zip(prompts, answers, strict=True)]
    longest = max(map(len, rows))
    ids = torch.tensor([row + [0] * (longest - len(row)) for row in rows])
    labels = torch.full_like(ids, -100)
    for i, (row, answer) in enumerate(zip(rows, answers, strict=True)):
        labels[i, len(row) - len(answer) : len(row)] = torch.tensor(answer)
    optimiser = torch.optim.AdamW(model.parameters(), lr=lr)
    for _ in range(steps):
        loss = model(input_ids=ids, labels=labels).loss
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()


def chatter(model, tokenizer, characters: str):
    """Make a model say only pieces spelt with `characters`: random answers in every possible tokenisation."""
    weight = model.get_output_embeddings().weight
    with torch.no_grad():
        for token in range(len(weight)):
            text = tokenizer.decode([token], skip_special_tokens=False)
            if token != tokenizer.eos_token_id and not (text and set(text) <= set(characters)):
                weight[token] = 0
    return model
