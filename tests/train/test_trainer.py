"""The loop, against references: accumulation, resume, precision, the learning rate, and its refusals."""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import random
import signal
import subprocess
import sys
import textwrap
import time

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from cptkit.data.corpus import CorpusSpec
from cptkit.data.weights import Constant, MixtureError, Switch
from cptkit.train import models, trainer
from cptkit.train.schedule import Schedule
from cptkit.train.spec import ModelSpec, OptimiserSpec, ProbesSpec, run_id
from cptkit.train.trainer import TokenLoss, TrainingError, train
from tests.conftest import tiny_run, world


def weights(folder) -> dict[str, torch.Tensor]:
    return load_file(folder / "model" / "model.safetensors")


def rows(folder) -> list[dict]:
    """Metrics without what a clock decides."""
    read = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in row.items() if k != "tokens_per_second"} for row in read]


def same(a, b) -> bool:
    wa, wb = weights(a), weights(b)
    return wa.keys() == wb.keys() and all(torch.equal(wa[k], wb[k]) for k in wa) and rows(a) == rows(b)


@pytest.fixture(scope="module")
def finished(tmp_path_factory, cache):
    """One uninterrupted run, for all that only read it."""
    return train(tiny_run(), runs=tmp_path_factory.mktemp("runs"), cache=cache, progress=False)


def test_the_run_folder_explains_itself(finished, cache):
    names = {p.name for p in finished.iterdir() if not p.name.startswith(".")}
    assert names == {
        "spec.toml",
        "environment.json",
        "mixture.txt",
        "metrics.jsonl",
        "audit.json",
        "model",
        "done.json",
    }
    environment = json.loads((finished / "environment.json").read_text())
    assert environment["packages"]["torch"] == torch.__version__.split("+")[0]
    assert {r["kind"] for r in rows(finished)} == {"train", "probe"}
    assert [r["step"] for r in rows(finished) if r["kind"] == "probe"] == [0, 1, 2, 4, 8, 12]
    assert [r["step"] for r in rows(finished) if r["kind"] == "train"] == list(range(1, 13))
    audit = json.loads((finished / "audit.json").read_text())["sources"]
    assert audit["target"]["tokens"] == 36 * 64
    assert audit["source"]["tokens"] == 12 * 64


def test_training_lowers_the_loss_and_drift_starts_at_zero(finished):
    probes = [r for r in rows(finished) if r["kind"] == "probe"]
    assert probes[-1]["ppl.target.perplexity"] < 0.5 * probes[0]["ppl.target.perplexity"]
    assert probes[0]["drift.mean_l2"] == 0.0
    assert probes[-1]["drift.mean_l2"] > probes[1]["drift.mean_l2"] > 0


def test_plain_transformers_loads_what_was_trained(finished):
    model = AutoModelForCausalLM.from_pretrained(finished / "model")
    tokenizer = AutoTokenizer.from_pretrained(finished / "model")
    assert model.dtype == torch.float32
    assert len(tokenizer) == model.get_input_embeddings().weight.shape[0] == 320
    stored = weights(finished)
    assert all(torch.equal(p, stored[n]) for n, p in model.named_parameters())
    text = "demilel mera geru 7 3 > 7 ;"
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text


def test_a_finished_run_is_not_trained_again(finished, cache, monkeypatch):
    monkeypatch.setattr(trainer, "_Run", None)
    assert train(tiny_run(), runs=finished.parent, cache=cache, progress=False) == finished


def test_the_id_depends_on_what_decides_the_result(cache):
    spec = tiny_run()
    ids = {
        run_id(s, cache)
        for s in (
            spec,
            tiny_run(seed=1),
            tiny_run(steps=13),
            tiny_run(schedule=Schedule("cosine", peak=1e-3, warmup=2)),
            tiny_run(sources={"target": world("l2", similarity=0.9), "source": world("l1")}),
            tiny_run(mixture=Constant({"target": 0.5, "source": 0.5})),
        )
    }
    assert len(ids) == 6
    assert run_id(tiny_run(), cache) == run_id(spec, cache)


# ---- exactness --------------------------------------------------------------------------------------


