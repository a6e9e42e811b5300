"""Framing, packing and isolation, with small real tokenizers of the conventions found in the field."""

from __future__ import annotations

import itertools
import json
import pickle
import resource

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from cptkit.data import tokens
from cptkit.data.documents import Document
from cptkit.data.framing import (
    Framing,
    TokenError,
    check_vocabulary,
    encode,
    framing,
    tokenizer_fingerprint,
)
from cptkit.data.tokens import Packed, attention_mask, pack, require_isolation

torch.set_num_threads(1)

LINES = [
    "The hare ran over the hill and the fox ran after it.",
    "Erbia muinoan gora joan zen eta azeria atzetik.",
    "Заяц бежал через холм. 野兔跑过山坡。",
    "1 2 3 4 5 6 7 8 9 0 <s> </s> <|endoftext|> <bos>",
] * 5


def byte_level(specials: list[str]) -> Tokenizer:
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=specials, initial_alphabet=alphabet, show_progress=False
    )
    backend.train_from_iterator(LINES, trainer)
    return backend


def sentencepiece_like(specials: list[str]) -> Tokenizer:
    backend = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    pieces = [*specials, *(f"<0x{byte:02X}>" for byte in range(256))]
    trainer = trainers.BpeTrainer(vocab_size=600, special_tokens=pieces, show_progress=False)
    backend.train_from_iterator(LINES, trainer)
    state = json.loads(backend.to_str())  # the byte pieces belong to the model and are no special tokens
    state["added_tokens"] = [t for t in state["added_tokens"] if t["content"] in specials]
    return Tokenizer.from_str(json.dumps(state))


def add(backend: Tokenizer, template: str, *names: str) -> None:
    ids = [(name, backend.token_to_id(name)) for name in names]
    backend.post_processor = processors.TemplateProcessing(single=template, special_tokens=ids)


def make(convention: str) -> PreTrainedTokenizerFast:
    if convention == "gpt2":  # names one token as BOS and EOS, and its call adds neither
        name = "<|endoftext|>"
        return PreTrainedTokenizerFast(tokenizer_object=byte_level([name]), bos_token=name, eos_token=name)
    if convention == "smollm2-instruct":  # another BOS than EOS, and its call adds neither
        backend, bos, eos = byte_level(["<|im_start|>", "<|im_end|>"]), "<|im_start|>", "<|im_end|>"
    elif convention == "llama3":
        backend, bos, eos = byte_level(["<|begin_of_text|>", "</s>"]), "<|begin_of_text|>", "</s>"
        add(backend, f"{bos} $A", bos)
    elif convention == "llama2":
        backend, bos, eos = sentencepiece_like(["<unk>", "<s>", "</s>"]), "<s>", "</s>"
        add(backend, f"{bos} $A", bos)
    elif convention == "llama2-both":  # its call adds BOS and EOS
        backend, bos, eos = sentencepiece_like(["<unk>", "<s>", "</s>"]), "<s>", "</s>"
        add(backend, f"{bos} $A {eos}", bos, eos)
    elif convention == "gemma":
        backend, bos, eos = sentencepiece_like(["<pad>", "<eos>", "<bos>", "<unk>"]), "<bos>", "<eos>"
        add(backend, f"{bos}:0 $A:0", bos)
    return PreTrainedTokenizerFast(tokenizer_object=backend, bos_token=bos, eos_token=eos)


ADDS_BOS = {
    "gpt2": False,
    "smollm2-instruct": False,
    "llama3": True,
    "llama2": True,
    "llama2-both": True,
    "gemma": True,
}
TOKENIZERS = {convention: make(convention) for convention in ADDS_BOS}


@pytest.fixture(params=ADDS_BOS)
def tokenizer(request):
    return TOKENIZERS[request.param]


@pytest.fixture
def gpt2():
    return make("gpt2")


def documents(texts):
    return [Document(text, f"doc:{i}", "en") for i, text in enumerate(texts)]


