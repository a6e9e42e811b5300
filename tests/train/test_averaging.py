"""Averaging against float64, torch and closed forms: what P1's equation is, and field bugs B37 to B43."""

from __future__ import annotations

import dataclasses
import json

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from cptkit.train.averaging import Averaging, Feedback, Released, Shadow, plain_rate, swap
from cptkit.train.trainer import train
from tests.conftest import tiny_run

SIZE = 5
rates = st.floats(1e-4, 0.5)
alphas = st.sampled_from([0.0, 0.3, 0.92, 0.992])
gradients = st.lists(st.lists(st.floats(-3, 3), min_size=SIZE, max_size=SIZE), min_size=1, max_size=12)


def double(values=None) -> nn.Parameter:
    start = torch.linspace(-1, 1, SIZE, dtype=torch.float64) if values is None else values
    return nn.Parameter(start.clone())


def adamw(weight: nn.Parameter, rate: float) -> torch.optim.AdamW:
    return torch.optim.AdamW([weight], lr=rate, betas=(0.9, 0.95), weight_decay=0.1)


class InDouble(Averaging):
    """The same rule in float64, so that an equality is not a matter of rounding."""

    def __init__(self, spec, parameters):
        super().__init__(spec, parameters)
        self.average = [w.detach().clone() for w in self.weights]

    def _move(self, share):
        torch._foreach_lerp_(self.average, [w.detach() for w in self.weights], share)


def walk(weight, rate, grads, spec=None) -> list[torch.Tensor]:
    """The weights after every step of AdamW on these gradients, with the rule applied after each."""
    optimiser, seen = adamw(weight, rate), []
    rule = InDouble(spec, [("w", weight)]) if spec else None
    for step, grad in enumerate(grads, 1):
        weight.grad = torch.tensor(grad, dtype=torch.float64)
        optimiser.step()
        if rule:
            rule.after_step(step)
        seen.append(weight.detach().clone())
    return seen


@settings(max_examples=60, deadline=None)
@given(rates, alphas, gradients)
def test_feedback_every_step_is_adamw_at_a_lower_rate(rate, alpha, grads):
    averaged = walk(double(), rate, grads, Feedback(alpha, 1))
    plain = walk(double(), rate * plain_rate(Feedback(alpha, 1)), grads)
    for a, b in zip(averaged, plain, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-13)


@settings(max_examples=30, deadline=None)
@given(rates, gradients)
def test_the_rule_as_released_is_adamw_at_a_higher_rate(rate, grads):
    released = walk(double(), rate, grads, Released(0.92))
    for a, b in zip(released, walk(double(), rate * 1.08, grads), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-13)


def test_the_rule_as_released_leaves_the_hull_of_the_weights_it_saw():
    """B38: 1.08 new - 0.08 old lies beyond new."""
    weight = nn.Parameter(torch.zeros(1))
    rule = Averaging(Released(0.92), [("w", weight)])
    with torch.no_grad():
        weight.fill_(1.0)
    rule.after_step(1)
    assert weight.item() == pytest.approx(1.08)


@settings(max_examples=40, deadline=None)
@given(rates, alphas, st.integers(1, 5), gradients)
def test_feedback_every_k_steps_is_lookahead(rate, alpha, k, grads):
    fast, slow = double(), double().detach().clone()  # Zhang et al. 2019, Algorithm 1, written out
    optimiser, expected = adamw(fast, rate), []
    for step, grad in enumerate(grads, 1):
        fast.grad = torch.tensor(grad, dtype=torch.float64)
        optimiser.step()
        if step % k == 0:
            slow = slow + (1 - alpha) * (fast.detach() - slow)
            with torch.no_grad():
                fast.copy_(slow)
        expected.append(fast.detach().clone())
    for a, b in zip(walk(double(), rate, grads, Feedback(alpha, k)), expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-13)


@settings(max_examples=60, deadline=None)
@given(st.floats(0, 0.9999), st.integers(1, 4), st.lists(st.floats(-5, 5), min_size=1, max_size=20))
def test_a_shadow_stays_inside_the_hull_of_visited_weights(alpha, every, path):
    """B38: with a sign turned round it diverges while the loss looks normal."""
    weight = nn.Parameter(torch.zeros(1))
    shadow, seen = Averaging(Shadow(alpha=alpha, every=every), [("w", weight)]), [0.0]
    for step, place in enumerate(path, 1):
        with torch.no_grad():
            weight.fill_(place)
        seen.append(weight.item())
        shadow.after_step(step)
        assert min(seen) - 1e-6 <= shadow.average[0].item() <= max(seen) + 1e-6
        assert weight.item() == seen[-1]  # never fed back


