"""What runs left behind, as a frame: one row per run and step where something was measured.

The columns are explained in the README's data dictionary. Runs stay plain folders (`runs/<profile>/<id>/`);
this module only reads them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from cptkit.train.spec import RunSpec


@dataclass(frozen=True)
class Arm:
    """One run's place in a study: the same run may stand in several experiments under several names."""

    experiment: str
    arm: str
    seed: int
    spec: RunSpec
    labels: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        extra = "".join(f", {value}" for value in self.labels.values() if isinstance(value, str))
        rate = f", rate {self.spec.schedule.peak:g}"
        return f"{self.experiment}/{self.arm}{extra}{rate}, seed {self.seed}"


def read_metrics(folder: Path) -> pd.DataFrame:
    """Rows of one run's `metrics.jsonl`; a line that a kill cut short is left out, if it is the last."""
    rows, lines = [], (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    for number, line in enumerate(lines, 1):
        try:
            rows.append(json.loads(line))
        except ValueError:
            if number < len(lines):
                raise ValueError(f"{folder / 'metrics.jsonl'}: line {number} is not JSON") from None
    return pd.DataFrame(rows)


def load(arms: Iterable[tuple[Arm, Path]], profile: str) -> pd.DataFrame:
    """The frame of a study: every row of every run, with the arm it belongs to.

    Label columns come from the arm; `lr_peak` is the run's peak learning rate. Missing measurements are
    NaN; seeds are integers and names stay text.
    """
    frames = []
    for arm, folder in arms:
        frame = read_metrics(folder)
        columns = {
            "profile": profile,
            "experiment": arm.experiment,
            "arm": arm.arm,
            "seed": arm.seed,
            "run": folder.name,
            "lr_peak": arm.spec.schedule.peak,
        } | arm.labels
        place = pd.DataFrame({key: [value] * len(frame) for key, value in columns.items()}, index=frame.index)
        frames.append(pd.concat([place, frame], axis=1))
    return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame()


def audits(arms: Iterable[tuple[Arm, Path]]) -> pd.DataFrame:
    """Realised against asked, per run and source: tokens, share, epochs."""
    rows = []
    for arm, folder in arms:
        audit = json.loads((folder / "audit.json").read_text())
        for name, entry in audit["sources"].items():
            rows.append({"arm": arm.arm, "seed": arm.seed, "run": folder.name, "source": name} | entry)
    return pd.DataFrame(rows)


def durations(arms: Iterable[tuple[Arm, Path]]) -> pd.DataFrame:
    """Seconds of training and of probing per run."""
    rows = []
    for arm, folder in arms:
        done = json.loads((folder / "done.json").read_text())
        rows.append(
            {"arm": arm.arm, "seed": arm.seed, "run": folder.name, "steps": done["steps"]} | done["seconds"]
        )
    return pd.DataFrame(rows)