def framed_alone(tokenizer, text: str) -> list[int]:
    """What `encode` should give, from the Rust backend and the convention written down above."""
    convention = next(name for name, t in TOKENIZERS.items() if t is tokenizer)
    ids = tokenizer.backend_tokenizer.encode(text, add_special_tokens=False).ids
    return [tokenizer.bos_token_id] * ADDS_BOS[convention] + ids + [tokenizer.eos_token_id]


def stored(packed: Packed) -> np.ndarray:
    dtype = json.loads((packed.folder / "manifest.json").read_text())["dtype"]
    return np.fromfile(packed.folder / "tokens.bin", dtype)


# ---- framing ----


def test_framing_follows_the_tokenizers_own_call(tokenizer):
    convention = next(name for name, t in TOKENIZERS.items() if t is tokenizer)
    bos = tokenizer.bos_token_id if ADDS_BOS[convention] else None
    assert framing(tokenizer) == Framing(bos, tokenizer.eos_token_id)


def test_framing_can_be_overruled_and_needs_an_eos(gpt2):
    gpt2.add_bos_token = True
    assert framing(gpt2) == Framing(gpt2.bos_token_id, gpt2.eos_token_id)
    with pytest.raises(TokenError, match="no EOS"):
        framing(PreTrainedTokenizerFast(tokenizer_object=byte_level(["<s>"]), bos_token="<s>"))


@pytest.mark.parametrize("text", ["plain text", "{bos}{eos} at the start", "a {eos}\n{bos} b {eos}"])
def test_one_bos_and_one_eos_and_literals_stay_text(tokenizer, text):
    text = text.format(bos=tokenizer.bos_token, eos=tokenizer.eos_token)
    frame = framing(tokenizer)
    (ids,) = encode(tokenizer, [text], frame)
    inner = ids[:-1] if frame.bos is None else ids[1:-1]
    assert ids == ([] if frame.bos is None else [frame.bos]) + inner + [frame.eos]
    assert not {tokenizer.bos_token_id, tokenizer.eos_token_id} & set(inner)
    assert tokenizer.backend_tokenizer.decode(inner, skip_special_tokens=False) == text
    if "at the start" in text:  # the danger is real: the plain call makes special tokens of the literals
        plain = tokenizer(text, add_special_tokens=False)["input_ids"]
        assert {tokenizer.bos_token_id, tokenizer.eos_token_id} <= set(plain)


def test_text_that_becomes_a_special_token_is_refused():
    backend = Tokenizer(models.WordLevel({"<unk>": 0, "</s>": 1, "hi": 2}, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    words = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="</s>")
    assert encode(words, ["hi hi"], framing(words)) == [[2, 2, 1]]
    with pytest.raises(TokenError, match="out of the text 'hi </s> hi'"):
        encode(words, ["hi hi", "hi </s> hi"], framing(words))


# ---- packing ----

usable = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=40)


@settings(max_examples=30, deadline=None)
@given(st.data())
def test_packing_equals_a_naive_reference_and_conserves_tokens(tmp_path_factory, data):
    tokenizer = TOKENIZERS[data.draw(st.sampled_from(sorted(TOKENIZERS)))]
    texts = data.draw(st.lists(usable.filter(str.strip), min_size=1, max_size=8))
    length = data.draw(st.integers(2, 30))
    framed = [framed_alone(tokenizer, text) for text in texts]
    stream = list(itertools.chain.from_iterable(framed))
    document = [i for i, ids in enumerate(framed) for _ in ids]
    folder = tmp_path_factory.mktemp("packed") / "source"
    if len(stream) < length:
        with pytest.raises(TokenError, match="not one sequence"):
            pack(documents(texts), tokenizer, length, folder)
        return

    packed = pack(documents(texts), tokenizer, length, folder)
    assert packed.n_sequences == len(stream) // length
    assert (packed.tokens, packed.remainder) == (len(stream) - len(stream) % length, len(stream) % length)
    assert packed.documents == len(texts)
    assert packed.bytes == sum(len(text.encode()) for text in texts)
    assert stored(packed).tolist() == stream
    for i in range(packed.n_sequences):
        ids, of = stream[i * length : (i + 1) * length], document[i * length : (i + 1) * length]
        positions, labels = [], []
        for t in range(length):
            positions.append(positions[-1] + 1 if t and of[t] == of[t - 1] else 0)
            labels.append(ids[t + 1] if t + 1 < length and of[t + 1] == of[t] else -100)
        row = packed.sequence(i)
        assert {name: values.tolist() for name, values in row.items()} == {
            "input_ids": ids,
            "position_ids": positions,
            "labels": labels,
        }
        assert {values.dtype for values in row.values()} == {np.dtype(np.int64)}


