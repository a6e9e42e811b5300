"""The runs of P3's perplexity curriculum: one text in several orders, scored by the model that starts.

All arms of a seed read the same target sequences (the random arm's), but for `subjects`, which reads the
topics one after another, each packed by itself, in equal amounts. The source is spread evenly over all of
them.

Departures from P3: sequences are sorted and not documents, so that exactly the same tokens are trained on;
both directions, stages with mixing and a paced schedule stand beside its easy-to-hard; scores per byte
beside those per token.
"""

from __future__ import annotations

import dataclasses
import zlib

import numpy as np
import pandas as pd

from cptkit.data.mixture import Mixture
from cptkit.data.weights import Phase, Phases
from cptkit.eval import scores
from cptkit.study.arms import topics
from cptkit.study.experiments import SOURCE, TARGET, Study, continued
from cptkit.study.plans import OrderPlan
from cptkit.study.store import Arm
from cptkit.train import models
from cptkit.train.config import ConfigError
from cptkit.train.spec import RunSpec
from cptkit.train.trainer import mixture_of, pack_sources

RANDOM = "random"


def plan_of(study: Study) -> OrderPlan:
    """The profile's section for this notebook. Raises ConfigError where there is none."""
    if study.profile.order is None:
        raise ConfigError(f"profile {study.profile.name} has no [order] section: nothing to run")
    return study.profile.order


def _run(study: Study, seed: int, **changes) -> RunSpec:
    plan, profile = plan_of(study), study.profile
    steps = plan.steps or profile.run.steps
    probes = dataclasses.replace(profile.run.probes, choices_steps=(0, steps))
    changes |= {"steps": steps, "probes": probes}
    return continued(profile, study.base(), plan.source_share, seed=seed, **changes)


def orders(study: Study) -> list[Arm]:
    """Random and the plan's `orders` with every seed, `more` and the subjects with the first."""
    plan, seeds = plan_of(study), study.profile.seeds
    arms = [Arm("order", RANDOM, seed, _run(study, seed)) for seed in seeds]
    for name, order in plan.orders.items():
        arms += [Arm("order", name, seed, _run(study, seed, order={TARGET: order})) for seed in seeds]
    for name, order in plan.more.items():
        arms.append(Arm("order", name, seeds[0], _run(study, seeds[0], order={TARGET: order})))
    return arms + ([subjects(study)] if plan.subjects else [])


def subjects(study: Study) -> Arm:
    """Topic after topic, the largest first, each for the share of the steps that its text has."""
    plan, profile, seed = plan_of(study), study.profile, study.profile.seeds[0]
    steps, division = plan.steps or profile.run.steps, topics.divide(study)
    size = division.size
    edges = np.round(np.cumsum([0, *size.values()]) / sum(size.values()) * steps).astype(int)
    source = {SOURCE: plan.source_share} if plan.source_share else {}
    phases = [
        Phase(int(start), source | {topics.source_of(topic): 1 - plan.source_share})
        for topic, start, end in zip(size, edges[:-1], edges[1:], strict=True)
        if end > start
    ]
    texts = {SOURCE: profile.source.train} if source else {}
    texts |= division.sources
    return Arm("order", "subjects", seed, _run(study, seed, sources=texts, mixture=Phases(tuple(phases))))


def described(study: Study) -> pd.DataFrame:
    """What a score prefers: a row a target sequence of the random arm, scored by the start model.

    Columns: per_token and per_byte (nats), bytes_per_token, documents (that begin in it), repeated (1 minus
    the compressed size over the size: text that says the same again), place in the random order.
    """
    plan, spec = plan_of(study), _run(study, study.profile.seeds[0])
    model, tokenizer = models.load(spec.model, study.cache, study.runs, length=spec.length, seed=spec.seed)
    packed = pack_sources(spec, tokenizer, study.cache, progress=study.progress)
    indices = _used(spec, mixture_of(spec, packed))[: plan.describe]
    found = scores.score(model, tokenizer, packed[TARGET], indices, study.cache)
    rows = []
    for place, index in enumerate(indices):
        row = packed[TARGET].sequence(index)
        text = tokenizer.decode(row["input_ids"], skip_special_tokens=True).encode()
        rows.append(
            {
                "place": place,
                "per_token": found.per("token")[place],
                "per_byte": found.per("byte")[place],
                "bytes_per_token": len(text) / packed[TARGET].length,
                "documents": int((row["position_ids"] == 0).sum()),
                "repeated": 1 - len(zlib.compress(text, 9)) / max(len(text), 1),
            }
        )
    return pd.DataFrame(rows)


def _used(spec: RunSpec, mixture: Mixture) -> list[int]:
    """The target's sequences in the order in which the run reads them."""
    return [i for _ in range(spec.steps) for name, i in mixture.next_step() if name == TARGET]


def preferences(table: pd.DataFrame) -> pd.DataFrame:
    """Rank correlation of both scores with what a sequence looks like, and with each other."""
    looks = ["bytes_per_token", "documents", "repeated", "per_token", "per_byte"]
    return table[looks].corr("spearman").loc[["per_token", "per_byte"], looks]
