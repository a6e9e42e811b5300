"""What P1 leaves open: restraint that chooses its strength, and lists replayed instead of English.

Arms for the second half of notebook 03, and what is read off them. A restraint is worth something if it keeps
more than plain training at a lower rate that learns as much (`fronts.advantage`); lists, if they keep what
English keeps.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

import pandas as pd

from cptkit.data.weights import Constant
from cptkit.study.experiments import TARGET, Study, at_the_end, continued, few_choices, percent
from cptkit.study.fronts import advantage
from cptkit.study.profiles import Profile, with_similarity
from cptkit.study.store import Arm

LISTS = "lists"


def restraints(study: Study) -> list[Arm]:
    """Rules that choose their strength, and L2-SP; label `similarity` (None: the profile's own language).

    Rules and penalties with the first seed, those in `kept` with every seed, and so their controls; in other
    languages what the plan names for `elsewhere`.
    """
    plan, model = study.profile.averaging, study.base()
    first = study.profile.seeds[0]
    arms = []
    for similarity in (None, *plan.similarities):
        profile = study.profile if similarity is None else with_similarity(study.profile, similarity)
        labels, ends = {"similarity": similarity}, at_the_end(profile)

        def add(name: str, seed: int, profile: Profile = profile, labels: dict = labels, **k: Any) -> None:
            arms.append(Arm("restraints", name, seed, continued(profile, model, 0.0, seed=seed, **k), labels))

        rules = {name: {"averaging": rule} for name, rule in plan.restraints.items()}
        rules |= {f"l2sp_{strength:g}": {"distance_penalty": strength} for strength in plan.penalties}
        tried = rules if similarity is None else [name for name in rules if name in plan.elsewhere]
        for name in tried:
            rule = rules[name]
            for seed in study.profile.seeds if name in plan.kept else (first,):
                add(name, seed, **rule, **ends)
        for rate in plan.control_rates if similarity is not None else ():
            schedule = dataclasses.replace(profile.run.schedule, peak=rate)
            for seed in study.profile.seeds:
                add("none", seed, schedule=schedule, **ends)
    return arms


def in_own_language(held: pd.DataFrame) -> pd.DataFrame:
    """The restraints in the profile's own target language."""
    return held[held["similarity"].isna()] if len(held) else held


def restraint_advantages(held: pd.DataFrame, controls: pd.DataFrame) -> list[pd.DataFrame]:
    """Copain of each restraint above plain training at equal target perplexity, one frame per language."""
    parts = []
    for similarity in held["similarity"].unique() if len(held) else ():
        own = held["similarity"].isna() if pd.isna(similarity) else held["similarity"] == similarity
        rows = held[own]
        plainly = controls if pd.isna(similarity) else rows[rows["arm"] == "none"]
        language = "the profile's" if pd.isna(similarity) else f"similarity {similarity:g}"
        rules = rows[rows["arm"] != "none"]
        labels = {"language": language}
        parts.append(advantage(rules, plainly, f"ppl.{TARGET}.perplexity", "copain.accuracy", labels))
    return parts


def list_replay(study: Study) -> list[Arm]:
    """Language-free lists instead of source text, at equal tokens; labels `replay` (text) and `share`."""
    profile, plan, model = study.profile, study.profile.averaging, study.base()
    if plan.lists is None:
        return []
    first, ends = profile.seeds[0], at_the_end(profile)
    nothing = {"replay": "none", "share": 0.0}
    arms = [
        Arm("replay", "none", seed, continued(profile, model, 0.0, seed=seed), nothing)
        for seed in profile.seeds
    ]
    texts = {LISTS: plan.lists, "few_lists": plan.few_lists}
    for name, text in texts.items():
        shares = plan.list_shares if name == LISTS else plan.list_shares[-1:]
        for share in shares if text is not None else ():
            headline = name == LISTS and share == plan.list_shares[-1]
            probes = few_choices(profile) if headline else ends
            for seed in profile.seeds if headline else (first,):
                spec = continued(profile, model, 0.0, seed=seed, **probes)
                spec = dataclasses.replace(
                    spec,
                    sources={TARGET: profile.target.train, LISTS: text},
                    mixture=Constant({TARGET: 1 - share, LISTS: share}),
                )
                arms.append(
                    Arm("replay", f"{name}{percent(share)}", seed, spec, {"replay": name, "share": share})
                )
    for share in (*plan.english_shares, profile.curriculum.share):
        headline = share == profile.curriculum.share
        for seed in profile.seeds if headline else (first,):
            spec = continued(profile, model, share, seed=seed, **({} if headline else ends))
            arms.append(
                Arm("replay", f"mix{percent(share)}", seed, spec, {"replay": "English", "share": share})
            )
    return arms


def by_replay(frame: pd.DataFrame) -> pd.DataFrame:
    """The replay frame with the replayed text as the arm, and the run without any in every line."""
    if frame.empty:
        return frame
    texts = [text for text in frame["replay"].unique() if text != "none"]
    nothing = frame[frame["replay"] == "none"]
    parts = [frame[frame["replay"] == text].assign(arm=text) for text in texts]
    parts += [nothing.assign(arm=text, run=nothing["run"] + " " + text) for text in texts]
    return pd.concat(parts, ignore_index=True)


def without(frame: pd.DataFrame, arms: Iterable[str]) -> pd.DataFrame:
    """The frame without these arms; an empty one stays empty."""
    return frame[~frame["arm"].isin(list(arms))] if len(frame) else frame
