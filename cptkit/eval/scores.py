"""How hard each packed sequence is for a model: nats a token and nats a byte, cached.

A sequence is scored as it is trained on: documents in it do not see each other, and the first token of a
document or sequence is not a target. Per byte means per UTF-8 byte of the decoded targets, so that text
whose pieces are short does not look easy. Kept in `<cache>/scores/`, under the packing's fingerprint and
the model's weights.

Cost: one forward pass over the sequences asked for that are not in the cache; hashing the weights once.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from cptkit.data import tokens
from cptkit.eval.forward import EvalError, device_of, evaluating, hidden, nats


@dataclass(frozen=True)
class Scores:
    """Of sequences [n]: sums of nats over the targets, the number of targets, their bytes. All float64."""

    nats: np.ndarray
    targets: np.ndarray
    bytes: np.ndarray

    def per(self, unit: str) -> np.ndarray:
        """Nats per "token" or per "byte"; a sequence of special tokens alone counts as one byte."""
        return self.nats / np.maximum(self.targets if unit == "token" else self.bytes, 1)


def score(
    model: torch.nn.Module,
    tokenizer: Any,
    packed: tokens.Packed,
    indices: Sequence[int] | np.ndarray,
    cache: Path | None = None,
    *,
    max_tokens: int = 16384,
) -> Scores:
    """Scores of the sequences `indices`, in their order (repetitions allowed).

    Raises EvalError where a score is not finite.
    """
    wanted = np.unique(np.asarray(indices, np.int64))
    table = np.full((packed.n_sequences, 3), np.nan)
    place = None if cache is None else _place(cache, model, packed)
    if place is not None and place.exists():
        with np.load(place) as file:
            table = file["table"]
    missing = wanted[np.isnan(table[wanted, 0])]
    if len(missing):
        table[missing] = _measure(model, tokenizer, packed, missing, max_tokens)
        if place is not None:
            _keep(place, table)
    if not np.isfinite(table[wanted]).all():
        raise EvalError(f"{packed.name}: a sequence has a score that is not finite")
    found = table[np.asarray(indices, np.int64)]
    return Scores(found[:, 0], found[:, 1], found[:, 2])


def _measure(
    model: torch.nn.Module, tokenizer: Any, packed: tokens.Packed, indices: np.ndarray, max_tokens: int
) -> np.ndarray:
    rows, size, device = [], max(1, max_tokens // packed.length), device_of(model)
    with evaluating(model):
        for first in range(0, len(indices), size):
            batch = packed.batch(indices[first : first + size].tolist())
            ids, positions, labels = (batch[k].to(device) for k in ("input_ids", "position_ids", "labels"))
            states = hidden(model, ids, positions, tokens.attention_mask(positions, _dtype(model)))
            valid = labels != tokens.IGNORE
            each = nats(model, states[valid], labels[valid])
            owner = valid.nonzero()[:, 0].cpu()
            sums = torch.zeros(len(ids), dtype=torch.float64).index_add_(0, owner, each)
            counts = torch.bincount(owner, minlength=len(ids)).double()
            texts = [row[row != tokens.IGNORE].tolist() for row in labels.cpu()]
            decoded = tokenizer.batch_decode(texts, skip_special_tokens=True)
            length = torch.tensor([len(t.encode(errors="replace")) for t in decoded], dtype=torch.float64)
            rows.append(torch.stack([sums, counts, length], dim=1).numpy())
    return np.concatenate(rows)


def _dtype(model: torch.nn.Module) -> torch.dtype:
    return next(model.parameters()).dtype


def _place(cache: Path, model: torch.nn.Module, packed: tokens.Packed) -> Path:
    digest = hashlib.sha256()
    for name, parameter in model.named_parameters():
        digest.update(name.encode())
        raw = parameter.detach().cpu().contiguous().view(torch.uint8) if parameter.ndim else parameter
        digest.update(raw.numpy().data if parameter.ndim else str(float(raw)).encode())
    return Path(cache) / "scores" / f"{packed.fingerprint}-{digest.hexdigest()[:16]}.npz"


def _keep(place: Path, table: np.ndarray) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=place.parent, suffix=".npz", delete=False) as file:
        np.savez(file, table=table)
    os.replace(file.name, place)