def test_long_and_short_documents_over_many_chunks(tmp_path, gpt2, monkeypatch):
    """B31, B32: nothing lost in documents ten times the length, nor at the edges of chunks."""
    monkeypatch.setattr(tokens, "CHUNK_DOCUMENTS", 3)
    texts = ["word " * 200, *("a" for _ in range(50)), "word " * 300, "b", "c"]
    done = []
    packed = pack(documents(texts), gpt2, 32, tmp_path / "p", progress=done.append)
    reference = [id for text in texts for id in [*gpt2.backend_tokenizer.encode(text).ids, gpt2.eos_token_id]]
    assert stored(packed).tolist() == reference
    assert packed.tokens + packed.remainder == len(reference)
    assert done == [3] * 18
    assert len(gpt2(texts[0])["input_ids"]) > 5 * 32


def test_eos_between_two_short_documents_exactly_once(tmp_path, gpt2):
    packed = pack(documents(["a", "b"]), gpt2, 4, tmp_path / "p")
    (a,), (b,) = gpt2("a")["input_ids"], gpt2("b")["input_ids"]
    eos = gpt2.eos_token_id
    row = packed.sequence(0)
    assert row["input_ids"].tolist() == [a, eos, b, eos]
    assert row["labels"].tolist() == [eos, -100, eos, -100]


def test_unusable_documents_are_counted_skips(tmp_path, gpt2):
    texts = ["good text", "", " \n\t", "bad \ud800 half", "nul \0 inside", "also good"]
    packed = pack(documents(texts), gpt2, 4, tmp_path / "p")
    for opened in (packed, Packed(tmp_path / "p")):
        assert opened.skips.counts == {"empty document": 2, "lone surrogate": 1, "NUL character": 1}
        assert opened.skips.places["lone surrogate"] == ["doc:3"]
        assert opened.skips.kept == opened.documents == 2
        assert opened.bytes == len("good text" + "also good")
    with pytest.raises(TokenError, match=r"0 documents give 0 tokens.*empty document"):
        pack(documents(["", " "]), gpt2, 4, tmp_path / "q")
    assert [p.name for p in tmp_path.iterdir()] == ["p"]


