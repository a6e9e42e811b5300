"""The arms of P1 beyond English mixing: warm-up, curriculum, averaging and its controls, LoRA.

Each function lists arms (`store.Arm`); notebooks 01 to 04 run them. Headline arms are probed over the run and
repeated with every seed of the profile; arms of a grid are measured at the end, with the first seed. Arms
that are provably the same run share it: averaging with every = 1 is AdamW at a lower rate
(`averaging.plain_rate`), and is trained as that.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

import pandas as pd

from cptkit.data.weights import Switch
from cptkit.study import stats
from cptkit.study.experiments import (
    SOURCE,
    TARGET,
    Study,
    at_the_end,
    continued,
    english_mixing,
    few_choices,
    percent,
    shared,
)
from cptkit.study.plans import Condition
from cptkit.study.profiles import Profile, under, with_shape
from cptkit.study.store import Arm
from cptkit.train.averaging import Feedback, Released, Shadow, plain_rate
from cptkit.train.lora import LoraSpec
from cptkit.train.schedule import Schedule
from cptkit.train.spec import ModelSpec, RunSpec


def plain(spec: RunSpec) -> RunSpec:
    """The run without averaging that is the same as `spec`; `spec` itself where there is none."""
    factor = plain_rate(spec.averaging)
    if spec.averaging is None or factor is None:
        return spec
    return dataclasses.replace(spec, averaging=None, schedule=_times(spec.schedule, factor))


def _times(schedule: Schedule, factor: float) -> Schedule:
    return dataclasses.replace(schedule, peak=float(f"{schedule.peak * factor:.12g}"))


# ---- notebook 01: the timing of the fall ------------------------------------------------------------


def warmups(study: Study) -> list[Arm]:
    """The arms of `rate_arms` at the profile's warm-up and at others, all seeds; label `warmup` in steps."""
    profile, plan, model = study.profile, study.profile.english_mixing, study.base()
    lengths = (profile.run.schedule.warmup, *plan.warmups) if plan.warmups else ()
    return [
        Arm(
            "warmups", name, seed,
            continued(profile, model, plan.arms[name], seed=seed,
                      schedule=dataclasses.replace(profile.run.schedule, warmup=length)),
            {"warmup": length},
        )
        for length in lengths
        for seed in profile.seeds
        for name in plan.rate_arms
    ]  # fmt: skip


# ---- notebook 02 ------------------------------------------------------------------------------------


def phased(profile: Profile, model: ModelSpec, before: float, after: float, step: int, **k: Any) -> RunSpec:
    """Source text at the share `before`, from `step` on at `after`; one learning-rate schedule throughout."""
    weights = [{TARGET: 1 - share, SOURCE: share} for share in (before, after)]
    spec = continued(profile, model, max(before, after), **k)
    return dataclasses.replace(spec, mixture=Switch(*weights, step))


def curriculum(study: Study) -> list[Arm]:
    """P1, Table 3, and as many source tokens late or throughout; label `english`: source tokens."""
    profile, plan, model = study.profile, study.profile.curriculum, study.base()
    steps, share, probes = profile.run.steps, plan.share, few_choices(profile)
    arms = []
    for seed in profile.seeds:
        first = seed == profile.seeds[0]

        def add(name: str, spec: RunSpec, english: float, seed: int = seed) -> None:
            arms.append(Arm("curriculum", name, seed, spec, {"english": round(english * spec.tokens)}))

        add("none", continued(profile, model, 0.0, seed=seed), 0.0)
        for part in (*plan.early, *plan.more) if first else plan.early:
            switch = max(1, round(part * steps))
            spec = phased(profile, model, share, 0.0, switch, seed=seed, **probes)
            add(f"early{percent(part)}", spec, share * switch / steps)
        for part in plan.late:
            switch = steps - max(1, round(part * steps))
            spec = phased(profile, model, 0.0, share, switch, seed=seed, **probes)
            add(f"late{percent(part)}", spec, share * (1 - switch / steps))
        if plan.even:
            english = share * plan.budget
            add("even", continued(profile, model, english, seed=seed, **probes), english)
        add(f"mix{percent(share)}", continued(profile, model, share, seed=seed), share)
    return sorted(arms, key=lambda arm: arm.labels["english"])


