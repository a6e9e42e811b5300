"""The files of a run folder: written whole or not at all, cut back to a step, held by one process."""

from __future__ import annotations

import fcntl
import json
import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


def strict(value: Any) -> Any:
    """JSON has no NaN: what could not be measured is null in the file and NaN in a frame."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def truncate(path: Path, step: int) -> None:
    """Keep the rows up to `step` (none for -1): what a killed run wrote after its checkpoint is repeated."""
    kept = []
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else []:
        try:
            if json.loads(line)["step"] <= step:
                kept.append(line + "\n")
        except ValueError:
            break  # the line a kill cut short
    write(path, "".join(kept))


def write(path: Path, text: str) -> None:
    made = path.with_name(f".{path.name}.writing")
    made.write_text(text, encoding="utf-8")
    os.replace(made, path)


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Hold the run's lock: two notebooks that want the same run train it once, the second waits."""
    with open(folder / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.flock(lock, fcntl.LOCK_UN)