def test_ids_beyond_16_bits_are_stored_whole(tmp_path):
    words = {f"w{i}": i for i in range(70_000)} | {"</s>": 70_000}
    backend = Tokenizer(models.WordLevel(words, unk_token="w0"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    wide = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="</s>")
    packed = pack(documents(["w1 w65535 w65536 w69999"]), wide, 5, tmp_path / "p")
    assert packed.sequence(0)["input_ids"].tolist() == [1, 65_535, 65_536, 69_999, 70_000]
    assert (tmp_path / "p" / "tokens.bin").stat().st_size == 5 * 4


def test_worker_processes_give_the_same_packing(tmp_path, gpt2, monkeypatch):
    monkeypatch.setattr(tokens, "CHUNK_DOCUMENTS", 2)
    texts = [f"{line} {i}" for i, line in enumerate(LINES)]
    one = pack(documents(texts), gpt2, 16, tmp_path / "one")
    two = pack(documents(texts), gpt2, 16, tmp_path / "two", workers=2)
    assert one.fingerprint == two.fingerprint
    assert stored(one).tolist() == stored(two).tolist()


# ---- reuse, damage, atomicity ----


def untouched():
    raise AssertionError("the documents must not be read again")
    yield


def test_reuse_only_when_everything_agrees(tmp_path, gpt2):
    folder = tmp_path / "p"
    first = pack(documents(LINES), gpt2, 16, folder, key="k")
    again = pack(untouched(), gpt2, 16, folder, key="k")
    assert again.fingerprint == first.fingerprint
    other = make("gpt2")
    other.add_tokens(["more"])
    for key, tokenizer, length in (("", gpt2, 16), ("other", gpt2, 16), ("k", other, 16), ("k", gpt2, 8)):
        pack(documents(LINES), gpt2, 16, folder, key="k")
        with pytest.raises(AssertionError, match="read again"):
            pack(untouched(), tokenizer, length, folder, key=key)
        rebuilt = pack(documents(LINES[:3]), tokenizer, length, folder, key=key)
        assert (rebuilt.documents, rebuilt.length, rebuilt.key) == (3, length, key)
    assert [p.name for p in tmp_path.iterdir()] == ["p"]


def cut(path, n):
    path.write_bytes(path.read_bytes()[:-n])


def edit(path, **changes):
    manifest = json.loads(path.read_text())
    path.write_text(json.dumps({k: v for k, v in (manifest | changes).items() if v is not None}))


DAMAGE = {
    "half a token missing": lambda f: cut(f / "tokens.bin", 1),
    "a token missing": lambda f: cut(f / "tokens.bin", 2),
    "no tokens at all": lambda f: (f / "tokens.bin").write_bytes(b""),
    "tokens.bin is missing": lambda f: (f / "tokens.bin").unlink(),
    "a document start missing": lambda f: cut(f / "starts.npy", 8),
    "starts.npy is missing": lambda f: (f / "starts.npy").unlink(),
    "manifest.json is missing": lambda f: (f / "manifest.json").unlink(),
    "half a manifest": lambda f: cut(f / "manifest.json", 40),
    "a manifest that is no table": lambda f: (f / "manifest.json").write_text("[1]"),
    "a manifest without length": lambda f: edit(f / "manifest.json", length=None),
    "another length": lambda f: edit(f / "manifest.json", length=15),
    "another number of documents": lambda f: edit(f / "manifest.json", documents=3),
    "another format": lambda f: edit(f / "manifest.json", format=2),
    "pickled starts": lambda f: np.save(f / "starts.npy", np.array([object()]), allow_pickle=True),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_packing_is_refused_with_the_fix_and_repaired(tmp_path, gpt2, damage):
    folder = tmp_path / "p"
    sound = pack(documents(LINES), gpt2, 16, folder, key="k").fingerprint
    DAMAGE[damage](folder)
    with pytest.raises(TokenError, match="pack it again") as error:
        Packed(folder)
    if damage.endswith("is missing"):
        assert damage in str(error.value)
    assert pack(documents(LINES), gpt2, 16, folder, key="k").fingerprint == sound


def test_key_and_checksum_on_opening(tmp_path, gpt2):
    folder = tmp_path / "p"
    pack(documents(LINES), gpt2, 16, folder, key="k")
    with pytest.raises(TokenError, match="key 'k', not 'x'"):
        Packed(folder, key="x")
    Packed(folder, key="k", verify=True)
    content = bytearray((folder / "tokens.bin").read_bytes())
    content[10] ^= 1
    (folder / "tokens.bin").write_bytes(content)
    Packed(folder)
    with pytest.raises(TokenError, match="tokens have changed"):
        Packed(folder, verify=True)


def test_a_failure_midway_leaves_the_old_packing_and_no_litter(tmp_path, gpt2, monkeypatch):
    monkeypatch.setattr(tokens, "CHUNK_DOCUMENTS", 2)
    old = pack(documents(LINES), gpt2, 16, tmp_path / "p", key="old")

    def failing():
        yield from documents(LINES[:5])
        raise FileNotFoundError("corpus.jsonl")

    for folder in (tmp_path / "p", tmp_path / "new"):
        with pytest.raises(FileNotFoundError, match=r"corpus\.jsonl"):  # not dressed up as a full disk
            pack(failing(), gpt2, 16, folder, key="new")
    assert [p.name for p in tmp_path.iterdir()] == ["p"]
    assert Packed(tmp_path / "p", key="old", verify=True).fingerprint == old.fingerprint


def test_a_disk_that_is_full_is_a_typed_error(tmp_path, gpt2):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, hard))
    try:
        with pytest.raises(TokenError, match="cannot write the packing"):
            pack(documents(LINES * 100), gpt2, 16, tmp_path / "p")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert list(tmp_path.iterdir()) == []


