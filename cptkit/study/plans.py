"""What each experiment varies, as data: the sections of a profile.

A plan names arms, rates and seeds; `experiments.py` and the modules of `arms/` turn it into runs. Every
grid has headline arms, run with all seeds of the profile, and further arms, run with the first seed alone.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from cptkit.data.corpus import CorpusSpec
from cptkit.data.order import Buckets, Paced, Sorted
from cptkit.train.config import ConfigError
from cptkit.train.restraint import Coherence, Gate, TrustRegion
from cptkit.train.schedule import Schedule
from cptkit.train.shapes import Shape


@dataclass(frozen=True)
class Text:
    """One language's text: what is trained on, and what is held out."""

    train: CorpusSpec
    validation: CorpusSpec
    name: str = ""  # as figures call it


@dataclass(frozen=True)
class EnglishMixing:
    """Notebook 01. `arms` maps an arm to its share of source-language tokens.

    The headline table is at the profile's own rate (`run.schedule.peak`) with all seeds; `rates` are
    further peak rates, run with the first seed for the arms of `rate_arms`. `warmups` are other lengths of
    the warm-up, in steps, run with all seeds for the same arms: does the timing of the fall depend on it?
    """

    arms: dict[str, float] = field(default_factory=lambda: {"none": 0.0, "mix20": 0.2, "mix50": 0.5})
    rates: tuple[float, ...] = ()
    rate_arms: tuple[str, ...] = ("none", "mix20")
    warmups: tuple[int, ...] = ()


@dataclass(frozen=True)
class Condition:
    """One thing that is otherwise: schedule, length of the run, closeness of the target, shape of the model.

    Another shape needs a base of its own, pretrained as the profile's is.
    """

    schedule: Schedule | None = None
    steps: int | None = None
    similarity: float | None = None
    shape: Shape | None = None


@dataclass(frozen=True)
class Curriculum:
    """Notebook 02: source text at `share` of the tokens, in a part of the run only.

    `early` and `late` are shares of the steps, from the beginning or up to the end. Arm `even` spends what
    the arm early `budget` spends, spread over the whole run. Shares in `more` are run with the first seed
    alone. `conditions` repeat the arms without source text, early `budget` and with it throughout.
    """

    share: float = 0.2
    budget: float = 0.1
    early: tuple[float, ...] = (0.1,)
    late: tuple[float, ...] = (0.1,)
    more: tuple[float, ...] = ()
    even: bool = True
    conditions: dict[str, Condition] = field(default_factory=dict)


@dataclass(frozen=True)
class AveragingPlan:
    """Notebook 03: averaging, its control, and other ways to hold the weights or to replay.

    The arms of `alphas` x `every`; the first alpha with the first two intervals, and its control, are the
    headline. `rates` are peak rates of plain training, without and with source text. `restraints` names rules
    that choose their strength, `penalties` strengths of L2-SP, measured in the profile's language; those of
    `elsewhere` also at `similarities`. `kept` are repeated with every seed, as is plain training at
    `control_rates`.
    `lists` is the text of language-free replay, at `list_shares`, `few_lists` one of fewer rules.
    """

    alphas: tuple[float, ...] = (0.92,)
    every: tuple[int, ...] = (1, 10)
    equivalence: bool = True  # also train averaging every step as itself, to show that it is a rate
    shadow: float | None = None  # half-life in steps
    released: bool = False
    rates: tuple[float, ...] = ()
    control_rates: tuple[float, ...] = ()
    restraints: dict[str, TrustRegion | Coherence | Gate] = field(default_factory=dict)
    kept: tuple[str, ...] = ()
    penalties: tuple[float, ...] = ()
    similarities: tuple[float, ...] = ()
    elsewhere: tuple[str, ...] = ()
    merging: tuple[float, ...] = ()
    lists: CorpusSpec | None = None
    list_shares: tuple[float, ...] = ()
    english_shares: tuple[float, ...] = ()
    few_lists: CorpusSpec | None = None


@dataclass(frozen=True)
class LoraPlan:
    """Notebook 04: `ranks`, each at `rates`; `embedding_ranks` also with embeddings and head trained.

    The first rank, with and without embeddings, is the headline: its best rate is run with all seeds.
    """

    ranks: tuple[int, ...] = (16,)
    embedding_ranks: tuple[int, ...] = ()
    rates: tuple[float, ...] = (1e-3,)


@dataclass(frozen=True)
class Band:
    """Models of up to `weights` (embeddings apart) take `sequences` a step."""

    weights: float
    sequences: int


