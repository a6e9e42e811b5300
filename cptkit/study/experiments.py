"""The arms of each experiment as RunSpecs, and the running of what is missing.

`open_study(profile)` is what a notebook starts with. An experiment is a function of a study that lists its
arms; `Study.run(arms)` trains those that no run folder holds yet, says how long the rest will take, and
returns the metrics of all as one frame. Arms of one comparison start from the same weights and see the
target text in the same order, seed by seed (`data/mixture.py`), so differences can be paired.
"""

from __future__ import annotations

import dataclasses
import shutil
import time
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from cptkit.data.mixture import Mixture
from cptkit.data.weights import Constant
from cptkit.study import stats, store
from cptkit.study.plans import Text
from cptkit.study.profiles import Profile, load_profile
from cptkit.study.store import Arm
from cptkit.train import forks, models
from cptkit.train.schedule import Schedule
from cptkit.train.spec import ModelSpec, ProbesSpec, RunSpec, run_id
from cptkit.train.trainer import mixture_of, pack_sources, train

TARGET, SOURCE = "target", "source"


def find_root() -> Path:
    """The tree a study works in: that of the notebook we are in, else this checkout, else this folder."""
    here, checkout = Path.cwd(), Path(__file__).resolve().parents[2]
    if here.name == "notebooks":
        return here.parent
    return checkout if (checkout / "notebooks").is_dir() else here


@dataclass(frozen=True)
class Study:
    """A profile and the folders it works in."""

    profile: Profile
    root: Path
    progress: bool = True

    @property
    def cache(self) -> Path:
        return self.root / "cache"

    @property
    def runs(self) -> Path:
        return self.root / "runs" / self.profile.name

    def figures(self, notebook: str) -> Path:
        """Where the figures and tables of one notebook go."""
        folder = self.root / "figures" / self.profile.name / notebook
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def train(self, spec: RunSpec, label: str, keep: Collection[int] = ()) -> Path:
        return train(spec, runs=self.runs, cache=self.cache, progress=self.progress, label=label, keep=keep)

    def train_all(self, arms: Iterable[Arm]) -> list[tuple[Arm, Path]]:
        """Each arm with the folder of its run, training those that are missing, in order.

        A run hands its beginning on to later ones that share it (`train/forks.py`): list long runs first.
        """
        arms = list(arms)
        folders = [self.runs / run_id(arm.spec, self.cache) for arm in arms]
        specs = {folder: arm.spec for arm, folder in zip(arms, folders, strict=True)}
        todo = {f for f in folders if not (f / "done.json").exists()}
        print(f"{len(arms)} arms, {len(set(folders))} runs, {len(todo)} to train", flush=True)
        began, done = time.monotonic(), 0
        for arm, folder in zip(arms, folders, strict=True):
            if folder not in todo:
                continue
            todo.discard(folder)
            heirs = {f: forks.shared_steps(arm.spec, specs[f]) for f in todo}
            heirs = {f: shared for f, shared in heirs.items() if shared}
            self.train(arm.spec, str(arm), keep=set(heirs.values()))
            for heir, shared in heirs.items():
                forks.hand_on(folder, shared, heir)
            shutil.rmtree(forks.place(folder), ignore_errors=True)
            done += 1
            left = (time.monotonic() - began) / done * len(todo)
            print(f"  {folder.name} {arm}: trained; {len(todo)} left, about {left / 60:.0f} min", flush=True)
        return list(zip(arms, folders, strict=True))

    def run(self, arms: Iterable[Arm]) -> pd.DataFrame:
        """Train what is missing and return the frame of all `arms` (`store.load`)."""
        return store.load(self.train_all(arms), self.profile.name)

    def mixture(self, arm: Arm) -> Mixture:
        """The mixture of one arm, to be described before anything is trained."""
        tokenizer = models.load_tokenizer(arm.spec.model, self.cache, self.runs)
        return mixture_of(arm.spec, pack_sources(arm.spec, tokenizer, self.cache, progress=self.progress))

    def base(self) -> ModelSpec:
        """The model all continued pretraining starts from; made here first where the profile says so."""
        if self.profile.base.start:
            return ModelSpec(start=self.profile.base.start)
        folder = self.train(base_run(self.profile), f"base model of {self.profile.name}")
        return ModelSpec(start=f"run:{folder.name}")


def open_study(
    profile: str = "lab",
    overrides: dict[str, Any] | None = None,
    seeds: list[int] | None = None,
    root: Path | str | None = None,
    progress: bool = True,
) -> Study:
    """A study in `profile`, working under `root` (default: this checkout)."""
    loaded = load_profile(profile, overrides).with_seeds(seeds)
    return Study(loaded, Path(root) if root else find_root(), progress)


