"""Profiles: one study at several scales. A profile is one TOML file that names models, text and sizes.

No code branches on a profile's name. A profile may `extends` another and then says only what differs;
tables are merged key by key, everything else is replaced. `load_profile` takes a name of the packaged
profiles or the path of a TOML file, and overrides by dotted key (`{"run.steps": 40}`), and fails on a key
that no profile has.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, Literal

from cptkit.data.corpus import CorpusSpec
from cptkit.study.plans import (
    AveragingPlan,
    Bilingual,
    Condition,
    Curriculum,
    EnglishMixing,
    Languages,
    LoraPlan,
    OrderPlan,
    Replay,
    Scaling,
    SynthesisPlan,
    Text,
    TopicPlan,
    Transfer,
)
from cptkit.train.config import ConfigError, from_dict, nearest, read_toml
from cptkit.train.schedule import Schedule
from cptkit.train.shapes import Shape
from cptkit.train.spec import ModelSpec, OptimiserSpec, ProbesSpec


@dataclass(frozen=True)
class Pretraining:
    """How the base model is made here, from the source language alone."""

    model: ModelSpec
    steps: int
    sequences: int
    schedule: Schedule
    seed: int = 0


@dataclass(frozen=True)
class Base:
    """The start of all continued pretraining: an existing model (`start`), or one made here."""

    start: str = ""
    pretraining: Pretraining | None = None

    def __post_init__(self) -> None:
        if bool(self.start) == (self.pretraining is not None):
            raise ConfigError("base: give either `start` or `pretraining`")


@dataclass(frozen=True)
class Run:
    """What the arms of every experiment have in common."""

    steps: int
    sequences: int
    length: int
    schedule: Schedule
    probes: ProbesSpec
    optimiser: OptimiserSpec = OptimiserSpec()
    precision: Literal["fp32", "bf16"] = "fp32"
    micro_sequences: int | None = None
    max_epochs: float | None = None


@dataclass(frozen=True)
class Profile:
    """All of one scale. `measurement` is false where runs prove the wiring only."""

    name: str
    about: str
    seeds: tuple[int, ...]
    target: Text
    source: Text
    base: Base
    run: Run
    english_mixing: EnglishMixing = EnglishMixing()
    curriculum: Curriculum = Curriculum()
    averaging: AveragingPlan = AveragingPlan()
    lora: LoraPlan = LoraPlan()
    scaling: Scaling | None = None
    replay: Replay | None = None
    languages: Languages | None = None
    topics: TopicPlan | None = None
    order: OrderPlan | None = None
    synthesis: SynthesisPlan | None = None
    transfer: Transfer | None = None
    bilingual: Bilingual | None = None
    measurement: bool = True
    notebooks: tuple[str, ...] = ()  # those this profile runs by default; empty is all

    def with_seeds(self, seeds: list[int] | None) -> Profile:
        """The same profile with other seeds; None or an empty list keeps its own."""
        return dataclasses.replace(self, seeds=tuple(seeds)) if seeds else self


def under(profile: Profile, condition: Condition) -> Profile:
    """The profile with what the condition changes in a run; a similarity changes target text and probes.

    Another shape is another base, and not a run's matter: `with_shape`.
    """
    run = profile.run
    if condition.schedule is not None:
        run = dataclasses.replace(run, schedule=condition.schedule)
    if condition.steps is not None:
        run = dataclasses.replace(run, steps=condition.steps)
    profile = dataclasses.replace(profile, run=run)
    return profile if condition.similarity is None else with_similarity(profile, condition.similarity)


def with_shape(profile: Profile, shape: Shape, **pretraining: int) -> Profile:
    """The profile with a base of another shape, and `pretraining` (steps, sequences) where it differs.

    Raises ValueError for a profile whose base is not made here.
    """
    made = profile.base.pretraining
    if made is None:
        raise ValueError(f"profile {profile.name}: only a base that is made here can have another shape")
    model = dataclasses.replace(made.model, **dataclasses.asdict(shape))
    made = dataclasses.replace(made, model=model, **pretraining)
    return dataclasses.replace(profile, base=Base(pretraining=made))


def with_similarity(profile: Profile, similarity: float) -> Profile:
    """The profile with another invented target language, asked in that language. Worlds only."""
    lang = profile.target.train.lang
    if profile.target.train.kind != "world":
        raise ValueError(f"profile {profile.name}: only an invented language has a similarity to set")

    def changed(corpus: CorpusSpec | None) -> CorpusSpec | None:
        if corpus is None or corpus.kind != "world" or corpus.lang != lang:
            return corpus
        return dataclasses.replace(corpus, params=corpus.params | {"similarity": similarity})

    probes = profile.run.probes
    probes = dataclasses.replace(
        probes,
        perplexity={name: changed(corpus) for name, corpus in probes.perplexity.items()},
        choices={
            name: dataclasses.replace(p, corpus=changed(p.corpus)) for name, p in probes.choices.items()
        },
    )
    target = dataclasses.replace(
        profile.target, train=changed(profile.target.train), validation=changed(profile.target.validation)
    )
    return dataclasses.replace(profile, target=target, run=dataclasses.replace(profile.run, probes=probes))


def packaged() -> dict[str, Path]:
    """Name -> file of the profiles that come with cptkit."""
    folder = Path(str(resources.files("cptkit"))) / "profiles"
    return {f.stem: f for f in sorted(folder.glob("*.toml"))}


def load_profile(name: str, overrides: dict[str, Any] | None = None) -> Profile:
    """The profile called `name`, or read from the file at that path, with `overrides` by dotted key.

    Raises `ConfigError` for an unknown profile (with the nearest name) or an unknown key.
    """
    table = _resolved(name)
    for dotted, value in (overrides or {}).items():
        *path, key = dotted.split(".")
        place = table
        for part in path:
            place = place.setdefault(part, {})
            if not isinstance(place, dict):
                raise ConfigError(f"override {dotted!r}: {part!r} is a value, not a table")
        place[key] = value
    return from_dict(Profile, table)


def profile_files(name: str) -> list[Path]:
    """The TOML files that decide what `name` means, itself first: what a fingerprint must cover."""
    path = _path(name)
    parent = read_toml(path).get("extends")
    return [path, *(profile_files(parent) if parent else [])]


def _path(name: str) -> Path:
    known = packaged()
    if name in known:
        return known[name]
    if name.endswith(".toml"):
        return Path(name)
    raise ConfigError(f"unknown profile {name!r}{nearest(name, known)}")


def _resolved(name: str) -> dict[str, Any]:
    table = read_toml(_path(name))
    parent = table.pop("extends", None)
    return _merged(_resolved(parent), table) if parent else table


def _merged(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """`new` over `old`. A table whose `kind` changes is replaced: its keys mean something else.

    `{ absent = true }` takes out what the profile that is extended has under that key.
    """
    merged = dict(old)
    for key, value in new.items():
        if value == {"absent": True}:
            merged.pop(key, None)
            continue
        before = merged.get(key)
        both = isinstance(before, dict) and isinstance(value, dict)
        same = both and ("kind" not in value or value["kind"] == before.get("kind"))
        merged[key] = _merged(before, value) if same else value
    return merged