def test_a_folder_of_something_else_is_left_alone(tmp_path, gpt2):
    (tmp_path / "p").mkdir()
    (tmp_path / "p" / "thesis.txt").write_text("years of work")
    with pytest.raises(TokenError, match="another folder"):
        pack(documents(LINES), gpt2, 16, tmp_path / "p", key="k")
    assert (tmp_path / "p" / "thesis.txt").read_text() == "years of work"
    (tmp_path / "empty").mkdir()
    assert pack(documents(LINES), gpt2, 16, tmp_path / "empty").documents == len(LINES)
    with pytest.raises(TokenError, match="at least 2"):
        pack(documents(LINES), gpt2, 1, tmp_path / "short")


def test_an_open_packing_survives_being_replaced(tmp_path, gpt2):
    old = pack(documents(LINES), gpt2, 16, tmp_path / "p", key="old")
    before = old.sequence(2)["input_ids"].tolist()
    pack(documents(LINES[1:2] * 9), gpt2, 16, tmp_path / "p", key="new")
    assert old.sequence(2)["input_ids"].tolist() == before


# ---- fingerprints, vocabulary, batches ----


def test_fingerprints_follow_content_not_place(tmp_path, gpt2):
    texts = ["one two", "three four"]
    a = pack(documents(texts), gpt2, 4, tmp_path / "a", key="x")
    b = pack(documents(texts), gpt2, 4, tmp_path / "b")
    swapped = pack(documents(texts[::-1]), gpt2, 4, tmp_path / "c")
    shorter = pack(documents(texts), gpt2, 3, tmp_path / "d")
    assert a.fingerprint == b.fingerprint
    assert len({a.fingerprint, swapped.fingerprint, shorter.fingerprint}) == 3


def test_tokenizer_fingerprint_ignores_calls_and_sees_rules(gpt2):
    before = tokenizer_fingerprint(gpt2)
    gpt2.pad_token = gpt2.eos_token
    gpt2(["a", "b c d e f"], truncation=True, max_length=2, padding="max_length")
    assert gpt2.backend_tokenizer.truncation is not None
    assert tokenizer_fingerprint(gpt2) == before == tokenizer_fingerprint(make("gpt2"))
    gpt2.add_bos_token = True
    with_bos = tokenizer_fingerprint(gpt2)
    gpt2.add_tokens(["new"])
    every = {before, with_bos, tokenizer_fingerprint(gpt2), *map(tokenizer_fingerprint, TOKENIZERS.values())}
    assert len(every) == len(TOKENIZERS) + 2


def test_tokenizer_larger_than_the_embedding_is_refused(tmp_path, gpt2):
    """B36: one id too many is refused; an embedding padded for speed is fine."""
    packed = pack(documents(LINES), gpt2, 16, tmp_path / "p")
    rows = len(gpt2)
    for holder in (gpt2, packed):
        check_vocabulary(holder, rows)
        check_vocabulary(holder, rows + 64)
        with pytest.raises(TokenError, match=rf"resize_token_embeddings\({rows}\)"):
            check_vocabulary(holder, rows - 1)
    gpt2.add_tokens(["one more"])
    with pytest.raises(TokenError, match="the model's own"):
        check_vocabulary(gpt2, rows)


def test_a_gap_before_an_added_token_counts():
    backend = Tokenizer(models.WordLevel({"a": 0, "</s>": 1, "far": 9}, unk_token="a"))
    sparse = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="</s>")
    assert len(sparse) < 10
    check_vocabulary(sparse, 10)
    with pytest.raises(TokenError, match="10 ids"):
        check_vocabulary(sparse, 9)


