"""The runs of P2's language study: which languages gain from the source, and by how much.

Both arms of a language see the same target tokens in the same order, with the same tokenizer, each at its own
best learning rate; the rate is constant after warm-up, so that a loss at a step is that of a run of that
length. Closeness to the source is measured on the texts (`data/closeness.py`), before anything is trained.

Departures from P2: five languages of one domain, parallel page by page (in `lab-real`), instead of three of
web text; the closeness is a number; intervals over seeds.
"""

from __future__ import annotations

import dataclasses
import math

import pandas as pd

from cptkit.data import closeness, corpora
from cptkit.data.corpus import CorpusSpec
from cptkit.study import stats
from cptkit.study.arms import paper2
from cptkit.study.experiments import TARGET, Study, continued
from cptkit.study.plans import Languages, Text
from cptkit.study.store import Arm
from cptkit.train import models
from cptkit.train.config import ConfigError
from cptkit.train.probes import Probes
from cptkit.train.schedule import Schedule
from cptkit.train.spec import ModelSpec, ProbesSpec

LOSS = f"ppl.{TARGET}.nats_per_token"
BITS = f"ppl.{TARGET}.bits_per_byte"
SAMPLE = 400_000  # characters of each language that closeness is measured on


def plan_of(study: Study) -> Languages:
    """The profile's languages section. Raises ConfigError where there is none."""
    if study.profile.languages is None:
        raise ConfigError(f"profile {study.profile.name} has no [languages] section: nothing to run")
    return study.profile.languages


# ---- before training --------------------------------------------------------------------------------


def _sample(study: Study, corpus: CorpusSpec) -> str:
    text, size = [], 0
    for document in corpora.read_documents(corpus, study.cache):
        text.append(document.text)
        size += len(document.text)
        if size >= SAMPLE:
            break
    return "\n".join(text)


def closeness_table(study: Study) -> pd.DataFrame:
    """A row a language: every measure of closeness to the source, and what its text costs in tokens.

    Columns language, setting (the similarity, where it is a setting), script, ngrams, words, pieces,
    bytes_per_token, tokens_per_byte relative to the source (`fertility`).
    """
    plan, source = plan_of(study), _sample(study, study.profile.source.train)
    tokenizer = models.load_tokenizer(study.base(), study.cache, study.runs)

    def pieces(text: str) -> list[int]:
        return tokenizer(text, add_special_tokens=False)["input_ids"]

    known = pieces(source)
    per_byte = len(known) / len(source.encode())
    rows = []
    for name, text in plan.languages.items():
        sample = _sample(study, text.train)
        ids, size = pieces(sample), len(sample.encode())
        rows.append(
            {
                "language": name,
                "setting": plan.similarity.get(name, math.nan),
                "script": closeness.script_share(source, sample),
                "ngrams": closeness.ngram_cosine(source, sample),
                "words": closeness.word_share(source, sample),
                "pieces": closeness.piece_share(known, ids),
                "bytes_per_token": size / len(ids),
                "fertility": len(ids) / size / per_byte,
            }
        )
    return pd.DataFrame(rows)


def forward(study: Study) -> pd.DataFrame:
    """The start model on every language as it is, the source first: perplexity, bits a byte, choices.

    Columns language and those of the metrics frame, each language in the place of the target. No training.
    """
    plan, length = plan_of(study), study.profile.run.length
    texts = {study.profile.source.name or "source": study.profile.source} | plan.languages
    model, tokenizer = models.load(study.base(), study.cache, study.runs, length=length, seed=0)
    rows = []
    for name, text in texts.items():
        probes = Probes(_probes(study, text), model, tokenizer, {}, study.cache, length)
        rows.append({"language": name} | probes.measure(model))
    return pd.DataFrame(rows)


def _probes(study: Study, text: Text) -> ProbesSpec:
    """Held-out text of one language, and the plan's choices about it without shots, at both ends of a run."""
    plan, asked = plan_of(study), {}
    if plan.choices:
        probe = study.profile.run.probes.choices[plan.choices]
        corpus = text.validation if probe.corpus is not None else None
        asked = {TARGET: dataclasses.replace(probe, corpus=corpus, lang=text.validation.lang, shots=0)}
    return ProbesSpec(
        steps=tuple(range(0, plan.steps + 1, plan.every)),
        perplexity={TARGET: text.validation},
        documents=plan.documents,
        choices=asked,
        choices_steps=(0,) if asked else (),
        drift=False,
    )


# ---- training ---------------------------------------------------------------------------------------


def _arm(study: Study, size: str, name: str, language: str, rate: float, seed: int, model: ModelSpec) -> Arm:
    profile, plan = study.profile, plan_of(study)
    text = plan.languages[language]
    spec = continued(
        profile,
        model,
        0.0,
        seed=seed,
        schedule=Schedule("constant", peak=rate, warmup=plan.warmup),
        steps=plan.steps,
        sequences=plan.sequences or profile.run.sequences,
        sources={TARGET: text.train},
        probes=_probes(study, text),
        max_epochs=4.0,
    )
    labels = {"language": language, "similarity": plan.similarity.get(language), "size": size}
    return Arm("languages", name, seed, spec, labels)


def _starts(study: Study, size: str) -> dict[str, ModelSpec]:
    if size:
        return paper2.starts(study, size)
    made = study.profile.base.pretraining
    return {"cpt": study.base()} | ({"scratch": made.model} if made else {})


