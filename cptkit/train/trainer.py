"""The loop: one run, from its spec to a folder that explains itself.

    runs/<id>/ spec.toml  environment.json  mixture.txt  metrics.jsonl  audit.json  model/  done.json

What is particular to this loop, and tested:

- The loss of a step is the sum over its valid tokens divided by their number over all micro-batches, so
  accumulation changes nothing but memory (field bug B01).
- Weights, gradients and moments are fp32; bf16 is autocast only (B05-B07).
- The learning rate is a closed form of the step (`schedule.py`), the data a closed form of the step and the
  seed (`mixture.py`). Resume is bit-exact on one device, also the second time.
- A loss or gradient that is not finite, or a step without a single target, ends the run with an error that
  names the step and the sources. Nothing is mapped to zero.

Cost beside a bare PyTorch loop: building packed batches, under 1 % of a step, plus what the probes take
(reported in `done.json`).
"""

from __future__ import annotations

import json
import math
import os
import shutil
import sys
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from tqdm import tqdm

from cptkit.data import corpora, framing, tokens
from cptkit.data.mixture import Mixture
from cptkit.data.order import Order
from cptkit.data.weights import Dynamic
from cptkit.eval import forward, scores
from cptkit.eval.drift import snapshot
from cptkit.train import averaging, checkpoint, forks, lora, models
from cptkit.train.averaging import Averaging, Released, Shadow
from cptkit.train.environment import describe_environment
from cptkit.train.feedback import Feedback
from cptkit.train.folder import alone, strict, truncate, write
from cptkit.train.probes import Probes, text_probe
from cptkit.train.restraint import Gate, Restraint, distance_penalty
from cptkit.train.spec import RunSpec, run_id

IGNORED = -100


class TrainingError(RuntimeError):
    """Training cannot go on; the message names the step and the sources of its batch."""