def test_batch_stacks_sequences_and_pickling_sends_the_path(tmp_path, gpt2):
    packed = pack(documents(LINES * 200), gpt2, 16, tmp_path / "p")
    batch = packed.batch([3, 0])
    for name, values in batch.items():
        assert values.dtype == torch.long
        assert values.shape == (2, 16)
        assert values[0].tolist() == packed.sequence(3)[name].tolist()
        assert values[1].tolist() == packed.sequence(0)[name].tolist()
    blob = pickle.dumps(packed)
    assert len(blob) < 1_000 < packed.tokens
    assert pickle.loads(blob).sequence(3)["input_ids"].tolist() == batch["input_ids"][0].tolist()
    for outside in (-1, packed.n_sequences):
        with pytest.raises(IndexError, match="has sequences 0 to"):
            packed.sequence(outside)


# ---- documents do not see each other ----


def test_mask_equals_its_definition():
    positions = torch.tensor([[0, 1, 2, 0, 1, 0], [0, 0, 1, 2, 3, 4]])
    owner = [[0, 0, 0, 1, 1, 2], [0, 1, 1, 1, 1, 1]]
    for dtype in (torch.float32, torch.bfloat16, torch.bool):
        mask = attention_mask(positions, dtype)
        assert mask.shape == (2, 1, 6, 6)
        assert mask.dtype == dtype
        for b, i, j in itertools.product(range(2), range(6), range(6)):
            visible = owner[b][i] == owner[b][j] and j <= i
            if dtype == torch.bool:
                assert bool(mask[b, 0, i, j]) == visible
            else:
                assert mask[b, 0, i, j].item() == (0 if visible else torch.finfo(dtype).min)


def tiny_llama(attention: str) -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=400,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        attn_implementation=attention,
        initializer_range=0.3,
    )
    return LlamaForCausalLM(config).eval()


@pytest.mark.parametrize(
    ("attention", "kind"),  # eager attention adds the mask to the scores, so it takes numbers only
    [
        ("eager", torch.float32),
        ("eager", torch.bfloat16),
        ("sdpa", torch.float32),
        ("sdpa", torch.bfloat16),
        ("sdpa", torch.bool),
    ],
)
@torch.no_grad()
def test_swapping_a_neighbour_changes_no_other_document(tmp_path, gpt2, attention, kind):
    """B25, B26: logits of a document do not depend on the document before or after it."""
    weights = torch.bfloat16 if kind == torch.bfloat16 else torch.float32
    model = tiny_llama(attention).to(weights)
    require_isolation(model.config._attn_implementation)
    packed = pack(documents(["abcdefgh", "ijklmnop", "qrstuvwx"] * 2), gpt2, 24, tmp_path / "p")
    batch = packed.batch([0, 1])
    ids, positions = batch["input_ids"], batch["position_ids"]
    assert (positions == 0).sum() > 4
    owner = (positions == 0).cumsum(1)
    mask = attention_mask(positions, kind)
    before = model(ids, attention_mask=mask, position_ids=positions).logits
    for swapped in (1, 2, 3):
        changed = torch.where(owner == swapped, (ids + 7) % 400, ids)
        after = model(changed, attention_mask=mask, position_ids=positions).logits
        others = owner != swapped
        assert (after - before)[others].abs().max() <= (0 if attention == "eager" else 1e-6)
        assert (after - before)[~others].abs().max() > 0.1
        plain_before = model(ids, position_ids=positions.new_tensor([range(24)] * 2)).logits
        plain_after = model(changed, position_ids=positions.new_tensor([range(24)] * 2)).logits
        later = owner > swapped
        if later.any():  # without the mask they do see each other
            assert (plain_after - plain_before)[later].abs().max() > 0.01

    if weights == torch.float32:  # and a document inside a sequence is the document alone
        inside = owner[0] == 2
        alone = model(ids[0][inside][None]).logits
        assert torch.allclose(before[0][inside], alone[0], atol=1e-4)


@pytest.mark.parametrize("backend", ["flash_attention_2", "flash_attention_3", "flex_attention", None, ""])
def test_backends_that_take_no_mask_are_refused(backend):
    with pytest.raises(TokenError, match="keeps packed documents apart"):
        require_isolation(backend)
    require_isolation("eager")
    require_isolation("sdpa")
