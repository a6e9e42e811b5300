"""Runs that share their beginning train it once.

A WSD run of 160 steps and one of 640 with the same seed, text and peak are the same run until the shorter
one starts to decay: same batches, same rates, same arithmetic. So the longer one leaves a checkpoint there,
and the shorter one starts from it. As resuming is exact on one device, the result is the run that a lone
training would have given, bit for bit, and its run id is the same: a fork saves time and changes nothing
(tested).

Cost: one checkpoint per fork (12 bytes a parameter), removed when it has been handed on.
"""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path

from cptkit.train import checkpoint
from cptkit.train.folder import alone
from cptkit.train.spec import RunSpec


def place(folder: Path) -> Path:
    """Where a run leaves the checkpoints that others start from."""
    return folder / "forks"


def shared_steps(a: RunSpec, b: RunSpec) -> int:
    """How many first steps of `a` and `b` are the same: 0 unless they differ in their length alone.

    Mixtures are functions of the step, never of the length, so the rate is all that can tell two lengths
    apart before the last step. An order is of what a run uses, which depends on its length.
    """
    if dataclasses.replace(a, steps=b.steps) != b or a.order:
        return 0
    last = min(a.steps, b.steps) - 1
    rates = ((a.schedule.rate(step, a.steps), b.schedule.rate(step, b.steps)) for step in range(last))
    return next((step for step, (one, other) in enumerate(rates) if one != other), last)


def hand_on(donor: Path, step: int, folder: Path) -> bool:
    """Let the run in `folder` start from what `donor` left after `step` steps, unless it is already further.

    Both are run folders; False where the donor left no such checkpoint, or a damaged one.
    """
    left = place(donor) / f"step-{step:08d}"
    if not left.exists() or checkpoint.damage(left):
        return False
    folder.mkdir(parents=True, exist_ok=True)
    with alone(folder):
        if (folder / "done.json").exists() or checkpoint.latest(folder / "checkpoints"):
            return True
        # Metrics first: a run with a checkpoint but without the rows before it would lose them.
        shutil.copy(donor / "metrics.jsonl", folder / "metrics.jsonl")
        made = folder / "checkpoints" / f".writing-{step:08d}"
        shutil.rmtree(made, ignore_errors=True)
        shutil.copytree(left, made)
        made.replace(folder / "checkpoints" / left.name)
    return True
