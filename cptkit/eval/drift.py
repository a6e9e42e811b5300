"""How far the weights have moved from where training started.

The paper's curve is the mean, over named parameter tensors, of the L2 norm of their change. Its code starts
the list of norms with a zero and so divides by one tensor too many; `mean_l2` does not. A mean of norms
weighs a bias like an embedding, so the norm over all weights and its share of the start's norm stand beside
it. Sums are float64; tied tensors count once.

Costs one copy of the weights (fp32, in CPU memory) for the snapshot, and one pass over both per reading, in
slices that stay in the processor's cache. On a GPU each tensor's start is brought over for its turn.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from cptkit.eval.forward import EvalError, bare

SLICE = 1 << 16  # numbers compared at once: 256 KB of fp32


def snapshot(model: nn.Module) -> dict[str, Tensor]:
    """A copy of every parameter by name, fp32 on the CPU; of tied parameters the first name only."""
    copies = {}
    for name, parameter in bare(model).named_parameters():
        copies[name] = parameter.detach().to("cpu", torch.float32, copy=True)
    return copies


@dataclass(frozen=True, slots=True)
class Drift:
    """Distances (L2 norms of the change). `per_layer` has one entry per block number and "rest"."""

    per_tensor: dict[str, float]
    per_layer: dict[str, float]
    mean_l2: float
    global_l2: float
    relative: float

    def metrics(self, prefix: str = "drift") -> dict[str, float]:
        """Columns of the metrics frame: `<prefix>.mean_l2`, `.global_l2`, `.relative`, `.layer.<k>`."""
        columns = {f"{prefix}.layer.{k}": v for k, v in self.per_layer.items()}
        return columns | {
            f"{prefix}.mean_l2": self.mean_l2,
            f"{prefix}.global_l2": self.global_l2,
            f"{prefix}.relative": self.relative,
        }


def layer_of(name: str) -> str:
    """The block number in a parameter's name ("model.layers.3.mlp.up_proj.weight" -> "3"), or "rest"."""
    found = re.search(r"\.(\d+)\.", name)
    return found.group(1) if found else "rest"


@torch.no_grad()
def drift(model: nn.Module | Iterable[tuple[str, Tensor]], start: dict[str, Tensor]) -> Drift:
    """The distance of the model's weights from a `snapshot` of the same model.

    Instead of a model, its weights by name will do: one at a time, such as adapters merged as they are asked
    for.

    Raises:
        EvalError: names or shapes differ (adapters or a larger vocabulary came after the snapshot).
    """
    pairs = bare(model).named_parameters() if isinstance(model, nn.Module) else model
    squares, norm = {}, 0.0
    for name, parameter in pairs:
        if name not in start:
            raise EvalError(f"the snapshot is of another model: it has no {name!r}")
        if parameter.shape != start[name].shape:
            raise EvalError(
                f"{name}: {tuple(parameter.shape)} now, {tuple(start[name].shape)} in the snapshot"
            )
        squares[name], before = _squares(parameter.detach(), start[name])
        norm += before
    if odd := set(start) - set(squares):
        raise EvalError(f"the snapshot is of another model: {len(odd)} names are gone, such as {min(odd)!r}")
    layers: dict[str, float] = {}
    for name, square in squares.items():
        layers[layer_of(name)] = layers.get(layer_of(name), 0.0) + square
    moved = math.sqrt(math.fsum(squares.values()))
    return Drift(
        per_tensor={name: math.sqrt(square) for name, square in squares.items()},
        per_layer={layer: math.sqrt(square) for layer, square in layers.items()},
        mean_l2=math.fsum(map(math.sqrt, squares.values())) / len(squares),
        global_l2=moved,
        relative=moved / math.sqrt(norm) if norm else math.nan,
    )


def _squares(now: Tensor, start: Tensor) -> tuple[float, float]:
    """The sums of squares of `now - start` and of `start`."""
    if now.device.type == "mps":  # no float64 there
        now = now.cpu()
    if now.device.type != "cpu":
        start = start.to(now.device).double()
        return float((now.double() - start).square_().sum()), float(start.square().sum())
    moved = norm = 0.0
    for a, b in zip(now.reshape(-1).split(SLICE), start.reshape(-1).split(SLICE), strict=True):
        b = b.double()
        moved += float((a.double() - b).square_().sum())
        norm += float(b.square_().sum())
    return moved, norm
