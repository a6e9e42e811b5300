"""Copain: in-context pattern recognition, the probe that shows an emergent ability coming and going.

A prompt shows a few short lists, each with the element that a hidden rule picks; the model must pick from
one more list. Seven tasks of 150 items, greedy decoding, exact match, no instruction. The items are made in
`cptkit.data.copain_items`. The paper's template, its draw of the shots, its stop string and its letter
case are not published: here they are parameters, and a caller reports the spread over `TEMPLATES`.

Beside accuracy always stand chance (a blind pick from the list) and the share of answers that are in the
list at all: a model below chance either stopped answering or picks by a wrong rule, and these differ.

Answers come from `greedy.py`: equal to greedy `generate`, at the cost of little more than one forward pass
over the prompts.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from torch import nn

from cptkit.data.copain_items import GROUP, SEED, TASKS, CopainItem, Task, generate, read_jsonl, write_jsonl
from cptkit.eval.forward import EvalError
from cptkit.eval.greedy import answers_fast, answers_generate

__all__ = [
    "GROUP", "SEED", "TASKS", "TEMPLATES", "CopainItem", "CopainResult", "Task", "TaskScore", "Template",
    "evaluate", "generate", "read_jsonl", "render", "write_jsonl",
]  # fmt: skip

# ---- prompts ----


@dataclass(frozen=True, slots=True)
class Template:
    """How lists become a prompt.

    `item` holds {elements} and, after it, {target}; `separator` joins the elements, `between` the lists. The
    prompt ends before {target}, without trailing whitespace: that belongs to the answer's first token.
    """

    item: str
    separator: str = ", "
    between: str = "\n"
    shots: int = 5
    header: str = ""

    def __post_init__(self) -> None:
        if self.item.count("{elements}") != 1 or self.item.count("{target}") != 1 or self.shots < 0:
            raise EvalError(
                f"template {self.item!r}: needs {{elements}} and {{target}} once each, and shots >= 0"
            )
        if self.item.index("{elements}") > self.item.index("{target}"):
            raise EvalError(f"template {self.item!r}: {{target}} must come after {{elements}}")
        if self.stop in ("", " "):
            raise EvalError(f"template {self.item!r}: nothing but a space ends an answer: set `between`")

    @property
    def stop(self) -> str:
        """The string that ends an answer: what follows {target}, bare of spaces; else a line's end."""
        end = self.item.split("{target}")[1] + self.between
        return end.strip() or ("\n" if "\n" in end else end)

    def shot(self, item: CopainItem) -> str:
        """A solved list."""
        opening, _, rest = self.item.partition("{elements}")
        return opening + self.separator.join(item.elements) + rest.replace("{target}", item.target)

    def prompt(self, item: CopainItem, shots: Sequence[CopainItem]) -> str:
        """Solved lists, then `item`'s up to its answer."""
        opening, _, rest = self.item.partition("{elements}")
        query = opening + self.separator.join(item.elements) + rest.split("{target}")[0]
        return (self.header + self.between.join([*map(self.shot, shots), query])).rstrip()


TEMPLATES: dict[str, Template] = {
    "arrow": Template("{elements} -> {target}"),
    "equals": Template("[{elements}] = {target}"),
    "colon": Template("{elements}: {target}", separator=" "),
    "words": Template("Input: {elements}\nOutput: {target}", between="\n\n"),
    "arrow-3": Template("{elements} -> {target}", shots=3),
    "lab": Template("{elements} > {target}", separator=" ", between=" ; "),
}
"""Named templates; "lab" is the line format of the lab world's pattern lists."""


def render(items: Sequence[CopainItem], template: Template, seed: int = 0) -> list[str]:
    """The prompt of each item. Shots are drawn for each item from the others of its task in `items`.

    An item's list never appears among its shots, in whatever order. The draw depends on the seed, the
    task and the item's place in it.

    Raises:
        EvalError: fewer other items than shots; an element that holds the stop string.
    """
    tasks: dict[str, list[tuple[list[str], CopainItem]]] = {}
    for item in items:
        if any(template.stop in text for text in (*item.elements, item.target)):
            raise EvalError(
                f"{item.key} {item.sequence}: an element holds the template's stop {template.stop!r}"
            )
        tasks.setdefault(item.task, []).append((sorted(item.elements), item))
    prompts = []
    for item in items:
        own = sorted(item.elements)
        pool = [other for elements, other in tasks[item.task] if elements != own]
        if len(pool) < template.shots:
            raise EvalError(f"{item.key}: {len(pool)} other items, but the template shows {template.shots}")
        rng = random.Random(f"{seed}/{item.task}/{item.sequence}")
        prompts.append(template.prompt(item, rng.sample(pool, template.shots)))
    return prompts


# ---- scores ----


@dataclass(frozen=True, slots=True)
class TaskScore:
    """Shares (0 to 1) over the `items` of a task: right, right by a blind pick, an element of the list."""

    items: int
    accuracy: float
    chance: float
    in_list: float


@dataclass(frozen=True, slots=True)
class CopainResult:
    """Scores by task and over all items, and each item's answer (None: nothing that was listed)."""

    tasks: dict[str, TaskScore]
    overall: TaskScore
    answers: tuple[str | None, ...]

    def metrics(self, prefix: str = "copain") -> dict[str, float]:
        """Columns of the metrics frame: `<prefix>.accuracy`, `.chance`, `.in_list`, and each task's own."""
        columns = {}
        for name, score in {
            prefix: self.overall,
            **{f"{prefix}.{k}": s for k, s in self.tasks.items()},
        }.items():
            columns[f"{name}.accuracy"] = score.accuracy
            columns[f"{name}.chance"] = score.chance
            columns[f"{name}.in_list"] = score.in_list
        return columns


def score(items: Sequence[CopainItem], answers: Sequence[str | None]) -> CopainResult:
    """Scores of given answers."""
    if not items:
        raise EvalError("no Copain items")
    rows: dict[str, list[tuple[CopainItem, str | None]]] = {}
    for item, answer in zip(items, answers, strict=True):
        rows.setdefault(item.key, []).append((item, answer))
    everything = [row for task in rows.values() for row in task]
    return CopainResult({key: _score(task) for key, task in rows.items()}, _score(everything), tuple(answers))


def _score(rows: list[tuple[CopainItem, str | None]]) -> TaskScore:
    return TaskScore(
        len(rows),
        sum(answer == item.target for item, answer in rows) / len(rows),
        sum(item.chance for item, _ in rows) / len(rows),
        sum(answer in item.elements for item, answer in rows) / len(rows),
    )


def evaluate(
    model: nn.Module,
    tokenizer,
    items: Sequence[CopainItem],
    template: Template = TEMPLATES["arrow"],
    *,
    seed: int = 0,
    max_tokens: int = 8192,
    by_generate: bool = False,
) -> CopainResult:
    """Ask the model every item and score it.

    `seed` draws the shots; `max_tokens` bounds the padded tokens of a batch; `by_generate` asks through the
    model's own `generate`, for the same answers, slower.

    Raises:
        EvalError: too few items for the shots, a prompt longer than the model reads, a token id beyond its
            embedding.
    """
    prompts = render(items, template, seed)
    options = [tuple(dict.fromkeys((*item.elements, item.target))) for item in items]
    answers = answers_generate if by_generate else answers_fast
    return score(items, answers(model, tokenizer, prompts, options, template.stop, max_tokens=max_tokens))