@dataclass(frozen=True)
class Scaling:
    """Notebook 06: continued pretraining against scratch, sizes crossed with budgets, first seed.

    `sizes` maps a name to a shape; `published` names shapes of P2's Table 4. `budgets` are target tokens.
    Each size has a base pretrained on `pretraining` source tokens, the same for all, so that size and source
    text are not confounded (P2's grow together). Both arms of a size are swept over `rates` at the budget
    `sweep` and then run at their own best. The schedule's warm-up is in steps, the same for all budgets.
    `flops_per_second` of one device, to estimate hours beforehand.
    """

    sizes: dict[str, Shape] = field(default_factory=dict)
    published: tuple[str, ...] = ()
    budgets: tuple[float, ...] = ()
    rates: tuple[float, ...] = ()
    sweep: float = 0.0
    pretraining: float = 0.0
    bands: tuple[Band, ...] = ()
    schedule: Schedule = Schedule("wsd")
    language: Text | None = None
    documents: int = 200
    flops_per_second: float = 1e11

    def __post_init__(self) -> None:
        if (self.sizes or self.published) and not (self.budgets and self.rates and self.bands):
            raise ConfigError("scaling: sizes need budgets, rates and bands")
        if self.budgets and self.sweep not in self.budgets:
            raise ConfigError("scaling.sweep: rates are compared at one of the budgets")
        if self.schedule.kind == "cosine":
            raise ConfigError("scaling.schedule: wsd, so that budgets can share their beginning")


@dataclass(frozen=True)
class Replay:
    """Notebook 05: shares of source text, at one rate that is constant after warm-up.

    So a loss at a step is the loss of a run of that length, and a longer run goes on from a shorter one.
    `shares` are run with the first seed, those in `repeated` with all. `held_out` is a share that no law is
    fitted to; `longer` shares go on to `longer_steps`, which no law has seen either. `other` is another
    language to replay at `replayed`, by name; `few` limits the source text to so many megabytes there.
    `tolerance` is the preference that a share is recommended for: nats that the source may lose.
    """

    shares: tuple[float, ...] = (0.0, 0.01, 0.05, 0.1, 0.2, 0.5, 0.8)
    repeated: tuple[float, ...] = ()
    held_out: float = 0.3
    longer: tuple[float, ...] = ()
    longer_steps: int = 0
    steps: int = 0
    schedule: Schedule = Schedule("constant")
    probes: tuple[int, ...] = ()
    replayed: float = 0.1
    other: dict[str, Text] = field(default_factory=dict)
    few: tuple[float, ...] = ()
    tolerance: float = 0.1

    def __post_init__(self) -> None:
        if self.schedule.kind != "constant":
            raise ConfigError("replay.schedule: constant, so that every step is the end of a run")
        if self.held_out in self.shares:
            raise ConfigError("replay.held_out: a share that is not among `shares`")
        if not set(self.longer) <= set(self.shares):
            raise ConfigError("replay.longer: shares that are run")


@dataclass(frozen=True)
class Languages:
    """Notebook 07: continued pretraining into several languages, against scratch, and how close they are.

    `languages` maps a code or name to its text; `similarity` says how close each is, where that is a setting.
    Every rate is run with the first seed, the best one of each arm with all (`seeds`, where they are not the
    profile's); the rate is constant after warm-up. `sizes` names sizes of the scaling section (their bases
    are shared with notebook 06); empty is the profile's own model. `arms` without "scratch" where nobody
    would train one. `choices` names the probe of the profile that is asked, without shots, about each
    language's own text.
    """

    languages: dict[str, Text] = field(default_factory=dict)
    similarity: dict[str, float] = field(default_factory=dict)
    rates: tuple[float, ...] = ()
    arms: tuple[str, ...] = ("scratch", "cpt")
    sizes: tuple[str, ...] = ()
    trained: tuple[str, ...] = ()  # languages to train; empty is all
    seeds: tuple[int, ...] = ()
    steps: int = 0
    sequences: int = 0
    warmup: int = 0
    every: int = 1
    documents: int = 200
    choices: str = ""

    def __post_init__(self) -> None:
        if unknown := set(self.trained) - set(self.languages):
            raise ConfigError(f"languages.trained: {', '.join(sorted(unknown))} have no text")
        if unknown := set(self.arms) - {"scratch", "cpt"}:
            raise ConfigError(f"languages.arms: scratch and cpt, not {', '.join(sorted(unknown))}")
        if "scratch" in self.arms and len(self.rates) < 3:
            raise ConfigError("languages.rates: each arm is to be shown at the best of at least 3 rates")


@dataclass(frozen=True)
class Transfer:
    """Notebook 00: continued pretraining against scratch, for languages of several similarities.

    `languages` maps a name to its text; `similarity` says how close each is, where that is a setting.
    Both arms run `steps` steps at every one of `rates`, with a constant rate after warm-up so that a
    loss at a step is the loss of a run of that length.
    """

    languages: dict[str, Text]
    rates: tuple[float, ...]
    steps: int
    warmup: int
    every: int
    similarity: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if len(self.rates) < 3:
            raise ConfigError("transfer.rates: each arm is to be shown at the best of at least 3 rates")


