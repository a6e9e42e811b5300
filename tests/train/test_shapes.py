"""Counted weights and FLOPs against the model that transformers builds and torch's own counter."""

from __future__ import annotations

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import LlamaConfig, LlamaForCausalLM

from cptkit.train.config import ConfigError
from cptkit.train.shapes import Shape

SHAPES = [Shape(32, 2, 2, 96), Shape(48, 3, 3, 128), Shape(96, 4, 4, 256)]


def built(shape: Shape, vocabulary: int, tied: bool = True, device: str = "meta") -> LlamaForCausalLM:
    config = LlamaConfig(
        vocab_size=vocabulary, hidden_size=shape.hidden, num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads, num_key_value_heads=shape.heads,
        intermediate_size=shape.feed_forward, tie_word_embeddings=tied,
    )  # fmt: skip
    config._attn_implementation = "eager"
    with torch.device(device):
        return LlamaForCausalLM(config)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("tied", [True, False])
def test_parameters_are_those_of_the_model(shape, tied):
    model = built(shape, 1024, tied)
    assert shape.parameters(1024, tied=tied) == sum(p.numel() for p in model.parameters())
    inner = sum(p.numel() for n, p in model.named_parameters() if "embed" not in n and "lm_head" not in n)
    assert shape.weights == inner


@pytest.mark.parametrize("shape", SHAPES)
def test_flops_are_those_torch_counts(shape):
    model, length = built(shape, 512, device="cpu"), 64
    ids = torch.zeros(1, length, dtype=torch.int64)
    with FlopCounterMode(display=False) as counter:
        model(input_ids=ids, labels=ids).loss.backward()
    # transformers also multiplies positions with rotary frequencies: head dimension / 2 a token, no weight
    assert counter.get_total_flops() / length == pytest.approx(shape.flops_per_token(512, length), rel=2e-3)


def test_impossible_shapes_are_refused():
    with pytest.raises(ConfigError, match="do not divide"):
        Shape(2688, 42, 22, 7168)
    with pytest.raises(ConfigError, match="at least 1"):
        Shape(64, 0, 4, 128)
