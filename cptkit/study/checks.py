"""What the notebooks prove about their own runs: which are one, what adapters lose, what lists give away.

Cost: `adapters` loads two models per kind of adapter; `leakage` reads a megabyte of lists.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import torch

from cptkit.data import corpora, lists
from cptkit.data.copain_items import TASKS, generate
from cptkit.eval import forward
from cptkit.study import stats
from cptkit.study.experiments import Study
from cptkit.study.store import Arm
from cptkit.study.views import style
from cptkit.train import lora, models
from cptkit.train.spec import ModelSpec

READ_MEGABYTES = 1.0  # of the lists that are searched for Copain's items
READ = 16  # held-out documents that logits are compared on
TOLERANCE = 1e-3  # of a logit: fp32 rounding in another order of additions


class CheckError(AssertionError):
    """A run or a text is not what the study says it is; the message has the number."""


def same_runs(frame: pd.DataFrame) -> pd.DataFrame:
    """Runs that stand under several names, trained once."""
    rows = [
        {"run": run, "arms": ", ".join(style.arm_style(a).label for a in part["arm"].unique()),
         "learning rate": part["lr_peak"].iloc[0], "seed": part["seed"].iloc[0]}
        for run, part in frame.groupby("run", sort=False)
        if part["arm"].nunique() > 1
    ]  # fmt: skip
    return pd.DataFrame(rows, columns=["run", "arms", "learning rate", "seed"])


def largest_differences(
    frame: pd.DataFrame, a: str, b: str, folder: Path | None = None, name: str = "equivalence"
) -> pd.DataFrame:
    """The largest difference between two arms, over all probed steps, of each thing measured."""
    if frame.empty:
        return pd.DataFrame()
    rows = stats.probes(frame)
    one, other = (rows[rows["arm"] == arm].set_index("step") for arm in (a, b))
    metrics = ["ppl.target.perplexity", "ppl.source.perplexity", "copain.accuracy", "drift.mean_l2",
               "choices.target.accuracy"]  # fmt: skip
    found = [
        {
            "measure": m,
            "largest value": one[m].abs().max(),
            "largest difference": (one[m] - other[m]).abs().max(),
        }
        for m in metrics
        if m in one
    ]
    return style.keep_table(pd.DataFrame(found), folder, name)


def leakage(study: Study, folder: Path | None = None, name: str = "leakage") -> pd.DataFrame | str:
    """How much the replayed lists give away of Copain: same rule, same item.

    One row per Copain task: the family of rules that agrees with it most often, how often, what picking one
    place of the list gives, and how many of the probe's items stand in the lists. Raises CheckError when a
    family is one of Copain's rules or an item is shown.
    """
    spec, probe = study.profile.averaging.lists, study.profile.run.probes.copain
    if spec is None or probe is None:
        return "This profile replays no lists."
    made = lists.Lists(**spec.params)
    families = set(made.families or lists.RULES)
    some = dataclasses.replace(spec, megabytes=min(READ_MEGABYTES, spec.megabytes or READ_MEGABYTES))
    read = [lists.read_lines(d.text, made.format) for d in corpora.read_documents(some, study.cache)]
    shown, rows = set().union(*read), []
    for task in TASKS:
        asked = generate(probe.seed, probe.per_task, low=probe.low, high=probe.high, tasks=[task])
        items = [(item.elements, item.target) for item in asked]
        agree = {f: share for f, share in lists.agreement(items).items() if f in families}
        nearest = max(agree, key=agree.__getitem__)
        rows.append({
            "task": task, "nearest family": nearest, "agrees": agree[nearest],
            "one place": float(np.mean([item.chance for item in asked])),
            "items shown": sum(item in shown for item in items),
        })  # fmt: skip
    table = pd.DataFrame(rows)
    if (table["agrees"] > 0.9).any() or table["items shown"].any():
        raise CheckError(f"the lists give Copain away:\n{table}")
    return style.keep_table(table, folder, name)


@torch.no_grad()
def adapters(
    study: Study, arms: Sequence[Arm], folder: Path | None = None, name: str = "adapters"
) -> pd.DataFrame:
    """One run of each kind of adapter: what it trains, and logits after saving, loading and merging.

    Raises CheckError where loading the adapter onto the start, or the merged model, gives other logits.
    """
    rows = []
    for arm in {a.arm: a for a in arms}.values():
        run, spec = study.train(arm.spec, str(arm)), arm.spec
        options = {"length": spec.length, "seed": spec.seed}
        start, tokenizer = models.load(spec.model, study.cache, study.runs, **options)
        merged, _ = models.load(ModelSpec(start=f"run:{run.name}"), study.cache, study.runs, **options)
        before = [p.numel() for p in start.parameters()]
        texts = corpora.read_documents(study.profile.target.validation, study.cache)
        ids = forward.prompt_ids(tokenizer, [d.text for d in itertools.islice(texts, READ)])
        batch, _ = forward.pad([row[: spec.length] for row in ids], "cpu")
        plain = _logits(start, batch)
        loaded = lora.load(start, run / "adapter")
        adapted = _logits(loaded, batch)
        moved, lost = (adapted - plain).abs().max(), (adapted - _logits(merged, batch)).abs().max()
        if not moved > 10 * TOLERANCE or lost > TOLERANCE:
            raise CheckError(f"{arm}: logits moved by {moved:.2g}, and merging changes them by {lost:.2g}")
        trained = sum(p.numel() for p in start.parameters() if p.requires_grad)
        names = {n.rsplit(".", 1)[-1] for n in lora.trainable_names(start)}
        rows.append({
            "arm": style.arm_style(arm.arm).label, "modules trained": ", ".join(sorted(names)),
            "weights trained": trained / sum(before), "logits moved": float(moved),
            "difference after merging": float(lost),
        })  # fmt: skip
    return style.keep_table(pd.DataFrame(rows), folder, name)


def _logits(model: torch.nn.Module, batch: torch.Tensor) -> torch.Tensor:
    with forward.evaluating(model):
        return forward.logits(model, forward.hidden(model, batch).flatten(0, 1)).clone()