def test_a_shadow_is_torchs_averaged_model():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    theirs = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    theirs.update_parameters(model)  # torch copies at its first update
    ours = Averaging(Shadow(alpha=0.9), model.named_parameters())
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(1, 20):
        model(torch.randn(8, 3)).square().mean().backward()
        optimiser.step()
        optimiser.zero_grad()
        theirs.update_parameters(model)
        ours.after_step(step)
    for a, b in zip(ours.average, theirs.module.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0)


def test_half_life_start_and_interval():
    spec = Shadow(half_life=8, every=2, start=4)
    assert spec.decay == pytest.approx(0.5**0.25)
    weight = nn.Parameter(torch.zeros(1))
    shadow = Averaging(spec, [("w", weight)])
    with torch.no_grad():
        weight.fill_(1.0)
    for step in range(1, 5):
        shadow.after_step(step)
    assert shadow.average[0].item() == 1.0  # a copy up to `start`
    with torch.no_grad():
        weight.fill_(0.0)
    for step in range(5, 13):
        shadow.after_step(step)
    assert shadow.average[0].item() == pytest.approx(0.5)  # a half-life later


def test_bf16_with_a_slow_decay_does_not_freeze():
    """B37: 1e-4 of a difference is below half a unit of bf16, so an average in bf16 never moves."""
    torch.manual_seed(0)
    weight = nn.Parameter(torch.randn(64).bfloat16())
    shadow = Averaging(Shadow(alpha=0.9999), [("w", weight)])
    reference, frozen = weight.detach().double(), weight.detach().clone()
    for step in range(1, 1001):
        with torch.no_grad():
            weight.add_(torch.randn(64).bfloat16() * 0.1)
        shadow.after_step(step)
        reference = 0.9999 * reference + 0.0001 * weight.detach().double()
        frozen.lerp_(weight.detach(), 0.0001)
    start = shadow.average[0].double()
    assert (start - reference).abs().max() < 1e-6 * (1 + reference.abs().max())
    assert (frozen.double() - reference).abs().max() > 1e-3  # what happens without fp32


def test_feedback_writes_the_average_back_into_a_bf16_model():
    weight = nn.Parameter(torch.zeros(4, dtype=torch.bfloat16))
    rule = Averaging(Feedback(0.5, 1), [("w", weight)])
    with torch.no_grad():
        weight.fill_(1.0)
    rule.after_step(1)
    assert weight.dtype == torch.bfloat16
    assert weight.tolist() == [0.5] * 4
    assert rule.average[0].dtype == torch.float32


def tied_llama() -> LlamaForCausalLM:
    torch.manual_seed(0)
    return LlamaForCausalLM(
        LlamaConfig(vocab_size=40, hidden_size=16, num_hidden_layers=2, num_attention_heads=2,
                    num_key_value_heads=2, intermediate_size=24, tie_word_embeddings=True)
    )  # fmt: skip


def test_a_tied_head_is_averaged_once_and_stays_tied(tmp_path):
    """B41, B43: one tensor with two names; after average, swap, save and reload it is one tensor still."""
    model = tied_llama()
    names = [*model.named_parameters(), ("lm_head.weight", model.lm_head.weight)]
    rule = Averaging(Shadow(alpha=0.5), names)
    assert len(rule.average) == len(list(model.parameters()))
    before = model.lm_head.weight.detach().clone()
    with torch.no_grad():
        model.lm_head.weight.add_(1.0)
    rule.after_step(1)
    with rule.evaluated():
        assert model.lm_head.weight is model.model.embed_tokens.weight
        torch.testing.assert_close(model.lm_head.weight.detach(), before + 0.5)
        model.save_pretrained(tmp_path)
    torch.testing.assert_close(model.lm_head.weight.detach(), before + 1.0, rtol=0, atol=0)
    again = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert again.lm_head.weight is again.model.embed_tokens.weight
    torch.testing.assert_close(again.lm_head.weight.detach(), before + 0.5)


