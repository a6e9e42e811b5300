from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from cptkit.eval import drift as module
from cptkit.eval.drift import drift, layer_of, snapshot
from cptkit.eval.forward import EvalError
from tests.eval import tiny


def moved(model, scale: float, seed: int = 1):
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += scale * torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype)


def test_against_numpy(monkeypatch):
    monkeypatch.setattr(module, "SLICE", 100)
    model = tiny.llama(64)
    start = snapshot(model)
    before = {n: p.detach().numpy().astype(np.float64).copy() for n, p in model.named_parameters()}
    moved(model, 0.01)
    after = {n: p.detach().numpy().astype(np.float64) for n, p in model.named_parameters()}
    result = drift(model, start)
    norms = {n: np.linalg.norm((after[n] - before[n]).ravel()) for n in before}
    assert result.per_tensor == pytest.approx(norms, rel=1e-12)
    assert result.mean_l2 == pytest.approx(np.mean(list(norms.values())), rel=1e-12)
    whole = np.concatenate([(after[n] - before[n]).ravel() for n in before])
    assert result.global_l2 == pytest.approx(np.linalg.norm(whole), rel=1e-12)
    origin = np.linalg.norm(np.concatenate([v.ravel() for v in before.values()]))
    assert result.relative == pytest.approx(np.linalg.norm(whole) / origin, rel=1e-12)
    assert set(result.per_layer) == {"0", "1", "rest"}
    first = np.concatenate([(after[n] - before[n]).ravel() for n in before if ".layers.0." in n])
    assert result.per_layer["0"] == pytest.approx(np.linalg.norm(first), rel=1e-12)
    assert math.hypot(*result.per_layer.values()) == pytest.approx(result.global_l2, rel=1e-12)


def test_nothing_moved_and_the_snapshot_is_a_copy():
    model = tiny.llama(64)
    start = snapshot(model)
    assert drift(model, start).global_l2 == 0
    moved(model, 1)
    assert drift(model, start).global_l2 > 0
    assert all(t.dtype == torch.float32 and not t.requires_grad for t in start.values())


def test_tied_tensors_count_once():
    model = tiny.llama(64, tie_word_embeddings=True)
    start = snapshot(model)
    assert sum("embed" in name or "lm_head" in name for name in start) == 1
    with torch.no_grad():
        model.lm_head.weight[0, 0] += 3
    assert drift(model, start).global_l2 == pytest.approx(3, rel=1e-6)


def test_small_change_of_large_weights_is_not_lost():
    """A sum of squares in fp32 would drown 1e-8 beside 1e8; the difference in float64 does not."""
    model = torch.nn.Linear(1000, 1000, bias=False)
    torch.nn.init.constant_(model.weight, 1.0)
    start = snapshot(model)
    with torch.no_grad():
        model.weight += 2.0**-23
    result = drift(model, start)
    assert result.global_l2 == pytest.approx(1000 * 2.0**-23, rel=1e-12)
    assert result.relative == pytest.approx(2.0**-23, rel=1e-12)


def test_bf16_weights_are_compared_in_full():
    model = tiny.llama(64).to(torch.bfloat16)
    start = snapshot(model)
    assert drift(model, start).global_l2 == 0


def test_another_model_is_refused():
    start = snapshot(tiny.llama(64))
    with pytest.raises(EvalError, match=r"\(65, 48\) now"):
        drift(tiny.llama(65), start)
    with pytest.raises(EvalError, match="another model: it has no"):
        drift(tiny.llama(64, layers=3), start)
    with pytest.raises(EvalError, match=r"another model: .* names are gone"):
        drift(tiny.llama(64, layers=1), start)


def test_metrics_and_names():
    model = tiny.llama(64)
    metrics = drift(model, snapshot(model)).metrics()
    assert set(metrics) == {
        f"drift.{k}" for k in ("mean_l2", "global_l2", "relative", "layer.0", "layer.1", "layer.rest")
    }
    assert layer_of("transformer.h.11.attn.c_attn.weight") == "11"
    assert layer_of("model.layers.3.mlp.experts.5.w1.weight") == "3"
    assert layer_of("model.embed_tokens.weight") == "rest"