def run(study: Study) -> pd.DataFrame:
    """Every language, size and arm: all rates with the first seed, the best one with the others.

    Labels language, similarity, size ("" for the profile's own model). Raises ConfigError for a scratch arm
    where no model is made.
    """
    plan = plan_of(study)
    first, *others = plan.seeds or study.profile.seeds
    starts = {size: _starts(study, size) for size in plan.sizes or ("",)}
    if missing := {arm for arm in plan.arms for found in starts.values() if arm not in found}:
        raise ConfigError(f"profile {study.profile.name}: no start for {', '.join(missing)}")
    cells = [
        (size, arm, language)
        for size in starts
        for language in plan.trained or plan.languages
        for arm in plan.arms
    ]
    sweep = study.run(
        _arm(study, *cell, rate, first, starts[cell[0]][cell[1]]) for cell in cells for rate in plan.rates
    )
    repeats = []
    for size, arm, language in cells:
        rows = sweep[(sweep["size"] == size) & (sweep["arm"] == arm) & (sweep["language"] == language)]
        rate = stats.best_peak(rows, LOSS)
        repeats += [_arm(study, size, arm, language, rate, seed, starts[size][arm]) for seed in others]
    return pd.concat([sweep, study.run(repeats)], ignore_index=True) if repeats else sweep


# ---- what is read off -------------------------------------------------------------------------------


def gains(frame: pd.DataFrame) -> pd.DataFrame:
    """A row per language, size and seed: what CPT gains over scratch, each arm at its best rate.

    Columns loss_cpt and loss_scratch (nats a token at the end), loss_saved (their difference), tokens_cpt and
    tokens_scratch at the deepest loss that both reach, saved (share of tokens), transferred (tokens), and the
    accuracy of each arm and of the start where choices were asked. Languages without scratch are left out.
    """
    rows, accuracy = [], f"choices.{TARGET}.accuracy"
    frame = stats.probes(frame)
    for (size, language), part in frame.groupby(["size", "language"], sort=False):
        if set(part["arm"]) != {"cpt", "scratch"}:
            continue
        best = {arm: stats.best_rate(part[part["arm"] == arm], LOSS) for arm in ("cpt", "scratch")}
        for seed in sorted(set(best["cpt"]["seed"]) & set(best["scratch"]["seed"])):
            a, b = (best[arm][best[arm]["seed"] == seed] for arm in ("cpt", "scratch"))
            ratio, cpt, scratch = stats.tokens_ratio(a["tokens"], a[LOSS], b["tokens"], b[LOSS])
            row = {
                "language": language,
                "size": size,
                "similarity": a["similarity"].iloc[0],
                "seed": seed,
                "loss_cpt": a[LOSS].iloc[-1],
                "loss_scratch": b[LOSS].iloc[-1],
                "loss_saved": b[LOSS].iloc[-1] - a[LOSS].iloc[-1],
                "tokens_cpt": cpt,
                "tokens_scratch": scratch,
                "saved": 1 - ratio,
                "transferred": scratch - cpt,
            }
            if accuracy in a:
                measured = {"cpt": a, "scratch": b}
                row |= {f"accuracy_{arm}": found[accuracy].iloc[-1] for arm, found in measured.items()}
                row["accuracy_start"] = a[a["step"] == 0][accuracy].mean()
                row["chance"] = a[f"choices.{TARGET}.chance"].mean()
            rows.append(row)
    return pd.DataFrame(rows)


def ranks(gained: pd.DataFrame, measures: pd.DataFrame) -> pd.DataFrame:
    """Spearman's rank correlation of each measure of closeness with what was saved, over languages.

    Mean over seeds and sizes first. With five languages only a perfect order is beyond chance (p = 0.017 for
    one side), so the table gives the number of languages and no more than the correlation.
    """
    means = gained.groupby("language")[["saved", "loss_saved"]].mean()
    table = measures.set_index("language").join(means, how="inner")
    rows = []
    for column in ("setting", "script", "ngrams", "words", "pieces", "fertility"):
        values = table[[column, "saved", "loss_saved"]].dropna()
        if len(values) >= 3 and values[column].nunique() > 1:
            rows.append(
                {
                    "measure": column,
                    "languages": len(values),
                    "with tokens saved": values[column].rank().corr(values["saved"].rank()),
                    "with loss saved": values[column].rank().corr(values["loss_saved"].rank()),
                }
            )
    return pd.DataFrame(rows)


def estimates(gained: pd.DataFrame, measures: pd.DataFrame) -> dict[str, stats.Interval | str]:
    """What the ledger judges, by seed (means over sizes): t intervals, or why there is none.

    `languages.least`: the smallest share of tokens that any language saves; `languages.closest`: that of the
    closest language by shared word pieces minus that of the farthest; `languages.accuracy`: CPT minus
    scratch, mean over languages.
    """
    if gained.empty:
        reason = "nothing was trained from scratch here"
        return dict.fromkeys(("languages.least", "languages.closest", "languages.accuracy"), reason)
    order = measures.set_index("language")["pieces"].sort_values()
    saved = gained.groupby(["seed", "language"])["saved"].mean().unstack()
    far, *_, near = [name for name in order.index if name in saved]
    found: dict[str, stats.Interval | str] = {
        "languages.least": stats.interval(saved.min(axis=1)),
        "languages.closest": stats.interval(saved[near] - saved[far]),
        "languages.accuracy": "no questions were asked here",
    }
    if "accuracy_cpt" in gained:
        better = gained["accuracy_cpt"] - gained["accuracy_scratch"]
        found["languages.accuracy"] = stats.interval(better.groupby(gained["seed"]).mean())
    return found