@pytest.mark.parametrize("micro", [1, 2, 4, 8])
def test_accumulation_changes_nothing_with_unequal_valid_tokens(micro):
    """B01: 8 sequences with 3 to 60 targets; gradients as from one batch, whatever the micro-batch."""
    torch.manual_seed(0)
    model = models.build(
        ModelSpec(tokenizer=tiny_run().model.tokenizer, hidden=32, layers=2, heads=2), 100, 0, 64, 0
    )
    ids = torch.randint(0, 100, (8, 64))
    labels = torch.full_like(ids, -100)
    for row, valid in enumerate((3, 60, 7, 31, 45, 12, 5, 50)):
        labels[row, :valid] = ids[row, 1 : valid + 1]
    positions = torch.arange(64).expand(8, 64)
    loss, total = TokenLoss(model), int((labels != -100).sum())
    for first in range(0, 8, micro):
        part = slice(first, first + micro)
        (loss(ids[part], positions[part], labels[part]) / total).backward()
    ours = {n: p.grad.clone() for n, p in model.named_parameters()}
    model.zero_grad()
    logits = model(input_ids=ids).logits
    F.cross_entropy(logits.reshape(-1, 100), labels.reshape(-1), ignore_index=-100).backward()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(ours[name], parameter.grad, rtol=1e-5, atol=1e-6)


def test_a_whole_run_does_not_depend_on_the_micro_batch(tmp_path, cache, finished):
    split = train(tiny_run(micro_sequences=1), runs=tmp_path, cache=cache, progress=False)
    a, b = weights(finished), weights(split)
    for name in a:
        torch.testing.assert_close(a[name], b[name], rtol=1e-3, atol=1e-5)


def test_the_first_step_equals_plain_pytorch(tmp_path, cache):
    """One step with clipping and decay against torch's own model call, AdamW and clip_grad_norm_."""
    spec = tiny_run(steps=1, schedule=Schedule("constant", peak=1e-2), optimiser=OptimiserSpec(clip=0.05))
    folder = train(spec, runs=tmp_path, cache=cache, progress=False)
    model, tokenizer = models.load(spec.model, cache, tmp_path, length=64, seed=0)
    packed = trainer.pack_sources(spec, tokenizer, cache)
    drawn = trainer.mixture_of(spec, packed).next_step()
    batch = [packed[name].sequence(i) for name, i in drawn]
    nats, count = 0.0, 0
    for row in batch:  # document by document, without any packing
        ids, starts = torch.tensor(row["input_ids"]), [*(row["position_ids"] == 0).nonzero()[0].tolist(), 64]
        for a, b in itertools.pairwise(starts):
            if b - a > 1:
                logits = model(input_ids=ids[None, a:b]).logits[0, :-1]
                nats = nats + F.cross_entropy(logits, ids[a + 1 : b], reduction="sum")
                count += b - a - 1
    (nats / count).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.05)
    decayed = [p for p in model.parameters() if p.ndim > 1]
    plain = [p for p in model.parameters() if p.ndim == 1]
    torch.optim.AdamW(
        [{"params": decayed, "weight_decay": 0.1}, {"params": plain, "weight_decay": 0.0}],
        lr=1e-2,
        betas=(0.9, 0.95),
    ).step()
    logged = next(r for r in rows(folder) if r["kind"] == "train")
    assert logged["loss"] == pytest.approx((nats / count).item(), rel=1e-5)
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(weights(folder)[name], parameter.detach(), rtol=1e-3, atol=2e-5)


class Stop(Exception):
    pass


def stopped_at(*steps):
    def on_step(step):
        if step in steps:
            raise Stop

    return on_step


@pytest.mark.parametrize("stops", [(5,), (5, 9), (3, 6, 11)])
def test_resume_is_bit_exact_also_the_second_time(tmp_path, cache, finished, stops):
    """B09, B10: stopped once, twice, three times between checkpoints, and equal to the uninterrupted run."""
    for stop in stops:
        with pytest.raises(Stop):
            train(
                tiny_run(),
                runs=tmp_path,
                cache=cache,
                progress=False,
                checkpoint_steps=2,
                on_step=stopped_at(stop),
            )
    again = train(tiny_run(), runs=tmp_path, cache=cache, progress=False, checkpoint_steps=2)
    assert same(again, finished)


def test_nothing_draws_from_the_rng_after_it_was_restored(tmp_path, cache):
    """B15: the RNG at the next step is the one that was saved, whatever was built in between."""
    states = {}

    def remember(step):
        states.setdefault(step, []).append(torch.get_rng_state())
        torch.rand(3)  # as dropout would

    with pytest.raises(Stop):
        train(
            tiny_run(), runs=tmp_path, cache=cache, progress=False, checkpoint_steps=4,
            on_step=lambda s: (remember(s), stopped_at(6)(s)),
        )  # fmt: skip
    torch.manual_seed(999)
    train(tiny_run(), runs=tmp_path, cache=cache, progress=False, on_step=remember)
    assert torch.equal(states[5][0], states[4][0]) is False
    assert torch.equal(states[5][1], states[4][0])  # saved at step 4, before `remember` drew