def switches(arms: Iterable[Arm]) -> dict[str, int]:
    """The step of each arm whose mixture switches."""
    return {arm.arm: arm.spec.mixture.step for arm in arms if isinstance(arm.spec.mixture, Switch)}


def conditions(study: Study) -> list[Arm]:
    """Without source text, early and throughout, under other conditions (label `condition`), first seed."""
    plan, seed = study.profile.curriculum, study.profile.seeds[0]
    if not plan.conditions:
        return []
    known, arms = [*english_mixing(study), *curriculum(study)], []
    for name, condition in ({"as it is": Condition()} | plan.conditions).items():
        profile = under(study.profile, condition)
        # Only another shape needs another base: other probes would make it another run.
        shaped = with_shape(study.profile, condition.shape) if condition.shape else study.profile
        model = dataclasses.replace(study, profile=shaped).base()
        switch, ends = max(1, round(plan.budget * profile.run.steps)), at_the_end(profile)
        specs = {
            "none": continued(profile, model, 0.0, seed=seed, **ends),
            f"early{percent(plan.budget)}": phased(
                profile, model, plan.share, 0.0, switch, seed=seed, **ends
            ),
            f"mix{percent(plan.share)}": continued(profile, model, plan.share, seed=seed, **ends),
        }
        for arm, spec in specs.items():
            arms.append(Arm("conditions", arm, seed, shared(spec, known), {"condition": name}))
    return arms


# ---- notebook 03 ------------------------------------------------------------------------------------


def averaging(study: Study) -> list[Arm]:
    """P1, Table 4: averaging, each beside plain training at the learning rate it amounts to."""
    profile, plan, model = study.profile, study.profile.averaging, study.base()
    rate, first = profile.run.schedule, profile.seeds[0]
    english = study.profile.curriculum.share
    arms = []

    def add(name: str, seed: int, english: float = 0.0, **changes: Any) -> None:
        spec = plain(continued(profile, model, english, seed=seed, **changes))
        arms.append(Arm("averaging", name, seed, spec))

    for seed in profile.seeds:
        add("none", seed)
        add(f"mix{percent(english)}", seed, english)
    for alpha in plan.alphas:
        short, low = percent(alpha).replace(".", ""), _times(rate, 1 - alpha)
        for every in plan.every:
            headline = alpha == plan.alphas[0] and every in plan.every[:2]
            for seed in profile.seeds if headline else (first,):
                # With every = 1 it is the run of the control below, so it has its probes.
                ends = few_choices(profile) if headline or every == 1 else at_the_end(profile)
                add(f"ema{short}_{every}", seed, averaging=Feedback(alpha, every), **ends)
        for seed in profile.seeds if alpha == plan.alphas[0] else (first,):
            add(f"low{short}", seed, schedule=low, **few_choices(profile))
        if alpha == plan.alphas[0]:
            add(f"mix{percent(english)}_low", first, english, schedule=low, **at_the_end(profile))
    if plan.shadow is not None:
        add("shadow", first, averaging=Shadow(half_life=plan.shadow), **at_the_end(profile))
    if plan.released:
        add("released", first, averaging=Released(plan.alphas[0]), **at_the_end(profile))
    return arms


def equivalence(study: Study) -> list[Arm]:
    """Averaging with every = 1 trained as itself, beside the plain run that it is said to be; first seed."""
    profile, plan, seed = study.profile, study.profile.averaging, study.profile.seeds[0]
    if not plan.equivalence:
        return []
    rule, probes = Feedback(plan.alphas[0], 1), few_choices(profile)
    itself = continued(profile, study.base(), 0.0, seed=seed, averaging=rule, **probes)
    return [
        Arm("equivalence", "averaging", seed, itself),
        Arm("equivalence", "lower rate", seed, plain(itself)),
    ]


