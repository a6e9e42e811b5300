"""Checkpoints: exact, atomic, never mistaken for one when not whole (B07, B15, B41, B43, B45)."""

from __future__ import annotations

import json
import os
import resource
import signal

import pytest
import torch
from safetensors.torch import load_file
from transformers import LlamaConfig, LlamaForCausalLM

from cptkit.train import checkpoint
from cptkit.train.checkpoint import CheckpointError


def make(seed: int = 0):
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=64, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=2, tie_word_embeddings=True,
    )  # fmt: skip
    model = LlamaForCausalLM(config)
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True)
    return model, optimiser


def step(model, optimiser):
    ids = torch.randint(0, 64, (2, 12))  # from the global RNG: its state is part of what is resumed
    model(input_ids=ids, labels=ids).loss.backward()
    optimiser.step()
    optimiser.zero_grad()


def test_restored_training_goes_on_bit_for_bit(tmp_path):
    model, optimiser = make()
    for _ in range(3):
        step(model, optimiser)
    path = checkpoint.save(tmp_path, 3, model=model, optimiser=optimiser, state={"mixture": {"n": 7}})
    for _ in range(3):
        step(model, optimiser)
    again, again_optimiser = make(seed=1)
    state = checkpoint.load(path, model=again, optimiser=again_optimiser)
    assert state == {"step": 3, "mixture": {"n": 7}}
    for _ in range(3):
        step(again, again_optimiser)
    for a, b in zip(model.parameters(), again.parameters(), strict=True):
        assert torch.equal(a, b)
        for moment in ("exp_avg", "exp_avg_sq", "step"):
            assert torch.equal(optimiser.state[a][moment], again_optimiser.state[b][moment])


def test_tied_weights_are_stored_once_and_stay_tied(tmp_path):
    model, optimiser = make()
    step(model, optimiser)
    path = checkpoint.save(tmp_path, 1, model=model, optimiser=optimiser, state={})
    stored = load_file(path / "model.safetensors")
    assert [k for k in stored if "embed" in k or "lm_head" in k] == ["model.embed_tokens.weight"]
    again, again_optimiser = make(seed=1)
    checkpoint.load(path, model=again, optimiser=again_optimiser)
    assert again.lm_head.weight.data_ptr() == again.model.embed_tokens.weight.data_ptr()


def test_only_the_newest_are_kept(tmp_path):
    model, optimiser = make()
    step(model, optimiser)
    for n in (1, 2, 30):
        checkpoint.save(tmp_path, n, model=model, optimiser=optimiser, state={}, keep=2)
    assert [p.name for p in sorted(tmp_path.iterdir())] == ["step-00000002", "step-00000030"]


@pytest.mark.parametrize(
    "file", ["model.safetensors", "optimiser.safetensors", "rng.safetensors", "state.json", "manifest.json"]
)
@pytest.mark.parametrize("harm", ["remove", "cut", "flip"])
def test_a_damaged_checkpoint_is_named_and_passed_over(tmp_path, file, harm):
    model, optimiser = make()
    step(model, optimiser)
    for n in (1, 2):
        checkpoint.save(tmp_path, n, model=model, optimiser=optimiser, state={}, keep=2)
    victim = tmp_path / "step-00000002" / file
    data = victim.read_bytes()
    if harm == "remove":
        victim.unlink()
    elif harm == "cut":
        victim.write_bytes(data[: len(data) // 2])
    else:
        victim.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.warns(UserWarning, match="step-00000002 is damaged"):
        assert checkpoint.latest(tmp_path).name == "step-00000001"


def test_what_a_kill_leaves_half_written_is_no_checkpoint(tmp_path, monkeypatch):
    """Killed at every file in turn: each time the previous checkpoint is the latest."""
    model, optimiser = make()
    step(model, optimiser)
    checkpoint.save(tmp_path, 1, model=model, optimiser=optimiser, state={})
    flush, flushed = checkpoint._flush, []

    def killed_at(at):
        def killing(path):
            if len(flushed) == at:
                os.kill(os.getpid(), signal.SIGKILL)
            flushed.append(path)
            flush(path)

        return killing

    for at in range(5):
        child = os.fork()
        if child == 0:
            monkeypatch.setattr(checkpoint, "_flush", killed_at(at))
            checkpoint.save(tmp_path, 2, model=model, optimiser=optimiser, state={})
            os._exit(0)
        _, status = os.waitpid(child, 0)
        assert os.WIFSIGNALED(status)
        assert checkpoint.latest(tmp_path).name == "step-00000001"
    checkpoint.save(tmp_path, 2, model=model, optimiser=optimiser, state={})
    assert [p.name for p in tmp_path.iterdir()] == ["step-00000002"]


def test_a_full_disk_is_an_error_that_keeps_the_old_checkpoint(tmp_path):
    model, optimiser = make()
    step(model, optimiser)
    checkpoint.save(tmp_path, 1, model=model, optimiser=optimiser, state={})
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limit[1]))
        with pytest.raises(CheckpointError, match="cannot write the checkpoint of step 2"):
            checkpoint.save(tmp_path, 2, model=model, optimiser=optimiser, state={})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
        signal.signal(signal.SIGXFSZ, before)
    assert [p.name for p in tmp_path.iterdir()] == ["step-00000001"]
    assert checkpoint.damage(tmp_path / "step-00000001") is None


def test_another_models_checkpoint_is_refused(tmp_path):
    model, optimiser = make()
    step(model, optimiser)
    path = checkpoint.save(tmp_path, 1, model=model, optimiser=optimiser, state={})
    other = torch.nn.Linear(2, 2)
    with pytest.raises(CheckpointError, match="holds another model"):
        checkpoint.load(path, model=other, optimiser=torch.optim.AdamW(other.parameters()))


def test_nothing_in_a_checkpoint_is_a_pickle(tmp_path):
    model, optimiser = make()
    step(model, optimiser)
    path = checkpoint.save(tmp_path, 1, model=model, optimiser=optimiser, state={})
    for file in path.iterdir():
        if file.suffix == ".json":
            json.loads(file.read_text())
        else:
            load_file(file)
