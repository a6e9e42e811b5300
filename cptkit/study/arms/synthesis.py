"""The runs of P3's synthetic data: how much of it, how wrong it may be, and its two stages taken apart.

Tokens are equal throughout: synthetic text stands in place of target text. The text is made here, once, by
the plan's teacher (`data/synthesis.py`), and refused where it holds an item that the runs are evaluated on.

Departures from P3: the lab's teacher writes in the target language, so that its questions have the form
that the target's multiple choice is asked in (P3's are English and Chinese); its error rate is exact.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from cptkit.data import corpora, generators, synthesis
from cptkit.data.corpus import CorpusSpec
from cptkit.data.documents import ChoiceItem, Document
from cptkit.data.feedback import TopicFeedback
from cptkit.data.instructions import Instruction
from cptkit.data.order import Sorted
from cptkit.data.weights import Constant, Dynamic, Phase, Phases, Weights
from cptkit.data.world import World
from cptkit.eval.instruct import Instructed
from cptkit.study import stats
from cptkit.study.arms import paper2, topics
from cptkit.study.experiments import SOURCE, TARGET, Study, continued, percent
from cptkit.study.plans import SynthesisPlan
from cptkit.study.store import Arm
from cptkit.train import models
from cptkit.train.config import ConfigError
from cptkit.train.probes import choice_items
from cptkit.train.spec import RunSpec

SYNTHETIC = "synthetic"
WHOLE = "two stages"
BETTER = {"ppl.target.nats_per_token": -1, "choices.target.accuracy": 1, "ppl.source.nats_per_token": -1}


def plan_of(study: Study) -> SynthesisPlan:
    """The profile's section for this notebook. Raises ConfigError where there is none."""
    if study.profile.synthesis is None:
        raise ConfigError(f"profile {study.profile.name} has no [synthesis] section: nothing to make")
    return study.profile.synthesis


# ---- the text ---------------------------------------------------------------------------------------


def passages(study: Study) -> list[Document]:
    """What the teacher is asked about: the first `count` documents."""
    plan = plan_of(study)
    corpus = plan.passages or study.profile.target.train
    return list(itertools.islice(corpora.read_documents(corpus, study.cache), plan.count))


def teacher(study: Study, error: float = 0.0) -> synthesis.Generator:
    """The plan's teacher. Raises ConfigError for an error rate that it cannot have."""
    plan, profile = plan_of(study), study.profile
    if plan.teacher == "world":
        corpus = profile.target.train
        return generators.WorldTeacher(World(**corpus.params), corpus.lang, error, plan.pairs)
    if error:
        raise ConfigError("synthesis.errors: only the lab world's teacher errs on demand")
    model, tokenizer = models.load(study.base(), study.cache, study.runs, length=profile.run.length, seed=0)
    instruction, label = Instruction(plan.discipline), profile.base.start or "the base model"
    return Instructed(model, tokenizer, instruction, label=label, max_tokens=plan.max_tokens)


def items(study: Study) -> list[ChoiceItem]:
    """Everything that the runs are asked."""
    probes = study.profile.run.probes.choices.values()
    return [item for probe in probes for item in choice_items(probe, study.cache)[0]]


def place(study: Study, generator: synthesis.Generator) -> Path:
    """The file of one teacher's pairs about these passages."""
    plan = plan_of(study)
    corpus = corpora.fingerprint(plan.passages or study.profile.target.train, study.cache)
    key = hashlib.sha256(json.dumps([corpus, plan.count, generator.name]).encode()).hexdigest()[:24]
    return study.cache / "synthetic" / f"{key}.jsonl"


@dataclass(frozen=True)
class Made:
    """One teacher's text: what was kept of it, what was rejected, and the file of its pairs."""

    error: float
    corpus: CorpusSpec
    counts: dict[str, int]
    summary: synthesis.Summary
    place: Path


def make(study: Study, error: float = 0.0) -> Made:
    """Ask for what is missing, and make training text of it."""
    plan, generator, asked = plan_of(study), teacher(study, error), items(study)
    file = place(study, generator)
    summary = synthesis.synthesise(passages(study), generator, file, discipline=plan.discipline)
    lang = (plan.passages or study.profile.target.train).lang
    corpus, counts = synthesis.text_of(file, lang, study.cache, asked, template=plan.template)
    return Made(error, corpus, counts, summary, file)


