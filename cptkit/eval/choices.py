"""Few-shot multiple choice by likelihood, and the perplexity of the right answer given its prompt.

Each candidate is written after the prompt and scored by the log-probability of its tokens. Summed
log-probabilities favour short candidates, so accuracy is given under every normaliser (sum, per token, per
UTF-8 byte, per character; optionally calibrated): bytes and characters choose different winners across
scripts, and none may be silent. `label_perplexity` is exp of the nats per token of the right candidates, over
all items together (P1, section 4.3; how the paper normalises is not published).

Prompt and candidate are tokenised together, as one text, since pieces merge across the border; the space
between them is moved from the prompt to the candidate, so a trailing space changes nothing. The candidates of
an item share the longest token prefix that the prompt alone also has, and are scored on all that follows.

Costs one pass over each prompt and one short pass over the candidates, which reuse the prompt's cache: about
as many times cheaper than scoring whole texts as there are candidates.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import nn

from cptkit.data.documents import ChoiceItem, DataError
from cptkit.eval import forward
from cptkit.eval.forward import EvalError, evaluating, hidden, nats, pad

NORMALISERS = ("sum", "token", "byte", "character")
CONSTANT = 0.95  # a larger share of predictions at one place of the list raises the alarm


@dataclass(frozen=True, slots=True)
class ChoiceTemplate:
    """How an item becomes text: `header`, solved shots and the question, joined by `between`.

    `question` holds {question} and ends where the answer begins; `answer` holds {candidate}. Where the
    question ends in whitespace, that replaces the whitespace which `answer` begins with.
    """

    question: str = "{question}"
    answer: str = " {candidate}"
    between: str = "\n"
    header: str = ""

    def __post_init__(self) -> None:
        if self.question.count("{question}") != 1 or self.answer.count("{candidate}") != 1:
            raise EvalError("a choice template needs {question} and {candidate} once each")

    def texts(self, question: str, candidates: Sequence[str], before: str = "") -> tuple[str, list[str]]:
        """The prompt without trailing whitespace, and the whole text with each candidate."""
        asked = before + self.question.replace("{question}", question)
        prompt = asked.rstrip()
        space = asked[len(prompt) :]
        answers = [self.answer.replace("{candidate}", candidate) for candidate in candidates]
        return prompt, [prompt + (space + answer.lstrip() if space else answer) for answer in answers]

    def before(self, item: ChoiceItem, shots: Sequence[ChoiceItem]) -> str:
        """Header and solved shots; a shot that asks `item`'s own question is left out."""
        solved = [
            self.texts(shot.question, [shot.candidates[shot.answer]])[1][0] + self.between
            for shot in shots
            if shot.question.strip() != item.question.strip()
        ]
        return self.header + "".join(solved)


CHOICE_TEMPLATES: dict[str, ChoiceTemplate] = {
    "plain": ChoiceTemplate(),
    "lab": ChoiceTemplate(between=" ; "),
    "lab-prose": ChoiceTemplate(between=" . "),
    "question-answer": ChoiceTemplate("Question: {question}\nAnswer:", between="\n\n"),
    "basque": ChoiceTemplate("Galdera: {question}\nErantzuna:", between="\n\n"),
}


