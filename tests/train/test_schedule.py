"""Learning rates against PyTorch's own schedulers, and the bugs of schedules that keep state."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cptkit.train.schedule import Schedule


def test_cosine_equals_torch():
    total, peak, floor = 40, 3e-3, 0.1
    optimiser = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=peak)
    reference = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, T_max=total - 1, eta_min=peak * floor)
    ours = Schedule("cosine", peak=peak, warmup=0, floor=floor)
    for step in range(total):
        assert ours.rate(step, total) == pytest.approx(optimiser.param_groups[0]["lr"], rel=1e-9)
        optimiser.step()
        reference.step()


def test_cosine_ends_at_its_floor_and_starts_above_zero():
    schedule = Schedule("cosine", peak=1.0, warmup=10, floor=0.033)
    assert schedule.rate(0, 100) == pytest.approx(0.1)
    assert schedule.rate(9, 100) == schedule.rate(10, 100) == 1.0
    assert schedule.rate(99, 100) == pytest.approx(0.033)


def test_wsd_does_decay():
    """B50: the released code of P3 has a stable phase that covers the run, so that it never decays."""
    schedule = Schedule("wsd", peak=1.0, warmup=5, floor=0.1)
    rates = [schedule.rate(s, 100) for s in range(100)]
    assert rates[5:80] == [1.0] * 75
    assert rates[-1] == pytest.approx(0.1)
    assert all(a > b for a, b in itertools.pairwise(rates[79:]))
    with pytest.raises(ValueError, match="decay"):
        Schedule("wsd", decay=0.0)


@given(
    kind=st.sampled_from(["cosine", "wsd", "constant"]),
    total=st.integers(1, 300),
    warmup=st.integers(0, 400),
    floor=st.floats(0, 1),
    decay=st.floats(0.01, 1),
)
def test_every_rate_lies_between_zero_and_the_peak(kind, total, warmup, floor, decay):
    schedule = Schedule(kind, peak=2.0, warmup=warmup, floor=floor, decay=decay)
    rates = [schedule.rate(s, total) for s in range(total)]
    assert all(0 <= r <= 2.0 and math.isfinite(r) for r in rates)
    ramp = rates[:warmup]
    assert ramp == sorted(ramp)
    if kind != "constant":
        after = rates[warmup:]
        assert after == sorted(after, reverse=True)


def test_steps_outside_the_run_are_an_error():
    for step in (-1, 10):
        with pytest.raises(ValueError, match="outside a run of 10"):
            Schedule().rate(step, 10)


@pytest.mark.parametrize("bad", [{"peak": math.nan}, {"peak": -1.0}, {"warmup": -1}, {"floor": 1.5}])
def test_impossible_settings_are_refused(bad):
    with pytest.raises(ValueError, match="must be"):
        Schedule(**bad)