def test_resume_inside_a_changing_mixture(tmp_path, cache):
    spec = tiny_run(mixture=Switch({"target": 0.5, "source": 0.5}, {"target": 1.0, "source": 0.0}, 6))
    whole = train(spec, runs=tmp_path / "a", cache=cache, progress=False)
    with pytest.raises(Stop):
        train(
            spec, runs=tmp_path / "b", cache=cache, progress=False, checkpoint_steps=1, on_step=stopped_at(7)
        )
    again = train(spec, runs=tmp_path / "b", cache=cache, progress=False)
    assert same(again, whole)
    assert json.loads((again / "audit.json").read_text())["sources"]["source"]["tokens"] == 12 * 64


def test_weight_decay_after_resume_is_the_one_before(tmp_path, cache):
    """B51: a setting of the optimiser that comes back as a default changes what is left of the run."""
    strong = tiny_run(optimiser=OptimiserSpec(weight_decay=5.0))
    whole = train(strong, runs=tmp_path / "a", cache=cache, progress=False)
    options = {"runs": tmp_path / "b", "cache": cache, "progress": False}
    with pytest.raises(Stop):
        train(strong, checkpoint_steps=1, on_step=stopped_at(6), **options)
    assert same(train(strong, **options), whole)
    assert not same(train(tiny_run(), runs=tmp_path / "c", cache=cache, progress=False), whole)


def test_resume_inside_the_decay_of_wsd(tmp_path, cache):
    """B49: saved in the stable phase and in the decay, the rate is the closed form's."""
    spec = tiny_run(schedule=Schedule("wsd", peak=1e-2, warmup=2, floor=0.0, decay=0.5))
    for stop in (4, 9):
        with pytest.raises(Stop):
            train(
                spec, runs=tmp_path, cache=cache, progress=False, checkpoint_steps=1, on_step=stopped_at(stop)
            )
    done = train(spec, runs=tmp_path, cache=cache, progress=False)
    rates = [r["lr"] for r in rows(done) if r["kind"] == "train"]
    assert rates == [spec.schedule.rate(s, 12) for s in range(12)]


@pytest.mark.slow
def test_killed_by_a_signal_at_a_random_moment(tmp_path, cache, finished):
    """SIGKILL twice, wherever the process is; what is left behind must resume to the uninterrupted run."""
    (tmp_path / "spec.toml").write_text(tiny_run().dumps())
    code = textwrap.dedent(
        f"""
        import torch; torch.set_num_threads(1)
        from pathlib import Path
        from cptkit.train.spec import load_spec
        from cptkit.train.trainer import train
        print("ready", flush=True)
        train(load_spec(Path({str(tmp_path / "spec.toml")!r})), runs=Path({str(tmp_path / "runs")!r}),
              cache=Path({str(cache)!r}), checkpoint_steps=1, on_step=lambda s: print(s, flush=True))
        """
    )
    rng = random.Random()
    for _ in range(2):
        child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
        for line in child.stdout:
            if line.strip().isdigit() and int(line) >= rng.randint(1, 8):
                break
        time.sleep(rng.uniform(0, 0.15))
        child.send_signal(signal.SIGKILL)
        child.stdout.read()
        child.wait()
    again = train(tiny_run(), runs=tmp_path / "runs", cache=cache, progress=False, checkpoint_steps=1)
    assert same(again, finished)


def test_a_damaged_checkpoint_falls_back_to_the_start_and_says_so(tmp_path, cache, finished):
    with pytest.raises(Stop):
        train(
            tiny_run(), runs=tmp_path, cache=cache, progress=False, checkpoint_steps=3, on_step=stopped_at(7)
        )
    (checkpoint,) = (tmp_path / finished.name / "checkpoints").iterdir()
    os.truncate(checkpoint / "model.safetensors", 100)
    with pytest.warns(UserWarning, match="is damaged"):
        again = train(tiny_run(), runs=tmp_path, cache=cache, progress=False)
    assert same(again, finished)


# ---- precision --------------------------------------------------------------------------------------


def test_bf16_keeps_fp32_weights_and_moments_and_moves_norms(tmp_path, cache):
    """B05, B06: under bf16 autocast the masters are fp32 and a gain that starts at 1.0 does move."""
    seen = {}

    def on_step(step):
        seen[step] = None

    spec = tiny_run(precision="bf16", schedule=Schedule("constant", peak=1e-4))
    original = trainer._Run._save

    def spy(run, *place, **keep):
        moments = run.optimiser.optimizer.state.values()
        seen["dtypes"] = {p.dtype for p in run.model.parameters()} | {m["exp_avg_sq"].dtype for m in moments}
        original(run, *place, **keep)

    trainer._Run._save = spy
    try:
        folder = train(spec, runs=tmp_path, cache=cache, progress=False, checkpoint_steps=6, on_step=on_step)
    finally:
        trainer._Run._save = original
    assert seen["dtypes"] == {torch.float32}
    gains = weights(folder)["model.norm.weight"]
    assert gains.dtype == torch.float32
    assert (gains != 1.0).all()
    assert (gains - 1.0).abs().max() < 2e-3  # below what bf16 can hold next to 1.0: 1/256