def base_run(profile: Profile) -> RunSpec:
    """Pretraining on the source language alone. Its probes are few: the base is measured by its children."""
    made, run = profile.base.pretraining, profile.run
    if made is None:
        raise ValueError(
            f"profile {profile.name} starts from {profile.base.start}: there is nothing to pretrain"
        )
    quarter = max(1, made.steps // 8)
    return RunSpec(
        model=made.model,
        sources={SOURCE: profile.source.train},
        mixture=Constant({SOURCE: 1.0}),
        steps=made.steps,
        sequences=made.sequences,
        length=run.length,
        schedule=made.schedule,
        optimiser=run.optimiser,
        probes=dataclasses.replace(run.probes, steps=tuple(range(0, made.steps + 1, quarter))),
        precision=run.precision,
        seed=made.seed,
    )


def continued(
    profile: Profile,
    model: ModelSpec,
    source_share: float,
    *,
    seed: int,
    schedule: Schedule | None = None,
    **changes: Any,
) -> RunSpec:
    """One run of continued pretraining with a constant share of source-language tokens.

    Without any, the source is left out of the run altogether, so that its text need not exist.
    """
    run = profile.run
    sources = {TARGET: profile.target.train} | ({SOURCE: profile.source.train} if source_share else {})
    weights = {TARGET: 1 - source_share} | ({SOURCE: source_share} if source_share else {})
    spec = RunSpec(
        model=model,
        sources=sources,
        mixture=Constant(weights),
        steps=run.steps,
        sequences=run.sequences,
        length=run.length,
        schedule=schedule or run.schedule,
        optimiser=run.optimiser,
        probes=run.probes,
        max_epochs=run.max_epochs,
        micro_sequences=run.micro_sequences,
        precision=run.precision,
        seed=seed,
    )
    return dataclasses.replace(spec, **changes)


def at_the_end(profile: Profile) -> dict[str, Any]:
    """Probes at the last step alone: what an arm of a grid needs."""
    return {"probes": dataclasses.replace(profile.run.probes, steps=())}


def few_choices(profile: Profile) -> dict[str, Any]:
    """Probes over the run, but multiple choice, the dearest of them, at its beginning and end only."""
    probes = profile.run.probes
    return {"probes": dataclasses.replace(probes, choices_steps=probes.choices_steps or (0,))}


def shared(spec: RunSpec, pool: Iterable[Arm]) -> RunSpec:
    """The run in `pool` that is `spec` but for its probes, so that it is not trained twice; else `spec`."""
    same = (arm.spec for arm in pool if dataclasses.replace(arm.spec, probes=spec.probes) == spec)
    return next(same, spec)


def percent(value: float) -> str:
    return f"{100 * value:g}"


# ---- notebook 00 ------------------------------------------------------------------------------------


def transfer(study: Study) -> pd.DataFrame:
    """Continued pretraining against scratch on target text alone, per language; empty without a plan.

    First every rate with the first seed, then each arm's best rate with the other seeds. Both arms see the
    same tokens in the same order; scratch starts from random weights of the base's shape, made from the
    run's seed, with the base's tokenizer. Only the held-out target text is measured.
    """
    profile, plan = study.profile, study.profile.transfer
    if plan is None:
        return pd.DataFrame()
    if profile.base.pretraining is None:
        raise ValueError(
            f"profile {profile.name}: transfer needs a base that is made here, to start scratch alike"
        )
    starts = {"cpt": study.base(), "scratch": profile.base.pretraining.model}
    first, *others = profile.seeds

    def arm(name: str, language: str, rate: float, seed: int) -> Arm:
        text = plan.languages[language]
        probes = ProbesSpec(
            steps=tuple(range(0, plan.steps + 1, plan.every)),
            perplexity={TARGET: text.validation},
            documents=profile.run.probes.documents,
            drift=False,
        )
        spec = continued(
            profile,
            starts[name],
            0.0,
            seed=seed,
            schedule=Schedule("constant", peak=rate, warmup=plan.warmup),
            steps=plan.steps,
            probes=probes,
            sources={TARGET: text.train},
        )
        labels = {"language": language, "similarity": plan.similarity.get(language)}
        return Arm("transfer", name, seed, spec, labels)

    pairs = [(name, language) for language in plan.languages for name in starts]
    sweep = study.run(arm(name, language, rate, first) for name, language in pairs for rate in plan.rates)
    repeats = []
    for name, language in pairs:
        rows = sweep[(sweep["arm"] == name) & (sweep["language"] == language)]
        rate = stats.best_peak(rows, f"ppl.{TARGET}.nats_per_token")
        repeats += [arm(name, language, rate, seed) for seed in others]
    return pd.concat([sweep, study.run(repeats)], ignore_index=True) if repeats else sweep


def bilingual(study: Study) -> list[Arm]:
    """The base model trained on with both languages: what the questions show of a model that knows both."""
    profile, plan = study.profile, study.profile.bilingual
    if plan is None:
        return []
    schedule = dataclasses.replace(profile.run.schedule, peak=plan.rate)
    seed = profile.seeds[0]
    spec = continued(profile, study.base(), plan.source_share, seed=seed, schedule=schedule, steps=plan.steps)
    return [Arm("bilingual", "bilingual", seed, spec)]


# ---- notebook 01 ------------------------------------------------------------------------------------


def english_mixing(study: Study) -> list[Arm]:
    """P1, Table 2: shares of English tokens, all seeds at the profile's rate, then the sweep of rates."""
    profile, plan, model = study.profile, study.profile.english_mixing, study.base()
    arms = [
        Arm("english_mixing", name, seed, continued(profile, model, share, seed=seed))
        for seed in profile.seeds
        for name, share in plan.arms.items()
    ]
    for rate in plan.rates:
        schedule = dataclasses.replace(profile.run.schedule, peak=rate)
        arms += [
            Arm(
                "english_mixing", name, profile.seeds[0],
                continued(profile, model, plan.arms[name], seed=profile.seeds[0], schedule=schedule),
            )
            for name in plan.rate_arms
        ]  # fmt: skip
    return arms


def texts(study: Study) -> dict[str, Text]:
    """Every language this study trains on, by the name figures give it."""
    profile = study.profile
    named = {profile.source.name or SOURCE: profile.source, profile.target.name or TARGET: profile.target}
    return named | (profile.transfer.languages if profile.transfer else {})
