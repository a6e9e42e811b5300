"""Rows for new pieces: tied or not, padded or not; old rows and old text are untouched."""

from __future__ import annotations

import copy

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM

from cptkit.data import merges
from cptkit.train import models, vocabulary
from cptkit.train.models import ModelError
from tests.conftest import tiny_run

TEXTS = ["demilel mera zorim demilel zorim mera demilel", "mera zorim mera zorim demilel"] * 4


@pytest.fixture(scope="module")
def start(cache, tmp_path_factory):
    spec = tiny_run()
    model, tokenizer = models.load(spec.model, cache, tmp_path_factory.mktemp("runs"), length=64, seed=0)
    more = merges.learn(tokenizer, TEXTS, 10)
    return model, tokenizer, merges.extend(tokenizer, more), more


def shaped(model, *, tied: bool, rows: int):
    """A copy with an untied head, or with an embedding padded to `rows`."""
    config = copy.deepcopy(model.config)
    config.tie_word_embeddings = tied
    made = LlamaForCausalLM(config)
    made.load_state_dict({k: v.clone() for k, v in model.state_dict().items()}, strict=False)
    if not tied:
        with torch.no_grad():
            made.lm_head.weight.copy_(2 * model.get_input_embeddings().weight)
    if rows > model.config.vocab_size:
        made.resize_token_embeddings(rows, mean_resizing=False)
    return made.eval()


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("rows", [320, 325, 352])
def test_new_rows_are_means_and_old_ones_untouched(start, tied, rows):
    model, old, new, more = start
    grown = shaped(model, tied=tied, rows=rows)
    before = [t.detach().clone()[:320] for t in vocabulary.tables(grown)]
    assert len(before) == (1 if tied else 2)
    ids = vocabulary.grow(grown, old, new, more)
    assert ids == list(range(320, 330))
    parts = vocabulary.parts_of(more, old.get_vocab())
    for table, was in zip(vocabulary.tables(grown), before, strict=True):
        assert table.shape[0] == max(rows, 330)
        assert torch.equal(table[:320], was)
        for piece, place in zip(parts, ids, strict=True):
            assert torch.allclose(table[place], was[parts[piece]].mean(0))
    assert (grown.get_output_embeddings().weight is grown.get_input_embeddings().weight) == tied
    assert "".join(old.convert_ids_to_tokens(parts[more[-1].piece])) == more[-1].piece


def test_old_text_has_the_logits_it_had(start):
    model, old, new, more = start
    grown = shaped(model, tied=True, rows=320)
    ids = torch.tensor([old("7 3 > 7 ;", add_special_tokens=False)["input_ids"]])
    with torch.no_grad():
        before = grown(input_ids=ids).logits
        vocabulary.grow(grown, old, new, more)
        assert torch.allclose(grown(input_ids=ids).logits[..., :320], before, atol=1e-6)


def test_saved_it_loads_in_plain_transformers(start, tmp_path):
    model, old, new, more = start
    grown = shaped(model, tied=False, rows=320)
    vocabulary.grow(grown, old, new, more)
    grown.save_pretrained(tmp_path)
    new.save_pretrained(tmp_path)
    again, tokenizer = AutoModelForCausalLM.from_pretrained(tmp_path), AutoTokenizer.from_pretrained(tmp_path)
    ids = torch.tensor([tokenizer(TEXTS[0], add_special_tokens=False)["input_ids"]])
    assert int(ids.max()) >= 320
    with torch.no_grad():
        assert torch.allclose(again(input_ids=ids).logits, grown(input_ids=ids).logits, atol=1e-5)


def test_random_rows_have_the_spread_of_the_old(start):
    model, old, new, more = start
    grown = shaped(model, tied=True, rows=320)
    ids = vocabulary.grow(grown, old, new, more, "random")
    table = grown.get_input_embeddings().weight.detach()
    assert table[ids].std() == pytest.approx(table[:320].std().item(), rel=0.3)
    again = shaped(model, tied=True, rows=320)
    vocabulary.grow(again, old, new, more, "random")
    assert torch.equal(again.get_input_embeddings().weight, table)


def test_distilling_brings_the_states_nearer_and_moves_new_rows_alone(start):
    model, old, new, more = start
    grown = shaped(model, tied=False, rows=320)
    ids = vocabulary.grow(grown, old, new, more, "random")
    before = {name: p.detach().clone() for name, p in grown.named_parameters()}
    losses = vocabulary.distil(grown, old, new, ids, TEXTS, rate=3e-2, epochs=12, length=40)
    assert losses[-1] < 0.5 * losses[0]
    for name, p in grown.named_parameters():
        if name == "model.embed_tokens.weight":
            assert torch.equal(p[:320], before[name][:320])
            assert not torch.equal(p[320:], before[name][320:])
        else:
            assert torch.equal(p, before[name])
        assert p.requires_grad
        assert p.grad is None


def test_where_pieces_end_together(start):
    _, old, new, _ = start
    a, b, both = vocabulary._aligned(old, new, "demilel mera", 64)
    assert len(b) < len(a)
    assert both[-1] == (len(a) - 1, len(b) - 1)
    for i, j in both:
        assert old.decode(a[: i + 1]) == new.decode(b[: j + 1])


def test_tokenizers_that_do_not_belong_together_are_refused(start):
    model, old, new, more = start
    grown = shaped(model, tied=True, rows=320)
    with pytest.raises(ModelError, match="other pieces"):
        vocabulary.grow(grown, old, new, more[:-1])
