"""The items of Copain: a short list and the element that a hidden rule picks from it, as data.

Generated with the released field names and, per task, in the released number; lists and answers are strings.
What is asked of a model with them is `cptkit.eval.copain`. They are made here so that text generators can
keep them out of what is trained on (`lists.py`).

Cost: about a millisecond per 100 items.
"""

from __future__ import annotations

import json
import math
import random
import string
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from cptkit.data.documents import DataError

SEED = 1716480624  # that of the released items
GROUP = "in-context pattern recognition"


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
