"""Restraint that chooses its own strength: rules that hold trained weights back, without a word of English.

P1's averaging needs an interval per language, and with an interval of one it is a lower learning rate. These
rules are ours, tried against it in notebook 03; what they are worth is measured there. All act per tensor or
on the whole model after the optimiser's step, and feed the result back into training.

- `TrustRegion`: no tensor may be further from its start than `radius` times the start's norm (projection onto
  a ball). A drift budget: the rule knows how far, not which way.
- `Coherence`: Lookahead whose slow step is measured. Over `every` steps a tensor moves by D in steps u_i.
  Pure noise gives |D|^2 = sum |u_i|^2, a straight path `every` times that; the slow step is the share of D
  that is more than noise, 1 - sum |u_i|^2 / |D|^2, and at least 0. Strength from the agreement of the
  updates.
- `Gate`: every `every` steps, the furthest point between the last accepted weights and the present ones where
  a probe is at most `tolerance` nats a token worse than before training (weight interpolation as in WiSE-FT,
  Wortsman et al. 2022, but inside training). The probe is held-out text that is no language, such as pattern
  lists without Copain's rules, so neither English nor the evaluation's own items are needed.

`distance_penalty` adds the gradient of L2-SP (Li et al. 2018), the penalty that P1's scripts name, to
gradients.

Cost: 4 bytes a parameter for the start or the slow weights (Coherence: 8), a pass over them at each use; Gate
also up to `HALVINGS + 1` passes of its probe.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from cptkit.data.corpus import CorpusSpec
from cptkit.train.averaging import in_fp32, named

HALVINGS = 4  # the accepted share of a stretch is known to 1/16


@dataclass(frozen=True)
class TrustRegion:
    """`radius`: the largest distance from the start, per tensor, as a share of the start's norm."""

    kind: ClassVar[str] = "trust_region"

    radius: float = 0.1

    def __post_init__(self) -> None:
        if not self.radius > 0:
            raise ValueError(f"radius must be positive, not {self.radius}")


@dataclass(frozen=True)
class Coherence:
    """`every`: the steps of one stretch, over which agreement is measured."""

    kind: ClassVar[str] = "coherence"

    every: int = 10

    def __post_init__(self) -> None:
        if self.every < 2:
            raise ValueError(f"agreement needs at least 2 steps, not {self.every}")


@dataclass(frozen=True)
class Gate:
    """`text` is the probe's, `documents` how many of it are read; `tolerance` in nats a token."""

    kind: ClassVar[str] = "gate"

    text: CorpusSpec
    tolerance: float = 0.1
    every: int = 20
    documents: int = 32

    def __post_init__(self) -> None:
        if self.every < 1 or not self.tolerance > 0 or self.documents < 1:
            raise ValueError("gate: every, documents and tolerance must be positive")


