"""The runs of P2's scaling study: sizes crossed with token budgets, continued pretraining and scratch.

Every run is a run of its own length with a full decay (WSD). Budgets of one size and arm share their
beginning (`train/forks.py`), which saves about half of the time and changes no result; what they share is
called their trunk. Scratch and CPT of a size see the same target tokens in the same order, with the same
tokenizer, each at the best of the same learning rates.

Departures from P2: budgets are crossed with sizes, not 20 tokens a weight (one line in the plane of N and D
cannot identify the law); all bases have seen as many source tokens; WSD for cosine.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping

import pandas as pd

from cptkit.study import sizes, stats, store
from cptkit.study.claims import published as published_rows
from cptkit.study.experiments import TARGET, Study, continued
from cptkit.study.laws.closed_form import FLOPS_PER_WEIGHT
from cptkit.study.plans import Scaling
from cptkit.study.profiles import with_shape
from cptkit.study.store import Arm
from cptkit.train.config import ConfigError
from cptkit.train.shapes import Shape
from cptkit.train.spec import ModelSpec, ProbesSpec, RunSpec, run_id
from cptkit.train.trainer import train

MAX_EPOCHS = 4.0  # repeated text is not fresh text, which the laws are about
LOSS = f"ppl.{TARGET}.nats_per_token"


def shapes_of(plan: Scaling | None) -> dict[str, Shape]:
    """Name -> shape of every size, smallest first; empty without a plan."""
    if plan is None:
        return {}
    known = dict(plan.sizes)
    if plan.published:
        printed = sizes.shapes(published_rows())
        known |= {name: printed[name] for name in plan.published}
    return dict(sorted(known.items(), key=lambda item: item[1].weights))


def sized(study: Study, shape: Shape) -> Study:
    """The study with bases of this shape, pretrained on the plan's number of source tokens."""
    plan, run = study.profile.scaling, study.profile.run
    sequences = _sequences(plan, shape)
    steps = _steps(plan.pretraining, sequences, run.length)
    profile = with_shape(study.profile, shape, steps=steps, sequences=sequences)
    return dataclasses.replace(study, profile=profile)


def _sequences(plan: Scaling, shape: Shape) -> int:
    bands = sorted(plan.bands, key=lambda band: band.weights)
    return next((b.sequences for b in bands if shape.weights <= b.weights), bands[-1].sequences)


def _steps(tokens: float, sequences: int, length: int) -> int:
    return max(1, round(tokens / (sequences * length)))


def run_of(study: Study, name: str, arm: str, budget: float, rate: float, model: ModelSpec) -> Arm:
    """One run; labels `size`, `N`, `flops` (6 N D), `counted` (FLOPs from the architecture) and `trunk`."""
    profile, plan = study.profile, study.profile.scaling
    shape, text, seed = shapes_of(plan)[name], plan.language or profile.target, profile.seeds[0]
    sequences = _sequences(plan, shape)
    perplexity = {TARGET: text.validation}
    probes = ProbesSpec(steps=(), perplexity=perplexity, documents=plan.documents, drift=False)
    spec: RunSpec = continued(
        profile,
        model,
        0.0,
        seed=seed,
        schedule=dataclasses.replace(plan.schedule, peak=rate),
        steps=_steps(budget, sequences, profile.run.length),
        sequences=sequences,
        sources={TARGET: text.train},
        max_epochs=MAX_EPOCHS,
        probes=probes,
    )
    vocabulary = profile.base.pretraining.model.tokenizer.vocabulary
    labels = {
        "size": name,
        "N": shape.weights,
        "flops": FLOPS_PER_WEIGHT * shape.weights * spec.tokens,
        "counted": float(shape.flops_per_token(vocabulary, spec.length)) * spec.tokens,
        "trunk": f"{name} {arm}",
    }
    return Arm("scaling", arm, seed, spec, labels)


def starts(study: Study, name: str) -> dict[str, ModelSpec]:
    """Where the two arms of a size start: its base (trained here where it is missing), and random weights."""
    here = sized(study, shapes_of(study.profile.scaling)[name])
    return {"scratch": here.profile.base.pretraining.model, "cpt": here.base()}