def counted(made: list[Made]) -> pd.DataFrame:
    """A row a teacher: passages, pairs, what was rejected and why, what was kept."""
    rows = [
        {"error": m.error, "passages": m.summary.passages, "pairs": m.summary.pairs}
        | {"documents": m.counts["documents"], "near-duplicates": m.counts["near-duplicates"]}
        | {f"rejected: {why}": n for why, n in m.summary.rejected.items()}
        for m in made
    ]
    return pd.DataFrame(rows).fillna(0)


def examples(made: Made, count: int = 5) -> pd.DataFrame:
    """The first pairs, as they were parsed."""
    rows = [dataclasses.asdict(pair) for pair in synthesis.pairs(made.place)[:count]]
    return pd.DataFrame(rows)[["source", "question", "answer"]] if rows else pd.DataFrame()


# ---- the arms ---------------------------------------------------------------------------------------


def _run(study: Study, seed: int, mixture: Weights, sources: dict[str, CorpusSpec], **changes) -> RunSpec:
    steps = changes["steps"]
    probes = dataclasses.replace(study.profile.run.probes, choices_steps=(0, steps), steps=(0, steps))
    changes |= {"probes": probes, "sources": sources, "mixture": mixture}
    return continued(study.profile, study.base(), 0.0, seed=seed, **changes)


def name_of(share: float, error: float = 0.0) -> str:
    if not share:
        return "no synthetic"
    return f"{percent(share)} % synthetic" + (f", {percent(error)} % wrong" if error else "")


def _shared(study: Study, share: float, made: Made | None, seed: int) -> Arm:
    plan, profile = plan_of(study), study.profile
    weights = {SOURCE: plan.source_share, TARGET: 1 - plan.source_share - share, SYNTHETIC: share}
    weights = {name: value for name, value in weights.items() if value > 0}
    texts = {SOURCE: profile.source.train, TARGET: profile.target.train}
    texts |= {SYNTHETIC: made.corpus} if share else {}
    texts = {name: corpus for name, corpus in texts.items() if name in weights}
    error = made.error if share and made else 0.0
    spec = _run(study, seed, Constant(weights), texts, steps=plan.steps or profile.run.steps)
    return Arm(SYNTHETIC, name_of(share, error), seed, spec, {"synthetic": share, "error": error})


def shares(study: Study, made: Made) -> list[Arm]:
    """Each share of synthetic text without errors; the first and `at` with every seed."""
    plan, seeds = plan_of(study), study.profile.seeds
    return [
        _shared(study, share, made, seed)
        for n, share in enumerate(plan.shares)
        for seed in (seeds if n == 0 or share == plan.at else seeds[:1])
    ]


def errors(study: Study, made: list[Made]) -> list[Arm]:
    """The share `at` with answers that are partly wrong; the largest rate with every seed."""
    plan, seeds = plan_of(study), study.profile.seeds
    wrong = [m for m in made if m.error]
    return [
        _shared(study, plan.at, m, seed) for m in wrong for seed in (seeds if m is wrong[-1] else seeds[:1])
    ]


def stages(study: Study, made: Made) -> list[Arm]:
    """P3's recipe whole, without each of its parts, and in one stage of the same average mixture."""
    plan, profile = plan_of(study).stages, study.profile
    if plan is None:
        return []
    division, seed = topics.divide(study), profile.seeds[0]

    def shared_out(shares: tuple[float, float, float], by_topic: bool) -> dict[str, float]:
        source, target, synthetic = shares
        inside = division.shares(1.0, 1 - target) if by_topic and target else {TARGET: target}
        inside.pop(SOURCE, None)
        found = {SOURCE: source} | inside | {SYNTHETIC: synthetic}
        return {name: share for name, share in found.items() if share > 0}

    def arm(name: str, *, by_topic=True, order=True, synthetic=True, staged=True) -> Arm:
        second = plan.second if synthetic else plan.first
        first = plan.first
        if not staged:
            part = plan.switch / plan.steps
            mean = np.array(plan.first) * part + np.array(plan.second) * (1 - part)
            first = second = tuple((mean / mean.sum()).tolist())
        phases = [Phase(0, shared_out(first, by_topic))]
        if second != first:
            phases.append(Phase(plan.switch, shared_out(second, by_topic)))
        weights: Weights = Phases(tuple(phases))
        if by_topic:
            weights = Dynamic(weights, plan.every, TopicFeedback(plan.alpha), division.held_out, documents=12)
        texts = {SOURCE: profile.source.train} | (
            division.sources if by_topic else {TARGET: profile.target.train}
        )
        texts |= {SYNTHETIC: made.corpus} if any(SYNTHETIC in phase.weights for phase in phases) else {}
        changes = {"steps": plan.steps, "schedule": plan.schedule}
        if order:
            changes["order"] = {name: Sorted() for name in texts if name.startswith(TARGET)}
        return Arm("stages", name, seed, _run(study, seed, weights, texts, **changes))

    return [
        arm(WHOLE),
        arm("without topics", by_topic=False),
        arm("without order", order=False),
        arm("without synthetic", synthetic=False),
        arm("one stage", staged=False),
    ]