def rate_sweep(study: Study) -> list[Arm]:
    """Plain training over learning rates, with and without source text; `control_rates` with all seeds."""
    profile, plan, model = study.profile, study.profile.averaging, study.base()
    first, ends, known = profile.seeds[0], at_the_end(profile), english_mixing(study)
    arms = []
    for share in (0.0, profile.curriculum.share):
        name = f"mix{percent(share)}" if share else "none"
        for rate in sorted({profile.run.schedule.peak, *plan.rates, *plan.control_rates}):
            schedule = dataclasses.replace(profile.run.schedule, peak=rate)
            repeated = rate == profile.run.schedule.peak or (rate in plan.control_rates and not share)
            for seed in profile.seeds if repeated else (first,):
                spec = continued(profile, model, share, seed=seed, schedule=schedule, **ends)
                arms.append(Arm("rates", name, seed, shared(spec, known)))
    return arms


# ---- notebook 04 ------------------------------------------------------------------------------------


def lora_arm(study: Study, model: ModelSpec, rank: int, embeddings: bool, rate: float, seed: int) -> Arm:
    """One LoRA run, measured at its end."""
    profile = study.profile
    schedule = dataclasses.replace(profile.run.schedule, peak=rate)
    adapters, probes = LoraSpec(rank, embeddings), at_the_end(profile)
    spec = continued(profile, model, 0.0, seed=seed, schedule=schedule, lora=adapters, **probes)
    return Arm("lora", f"lora{rank}" + ("_embeddings" if embeddings else ""), seed, spec, {"rank": rank})


def lora_arms(study: Study) -> list[Arm]:
    """Every kind of adapter at every rate, first seed; the kinds in order, rates within."""
    plan, model, seed = study.profile.lora, study.base(), study.profile.seeds[0]
    kinds = [(r, False) for r in plan.ranks] + [(r, True) for r in plan.embedding_ranks]
    return [lora_arm(study, model, *kind, rate, seed) for kind in kinds for rate in plan.rates]


def lora(study: Study) -> pd.DataFrame:
    """LoRA at every rank and rate with the first seed, then headline arms with the others.

    Those are the first kind without and with embeddings at their best rate, and the first at the lowest. Best
    is the lowest final target perplexity, the measure of what is learnt; full training stands beside it
    (`rate_sweep`). Label `rank`. Empty for a profile without ranks.
    """
    arms, others = lora_arms(study), study.profile.seeds[1:]
    if not arms:
        return pd.DataFrame()
    sweep, model = study.run(arms), study.base()
    kinds = dict.fromkeys((a.arm, a.spec.lora.rank, a.spec.lora.embeddings) for a in arms)
    headline = [*[k for k in kinds if not k[2]][:1], *[k for k in kinds if k[2]][:1]]
    lowest, (gentle, *_) = min(study.profile.lora.rates), headline
    wanted = {(kind, best(sweep, kind[0])) for kind in headline} | {(gentle, lowest)}
    repeats = [
        lora_arm(study, model, rank, embeddings, rate, seed)
        for (_, rank, embeddings), rate in sorted(wanted)
        for seed in others
    ]
    return pd.concat([sweep, study.run(repeats)], ignore_index=True) if repeats else sweep


def gentlest(frame: pd.DataFrame) -> pd.DataFrame:
    """The first kind of adapter at the lowest rate, which full training's distance can be matched with."""
    arm = frame["arm"].iloc[0]
    rows = frame[(frame["arm"] == arm) & (frame["lr_peak"] == frame["lr_peak"].min())]
    return rows.assign(arm=f"{arm}_low")


def best(frame: pd.DataFrame, arm: str, metric: str = f"ppl.{TARGET}.nats_per_token") -> float:
    """The peak learning rate at which `arm` ends with the lowest `metric`."""
    return stats.best_peak(frame[frame["arm"] == arm], metric)


def lower_rates(sweep: pd.DataFrame, rate: float) -> pd.DataFrame:
    """Plain training without source text at the rates below `rate`, the rate as the arm: for a plane."""
    rows = sweep[(sweep["arm"] == "none") & (sweep["lr_peak"] < rate)]
    return rows.assign(arm="full, rate " + rows["lr_peak"].map("{:g}".format))


def at_best_rates(frame: pd.DataFrame, arms: Iterable[str]) -> pd.DataFrame:
    """The rows of each of `arms` at its best rate."""
    parts = [frame[(frame["arm"] == arm) & (frame["lr_peak"] == best(frame, arm))] for arm in arms]
    return pd.concat(parts, ignore_index=True)
