"""The runs of P2's replay study: how much source text to mix in, which, and how much of it there must be.

All arms share base, seed and target order, run at one constant rate, and are probed on the way: with a
constant rate every step is the end of a run of that length, so that one run is a curve over budgets. That
saves runs; points of one run share their noise, and intervals are therefore over runs (`laws/forgetting.py`).

Departures from P2: a constant rate for its cosine, Copain beside its benchmarks, arms that replay another
language or a few documents again and again.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import pandas as pd

from cptkit.data.weights import Constant
from cptkit.study import stats
from cptkit.study.experiments import SOURCE, TARGET, Study, continued, percent
from cptkit.study.laws.closed_form import FLOPS_PER_WEIGHT
from cptkit.study.plans import Replay
from cptkit.study.store import Arm
from cptkit.train import models
from cptkit.train.config import ConfigError
from cptkit.train.spec import RunSpec

MAX_EPOCHS = 4.0  # of any text in a run that a law is fitted to
LOSSES = {TARGET: f"ppl.{TARGET}.nats_per_token", SOURCE: f"ppl.{SOURCE}.nats_per_token"}


def plan_of(study: Study) -> Replay:
    """The profile's replay section. Raises ConfigError where there is none."""
    if study.profile.replay is None:
        raise ConfigError(f"profile {study.profile.name} has no [replay] section: nothing to run")
    return study.profile.replay


def _run(study: Study, share: float, seed: int, steps: int | None = None, **changes: Any) -> RunSpec:
    plan, probes = plan_of(study), study.profile.run.probes
    probes = dataclasses.replace(probes, steps=plan.probes, choices_steps=probes.choices_steps or (0,))
    spec = continued(
        study.profile,
        study.base(),
        share,
        seed=seed,
        schedule=plan.schedule,
        steps=steps or plan.steps,
        probes=probes,
        max_epochs=MAX_EPOCHS,
    )
    return dataclasses.replace(spec, **changes)


def name_of(share: float) -> str:
    return f"mix{percent(share)}" if share else "none"


def _arm(name: str, share: float, seed: int, spec: RunSpec) -> Arm:
    return Arm("replay", name, seed, spec, {"share": share})


def shares(study: Study) -> list[Arm]:
    """Every share with the first seed, those of `repeated` with all; label `share` (of source tokens)."""
    plan, (first, *_) = plan_of(study), study.profile.seeds
    return [
        _arm(name_of(share), share, seed, _run(study, share, seed))
        for share in plan.shares
        for seed in (study.profile.seeds if share in plan.repeated else (first,))
    ]


def held_out(study: Study) -> list[Arm]:
    """What the laws have to predict: a share that they have not seen, and longer runs of some they have."""
    plan, seed = plan_of(study), study.profile.seeds[0]
    arms = [_arm(name_of(plan.held_out), plan.held_out, seed, _run(study, plan.held_out, seed))]
    for share in plan.longer:
        spec = _run(study, share, seed, plan.longer_steps)
        arms.append(_arm(f"{name_of(share)}_longer", share, seed, spec))
    return arms


def others(study: Study) -> list[Arm]:
    """Other text instead of source text, at equal tokens: another language, or few documents many times."""
    plan, seed = plan_of(study), study.profile.seeds[0]
    share, arms = plan.replayed, []
    for name, text in plan.other.items():
        mixture = Constant({TARGET: 1 - share, name: share})
        sources = {TARGET: study.profile.target.train, name: text.train}
        arms.append(_arm(name, share, seed, _run(study, share, seed, mixture=mixture, sources=sources)))
    for megabytes in plan.few:
        text = dataclasses.replace(study.profile.source.train, megabytes=megabytes)
        sources = {TARGET: study.profile.target.train, SOURCE: text}
        spec = _run(study, share, seed, sources=sources, max_epochs=None)
        arms.append(_arm(f"{megabytes:g} MB of English", share, seed, spec))
    return arms


def with_language_tokens(frame: pd.DataFrame) -> pd.DataFrame:
    """The frame with `target_tokens`: those of the target alone, P2's axis for target loss."""
    return frame.assign(target_tokens=(1 - frame["share"]) * frame["tokens"])


def curves(frame: pd.DataFrame, weights: int) -> pd.DataFrame:
    """A row per run and probe: arm, share, seed, run, D (all tokens), both losses, and compute.

    `weights` is N, compute 6 N D: `flops` of all tokens, `flops.target` and `flops.source` of a language's.
    """
    rows = stats.probes(frame)
    D = rows["tokens"].to_numpy(float)
    share = rows["share"].to_numpy(float)
    table = rows[["arm", "share", "seed", "run", "step"]].assign(D=D, flops=FLOPS_PER_WEIGHT * weights * D)
    table["flops.target"], table["flops.source"] = (1 - share) * table["flops"], share * table["flops"]
    for language, metric in LOSSES.items():
        table[language] = rows[metric]
    for metric in ("copain.accuracy", "choices.target.accuracy", "choices.source.accuracy"):
        if metric in rows:
            table[metric] = rows[metric]
    return table.reset_index(drop=True)


def weights_of(study: Study) -> int:
    """N of the profile's model: its weights without embeddings and head."""
    model = models.load(study.base(), study.cache, study.runs, length=study.profile.run.length, seed=0)[0]
    tables = {id(model.get_input_embeddings().weight), id(model.get_output_embeddings().weight)}
    return sum(p.numel() for p in model.parameters() if id(p) not in tables)


def unseen(study: Study) -> dict[str, tuple[float, float]]:
    """Arm -> (share, tokens at its end) of `held_out`."""
    return {arm.arm: (arm.labels["share"], float(arm.spec.tokens)) for arm in held_out(study)}


def unseen_sets(study: Study, curves: pd.DataFrame, first: int) -> dict[str, pd.DataFrame]:
    """The probes that no law was fitted to: the share between, and what lies beyond the others' length."""
    plan = plan_of(study)
    rows = curves[(curves["step"] >= max(first, 1))].dropna(subset=["source"])
    sets = {f"{percent(plan.held_out)} %, not fitted": rows[rows["share"] == plan.held_out]}
    beyond = rows[(rows["share"] != plan.held_out) & (rows["step"] > plan.steps)]
    return sets | ({"longer runs": beyond} if len(beyond) else {})


def beside(study: Study, frame: pd.DataFrame, instead: pd.DataFrame) -> pd.DataFrame:
    """Other text replayed, with no replay and as much source text beside it, first seed."""
    plan, first = plan_of(study), study.profile.seeds[0]
    known = frame[frame["share"].isin([0.0, plan.replayed]) & (frame["seed"] == first)]
    return pd.concat([known, instead], ignore_index=True)
