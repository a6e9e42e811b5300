"""LoRA: it starts as the model, survives saving and merging (B52, B53), and drifts as if merged."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from cptkit.eval import drift, forward
from cptkit.train import lora, models
from cptkit.train.config import ConfigError
from cptkit.train.lora import LoraSpec
from cptkit.train.spec import ModelSpec
from cptkit.train.trainer import TrainingError, train
from tests.conftest import tiny_run
from tests.train.test_averaging import Stop, probes, stopping

IDS = torch.randint(0, 40, (3, 12), generator=torch.Generator().manual_seed(1))


def llama(tied: bool, seed: int = 0) -> LlamaForCausalLM:
    torch.manual_seed(seed)
    config = LlamaConfig(vocab_size=40, hidden_size=16, num_hidden_layers=2, num_attention_heads=2,
                         num_key_value_heads=2, intermediate_size=24, tie_word_embeddings=tied)  # fmt: skip
    return LlamaForCausalLM(config).eval()


def trained_adapters(tied: bool, spec: LoraSpec):
    """A model with adapters that have been moved by a few steps, its start, and peft's wrapper."""
    model, start = llama(tied), llama(tied)
    adapted = lora.adapt(model, spec, seed=3)
    torch.testing.assert_close(logits(model), logits(start), rtol=0, atol=0)
    optimiser = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2)
    for _ in range(4):
        model(input_ids=IDS, labels=IDS).loss.backward()
        optimiser.step()
        optimiser.zero_grad()
    return model.eval(), start, adapted


def logits(model) -> torch.Tensor:
    with torch.no_grad():
        return forward.logits(model, forward.hidden(model, IDS).flatten(0, 1))


kinds = pytest.mark.parametrize("embeddings", [False, True], ids=["adapters", "embeddings too"])
ties = pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])


@ties
@kinds
def test_saved_and_loaded_or_merged_it_gives_the_same_logits(tmp_path, tied, embeddings):
    """B53: embeddings are saved with the adapter, and loading it does not bring the old ones back."""
    model, start, adapted = trained_adapters(tied, LoraSpec(4, embeddings))
    before, now = logits(start), logits(model)
    assert (before - now).abs().max() > 0.05
    lora.save(adapted, tmp_path / "adapter")
    again = lora.load(llama(tied), tmp_path / "adapter").eval()
    torch.testing.assert_close(logits(again), now, rtol=0, atol=0)
    merged = adapted.merge_and_unload()
    torch.testing.assert_close(logits(merged), now, rtol=1e-4, atol=1e-5)
    assert (merged.lm_head.weight is merged.model.embed_tokens.weight) is tied
    merged.save_pretrained(tmp_path / "merged")
    whole = AutoModelForCausalLM.from_pretrained(tmp_path / "merged").eval()
    torch.testing.assert_close(logits(whole), now, rtol=1e-4, atol=1e-5)


@ties
@kinds
def test_drift_is_that_of_the_merged_weights(tied, embeddings):
    model, start, adapted = trained_adapters(tied, LoraSpec(4, embeddings))
    found = drift.drift(lora.merged_weights(model), drift.snapshot(start))
    expected = drift.drift(adapted.merge_and_unload(), drift.snapshot(start))
    assert found.global_l2 > 0.01
    assert found.per_tensor == pytest.approx(expected.per_tensor, rel=1e-4, abs=1e-6)
    assert (found.per_tensor["model.embed_tokens.weight"] > 0) is embeddings


def test_a_model_without_adapters_is_its_own_merged_weights():
    model = llama(True)
    assert dict(lora.merged_weights(model)).keys() == dict(model.named_parameters()).keys()


@kinds
def test_what_is_trained_is_reported_by_name(embeddings):
    """B52: whether a new script can be learnt at all depends on embeddings, so the report names them."""
    model = llama(False)
    lora.adapt(model, LoraSpec(2, embeddings), seed=0)
    names = lora.trainable_names(model)
    assert ("model.embed_tokens" in names) is embeddings
    assert ("lm_head" in names) is embeddings
    assert len(names) == 14 + 2 * embeddings  # seven linear maps in each of two layers