def load_items(path: Path | str) -> list[ChoiceItem]:
    """Items from JSONL: `question`, `candidates` (strings), `answer` (its index, or the string itself) and,
    optionally, `id` and `group`.

    Raises:
        DataError: with file and line, for anything else. An evaluation set never shrinks silently.
    """
    items = []
    for number, line in enumerate(Path(path).read_text(encoding="utf-8").splitlines(), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            candidates, answer = row["candidates"], row["answer"]
            if not isinstance(candidates, list) or not all(
                isinstance(t, str) for t in (row["question"], *candidates)
            ):
                raise TypeError("`question` must be a string and `candidates` a list of strings")
            index = candidates.index(answer) if isinstance(answer, str) else answer
            if isinstance(index, bool) or not isinstance(index, int):
                raise TypeError("`answer` must be an index or one of the candidates")
            items.append(
                ChoiceItem(
                    row["question"],
                    tuple(candidates),
                    index,
                    str(row.get("id", number)),
                    str(row.get("group", "")),
                )
            )
        except (ValueError, KeyError, TypeError) as error:
            raise DataError(f"{path}:{number}: not a choice item: {error!r}") from None
    if not items:
        raise DataError(f"{path}: no items")
    return items


# ---- scoring ----


@dataclass(frozen=True, slots=True)
class Scores:
    """Per item and candidate: nats (the sum of surprisals) and the tokens they are a sum over."""

    nats: list[list[float]]
    tokens: list[list[int]]


def score(
    model: nn.Module,
    tokenizer,
    texts: Sequence[tuple[str, Sequence[str]]],
    *,
    max_tokens: int = 8192,
) -> Scores:
    """Surprisal of what follows the prompt in each text. `texts`: (prompt, [prompt + continuation, ...]).

    BOS is added by the tokenizer's convention. An empty prompt without BOS is conditioned on EOS, which is
    what precedes a document.

    Raises:
        EvalError: an empty continuation, a text longer than the model reads, a model with a recurrent state.
    """
    if not forward.can_cache(model):
        raise EvalError("multiple choice needs a model with attention and explicit positions")
    flat = forward.prompt_ids(tokenizer, [text for prompt, wholes in texts for text in (prompt, *wholes)])
    prefixes, continuations, at = [], [], 0
    for prompt, wholes in texts:
        alone, *joint = flat[at : at + 1 + len(wholes)]
        at += 1 + len(wholes)
        if prompt in wholes or "" in wholes:
            raise EvalError(f"an empty candidate after {prompt[-60:]!r}")
        shared = min(min(_common(alone, ids), len(ids) - 1) for ids in joint)
        prefixes.append(list(alone[:shared]) or [tokenizer.eos_token_id])
        continuations.append([ids[shared:] for ids in joint])
    longest = [max(map(len, some)) for some in continuations]
    forward.check(model, prefixes)
    forward.check(model, [ids for some in continuations for ids in some])
    totals = [len(p) + n for p, n in zip(prefixes, longest, strict=True)]
    forward.check(model, [], extra=max(totals, default=0))
    if max(totals, default=0) > forward.window(model):
        max_tokens = 1  # padding would shift a sliding window: no padding, then
    sizes = [total * len(some) for total, some in zip(totals, continuations, strict=True)]
    sums: list[list[float]] = [[] for _ in texts]
    with evaluating(model):
        for batch in forward.batches(sizes, max_tokens):
            results = _score_batch(model, [prefixes[i] for i in batch], [continuations[i] for i in batch])
            for i, result in zip(batch, results, strict=True):
                sums[i] = result
    return Scores(sums, [[len(ids) for ids in some] for some in continuations])


def _common(a: list[int], b: list[int]) -> int:
    """How many leading tokens two rows share."""
    return next((n for n, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def _score_batch(model, prefixes: list[list[int]], continuations: list[list[list[int]]]) -> list[list[float]]:
    """Nats of each continuation: the first token from the prefix's last state, the others from the cache."""
    device = forward.device_of(model)
    cache = forward.new_cache()
    ids, mask = pad(prefixes, device)
    owner = torch.tensor([i for i, some in enumerate(continuations) for _ in some], device=device)
    ends, mask = mask.sum(1)[owner], mask[owner]
    states = hidden(model, ids, cache=cache)
    ids, real = pad([row for some in continuations for row in some], device)
    surprisal = torch.zeros(ids.shape, dtype=torch.float64)
    surprisal[:, 0] = nats(model, states[owner, ends - 1], ids[:, 0])
    if ids.shape[1] > 1:
        cache.batch_select_indices(owner)
        places = ends[:, None] + torch.arange(ids.shape[1] - 1, device=device)
        seen = torch.cat([mask, real[:, :-1]], 1)
        states = hidden(model, ids[:, :-1], places, seen, cache)
        scored = real[:, 1:].bool()
        surprisal[:, 1:][scored.cpu()] = nats(model, states[scored], ids[:, 1:][scored])
    sums = iter(surprisal.sum(1).tolist())
    return [[next(sums) for _ in some] for some in continuations]


# ---- results ----


@dataclass(frozen=True, slots=True)
class ChoicesResult:
    """Accuracy (0 to 1) by normaliser, and what is needed to judge it.

    `chance` is that of a blind pick; `label_perplexity` that of the right candidates; `alarms` are sentences
    for a reader (all answers at one place of the list); `predictions` are chosen indices by normaliser.
    """

    items: int
    accuracy: dict[str, float]
    chance: float
    label_perplexity: float
    alarms: tuple[str, ...]
    predictions: dict[str, tuple[int, ...]]
    groups: dict[str, ChoicesResult] = field(default_factory=dict)

    def metrics(self, prefix: str, normaliser: str = "sum") -> dict[str, float]:
        """Columns of the metrics frame: `<prefix>.accuracy` (by `normaliser`), `.accuracy_<each>`, `.chance`,
        `.label_perplexity`, and the same under `<prefix>.<group>` where there are groups."""
        columns = {
            f"{prefix}.accuracy": self.accuracy[normaliser],
            **{f"{prefix}.accuracy_{name}": share for name, share in self.accuracy.items()},
            f"{prefix}.chance": self.chance,
            f"{prefix}.label_perplexity": self.label_perplexity,
        }
        for name, group in self.groups.items():
            columns |= group.metrics(f"{prefix}.{name}", normaliser)
        return columns


def evaluate(
    model: nn.Module,
    tokenizer,
    items: Sequence[ChoiceItem],
    shots: Sequence[ChoiceItem] = (),
    template: ChoiceTemplate = CHOICE_TEMPLATES["plain"],
    *,
    calibrate: bool = False,
    max_tokens: int = 8192,
) -> ChoicesResult:
    """Score every item after all `shots`, in their order (one that asks the item's own question is left out).

    `calibrate` adds the accuracy of log-probability minus that of the same candidate after an empty question
    without shots, which costs a second, shorter, pass.

    Raises:
        EvalError: no items, or see `score`; scores that are not numbers.
    """
    if not items:
        raise EvalError("no items")
    texts = [template.texts(item.question, item.candidates, template.before(item, shots)) for item in items]
    scores = score(model, tokenizer, texts, max_tokens=max_tokens)
    if not all(math.isfinite(n) for some in scores.nats for n in some):
        raise EvalError(
            "the model's scores are not finite: its weights have diverged, or its precision overflows"
        )
    values = {
        name: [_normalised(name, *row) for row in zip(items, scores.nats, scores.tokens, strict=True)]
        for name in NORMALISERS
    }
    if calibrate:
        empty = score(
            model, tokenizer, [template.texts("", item.candidates) for item in items], max_tokens=max_tokens
        )
        values["calibrated"] = [
            [b - a for a, b in zip(*pair, strict=True)] for pair in zip(scores.nats, empty.nats, strict=True)
        ]
    predictions = {
        name: [max(range(len(v)), key=v.__getitem__) for v in rows] for name, rows in values.items()
    }
    labels = [
        (n[item.answer], t[item.answer]) for item, n, t in zip(items, scores.nats, scores.tokens, strict=True)
    ]
    names = sorted({item.group for item in items})
    groups = {
        name: _result(items, predictions, labels, [i for i, item in enumerate(items) if item.group == name])
        for name in names
        if len(names) > 1
    }
    return _result(items, predictions, labels, list(range(len(items))), groups)


def _normalised(name: str, item: ChoiceItem, sums: list[float], tokens: list[int]) -> list[float]:
    """Scores of an item's candidates, higher is better."""
    sizes = {
        "sum": [1] * len(sums),
        "token": tokens,
        "byte": [len(candidate.encode()) for candidate in item.candidates],
        "character": [len(candidate) for candidate in item.candidates],
    }[name]
    return [-n / size for n, size in zip(sums, sizes, strict=True)]


def _result(items, predictions, labels, chosen: list[int], groups: dict | None = None) -> ChoicesResult:
    total, tokens = (math.fsum(labels[i][k] for i in chosen) for k in (0, 1))
    own = {name: tuple(rows[i] for i in chosen) for name, rows in predictions.items()}
    answers = [items[i].answer for i in chosen]
    return ChoicesResult(
        items=len(chosen),
        accuracy={
            name: sum(p == a for p, a in zip(rows, answers, strict=True)) / len(chosen)
            for name, rows in own.items()
        },
        chance=sum(1 / len(items[i].candidates) for i in chosen) / len(chosen),
        label_perplexity=math.exp(total / tokens) if total / tokens < 700 else math.inf,
        alarms=tuple(alarm for name, rows in own.items() if (alarm := _constant(name, rows, answers))),
        predictions=own,
        groups=groups or {},
    )


def _constant(name: str, predicted: Sequence[int], answers: Sequence[int]) -> str | None:
    """A sentence where nearly all predictions are at one place of the list. Below 10 items: never."""
    place, count = Counter(predicted).most_common(1)[0]
    if len(predicted) < 10 or count <= CONSTANT * len(predicted):
        return None
    return (
        f"{count} of {len(predicted)} predictions ({name}) are candidate {place}, right for "
        f"{answers.count(place)}: labels in another language than the prompt, or candidates in a fixed order?"
    )
