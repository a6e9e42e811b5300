from __future__ import annotations

import pytest
import torch
import transformers
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from cptkit.eval import forward
from tests.eval import tiny

SIZES = {"vocab_size": 96, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
WIDE = {**SIZES, "intermediate_size": 48, "num_key_value_heads": 2}
FAMILIES = {
    "llama": transformers.LlamaConfig(**WIDE),
    "gemma2": transformers.Gemma2Config(**WIDE, head_dim=8, final_logit_softcapping=0.5, sliding_window=8),
    "granite": transformers.GraniteConfig(**WIDE, logits_scaling=3.0),
    "cohere": transformers.CohereConfig(**WIDE, logit_scale=0.25),
    "qwen2": transformers.Qwen2Config(**WIDE),
    "gpt_neox": transformers.GPTNeoXConfig(**SIZES, intermediate_size=48),
    "gpt2": transformers.GPT2Config(vocab_size=96, n_embd=32, n_layer=2, n_head=4),
}


def made(family: str):
    torch.manual_seed(0)
    config = FAMILIES[family]
    for name in ("bos_token_id", "eos_token_id", "pad_token_id"):
        setattr(config, name, 1)
    return transformers.AutoModelForCausalLM.from_config(config).eval()


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_are_the_models_own(family):
    model = made(family)
    ids = torch.randint(2, 96, (3, 12))
    with torch.no_grad():
        ours = forward.logits(model, forward.hidden(model, ids).flatten(0, 1))
        own = model(ids).logits.flatten(0, 1)
    torch.testing.assert_close(ours, own, rtol=1e-6, atol=1e-6)
    assert ours.dtype == torch.float32


@pytest.mark.parametrize("family", FAMILIES)
def test_cached_steps_after_right_padding_equal_a_whole_pass(family):
    """The way Copain and choices read: padded prompts into a cache, a choice of rows, then further tokens."""
    model = made(family)
    assert forward.can_cache(model)
    rows = [torch.randint(2, 96, (n,)).tolist() for n in (3, 5, 4)]
    more = torch.randint(2, 96, (2, 2))
    with torch.no_grad():
        ids, mask = forward.pad(rows, "cpu")
        cache = forward.new_cache()
        forward.hidden(model, ids, cache=cache)
        keep = torch.tensor([0, 2])
        cache.batch_select_indices(keep)
        seen = torch.cat([mask[keep], torch.ones(2, 2, dtype=torch.long)], 1)
        places = mask[keep].sum(1)[:, None] + torch.arange(2)
        ours = forward.hidden(model, more, places, seen, cache)
        for n, row in enumerate((0, 2)):
            whole = forward.hidden(model, torch.tensor([rows[row] + more[n].tolist()]))[0, -2:]
            torch.testing.assert_close(ours[n], whole, rtol=1e-4, atol=1e-5)


def test_recurrent_models_are_known():
    config = transformers.MambaConfig(vocab_size=32, hidden_size=16, num_hidden_layers=1, state_size=4)
    assert not forward.can_cache(transformers.MambaForCausalLM(config))


def test_nats_in_slices(monkeypatch):
    model = made("llama")
    states, targets = torch.randn(11, 32), torch.randint(0, 96, (11,))
    with torch.no_grad():
        whole = forward.nats(model, states, targets)
        expected = nn.functional.cross_entropy(model.lm_head(states), targets, reduction="none").double()
        monkeypatch.setattr(forward, "LOGITS_AT_ONCE", 3 * 96)
        slices = forward.nats(model, states, targets)
    assert whole.dtype == torch.float64
    torch.testing.assert_close(whole, expected, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(slices, whole, rtol=1e-6, atol=1e-6)


def test_evaluating_restores_each_module_also_after_an_error():
    model = nn.Sequential(nn.Dropout(), nn.Dropout(), nn.Linear(2, 2)).train()
    model[1].eval()  # frozen on purpose
    inside = []
    with pytest.raises(ZeroDivisionError), forward.evaluating(model):
        inside.append((torch.is_inference_mode_enabled(), *(m.training for m in model.modules()), 1 / 0))
    with forward.evaluating(model):
        inside.append((torch.is_inference_mode_enabled(), *(m.training for m in model.modules())))
    assert inside == [(True, False, False, False, False)]
    assert [module.training for module in model.modules()] == [True, True, False, True]
    assert not torch.is_inference_mode_enabled()


def test_training_goes_on_after_a_probe():
    """Nothing made under inference mode may stay behind in the model."""
    model = made("llama").train()
    ids = torch.randint(2, 96, (1, 6))
    with forward.evaluating(model):
        forward.hidden(model, ids)
    model(input_ids=ids, labels=ids).loss.backward()
    assert model.lm_head.weight.grad is not None


class Wrapper(nn.Module):
    def __init__(self, module):
        super().__init__()
        self.module = module


def test_wrappers_are_looked_through():
    model = made("llama")
    assert forward.bare(Wrapper(Wrapper(model))) is model
    ids = torch.randint(2, 96, (1, 6))
    with torch.no_grad():
        assert torch.equal(forward.hidden(Wrapper(model), ids), forward.hidden(model, ids))


@given(st.lists(st.integers(1, 60), max_size=50), st.integers(1, 200))
def test_batches_cover_all_rows_once_within_the_budget(lengths, max_tokens):
    batches = forward.batches(lengths, max_tokens)
    assert sorted(i for batch in batches for i in batch) == list(range(len(lengths)))
    for batch in batches:
        assert len(batch) == 1 or len(batch) * max(lengths[i] for i in batch) <= max_tokens


def test_rows_that_the_model_cannot_read():
    model = tiny.llama(50, max_position_embeddings=8)
    forward.check(model, [[1] * 8, [49]])
    with pytest.raises(forward.EvalError, match="50 rows"):
        forward.check(model, [[1, 50]])
    with pytest.raises(forward.EvalError, match="at most 8"):
        forward.check(model, [[1] * 6], extra=3)
