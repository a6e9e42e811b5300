"""A local instruct model of Hugging Face form as a generator of questions and answers.

Prompts are framed by the tokenizer's own chat template and padded on the left; a batch is sampled at a time
with a seed of its own, so that a resumed synthesis gives what an uninterrupted one gives as long as batches
are the same.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import torch

from cptkit.data.documents import Document
from cptkit.data.instructions import Instruction
from cptkit.eval.forward import EvalError, device_of, evaluating


class Instructed:
    """Samples answers to `instruction` about each passage; `temperature` 0 is greedy."""

    def __init__(
        self,
        model: torch.nn.Module,
        tokenizer: Any,
        instruction: Instruction,
        *,
        label: str,
        max_tokens: int = 200,
        temperature: float = 0.7,
        seed: int = 0,
    ) -> None:
        if not getattr(tokenizer, "chat_template", None):
            raise EvalError(f"{label} has no chat template: it is not an instruct model")
        self.model, self.tokenizer, self.instruction = model, tokenizer, instruction
        self.max_tokens, self.temperature, self.seed = max_tokens, temperature, seed
        self.name = f"{label} ({instruction.discipline}, temperature {temperature:g}, seed {seed})"

    def generate(self, passages: Sequence[Document]) -> list[str]:
        """Raw answers. Cost: `max_tokens` forward passes over the batch, with a cache."""
        from transformers import GenerationConfig

        prompts = [
            self.tokenizer.apply_chat_template(
                [{"role": "user", "content": self.instruction.prompt(passage)}],
                tokenize=False,
                add_generation_prompt=True,
            )
            for passage in passages
        ]
        tokenizer, device = self.tokenizer, device_of(self.model)
        pad = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id
        rows = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in prompts]
        width = max(map(len, rows))
        ids = torch.tensor([[pad] * (width - len(row)) + row for row in rows], device=device)
        mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in rows], device=device)
        sampled = self.temperature > 0
        settings = GenerationConfig(
            max_new_tokens=self.max_tokens,
            do_sample=sampled,
            temperature=self.temperature if sampled else None,
            top_p=0.95 if sampled else None,
            pad_token_id=pad,
            eos_token_id=tokenizer.eos_token_id,
        )
        with torch.random.fork_rng(devices=[]), evaluating(self.model):
            torch.manual_seed(hash_of(self.seed, passages[0].id))
            out = self.model.generate(input_ids=ids, attention_mask=mask, generation_config=settings)
        return tokenizer.batch_decode(out[:, width:], skip_special_tokens=True)


def hash_of(seed: int, name: str) -> int:
    """A seed for one batch: the same on every machine, unlike `hash`."""
    return int.from_bytes(hashlib.sha256(f"{seed}/{name}".encode()).digest()[:7], "big")