class TokenLoss(torch.nn.Module):
    """Sum of nats over the valid targets of a micro-batch: the module that accelerate wraps."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(
        self, input_ids: torch.Tensor, position_ids: torch.Tensor, labels: torch.Tensor
    ) -> torch.Tensor:
        """All [B, L] int64 -> scalar fp32. Documents do not see each other; logits exist at targets only."""
        mask = tokens.attention_mask(position_ids, self.model.dtype)
        hidden = forward.hidden(self.model, input_ids, position_ids, mask)
        valid = labels != IGNORED
        logits = forward.logits(self.model, hidden[valid])
        return F.cross_entropy(logits, labels[valid], reduction="sum")


def train(
    spec: RunSpec,
    *,
    runs: Path,
    cache: Path,
    checkpoint_steps: int | None = None,
    checkpoint_seconds: float = 180.0,
    progress: bool = True,
    label: str = "",
    on_step: Callable[[int], None] | None = None,
    keep: Collection[int] = (),
) -> Path:
    """Train `spec` (or resume it, or find it done) and return its folder, `runs/<id>`.

    A checkpoint is written every `checkpoint_steps` steps if given, else about every `checkpoint_seconds`.
    `on_step(step)` is called after each step, probes and checkpoint included. After the steps of `keep` a
    checkpoint is left in `forks/` for runs that share the beginning (`forks.py`). Raises `TrainingError`,
    `DataError`, `ModelError` or `CheckpointError`.
    """
    folder = runs / run_id(spec, cache)
    folder.mkdir(parents=True, exist_ok=True)
    with alone(folder):
        if (folder / "done.json").exists():
            return folder
        write(folder / "spec.toml", spec.dumps())
        run = _Run(spec, folder, runs, cache, progress)
        run.loop(checkpoint_steps, checkpoint_seconds, progress, label or folder.name, on_step, keep)
        run.finish()
    return folder


def mixture_of(
    spec: RunSpec, sources: dict[str, tokens.Packed], arrange: Mapping[str, Callable] | None = None
) -> Mixture:
    """The mixture of `spec` over its packed sources, ready to be described or drawn from.

    Without `arrange` (`_Run` makes it from `spec.order`) every source is in random order.
    """
    return Mixture(
        {name: packed.n_sequences for name, packed in sources.items()},
        spec.length,
        spec.mixture,
        spec.steps,
        spec.sequences,
        spec.seed,
        spec.max_epochs,
        arrange,
    )


def pack_sources(
    spec: RunSpec, tokenizer: Any, cache: Path, *, progress: bool = False
) -> dict[str, tokens.Packed]:
    """Tokenise and pack every source of `spec` into `cache`, or open what is there."""
    packed = {}
    for name, corpus in spec.sources.items():
        key = f"{corpora.fingerprint(corpus, cache)}-{framing.tokenizer_fingerprint(tokenizer)}-{spec.length}"
        read, folder = corpora.read_documents(corpus, cache), cache / "tokens" / key
        with _bar(progress, desc=f"packing {name}", unit=" documents", delay=2) as bar:
            packed[name] = tokens.pack(read, tokenizer, spec.length, folder, key=key, progress=bar.update)
    return packed


class _Run:
    """What one run holds while it is trained."""

    def __init__(self, spec: RunSpec, folder: Path, runs: Path, cache: Path, progress: bool) -> None:
        self.spec, self.folder = spec, folder
        self.model, self.tokenizer = models.load(spec.model, cache, runs, length=spec.length, seed=spec.seed)
        self.packed = pack_sources(spec, self.tokenizer, cache, progress=progress)
        for packed in self.packed.values():
            framing.check_vocabulary(packed, self.model.get_input_embeddings().weight.shape[0])
        AcceleratorState._reset_state(
            reset_partial_state=True
        )  # a notebook trains runs of several precisions
        self.accelerator = Accelerator(mixed_precision="bf16" if spec.precision == "bf16" else "no")
        if self.accelerator.num_processes > 1:
            raise TrainingError("this loop trains in one process; it was started in several")
        write(
            folder / "environment.json", json.dumps(describe_environment(self.accelerator.device), indent=1)
        )
        self.model.to(self.accelerator.device)
        start = snapshot(self.model)  # before a checkpoint is loaded: drift is measured from here
        self.mixture = mixture_of(spec, self.packed, self._arrange(cache))
        write(folder / "mixture.txt", self.mixture.describe())
        self.adapted = self._adapt() if spec.lora else None
        self.optimiser = _adamw(self.model, spec)
        self.loss, self.optimiser = self.accelerator.prepare(TokenLoss(self.model), self.optimiser)
        self.probes = Probes(spec.probes, self.model, self.tokenizer, start, cache, spec.length)
        self.feedback = (
            Feedback(spec.mixture, self.tokenizer, cache, spec.length)
            if isinstance(spec.mixture, Dynamic)
            else None
        )
        self.trained = [p for p in self.model.parameters() if p.requires_grad]
        self.start = [p.detach().clone() for p in self.trained] if spec.distance_penalty else []
        self.averaging = self._averaging(cache)
        if self.averaging is not None and progress:
            print(self.averaging.describe(), flush=True)
        self.seconds = {"train": 0.0, "probes": 0.0}
        self.step = 0
        self._resume()

    def _adapt(self) -> Any:
        """LoRA in place of full training, refused where it would leave pieces of the text unlearnable."""
        for name, packed in self.packed.items() if not self.spec.lora.embeddings else ():
            if blank := lora.untrained_tokens(self.model, packed.token_ids()):
                pieces = self.tokenizer.convert_ids_to_tokens(blank[:5])
                raise TrainingError(
                    f"source {name!r} has {len(blank)} tokens that pretraining never touched, such as "
                    f"{pieces}, and LoRA leaves embeddings as they are: set lora.embeddings = true"
                )
        return lora.adapt(self.model, self.spec.lora, self.spec.seed)

    def _arrange(self, cache: Path) -> dict[str, Callable]:
        """Per source with an order: its sequences by the scores of the weights as they are: the start."""

        def arranged(name: str, order: Order, used: np.ndarray) -> np.ndarray:
            with self.accelerator.autocast():
                found = scores.score(self.model, self.tokenizer, self.packed[name], used, cache)
            return order.arrange(used, found.per(order.unit), self.spec.seed)

        return {name: partial(arranged, name, order) for name, order in (self.spec.order or {}).items()}

    def _averaging(self, cache: Path) -> Averaging | Restraint | None:
        rule, parameters = self.spec.averaging, self.model.named_parameters()
        if rule is None:
            return None
        if isinstance(rule, averaging.Feedback | Released | Shadow):
            return Averaging(rule, parameters)
        probe = (
            text_probe(rule, self.model, self.tokenizer, cache, self.spec.length)
            if isinstance(rule, Gate)
            else None
        )
        return Restraint(rule, parameters, probe)

    # ---- state --------------------------------------------------------------------------------------

    def _resume(self) -> None:
        path = checkpoint.latest(self.folder / "checkpoints")
        if path is not None:
            state = checkpoint.load(path, model=self.model, optimiser=self.optimiser.optimizer)
            self.step, self.seconds = state["step"], state["seconds"]
            self.mixture.load_state_dict(state["mixture"])
            if self.feedback is not None:
                self.feedback.load_state(state["feedback"])
            if self.averaging is not None:
                self.averaging.load_state(checkpoint.load_averaging(path))
        truncate(self.folder / "metrics.jsonl", self.step if path else -1)
        self.log = open(self.folder / "metrics.jsonl", "a", encoding="utf-8")  # noqa: SIM115 - as long as the run

    def _save(self, place: Path, keep: int = 1) -> None:
        self.log.flush()
        os.fsync(self.log.fileno())
        state = {"mixture": self.mixture.state_dict(), "seconds": self.seconds}
        if self.feedback is not None:
            state["feedback"] = self.feedback.state()
        checkpoint.save(
            place,
            self.step,
            keep=keep,
            model=self.model,
            optimiser=self.optimiser.optimizer,
            averaging=self.averaging.state() if self.averaging else None,
            state=state,
        )

    # ---- the loop -----------------------------------------------------------------------------------

    def loop(
        self,
        every_steps: int | None,
        every_seconds: float,
        progress: bool,
        label: str,
        on_step: Callable | None,
        keep: Collection[int],
    ) -> None:
        total, saved = self.spec.steps, time.monotonic()
        if self.step == 0:
            self._probe()
            self._feed_back()
        with _bar(progress, desc=label, total=total, initial=self.step) as bar:
            while self.step < total:
                row = self._train_step()
                bar.set_postfix_str(f"loss {row['loss']:.3f}", refresh=False)
                bar.update()
                self._probe()
                self._feed_back()
                due = (
                    self.step % every_steps == 0 if every_steps else time.monotonic() - saved > every_seconds
                )
                if due and self.step < total:
                    self._save(self.folder / "checkpoints")
                    saved = time.monotonic()
                if self.step in keep:
                    self._save(forks.place(self.folder), keep=len(keep))
                if on_step is not None:
                    on_step(self.step)

    def _train_step(self) -> dict[str, Any]:
        began = time.perf_counter()
        spec, drawn = self.spec, self.mixture.next_step()
        names = Counter(name for name, _ in drawn)
        rate = spec.schedule.rate(self.step, spec.steps)
        for group in self.optimiser.param_groups:
            group["lr"] = rate
        batch = _batch(self.packed, drawn)
        valid = int((batch["labels"] != IGNORED).sum())
        if valid == 0:
            raise TrainingError(f"step {self.step + 1}: no token to predict in a batch from {dict(names)}")
        total, size = 0.0, spec.micro_sequences or spec.sequences
        for first in range(0, spec.sequences, size):
            micro = {k: v[first : first + size].to(self.accelerator.device) for k, v in batch.items()}
            if (micro["labels"] == IGNORED).all():
                continue  # contributes nothing to the sum, and 0 / 0 is nobody's loss (B03)
            nats = self.loss(**micro)
            self.accelerator.backward(nats / valid)
            total += nats.item()
        if spec.distance_penalty:
            distance_penalty(self.trained, self.start, spec.distance_penalty)
        norm = float(self.accelerator.clip_grad_norm_(self.model.parameters(), spec.optimiser.clip))
        if not (math.isfinite(total) and math.isfinite(norm)):
            found = f"loss {total / valid}, gradient norm {norm}"
            raise TrainingError(f"step {self.step + 1}: {found}, in a batch from {dict(names)}")
        self.optimiser.step()
        self.optimiser.zero_grad()
        self.step += 1
        held = self.averaging.after_step(self.step) if self.averaging else {}
        took = time.perf_counter() - began
        self.seconds["train"] += took
        row = {
            "kind": "train",
            "loss": total / valid,
            "lr": rate,
            "grad_norm": norm,
            "tokens_per_second": spec.sequences * spec.length / took,
        } | held
        self._log(row)
        return row

    def _probe(self) -> None:
        spec, total = self.spec.probes, self.spec.steps
        if not spec.due(self.step, total):
            return
        began = time.perf_counter()
        with self.accelerator.autocast(), self._evaluated():
            measured = self.probes.measure(self.model, spec.choices_due(self.step, total))
        self.seconds["probes"] += time.perf_counter() - began
        self._log({"kind": "probe"} | measured)

    def _feed_back(self) -> None:
        if self.feedback is None or not self.feedback.due(self.step, self.spec.steps):
            return
        began = time.perf_counter()
        with self.accelerator.autocast():
            row = self.feedback.update(self.step, self.model, self.mixture)
        self.seconds["probes"] += time.perf_counter() - began
        self._log({"kind": "feedback"} | row)

    def _evaluated(self) -> AbstractContextManager:
        """The weights that count: those of a shadow, where there is one."""
        return self.averaging.evaluated() if self.averaging else nullcontext()

    def _log(self, row: dict[str, Any]) -> None:
        tokens_so_far = self.step * self.spec.sequences * self.spec.length
        row = {"step": self.step, "tokens": tokens_so_far} | {k: strict(v) for k, v in row.items()}
        self.log.write(json.dumps(row, allow_nan=False) + "\n")
        self.log.flush()

    def finish(self) -> None:
        """Leave the model in Hugging Face form, the audit, and last of all the mark that the run is done."""
        self.log.close()
        write(self.folder / "audit.json", json.dumps(self.mixture.audit(), indent=1))
        made = self.folder / ".model"
        shutil.rmtree(made, ignore_errors=True)
        with models.quiet(), self._evaluated():
            if self.adapted is not None:
                lora.save(self.adapted, self.folder / "adapter")
                self.model = self.adapted.merge_and_unload()
            self.model.save_pretrained(made)
        self.tokenizer.save_pretrained(made)
        shutil.rmtree(self.folder / "model", ignore_errors=True)
        os.replace(made, self.folder / "model")
        write(self.folder / "done.json", json.dumps({"steps": self.step, "seconds": self.seconds}))
        shutil.rmtree(self.folder / "checkpoints", ignore_errors=True)


def _bar(shown: bool, **options: Any) -> tqdm:
    # Plain text on standard output: it reaches notebooks, papermill and terminals alike.
    return tqdm(disable=not shown, file=sys.stdout, mininterval=2, ncols=100, **options)


def _batch(packed: dict[str, tokens.Packed], drawn: list[tuple[str, int]]) -> dict[str, torch.Tensor]:
    rows = [packed[name].sequence(index) for name, index in drawn]
    return {key: torch.stack([torch.as_tensor(row[key]) for row in rows]) for key in rows[0]}


def _adamw(model: torch.nn.Module, spec: RunSpec) -> torch.optim.AdamW:
    o, parameters = spec.optimiser, [p for p in model.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": o.weight_decay},
        {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(
        [g for g in groups if g["params"]], lr=0.0, betas=(o.beta1, o.beta2), eps=o.epsilon, fused=True
    )
