"""The runs of P3's topic mixture: the target divided by topic, its shares fixed or following perplexity.

Every arm has the same source share, learning rate and number of tokens; what differs is how the target's
share is divided between its topics. The held-out text of every topic is probed in all arms alike, by the
true topics, also where a mixture was made by a classifier.

Departures from P3: it divides web pages of both languages, here it is the target; it publishes neither
alpha, w, the normalisation nor the interval, so alpha is swept and the others are the profile's.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping
from dataclasses import dataclass

import pandas as pd

from cptkit.data import corpora, topics
from cptkit.data.corpus import CorpusSpec
from cptkit.data.feedback import ExcessLoss, TopicFeedback
from cptkit.data.weights import Constant, Dynamic, Weights
from cptkit.study import stats
from cptkit.study.experiments import SOURCE, TARGET, Study, continued, percent
from cptkit.study.plans import TopicPlan
from cptkit.study.store import Arm
from cptkit.train.config import ConfigError

STATIC = {1.0: "proportional", 0.0: "uniform"}


def plan_of(study: Study) -> TopicPlan:
    """The profile's section for this notebook. Raises ConfigError where there is none."""
    if study.profile.topics is None:
        raise ConfigError(f"profile {study.profile.name} has no [topics] section: nothing to run")
    return study.profile.topics


def source_of(topic: str) -> str:
    """What the text of a topic is called, as a source and as a set of held-out text."""
    return f"{TARGET}.{topic or 'other'}"


@dataclass(frozen=True)
class Division:
    """The target by topic: its texts, the bytes of each topic (largest first), topics with held-out text."""

    train: CorpusSpec
    validation: CorpusSpec
    size: Mapping[str, int]
    seen: frozenset[str]

    @property
    def sources(self) -> dict[str, CorpusSpec]:
        return {source_of(t): dataclasses.replace(self.train, topic=t) for t in self.size}

    @property
    def held_out(self) -> dict[str, CorpusSpec]:
        """A topic that no held-out text speaks of gives no evidence and is left out."""
        topics_ = [t for t in self.size if t in self.seen]
        return {source_of(t): dataclasses.replace(self.validation, topic=t) for t in topics_}

    def shares(self, power: float, source_share: float) -> dict[str, float]:
        """The mixture in which a topic's share of the target goes as (its size) ** `power`."""
        raw = {source_of(t): bytes_**power for t, bytes_ in self.size.items()}
        scale = (1 - source_share) / sum(raw.values())
        source = {SOURCE: source_share} if source_share else {}
        return source | {name: value * scale for name, value in raw.items()}


def divide(study: Study, train: CorpusSpec | None = None, validation: CorpusSpec | None = None) -> Division:
    """The study's target text by topic, or other texts with topics of their own. Reads them once."""
    train = train or study.profile.target.train
    validation = validation or study.profile.target.validation
    found: dict[str, int] = {}
    for document in corpora.read_documents(train, study.cache):
        found[document.topic] = found.get(document.topic, 0) + len(document.text.encode())
    size = dict(sorted(found.items(), key=lambda item: -item[1]))
    seen = frozenset(d.topic for d in corpora.read_documents(validation, study.cache))
    return Division(train, validation, size, seen)