def rate_sweep(study: Study) -> pd.DataFrame:
    """Both arms of every size at every rate, at one budget, as `points`. Trains the bases too.

    Raises ConfigError for a profile without a scaling section.
    """
    plan = study.profile.scaling
    if plan is None:
        raise ConfigError(f"profile {study.profile.name} has no [scaling] section: nothing to run")
    return points(
        study.run(
            run_of(study, name, arm, plan.sweep, rate, model)
            for name in shapes_of(plan)
            for arm, model in starts(study, name).items()
            for rate in plan.rates
        )
    )


def best_rates(sweep: pd.DataFrame) -> dict[tuple[str, str], float]:
    """(size, arm) -> the learning rate with the lowest loss at the budget of the sweep."""
    best = sweep.loc[sweep.groupby(["size", "arm"])["loss"].idxmin()]
    return {(row.size_, row.arm): row.lr_peak for row in best.rename(columns={"size": "size_"}).itertuples()}


def grid(study: Study, rates: Mapping[tuple[str, str], float]) -> list[Arm]:
    """Every size, arm and budget at these rates; the longest first, so that it can hand its beginning on."""
    plan = study.profile.scaling
    return [
        run_of(study, name, arm, budget, rates[name, arm], model)
        for name in shapes_of(plan)
        for arm, model in starts(study, name).items()
        for budget in sorted(plan.budgets, reverse=True)
    ]


def alone(study: Study, arms: Iterable[Arm], count: int = 2) -> pd.DataFrame:
    """`count` runs of the grid trained again whole, without a beginning from another: is it the same run?

    From scratch, the smallest sizes, the shortest budgets but one (which the longest hand theirs on to).
    Columns: size, D, loss in the grid and alone, and whether all metrics and weights are equal.
    """
    scratch = [arm for arm in arms if arm.arm == "scratch"]
    budget = sorted({arm.spec.tokens for arm in scratch})[1]
    rows = []
    for arm in [arm for arm in scratch if arm.spec.tokens == budget][:count]:
        shared = study.runs / run_id(arm.spec, study.cache)
        where = {"runs": study.runs / "alone", "cache": study.cache, "progress": study.progress}
        lone = train(arm.spec, label=f"{arm}, alone", **where)
        both = [store.read_metrics(f).drop(columns="tokens_per_second") for f in (shared, lone)]
        weights = [(f / "model" / "model.safetensors").read_bytes() for f in (shared, lone)]
        rows.append(
            {
                "size": arm.labels["size"],
                "D": arm.spec.tokens,
                "loss, in the grid": both[0][LOSS].iloc[-1],
                "loss, alone": both[1][LOSS].iloc[-1],
                "equal": both[0].equals(both[1]) and weights[0] == weights[1],
            }
        )
    return pd.DataFrame(rows)


def points(frame: pd.DataFrame) -> pd.DataFrame:
    """A row a run: arm, size, N, D (target tokens), loss (nats a token), compute, rate, trunk, seed, run."""
    ends = stats.ends(frame)
    columns = ["arm", "size", "N", "flops", "counted", "lr_peak", "trunk", "seed", "run"]
    return ends[columns].assign(D=ends["tokens"], loss=ends[LOSS]).reset_index(drop=True)


def cost(study: Study) -> pd.DataFrame:
    """What the grid costs before anything is trained: FLOPs (counted) and hours of one device, by size.

    `shared` is what remains when budgets share their beginning. Hours are at the plan's `flops_per_second`.
    """
    plan, length, rows = study.profile.scaling, study.profile.run.length, []
    for name, shape in shapes_of(plan).items():
        vocabulary = study.profile.base.pretraining.model.tokenizer.vocabulary
        each = float(shape.flops_per_token(vocabulary, length))
        budgets = sorted(plan.budgets)
        decay = plan.schedule.decay if plan.schedule.kind == "wsd" else 0.0
        lone = 2 * sum(budgets) + 2 * len(plan.rates) * plan.sweep
        forked = 2 * (budgets[-1] + decay * sum(budgets[:-1])) + 2 * len(plan.rates) * plan.sweep
        rows.append(
            {
                "size": name,
                "N": shape.weights,
                "base, FLOPs": each * plan.pretraining,
                "arms, FLOPs": each * lone,
                "shared, FLOPs": each * forked,
                "hours": each * (plan.pretraining + forked) / plan.flops_per_second / 3600,
            }
        )
    table = pd.DataFrame(rows)
    if len(table):
        total = {c: table[c].sum() for c in table.columns[2:]}
        table = pd.concat([table, pd.DataFrame([{"size": "all", **total}])], ignore_index=True)
    return table
