"""What notebook 00 shows: the text, the tokenizer, the base model, and what the questions can show.

Frames and tables are made here and drawn by `figures.py` and `curves.py`. Cost: reading validation text,
and one pass of the probes over a base model that was not made here.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from cptkit.data import corpora
from cptkit.eval.copain import CopainResult, TaskScore
from cptkit.eval.drift import snapshot
from cptkit.study import experiments, stats
from cptkit.study.experiments import Study
from cptkit.study.store import Arm
from cptkit.study.views import curves, style
from cptkit.train import models
from cptkit.train.probes import Probes

SHOWN = 400  # characters of a sample document


def samples(study: Study) -> pd.DataFrame:
    """The beginning of one document of every kind in every language the study trains on."""
    rows = []
    for name, text in experiments.texts(study).items():
        kinds: dict[str, str] = {}
        for document in itertools.islice(corpora.read_documents(text.train, study.cache), 200):
            kinds.setdefault(document.kind, document.text)
        for kind, sample in kinds.items():
            more = " …" if len(sample) > SHOWN else ""
            rows.append({"language": name, "kind": kind, "text": sample[:SHOWN] + more})
    return pd.DataFrame(rows)


def fertility(study: Study, documents: int = 200) -> pd.DataFrame:
    """Bytes per token and tokens per word of held-out text, per language, with the study's tokenizer."""
    tokenizer = models.load_tokenizer(study.base(), study.cache, study.runs)
    rows = []
    for name, text in experiments.texts(study).items():
        read = corpora.read_documents(text.validation, study.cache)
        texts = [d.text for d in itertools.islice(read, documents)]
        pieces = sum(len(ids) for ids in tokenizer(texts, add_special_tokens=False)["input_ids"])
        rows.append(
            {
                "language": name,
                "bytes_per_token": sum(len(t.encode()) for t in texts) / pieces,
                "tokens_per_word": pieces / sum(len(t.split()) for t in texts),
            }
        )
    return pd.DataFrame(rows)


def base_frame(study: Study) -> pd.DataFrame:
    """The base model's metrics: over its pretraining where it was made here, else as it comes, in one row."""
    if study.profile.base.pretraining is not None:
        spec = experiments.base_run(study.profile)
        return study.run([Arm("base", "pretraining", spec.seed, spec)])
    profile = study.profile
    length = profile.run.length
    model, tokenizer = models.load(study.base(), study.cache, study.runs, length=length, seed=0)
    probes = Probes(profile.run.probes, model, tokenizer, snapshot(model), study.cache, length)
    labels = {
        "profile": profile.name,
        "experiment": "base",
        "arm": "as it comes",
        "seed": 0,
        "run": profile.base.start,
    }
    return pd.DataFrame(
        [labels | {"lr_peak": 0.0, "step": 0, "tokens": 0, "kind": "probe"} | probes.measure(model)]
    )


def finished(base: pd.DataFrame) -> CopainResult:
    """Copain by task of the finished base model."""
    last = stats.probes(base).iloc[-1]

    def score(prefix: str) -> TaskScore:
        return TaskScore(0, last[f"{prefix}.accuracy"], last[f"{prefix}.chance"], last[f"{prefix}.in_list"])

    tasks = [
        c.split(".")[1]
        for c in base
        if c.startswith("copain.") and c.endswith(".accuracy") and c.count(".") == 2
    ]
    return CopainResult({task: score(f"copain.{task}") for task in tasks}, score("copain"), ())


def emergence(base: pd.DataFrame, folder: Path | None = None) -> Figure | str:
    """Copain over pretraining, and the rules that no text shows, each against its chance."""
    rows = stats.probes(base)
    rows = rows[rows["step"] > 0]
    if rows.empty:
        return "The base model was not made here: there is no curve to show."
    parts = [rows.assign(arm="Copain's seven rules", accuracy=rows["copain.accuracy"])]
    if "held_out.accuracy" in rows:
        parts.append(rows.assign(arm="rules in no training text", accuracy=rows["held_out.accuracy"]))
    return curves.curves(
        pd.concat(parts),
        "accuracy",
        title="In-context learning of the base model",
        ylabel="exact match",
        percent=True,
        hlines={"chance (Copain)": rows["copain.chance"].mean()},
        folder=folder,
        name="emergence",
    )


def transfer_table(transfer: pd.DataFrame, folder: Path | None = None) -> pd.DataFrame | str:
    """Final target loss of every rate, and the tokens CPT saves, each arm at its best rate."""
    if transfer.empty:
        return "This profile has no transfer experiment."
    metric, rows = "ppl.target.nats_per_token", []
    frame = stats.probes(transfer)
    for language, part in frame.groupby("language", sort=False):
        best = {arm: stats.best_rate(part[part["arm"] == arm], metric) for arm in ("cpt", "scratch")}
        saved = stats.tokens_saved(best["cpt"], best["scratch"], metric)
        for arm, chosen in best.items():
            ends = part[(part["arm"] == arm) & (part["step"] == part["step"].max())]
            row = {"language": language, "arm": arm}
            row |= {
                f"rate {r:g}": ends[ends["lr_peak"] == r][metric].mean()
                for r in sorted(ends["lr_peak"].unique())
            }
            row |= {"best rate": chosen["lr_peak"].iloc[0]}
            rows.append(row | {"tokens saved by CPT": saved if arm == "cpt" else float("nan")})
    return style.keep_table(pd.DataFrame(rows), folder, "transfer_rates")


def together(frames: Iterable[pd.DataFrame]) -> pd.DataFrame:
    """One frame of several experiments; those that a profile lacks are left out."""
    found = [f for f in frames if len(f)]
    return pd.concat(found, ignore_index=True) if found else pd.DataFrame()
