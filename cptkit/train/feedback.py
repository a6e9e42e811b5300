"""The loop's side of weights that are fed back: measure, tell the mixture, log, remember.

At step 0 and after every interval the validation text of each source that is fed back is scored, the rule
(`data/feedback.py`) gives the shares of the next interval, and the mixture plans it. Cost: a forward pass
over `documents` documents a source and interval, counted as probe time.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from cptkit.data.mixture import Mixture
from cptkit.data.weights import Dynamic
from cptkit.eval import perplexity
from cptkit.train.probes import MAX_TOKENS, perplexity_texts


class Feedback:
    """What a run with `Dynamic` weights remembers: every measurement so far, oldest first."""

    def __init__(self, weights: Dynamic, tokenizer: Any, cache: Path, length: int) -> None:
        self.weights = weights
        self.texts = perplexity_texts(weights.texts, weights.documents, tokenizer, cache, length)
        self.measured: list[dict[str, float]] = []

    def due(self, step: int, total: int) -> bool:
        return step % self.weights.every == 0 and step < total

    def update(self, step: int, model: torch.nn.Module, mixture: Mixture) -> dict[str, float]:
        """Measure, set the mixture's shares for the next interval, and return a row of metrics.

        Columns: `feedback.<source>.perplexity` as measured, `feedback.<source>.share` from now on.
        """
        found = {
            name: perplexity.perplexity(model, texts, max_tokens=MAX_TOKENS).perplexity
            for name, texts in self.texts.items()
        }
        self.measured.append(found)
        shares = self.weights.next(step, mixture.shares, self.measured)
        mixture.reweigh(shares, self.weights.every)
        row = {f"feedback.{name}.perplexity": value for name, value in found.items()}
        return row | {f"feedback.{name}.share": shares[name] for name in found}

    def state(self) -> list[dict[str, float]]:
        return [dict(round_) for round_ in self.measured]

    def load_state(self, state: list[dict[str, float]]) -> None:
        self.measured = [dict(round_) for round_ in state]
