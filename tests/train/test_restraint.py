"""Restraint that chooses its strength: each rule against its closed form, and exact in resume."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from cptkit.data.corpus import CorpusSpec
from cptkit.train.restraint import HALVINGS, Coherence, Gate, Restraint, TrustRegion, distance_penalty
from cptkit.train.trainer import train
from tests.conftest import tiny_run, world
from tests.train.test_averaging import Stop, probes, stopping

LISTS = CorpusSpec("lists", "zxx", split="gate", megabytes=0.01)


def test_a_trust_region_holds_every_tensor_within_its_radius_and_moves_no_other():
    torch.manual_seed(0)
    far, near = nn.Parameter(torch.randn(20)), nn.Parameter(torch.randn(20))
    starts = [far.detach().clone(), near.detach().clone()]
    rule = Restraint(TrustRegion(0.1), [("far", far), ("near", near)])
    with torch.no_grad():
        far.add_(torch.randn(20))
        near.add_(1e-4)
    moved, untouched = far.detach() - starts[0], near.detach().clone()
    kept = rule.after_step(1)["restraint"]
    now = far.detach() - starts[0]
    assert now.norm().item() == pytest.approx(0.1 * starts[0].norm().item(), rel=1e-5)
    assert torch.cosine_similarity(now, moved, dim=0).item() == pytest.approx(1.0)
    assert torch.equal(near.detach(), untouched)
    assert kept == pytest.approx((1 + 0.1 * starts[0].norm().item() / moved.norm().item()) / 2, rel=1e-5)


@pytest.mark.parametrize(
    ("steps", "share"),
    [
        ([[1.0, 0.0]] * 4, 1 - 4 / 16),  # straight: all but the share that noise alone would give
        ([[1.0, 0.0], [-1.0, 0.0]] * 2, 0.0),  # there and back
        ([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0], [0.0, 1.0]], 1 - 4 / 8),
    ],
)
def test_coherence_steps_by_the_share_that_is_more_than_noise(steps, share):
    weight = nn.Parameter(torch.zeros(2))
    rule = Restraint(Coherence(4), [("w", weight)])
    for step, move in enumerate(steps, 1):
        with torch.no_grad():
            weight.add_(torch.tensor(move))
        row = rule.after_step(step)
    expected = share * torch.tensor(steps).sum(0)
    assert row["restraint"] == pytest.approx(share)
    torch.testing.assert_close(weight.detach(), expected)


def test_coherence_keeps_little_of_a_random_walk():
    torch.manual_seed(0)
    weight = nn.Parameter(torch.zeros(10_000))
    rule = Restraint(Coherence(16), [("w", weight)])
    for step in range(1, 17):
        with torch.no_grad():
            weight.add_(torch.randn(10_000))
        row = rule.after_step(step)
    assert row["restraint"] < 0.03


def test_a_gate_goes_as_far_as_the_probe_allows():
    weight = nn.Parameter(torch.zeros(1))
    gate = Gate(LISTS, tolerance=0.3, every=1)
    rule = Restraint(gate, [("w", weight)], probe=lambda: weight.item())  # one nat for each unit of distance
    with torch.no_grad():
        weight.fill_(1.0)
    row = rule.after_step(1)
    step = 0.5**HALVINGS
    assert row["restraint"] <= 0.3 < row["restraint"] + step  # known to a sixteenth
    assert weight.item() == pytest.approx(row["restraint"])
    with torch.no_grad():
        weight.fill_(-5.0)
    assert rule.after_step(2) == {"restraint": 1.0}  # what the probe does not mind is let through
    assert weight.item() == -5.0


def test_distance_penalty_is_the_gradient_of_l2_sp():
    torch.manual_seed(0)
    start = [torch.randn(3, 2), torch.randn(4)]
    weights = [nn.Parameter(s + torch.randn_like(s)) for s in start]
    frozen = nn.Parameter(torch.randn(2))  # has no gradient
    for w in weights:
        w.grad = torch.ones_like(w)
    distance_penalty([*weights, frozen], [*start, torch.zeros(2)], 0.7)
    ours = [w.grad.clone() for w in weights]
    for w in weights:
        w.grad = None
    (sum(w.sum() + 0.35 * (w - s).square().sum() for w, s in zip(weights, start, strict=True))).backward()
    for a, w in zip(ours, weights, strict=True):
        torch.testing.assert_close(a, w.grad)


@pytest.mark.parametrize(
    "change",
    [
        {"averaging": TrustRegion(0.02)},
        {"averaging": Coherence(3)},
        {"averaging": Gate(LISTS, tolerance=0.01, every=3, documents=4)},
        {"distance_penalty": 0.5},
    ],
    ids=["trust region", "coherence", "gate", "l2-sp"],
)
def test_each_restrains_a_run_and_resumes_exactly(tmp_path, cache, change):
    spec = tiny_run(**change)
    whole = train(spec, runs=tmp_path / "a", cache=cache, progress=False)
    with pytest.raises(Stop):
        train(spec, runs=tmp_path / "b", cache=cache, progress=False, checkpoint_steps=2, on_step=stopping(7))
    again = train(spec, runs=tmp_path / "b", cache=cache, progress=False)
    assert probes(again) == probes(whole)
    plain = train(tiny_run(), runs=tmp_path / "c", cache=cache, progress=False)
    moved, freely = (probes(run)[-1]["drift.global_l2"] for run in (whole, plain))
    # From random weights target text improves the lists too, so the gate has nothing to hold.
    assert moved <= freely if "gate" in str(change) else moved < freely


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: TrustRegion(0.0),
        lambda: Coherence(1),
        lambda: Gate(world("l1"), tolerance=0.0),
        lambda: Gate(world("l1"), every=0),
    ],
)
def test_wrong_settings_are_refused(wrong):
    with pytest.raises(ValueError, match=r"radius|agreement|gate"):
        wrong()