@dataclass(frozen=True)
class Bilingual:
    """Notebook 00: a model trained on both languages, to see what the questions can show at all."""

    steps: int
    source_share: float
    rate: float


@dataclass(frozen=True)
class TopicPlan:
    """Notebook 08: the target divided by topic, with shares that are fixed or follow perplexity.

    The source keeps `source_share`. Fixed shares go as (size of the topic) ** power, for each of `powers`:
    1 is proportional, 0 uniform. Fed-back shares are set every `every` steps with each of `alphas`. With
    the first alpha also: on topics of which `errors` are wrong, on those of a classifier that has seen
    `labels` documents, and with `groups` of topics moved as one. `eta` is the strength of exponentiated
    gradient on excess loss, against the proportional run. The first two powers and the first alpha are run
    with all seeds.
    """

    source_share: float = 0.2
    steps: int = 0
    every: int = 10
    probe: int = 10
    powers: tuple[float, ...] = (1.0, 0.0)
    alphas: tuple[float, ...] = (1.0,)
    normalise: Literal["relative", "largest", "sum"] = "largest"
    smoothing: float = 0.0
    floor: float = 0.01
    cap: float = 1.0
    errors: tuple[float, ...] = ()
    labels: int = 0
    threshold: float = 0.0
    groups: dict[str, tuple[str, ...]] = field(default_factory=dict)
    eta: float | None = None
    documents: int = 20  # of each topic's validation text, when shares are set
    megabytes: float | None = None  # of all validation text, where the profile's own is too long to probe

    def __post_init__(self) -> None:
        if self.steps and 1.0 not in self.powers:
            raise ConfigError("topics.powers: 1, proportional, is what the others are compared with")


@dataclass(frozen=True)
class OrderPlan:
    """Notebook 09: the same target text in other orders, at `source_share`; `orders` with all seeds.

    Arm `random` is always run. `more` are run with the first seed. With `subjects` the topics also follow
    each other, one by one. `describe` sequences are scored to show what a score prefers.
    """

    source_share: float = 0.2
    steps: int = 0
    orders: dict[str, Sorted | Buckets | Paced] = field(default_factory=dict)
    more: dict[str, Sorted | Buckets | Paced] = field(default_factory=dict)
    subjects: bool = False
    describe: int = 500


@dataclass(frozen=True)
class Stages:
    """Two stages over one learning-rate schedule: shares of source, target and synthetic text in each.

    The second begins after `first_share` of the steps, at a multiple of `every`; topics are divided anew
    every `every` steps with `alpha`. P3: 2 : 8 : 0, then 1 : 7 : 2, target first.
    """

    steps: int
    every: int
    first_share: float = 0.75
    first: tuple[float, float, float] = (0.8, 0.2, 0.0)
    second: tuple[float, float, float] = (0.7, 0.1, 0.2)
    alpha: float = 0.5
    schedule: Schedule = Schedule("wsd")

    def __post_init__(self) -> None:
        for shares in (self.first, self.second):
            if abs(sum(shares) - 1) > 1e-9 or min(shares) < 0:
                raise ConfigError(f"synthesis.stages: shares must sum to 1, not {shares}")
        if self.schedule.kind != "wsd":
            raise ConfigError("synthesis.stages.schedule: wsd, one decay at the end of both stages")

    @property
    def switch(self) -> int:
        """The first step of the second stage."""
        return round(self.first_share * self.steps / self.every) * self.every


@dataclass(frozen=True)
class SynthesisPlan:
    """Notebook 10: question-answer text made of passages, in place of target text, at `source_share`.

    `teacher` "world" asks the lab world, with exact error rates; "model" asks the profile's own start
    model, which must be an instruct model. `passages` is the text it is asked about (default: the
    target's), the first `count` documents of it. `shares` of all tokens are synthetic; at the share `at`
    the answers have `errors`. The first and `at` are run with all seeds. `stages` is P3's recipe and what
    it is made of; `sizes` names sizes of the scaling section on which the same arms are run, to see whether
    a small model ranks them as the larger does.
    """

    teacher: Literal["world", "model"] = "world"
    passages: CorpusSpec | None = None
    count: int = 0
    pairs: int = 6
    max_tokens: int = 160
    discipline: str = "general education"
    template: str = "lab"
    source_share: float = 0.2
    steps: int = 0
    shares: tuple[float, ...] = ()
    errors: tuple[float, ...] = ()
    at: float = 0.2
    stages: Stages | None = None
    sizes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.errors and self.at not in self.shares:
            raise ConfigError("synthesis.at: errors are compared at one of the shares")