def test_bf16_and_fp32_agree_closely(tmp_path, cache, finished):
    folder = train(tiny_run(precision="bf16"), runs=tmp_path, cache=cache, progress=False)
    a, b = rows(finished)[-1], rows(folder)[-1]
    assert b["ppl.target.perplexity"] == pytest.approx(a["ppl.target.perplexity"], rel=0.05)


# ---- refusals ---------------------------------------------------------------------------------------


def test_a_loss_that_is_not_finite_names_step_and_sources(tmp_path, cache):
    """B03, B04: nothing is mapped to zero."""
    spec = tiny_run(schedule=Schedule("constant", peak=1e30), optimiser=OptimiserSpec(clip=1e30))
    spec = dataclasses.replace(spec, probes=ProbesSpec(steps=(0,)))
    with pytest.raises(TrainingError, match=r"step \d+: loss .*target"):
        train(spec, runs=tmp_path, cache=cache, progress=False)
    assert not (tmp_path / run_id(spec, cache) / "done.json").exists()


def test_a_step_without_targets_is_an_error(tmp_path, cache):
    lines = tmp_path / "empty.jsonl"
    # single letters: with the end of text, each document has one target
    lines.write_text("\n".join(json.dumps({"text": "a"}) for _ in range(200)))
    corpus = CorpusSpec("files", "xx", path=str(lines))
    spec = tiny_run(sources={"letters": corpus}, mixture=Constant({"letters": 1.0}), length=2, sequences=1)
    packed = train(spec, runs=tmp_path / "runs", cache=cache, progress=False)  # "a" -> end: one target each
    assert rows(packed)[-1]["step"] == 12
    batch = {k: torch.zeros((1, 2), dtype=torch.long) for k in ("input_ids", "position_ids")}
    batch["labels"] = torch.full((1, 2), -100)
    original, trainer._batch = trainer._batch, lambda *_: batch
    try:
        with pytest.raises(TrainingError, match=r"step 1: no token to predict .*letters"):
            train(dataclasses.replace(spec, seed=5), runs=tmp_path / "runs", cache=cache, progress=False)
    finally:
        trainer._batch = original


def test_a_micro_batch_without_targets_contributes_nothing(tmp_path, cache, monkeypatch):
    """B03: 0 / 0 in one micro-batch must not touch the others; one batch or four give the same step."""
    original = trainer._batch

    def half_ignored(packed, drawn):
        batch = original(packed, drawn)
        batch["labels"][:2] = -100
        return batch

    monkeypatch.setattr(trainer, "_batch", half_ignored)
    done = [
        train(tiny_run(steps=2, micro_sequences=m), runs=tmp_path, cache=cache, progress=False)
        for m in (1, 2, 4)
    ]
    for folder in done[1:]:
        assert rows(folder)[1]["loss"] == pytest.approx(rows(done[0])[1]["loss"], rel=1e-6)
        for name, value in weights(folder).items():
            torch.testing.assert_close(value, weights(done[0])[name], rtol=1e-3, atol=1e-5)


def test_more_epochs_than_allowed_are_refused_before_training(tmp_path, cache):
    spec = tiny_run(steps=400, max_epochs=1.0)
    with pytest.raises(MixtureError, match="epoch"):
        train(spec, runs=tmp_path, cache=cache, progress=False)


def test_a_start_that_does_not_exist_says_what_to_do(tmp_path, cache):
    spec = tiny_run(model=ModelSpec(start="run:0123456789ab"))
    with pytest.raises(models.ModelError, match="train that run first"):
        train(spec, runs=tmp_path, cache=cache, progress=False)


def test_continued_pretraining_starts_from_the_other_runs_weights(finished, cache):
    spec = tiny_run(
        model=ModelSpec(start=f"run:{finished.name}"), steps=1, schedule=Schedule("constant", peak=0.0)
    )
    folder = train(spec, runs=finished.parent, cache=cache, progress=False)
    a, b = weights(finished), weights(folder)
    assert all(torch.equal(a[k], b[k]) for k in a)
    assert rows(folder)[0]["ppl.target.perplexity"] == rows(finished)[-1]["ppl.target.perplexity"]