def on_proxies(study: Study, made: list[Made]) -> pd.DataFrame:
    """Every arm here, first seed, on the plan's smaller sizes and the profile's own; label `size`."""
    plan, frames = plan_of(study), []
    first = dataclasses.replace(study, profile=study.profile.with_seeds([study.profile.seeds[0]]))
    known = paper2.shapes_of(study.profile.scaling)
    for size in (*plan.sizes, ""):
        here = paper2.sized(first, known[size]) if size else first
        arms = shares(here, made[0]) + errors(here, made) + stages(here, made[0])
        frame = here.run(arms)
        frames.append(frame.assign(size=size or "own"))
    return pd.concat(frames, ignore_index=True)


def agreement(frame: pd.DataFrame, metrics: dict[str, int], draws: int = 2000, seed: int = 0) -> pd.DataFrame:
    """Does a small model rank the arms as the larger does? Spearman's rank correlation over the arms.

    `metrics` are columns with the sign of what is better. Intervals by bootstrap over the arms; `same best`
    says whether the arm that is best on the proxy is the best on the larger one, `lost` what choosing it
    costs there.
    """
    ends, rng, rows = stats.ends(frame), np.random.default_rng(seed), []
    own = ends[ends["size"] == "own"].set_index("arm")
    for size in [s for s in ends["size"].unique() if s != "own"]:
        proxy = ends[ends["size"] == size].set_index("arm")
        common = [arm for arm in own.index if arm in proxy.index and arm != "base"]
        for metric, better in metrics.items():
            if metric not in ends:
                continue
            both = pd.DataFrame({"own": own.loc[common, metric], "proxy": proxy.loc[common, metric]}).dropna()
            if len(both) < 3:
                continue
            picks = rng.integers(0, len(both), (draws, len(both)))
            drawn = [both.iloc[pick].corr("spearman").iloc[0, 1] for pick in picks]
            low, high = np.nanquantile(drawn, [0.025, 0.975])
            chosen, best = (better * both["proxy"]).idxmax(), (better * both["own"]).idxmax()
            rows.append(
                {
                    "proxy": size,
                    "metric": metric,
                    "arms": len(both),
                    "rank correlation": both.corr("spearman").iloc[0, 1],
                    "low": low,
                    "high": high,
                    "best on the proxy": chosen,
                    "best": best,
                    "lost": float(better * (both.loc[best, "own"] - both.loc[chosen, "own"])),
                }
            )
    return pd.DataFrame(rows)


def estimates(frame: pd.DataFrame) -> dict[str, stats.Interval | str]:
    """What the ledger judges of proxies: the rank correlation of target loss over the arms."""
    table = agreement(frame, {"ppl.target.nats_per_token": -1, "choices.target.accuracy": 1})
    found: dict[str, stats.Interval | str] = dict.fromkeys(
        ("proxy.loss", "proxy.choices"), "no smaller model was trained here"
    )
    metrics = {"proxy.loss": "ppl.target.nats_per_token", "proxy.choices": "choices.target.accuracy"}
    for name, metric in metrics.items():
        rows = table[table["metric"] == metric] if len(table) else table
        if len(rows):
            row = rows.iloc[0]
            found[name] = stats.Interval(row["rank correlation"], row["low"], row["high"], int(row["arms"]))
    return found