def test_adapters_are_a_function_of_the_seed():
    first, same, other = llama(True), llama(True), llama(True)
    for model, seed in ((first, 1), (same, 1), (other, 2)):
        state = torch.get_rng_state()
        lora.adapt(model, LoraSpec(4), seed)
        assert torch.equal(torch.get_rng_state(), state)
    factors = [{n: p for n, p in m.named_parameters() if "lora_A" in n} for m in (first, same, other)]
    assert all(torch.equal(factors[0][n], factors[1][n]) for n in factors[0])
    assert not any(torch.equal(factors[0][n], factors[2][n]) for n in factors[0])


def test_tokens_that_pretraining_never_touched_are_found():
    model = llama(True)
    with torch.no_grad():
        model.model.embed_tokens.weight[[3, 7]] = 0.0
        model.model.embed_tokens.weight[9] = 0.25
    assert lora.untrained_tokens(model, torch.tensor([1, 3, 3, 9, 5])) == [3, 9]
    assert lora.untrained_tokens(model, torch.tensor([1, 5])) == []


# ---- in a run ----


@pytest.fixture(scope="module")
def base(tmp_path_factory, cache):
    runs = tmp_path_factory.mktemp("runs")
    return train(tiny_run(), runs=runs, cache=cache, progress=False)


def adapted_run(base, **changes):
    return tiny_run(model=ModelSpec(start=f"run:{base.name}"), **changes)


@kinds
def test_a_run_leaves_adapter_and_merged_model_and_resumes_exactly(base, cache, embeddings):
    spec = adapted_run(base, lora=LoraSpec(4, embeddings))
    whole = train(spec, runs=base.parent, cache=cache, progress=False)
    other = base.parent / f"again-{embeddings}"
    other.mkdir()
    (other / base.name).symlink_to(base)
    with pytest.raises(Stop):
        train(spec, runs=other, cache=cache, progress=False, checkpoint_steps=2, on_step=stopping(5))
    again = train(spec, runs=other, cache=cache, progress=False)
    assert probes(again) == probes(whole)
    start, _ = models.load(spec.model, cache, base.parent, length=64, seed=0)
    merged = AutoModelForCausalLM.from_pretrained(whole / "model").eval()
    loaded = lora.load(start, whole / "adapter").eval()
    torch.testing.assert_close(logits(loaded), logits(merged), rtol=1e-4, atol=1e-4)
    start, _ = models.load(spec.model, cache, base.parent, length=64, seed=0)
    moved = drift.drift(merged, drift.snapshot(start))
    assert probes(whole)[-1]["drift.global_l2"] == pytest.approx(moved.global_l2, rel=1e-3)
    assert probes(whole)[-1]["ppl.target.perplexity"] < probes(whole)[0]["ppl.target.perplexity"]


def test_text_that_frozen_embeddings_cannot_read_is_refused(base, cache, tmp_path):
    folder = tmp_path / "blank"
    model = AutoModelForCausalLM.from_pretrained(base / "model")
    with torch.no_grad():
        model.get_input_embeddings().weight[[*range(40, 200)]] = 0.0
    model.save_pretrained(folder)
    models.load_tokenizer(ModelSpec(start=f"run:{base.name}"), cache, base.parent).save_pretrained(folder)
    spec = tiny_run(model=ModelSpec(start=str(folder)), lora=LoraSpec(4))
    with pytest.raises(TrainingError, match=r"never touched.*lora\.embeddings = true"):
        train(spec, runs=tmp_path, cache=cache, progress=False)
    train(
        tiny_run(model=ModelSpec(start=str(folder)), lora=LoraSpec(4, embeddings=True)),
        runs=tmp_path, cache=cache, progress=False,
    )  # fmt: skip


def test_a_distance_penalty_and_adapters_exclude_each_other():
    with pytest.raises(ConfigError, match="LoRA"):
        tiny_run(lora=LoraSpec(4), distance_penalty=0.1)
    for wrong in ({"rank": 0}, {"rank": 4, "scale": 0.0}, {"rank": 4, "dropout": 1.0}):
        with pytest.raises(ValueError, match="lora"):
            LoraSpec(**wrong)