def test_buffers_are_the_models_own_and_frozen_weights_are_left_alone():
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    model[0].bias.requires_grad_(False)
    rule = Averaging(Shadow(alpha=0.9), model.named_parameters())
    assert "0.bias" not in rule.names
    model(torch.randn(8, 3))
    running = model[1].running_mean.clone()
    with rule.evaluated():
        assert torch.equal(model[1].running_mean, running)


def test_swap_restores_the_weights_exactly_also_after_an_error():
    weights, others = [torch.randn(5, dtype=torch.bfloat16)], [torch.randn(5)]
    before = weights[0].clone()

    def failing():
        with swap(weights, others):
            assert torch.equal(weights[0], others[0].bfloat16())
            raise RuntimeError("inside")

    with pytest.raises(RuntimeError, match="inside"):
        failing()
    assert torch.equal(weights[0], before)


@pytest.mark.parametrize(
    "wrong",
    [dict(alpha=1.0), dict(alpha=-0.1), dict(alpha=0.5, every=0)],
)
def test_wrong_settings_are_refused(wrong):
    with pytest.raises(ValueError, match=r"alpha|every"):
        Feedback(**wrong)
    with pytest.raises(ValueError, match=r"alpha|every"):
        Shadow(**wrong)


def test_a_shadow_needs_one_of_its_two_settings():
    for wrong in ({}, {"alpha": 0.9, "half_life": 3.0}, {"half_life": 0.0}, {"alpha": 0.9, "start": -1}):
        with pytest.raises(ValueError, match="shadow"):
            Shadow(**wrong)


# ---- in a run ----


class Stop(Exception):
    pass


def stopping(at):
    def on_step(step):
        if step == at:
            raise Stop

    return on_step


def probes(folder) -> list[dict]:
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [row for row in rows if row["kind"] == "probe"]


@pytest.mark.parametrize("rule", [Feedback(0.9, 3), Shadow(half_life=3), Released()])
def test_resume_is_exact_with_the_average_in_the_checkpoint(tmp_path, cache, rule):
    spec = tiny_run(averaging=rule)
    whole = train(spec, runs=tmp_path / "a", cache=cache, progress=False)
    for stop in (5, 8):
        with pytest.raises(Stop):
            train(
                spec,
                runs=tmp_path / "b",
                cache=cache,
                progress=False,
                checkpoint_steps=2,
                on_step=stopping(stop),
            )
    again = train(spec, runs=tmp_path / "b", cache=cache, progress=False)
    assert probes(again) == probes(whole)
    files = [f / "model" / "model.safetensors" for f in (again, whole)]
    assert files[0].read_bytes() == files[1].read_bytes()


def test_a_run_with_feedback_every_step_is_the_run_at_the_lower_rate(tmp_path, cache):
    spec = tiny_run(averaging=Feedback(0.9, 1))
    lower = dataclasses.replace(
        tiny_run().schedule, peak=tiny_run().schedule.peak * plain_rate(spec.averaging)
    )
    averaged, plain = (
        probes(train(s, runs=tmp_path, cache=cache, progress=False)) for s in (spec, tiny_run(schedule=lower))
    )
    assert averaged[-1]["drift.global_l2"] > 0
    for a, b in zip(averaged, plain, strict=True):
        assert a["ppl.target.nats_per_token"] == pytest.approx(b["ppl.target.nats_per_token"], abs=1e-5)
        assert a["drift.global_l2"] == pytest.approx(b["drift.global_l2"], rel=1e-3)


def test_a_shadow_is_measured_and_saved_and_training_never_sees_it(tmp_path, cache, capsys):
    shadow = train(tiny_run(averaging=Shadow(alpha=0.5)), runs=tmp_path, cache=cache, progress=True)
    plain = train(tiny_run(), runs=tmp_path, cache=cache, progress=False)
    losses = [
        [
            json.loads(line)["loss"]
            for line in (f / "metrics.jsonl").read_text().splitlines()
            if '"train"' in line
        ]
        for f in (shadow, plain)
    ]
    assert losses[0] == losses[1]
    assert probes(shadow)[-1]["drift.global_l2"] < probes(plain)[-1]["drift.global_l2"]
    assert "averaging: Shadow" in capsys.readouterr().out  # with its memory, before training
    weights = AutoModelForCausalLM.from_pretrained(shadow / "model")
    other = AutoModelForCausalLM.from_pretrained(plain / "model")
    assert not torch.equal(weights.lm_head.weight, other.lm_head.weight)
