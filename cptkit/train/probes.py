"""What a run measures of itself at its listed steps: perplexity, Copain, multiple choice, drift.

A probe is a function of the model and of items that are made once, before training: the same items at
every step and in every arm. Cost: one forward pass over the items; how long all of them took stands in the
run's `done.json`.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from cptkit.data import corpora, patterns, questions
from cptkit.data.corpus import CorpusSpec
from cptkit.data.documents import ChoiceItem, DataError
from cptkit.data.world import World
from cptkit.eval import choices, copain, drift, perplexity
from cptkit.train import lora
from cptkit.train.restraint import Gate
from cptkit.train.spec import ChoicesProbe, CopainProbe, ProbesSpec

MAX_TOKENS = 16384  # of one forward pass, padding included


class Probes:
    """The probes of one run. `start` is a `drift.snapshot` of the weights the run began with."""

    def __init__(
        self,
        spec: ProbesSpec,
        model: torch.nn.Module,
        tokenizer: Any,
        start: dict[str, torch.Tensor],
        cache: Path,
        length: int,
    ) -> None:
        self.tokenizer, self.start = tokenizer, start if spec.drift else None
        self.texts = perplexity_texts(spec.perplexity, spec.documents, tokenizer, cache, length)
        self.copain = copain_items(spec.copain) if spec.copain else {}
        self.template = copain.TEMPLATES[spec.copain.template] if spec.copain else None
        self.choices = {name: choice_items(probe, cache) for name, probe in spec.choices.items()}
        self.choice_templates = {n: choices.CHOICE_TEMPLATES[p.template] for n, p in spec.choices.items()}

    def measure(self, model: torch.nn.Module, choices_too: bool = True) -> dict[str, float]:
        """All metrics of the model as it stands, as columns of the metrics frame."""
        found: dict[str, float] = {}
        for name, texts in self.texts.items():
            found |= perplexity.perplexity(model, texts, max_tokens=MAX_TOKENS).metrics(f"ppl.{name}")
        for name, items in self.copain.items():
            result = copain.evaluate(model, self.tokenizer, items, self.template, max_tokens=MAX_TOKENS)
            found |= result.metrics(name)
        for name, (items, shots) in self.choices.items() if choices_too else ():
            template = self.choice_templates[name]
            result = choices.evaluate(model, self.tokenizer, items, shots, template, max_tokens=MAX_TOKENS)
            found |= result.metrics(f"choices.{name}")
        if self.start is not None:
            found |= drift.drift(lora.merged_weights(drift.bare(model)), self.start).metrics("drift")
        return found


def perplexity_texts(
    corpora_: Mapping[str, CorpusSpec], documents: int, tokenizer: Any, cache: Path, length: int
) -> dict[str, perplexity.TokenTexts]:
    """The first `documents` documents of each corpus, ready to be scored in rows of `length` tokens."""
    return {
        name: perplexity.prepare(tokenizer, _first_texts(corpus, cache, documents), length)
        for name, corpus in corpora_.items()
    }


def text_probe(
    rule: Gate, model: torch.nn.Module, tokenizer: Any, cache: Path, length: int
) -> Callable[[], float]:
    """Nats a token of the model as it stands on the gate's own text."""
    texts = perplexity.prepare(tokenizer, _first_texts(rule.text, cache, rule.documents), length)
    return lambda: perplexity.perplexity(model, texts, max_tokens=MAX_TOKENS).per_token


def copain_items(probe: CopainProbe) -> dict[str, list[copain.CopainItem]]:
    """Items by the prefix of their columns: "copain", and "held_out" for rules that no text shows."""
    items = {"copain": copain.generate(probe.seed, probe.per_task, low=probe.low, high=probe.high)}
    if probe.held_out_rules:
        items["held_out"] = held_out_items(probe.seed, probe.per_task)
    return items


def held_out_items(seed: int, per_rule: int) -> list[copain.CopainItem]:
    """Items of the lab world's held-out rules, lists of three digits, in Copain's form."""
    items = []
    for name, rule in patterns.HELD_OUT.items():
        rng = random.Random(f"{seed}/{name}")
        for n in range(per_rule):
            elements = patterns.draw_elements(rule, patterns.DIGITS, 3, rng)
            target = rule.apply(elements, 0)
            items.append(copain.CopainItem(seed, "held-out rule", name, n, tuple(elements), target))
    return items


def choice_items(probe: ChoicesProbe, cache: Path) -> tuple[list[ChoiceItem], list[ChoiceItem]]:
    """Items and shots of one set of questions. A shot is never one of the items."""
    if probe.items == "world":
        if probe.corpus is None or probe.corpus.kind != "world":
            raise DataError('choices of the lab world need `corpus` with kind = "world"')
        world = World(**probe.corpus.params)
        items = world.choices(probe.corpus.lang, probe.count, probe.form, probe.seed)
        return items, world.shots(probe.corpus.lang, probe.shots, probe.form, probe.seed)
    if probe.items == "capitals":
        items = questions.capitals(probe.lang, cache, probe.seed)
    elif probe.items == "continuations":
        if probe.corpus is None:
            raise DataError("continuations need `corpus`: the held-out pages they are made from")
        items = questions.continuations(corpora.read_documents(probe.corpus, cache), probe.seed)
    elif probe.items.endswith(".jsonl"):
        items = choices.load_items(Path(probe.items))
    else:
        raise DataError(f"choices: items {probe.items!r}: world, capitals, continuations or a JSONL file")
    if len(items) <= probe.shots:
        raise DataError(f"choices: only {len(items)} items, and {probe.shots} of them are to be shots")
    order = random.Random(probe.seed).sample(range(len(items)), len(items))
    shots, asked = order[: probe.shots], order[probe.shots : probe.shots + probe.count]
    return [items[i] for i in sorted(asked)], [items[i] for i in shots]


def _first_texts(corpus: CorpusSpec, cache: Path, count: int) -> list[str]:
    texts = [d.text for d in itertools.islice(corpora.read_documents(corpus, cache), count)]
    if not texts:
        raise DataError(f"no validation text in {corpus}")
    return texts