@dataclass(frozen=True)
class Topics:
    """What all arms share: the study, its true division, and the probes they are judged by."""

    study: Study
    true: Division

    @property
    def plan(self) -> TopicPlan:
        return plan_of(self.study)

    def arm(self, name: str, seed: int, weights: Weights, division: Division) -> Arm:
        """One run: the weights over the sources of `division`, probed by the true topics."""
        plan, profile = self.plan, self.study.profile
        steps = plan.steps or profile.run.steps
        probes = dataclasses.replace(
            profile.run.probes,
            steps=tuple(range(0, steps + 1, plan.probe)),
            perplexity=profile.run.probes.perplexity | self.true.held_out,
            choices_steps=(steps,),
        )
        source = {SOURCE: profile.source.train} if plan.source_share else {}
        spec = continued(
            profile,
            self.study.base(),
            plan.source_share,
            seed=seed,
            steps=steps,
            probes=probes,
            sources=source | division.sources,
            mixture=weights,
        )
        return Arm("topics", name, seed, spec)

    def dynamic(self, rule: TopicFeedback | ExcessLoss, division: Division) -> Dynamic:
        """From proportional shares on, fed back over the topics that have held-out text."""
        return Dynamic(
            Constant(division.shares(1.0, self.plan.source_share)),
            every=self.plan.every,
            rule=rule,
            texts=division.held_out,
            documents=self.plan.documents,
        )

    def rule(self, alpha: float) -> TopicFeedback:
        """P3's rule with this alpha and what else the plan says."""
        plan = self.plan
        return TopicFeedback(alpha, plan.normalise, {}, plan.smoothing, plan.floor, plan.cap)

    # -- the arms --

    def static(self) -> list[Arm]:
        """Fixed shares, by each power of the topics' sizes; the first two powers with every seed."""
        seeds, arms = self.study.profile.seeds, []
        for n, power in enumerate(self.plan.powers):
            weights = Constant(self.true.shares(power, self.plan.source_share))
            name = STATIC.get(power, f"power {power:g}")
            arms += [self.arm(name, s, weights, self.true) for s in (seeds if n < 2 else seeds[:1])]
        return arms

    def fed_back(self) -> list[Arm]:
        """P3's rule: by alpha, the first with every seed; on imperfect topics; between groups of topics."""
        seeds, plan, arms = self.study.profile.seeds, self.plan, []
        for n, alpha in enumerate(plan.alphas):
            weights = self.dynamic(self.rule(alpha), self.true)
            name = "dynamic" if n == 0 else f"dynamic, alpha {alpha:g}"
            arms += [self.arm(name, s, weights, self.true) for s in (seeds if n == 0 else seeds[:1])]
        rule = self.rule(plan.alphas[0])
        for name, division in self.imperfect():
            arms.append(self.arm(name, seeds[0], self.dynamic(rule, division), division))
        if plan.groups:
            groups = {g: tuple(map(source_of, members)) for g, members in plan.groups.items()}
            weights = dataclasses.replace(self.dynamic(rule, self.true), groups=groups)
            arms.append(self.arm("data sets", seeds[0], weights, self.true))
        return arms

    def classifier(self) -> topics.Linear:
        """The light classifier, from the first `labels` documents of the target."""
        documents = corpora.read_documents(self.true.train, self.study.cache)
        return topics.train_linear(list(itertools.islice(documents, self.plan.labels)))

    def report(self) -> topics.Report:
        """The classifier on held-out documents."""
        held_out = list(corpora.read_documents(self.true.validation, self.study.cache))
        return topics.report(self.classifier(), held_out, self.plan.threshold)

    def imperfect(self) -> list[tuple[str, Division]]:
        """(arm, division) with topics that are partly wrong, in the training and in the held-out text."""
        plan, cache, texts = self.plan, self.study.cache, (self.true.train, self.true.validation)
        found = []
        for error in plan.errors:
            made = [topics.misled(corpus, error, cache) for corpus in texts]
            found.append((f"{percent(error)} % wrong topics", divide(self.study, *made)))
        if plan.labels:
            model = self.classifier()
            made = [topics.assign(corpus, model, cache, threshold=plan.threshold) for corpus in texts]
            found.append((f"classifier, {plan.labels} labels", divide(self.study, *made)))
        return found

    def excess(self, frame: pd.DataFrame) -> list[Arm]:
        """Exponentiated gradient on the loss above that of the proportional run of `frame`; first seed."""
        plan, seed = self.plan, self.study.profile.seeds[0]
        if plan.eta is None:
            return []
        ends = stats.ends(frame)
        ends = ends[(ends["arm"] == STATIC[1.0]) & (ends["seed"] == seed)].iloc[0]
        reference = {name: float(ends[f"ppl.{name}.nats_per_token"]) for name in self.true.held_out}
        weights = self.dynamic(ExcessLoss(reference, plan.eta, floor=plan.floor, cap=plan.cap), self.true)
        return [self.arm("excess loss", seed, weights, self.true)]


def open_topics(study: Study) -> Topics:
    """What notebook 08 starts with."""
    plan, held_out = plan_of(study), study.profile.target.validation
    if plan.megabytes is not None:
        held_out = dataclasses.replace(held_out, megabytes=plan.megabytes)
    return Topics(study, divide(study, validation=held_out))


# ---- what came out ----------------------------------------------------------------------------------


def with_means(frame: pd.DataFrame, division: Division) -> pd.DataFrame:
    """The frame with nats a token over topics: `topics.mean`, `topics.weighted` by size, `topics.worst`."""
    weight = {f"ppl.{source_of(t)}.nats_per_token": float(s) for t, s in division.size.items()}
    weight = pd.Series({column: size for column, size in weight.items() if column in frame})
    table = frame[list(weight.index)]
    return frame.assign(
        **{
            "topics.mean": table.mean(axis=1),
            "topics.weighted": (table * weight / weight.sum()).sum(axis=1, min_count=len(weight)),
            "topics.worst": table.max(axis=1),
        }
    )


def regret(frame: pd.DataFrame, metric: str = "topics.mean") -> pd.DataFrame:
    """How far each run is from the fixed mixture that ended best in hindsight, for its seed.

    A row per run and probe after the start: arm, seed, step, tokens, regret (nats, at the probe), cumulated
    (its mean over the probes so far) and best, the name of that mixture. The more fixed mixtures were
    tried, the more they are an oracle.
    """
    probes, ends, rows = stats.probes(frame), stats.ends(frame), []
    fixed = [a for a in probes["arm"].unique() if a in STATIC.values() or a.startswith("power")]
    for seed, part in probes.groupby("seed"):
        known = ends[(ends["seed"] == seed) & ends["arm"].isin(fixed)]
        if known.empty:
            continue
        best = known.loc[known[metric].idxmin(), "arm"]
        base = part[part["arm"] == best].set_index("step")[metric]
        for arm, run in part[part["step"] > 0].groupby("arm", sort=False):
            run = run.sort_values("step")
            apart = run[metric].to_numpy() - base.reindex(run["step"]).to_numpy()
            found = run[["step", "tokens"]].assign(arm=arm, seed=seed, best=best, regret=apart)
            rows.append(found.assign(cumulated=found["regret"].expanding().mean()))
    return pd.concat(rows, ignore_index=True) if rows else pd.DataFrame()