class Restraint:
    """One of the rules at work. `probe()` is what Gate asks of the model as it stands, lower is better."""

    def __init__(
        self,
        spec: TrustRegion | Coherence | Gate,
        parameters: Iterable[tuple[str, Tensor]],
        probe: Callable[[], float] | None = None,
    ) -> None:
        self.spec, self.probe = spec, probe
        self.names, self.weights = named(parameters)
        self.anchor = [w.detach().to(torch.float32, copy=True) for w in self.weights]
        self.limit = probe() + spec.tolerance if isinstance(spec, Gate) else 0.0
        if isinstance(spec, TrustRegion):
            self.radii = [spec.radius * float(a.norm()) for a in self.anchor]
        if isinstance(spec, Coherence):
            self.last = [a.clone() for a in self.anchor]
            self.path = torch.zeros(len(self.anchor), dtype=torch.float64)

    @torch.no_grad()
    def after_step(self, step: int) -> dict[str, float]:
        """Hold the weights back. When due, returns `restraint`: the mean share of the movement kept."""
        if isinstance(self.spec, TrustRegion):
            return self._project()
        if isinstance(self.spec, Coherence):
            return self._weigh(step % self.spec.every == 0)
        return self._gate() if step % self.spec.every == 0 else {}

    def _project(self) -> dict[str, float]:
        kept = []
        for weight, start, radius in zip(self.weights, self.anchor, self.radii, strict=True):
            moved = weight.float() - start
            share = min(1.0, radius / max(float(moved.norm()), 1e-30))
            if share < 1:
                weight.copy_(start + share * moved)
            kept.append(share)
        return {"restraint": sum(kept) / len(kept)}

    def _weigh(self, due: bool) -> dict[str, float]:
        now = in_fp32(self.weights)
        steps = torch._foreach_norm(torch._foreach_sub(now, self.last))
        self.path += torch.stack(list(steps)).double().cpu().square()
        torch._foreach_copy_(self.last, now)
        if not due:
            return {}
        whole = torch.stack(list(torch._foreach_norm(torch._foreach_sub(now, self.anchor))))
        shares = (1 - self.path / whole.double().cpu().square().clamp_min(1e-30)).clamp(0, 1)
        for anchor, present, share in zip(self.anchor, now, shares.tolist(), strict=True):
            anchor.lerp_(present, share)
        for held in (self.weights, self.last):
            torch._foreach_copy_(held, self.anchor)
        self.path.zero_()
        return {"restraint": float(shares.mean())}

    def _gate(self) -> dict[str, float]:
        present = [w.detach().clone() for w in self.weights]

        def stand(share: float) -> bool:
            for weight, anchor, end in zip(self.weights, self.anchor, present, strict=True):
                weight.copy_(torch.lerp(anchor, end.float(), share))
            return self.probe() <= self.limit

        accepted = 1.0
        if not stand(1.0):
            accepted, refused = 0.0, 1.0
            for _ in range(HALVINGS):
                middle = (accepted + refused) / 2
                accepted, refused = (middle, refused) if stand(middle) else (accepted, middle)
            stand(accepted)
        torch._foreach_copy_(self.anchor, self.weights)
        return {"restraint": accepted}

    @contextmanager
    def evaluated(self) -> Iterator[None]:
        """The trained weights are the ones that count."""
        yield

    def state(self) -> dict[str, Tensor]:
        """Tensors for the checkpoint."""
        found = dict(zip(self.names, self.anchor, strict=True))
        if isinstance(self.spec, Coherence):
            found |= {f"{n}|last": t for n, t in zip(self.names, self.last, strict=True)} | {
                "|path": self.path
            }
        if isinstance(self.spec, Gate):
            found["|limit"] = torch.tensor(self.limit, dtype=torch.float64)
        return found

    def load_state(self, tensors: dict[str, Tensor]) -> None:
        """Restore `state`. Raises KeyError for another model's."""
        torch._foreach_copy_(self.anchor, [tensors[name] for name in self.names])
        if isinstance(self.spec, Coherence):
            torch._foreach_copy_(self.last, [tensors[f"{name}|last"] for name in self.names])
            self.path.copy_(tensors["|path"])
        if isinstance(self.spec, Gate):
            self.limit = float(tensors["|limit"])

    def describe(self) -> str:
        """Rule and memory, for the terminal and the run folder."""
        copies = 2 if isinstance(self.spec, Coherence | Gate) else 1
        held = copies * sum(a.numel() for a in self.anchor) * 4 / 1e6
        return f"restraint: {self.spec}; {held:.1f} MB"


@torch.no_grad()
def distance_penalty(parameters: list[Tensor], start: list[Tensor], strength: float) -> None:
    """Add the gradient of strength / 2 * |w - start|^2 to the gradients that are there."""
    held = [(p, s) for p, s in zip(parameters, start, strict=True) if p.grad is not None]
    grads, now = [p.grad for p, _ in held], [p.detach() for p, _ in held]
    torch._foreach_add_(grads, torch._foreach_sub(now, [s for _, s in held]), alpha=strength)
