"""Copain: in-context pattern recognition, the probe that shows an emergent ability coming and going.

A prompt shows a few short lists, each with the element that a hidden rule picks; the model must pick from
one more list. Seven tasks of 150 items, greedy decoding, exact match, no instruction. `generate` makes items
in the form of the released ones. The paper's template, its draw of the shots, its stop string and its letter
case are not published: here they are parameters, and a caller reports the spread over `TEMPLATES`.

Beside accuracy always stand chance (a blind pick from the list) and the share of answers that are in the
list at all: a model below chance either stopped answering or picks by a wrong rule, and these differ.

Answers come from `greedy.py`: equal to greedy `generate`, at the cost of little more than one forward pass
over the prompts.
"""

from __future__ import annotations

import json
import math
import random
import string
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from torch import nn

from cptkit.data.documents import DataError
from cptkit.eval.forward import EvalError
from cptkit.eval.greedy import answers_fast, answers_generate

SEED = 1716480624  # that of the released items
GROUP = "in-context pattern recognition"

# ---- items ----


@dataclass(frozen=True, slots=True)
class CopainItem:
    """One list and the element its rule picks, with the released field names. `sequence` is its number."""

    generation_seed: int
    group: str
    task: str
    sequence: int
    elements: tuple[str, ...]
    target: str

    @property
    def key(self) -> str:
        """The task by the release's folder name; of other tasks, `task` itself."""
        return next((key for key, task in TASKS.items() if task.text == self.task), self.task)

    @property
    def chance(self) -> float:
        """Probability that a blind pick from the list is right."""
        return self.elements.count(self.target) / len(self.elements)


@dataclass(frozen=True, slots=True)
class Task:
    """`text` is the released `task` field (that of other tasks is ours, by analogy); `pick` is the rule.

    `parity` is that of the element to be found among others of the opposite parity, if that is the rule.
    """

    text: str
    pick: Callable[[Sequence[str]], str]
    letters: bool = False
    parity: int | None = None


TASKS: dict[str, Task] = {
    "max_integer_in_list": Task("max number in numbers list", lambda e: max(e, key=int)),
    "min_integer_in_list": Task("min number in numbers list", lambda e: min(e, key=int)),
    "median_integer_in_list": Task(
        "median number in numbers list", lambda e: sorted(e, key=int)[len(e) // 2]
    ),
    "even_integer_in_odd_group": Task(
        "even number in odd numbers list", lambda e: next(x for x in e if int(x) % 2 == 0), parity=0
    ),
    "odd_integer_in_even_group": Task(
        "odd number in even numbers list", lambda e: next(x for x in e if int(x) % 2 == 1), parity=1
    ),
    "first_character_in_list": Task("first character in characters list", min, letters=True),
    "last_character_in_list": Task("last character in characters list", max, letters=True),
}
"""The seven tasks by the folder names of the release."""


def generate(
    seed: int = SEED,
    per_task: int = 150,
    *,
    low: int = 0,
    high: int = 99,
    length: int = 3,
    parity_length: int = 4,
    letters: str = string.ascii_lowercase,
    tasks: Iterable[str] = tuple(TASKS),
) -> list[CopainItem]:
    """`per_task` items of each task: distinct elements, no list twice, the place of the target random.

    Integers are from `low` to `high`, both included. The same arguments give the same items, and a task's
    items do not depend on which other tasks are asked for.

    Raises:
        DataError: unknown task, too small a range for so many different lists, a median of an even number.
    """
    items = []
    for key in tasks:
        if key not in TASKS:
            raise DataError(f"unknown Copain task {key!r}: one of {', '.join(TASKS)}")
        task, size = TASKS[key], parity_length if TASKS[key].parity is not None else length
        if key.startswith("median") and size % 2 == 0:
            raise DataError(f"the median of {size} elements is not one of them: use an odd length")
        numbers = [str(n) for n in range(low, high + 1)]
        pool = sorted(set(letters)) if task.letters else numbers
        wanted = [n for n in numbers if int(n) % 2 == task.parity]
        others = [n for n in numbers if int(n) % 2 != task.parity]
        if task.parity is None:
            possible = math.perm(len(pool), size)
        else:
            possible = len(wanted) * math.perm(len(others), size - 1) * size
        if possible < per_task:
            raise DataError(
                f"{key}: only {possible} different lists of {size}, {per_task} asked: widen the range"
            )
        rng = random.Random(f"{seed}/{key}")
        lists: dict[tuple[str, ...], None] = {}
        while len(lists) < per_task:
            if task.parity is None:
                elements = rng.sample(pool, size)
            else:
                elements = [rng.choice(wanted), *rng.sample(others, size - 1)]
                rng.shuffle(elements)
            lists[tuple(elements)] = None
        items += [CopainItem(seed, GROUP, task.text, n, e, task.pick(e)) for n, e in enumerate(lists)]
    return items


def write_jsonl(items: Iterable[CopainItem], path: Path | str) -> None:
    """One JSON object a line, with the released field names."""
    lines = [json.dumps(asdict(item), ensure_ascii=False) for item in items]
    Path(path).write_text("\n".join(lines) + "\n", encoding="utf-8")


def read_jsonl(path: Path | str) -> list[CopainItem]:
    """Items from `write_jsonl` or from the released `test.jsonl` files; other fields are ignored.

    Raises:
        DataError: a line that is not such an item, with file and line.
    """
    items = []
    for number, line in enumerate(Path(path).read_text(encoding="utf-8").splitlines(), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            item = CopainItem(
                int(row["generation_seed"]),
                row["group"],
                row["task"],
                int(row["sequence"]),
                tuple(row["elements"]),
                row["target"],
            )
        except (ValueError, KeyError, TypeError) as error:
            raise DataError(f"{path}:{number}: not a Copain item: {error!r}") from None
        if len(item.elements) < 2 or not all(
            isinstance(t, str) for t in (*item.elements, item.target, item.task)
        ):
            raise DataError(f"{path}:{number}: `elements` must be two strings or more, and `target` a string")
        items.append(item)
    return items


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
