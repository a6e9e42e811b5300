"""Text to packed token sequences on disk, with document boundaries kept.

`pack` frames every document as the model was trained (`framing`: BOS where the tokenizer's own call adds
one, EOS always), lays the documents end to end and cuts the stream into sequences of `length` tokens.
Nothing is dropped or overwritten: tokens in = `tokens` + `remainder`, the tail shorter than one sequence.
A document longer than a sequence goes on in the next one, without a new BOS.

A packing is a folder of three files: `tokens.bin` (uint16 where the vocabulary fits, else uint32),
`starts.npy` (int64, where each document starts) and `manifest.json`. It is built beside its final place
and renamed, so it is there whole or not at all. `Packed` reads it through memory maps.

Documents do not see each other: positions restart at every document, the label at a document's last token
is ignored, `attention_mask` is block-diagonal. Boundaries travel in an explicit mask and are never left for
a backend to infer from positions; `require_isolation` refuses a backend that would not use the mask.

Costs. A fast tokenizer encodes a chunk of documents on all cores in Rust (`RAYON_NUM_THREADS` limits them);
memory is a few times one chunk (4 million characters) and 8 bytes per document. `workers` > 1 encodes in
that many processes instead: for a tokenizer written in Python, or when many cores wait for the conversion
to Python lists. A sequence is read in some 30 microseconds. The mask is B x L x L numbers: 8 MB per
sequence at length 2,048 in bf16.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import uuid
from array import array
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict
from itertools import chain
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from cptkit.data.documents import Document, Skips
from cptkit.data.framing import Framing, TokenError, encode, framing, rows_needed, tokenizer_fingerprint

if TYPE_CHECKING:
    import torch

IGNORE = -100  # the label that a loss leaves out, as in PyTorch's cross_entropy
FILES = {"tokens.bin", "starts.npy", "manifest.json"}
CHUNK_DOCUMENTS, CHUNK_CHARACTERS = 2_048, 4_000_000


# ---- from token ids to a folder ----


def pack(
    documents: Iterable[Document],
    tokenizer,
    length: int,
    folder: Path,
    *,
    key: str = "",
    workers: int = 1,
    progress: Callable[[int], object] | None = None,
) -> Packed:
    """Tokenise `documents` into sequences of `length` tokens in `folder`, or reuse what is there.

    Args:
        documents: read once, in order. Empty texts and texts with a lone surrogate or a NUL are left out
            and counted (`Packed.skips`).
        key: fingerprint of corpus, tokenizer and length. A sound packing in `folder` with the same key,
            length and tokenizer is reused and `documents` is not touched; any other packing there is
            replaced. Without a key it is always built.
        workers: processes that encode; 1 is this process, with Rust threads for a fast tokenizer.
        progress: called with the number of documents just done (the `update` of a tqdm bar).

    Raises:
        TokenError: fewer tokens than one sequence, a folder that holds something else, a full disk.
    """
    folder = Path(folder)
    if length < 2:
        raise TokenError(f"length must be at least 2, not {length}: one token has nothing to predict")
    tokenizer_id = tokenizer_fingerprint(tokenizer)
    if key:
        try:
            packed = Packed(folder, key=key)
            if packed.length == length and packed.tokenizer == tokenizer_id:
                return packed
        except TokenError:
            pass  # absent, damaged or made from something else: build it

    frame, vocabulary = framing(tokenizer), rows_needed(tokenizer)
    dtype = np.dtype("<u2" if vocabulary <= 2**16 else "<u4")
    skips, totals, digest, starts = Skips(), Counter(), hashlib.sha256(), array("q")
    building = folder.with_name(f".{folder.name}.{uuid.uuid4().hex[:8]}")  # a neighbour: same disk
    with _disk(folder):
        if folder.exists() and {p.name for p in folder.iterdir()} - FILES:
            raise TokenError(f"{folder} holds files that are not a packing: give another folder")
        building.mkdir(parents=True)
    try:
        with (building / "tokens.bin").open("wb") as file:
            for chunk in _encoded(_chunks(documents, skips, totals), tokenizer, frame, workers):
                sizes = np.fromiter(map(len, chunk), np.int64, len(chunk))
                starts.extend(totals["tokens"] + np.cumsum(sizes) - sizes)
                totals["tokens"] += int(sizes.sum())
                tokens = np.fromiter(chain.from_iterable(chunk), dtype, int(sizes.sum()))
                digest.update(tokens)
                with _disk(folder):
                    file.write(tokens)
                    file.flush()
                if progress:
                    progress(len(chunk))
        n_sequences, remainder = divmod(totals["tokens"], length)
        if n_sequences == 0:
            raise TokenError(
                f"{folder.name}: {len(starts)} documents give {remainder} tokens, not one sequence of "
                f"{length} (left out: {skips if skips.total else 'none'}): give more text or a smaller length"
            )
        manifest = {
            "format": 1,
            "key": key,
            "tokenizer": tokenizer_id,
            "framing": asdict(frame),
            "vocabulary": vocabulary,
            "dtype": dtype.str,
            "length": length,
            "n_sequences": n_sequences,
            "tokens": n_sequences * length,
            "remainder": remainder,
            "documents": len(starts),
            "bytes": totals["bytes"],
            "sha256": {"tokens": digest.hexdigest(), "starts": hashlib.sha256(starts).hexdigest()},
            "skips": {"counts": dict(skips.counts), "places": skips.places},
        }
        with _disk(folder):
            np.save(building / "starts.npy", np.frombuffer(starts, np.int64))
            (building / "manifest.json").write_text(json.dumps(manifest, indent=1), encoding="utf-8")
            _move_into_place(building, folder)
    finally:
        shutil.rmtree(building, ignore_errors=True)
    return Packed(folder, key=key)


@contextmanager
def _disk(folder: Path) -> Iterator[None]:
    """Turn an error of the disk into a `TokenError`; errors of the documents' own files pass as they are."""
    try:
        yield
    except OSError as error:
        raise TokenError(f"cannot write the packing {folder}: {error}") from error


def _move_into_place(building: Path, folder: Path) -> None:
    try:
        os.rename(building, folder)
    except OSError:  # an older packing is there; whoever has it mapped keeps reading it
        old = building.with_name(building.name + ".old")
        os.rename(folder, old)
        os.rename(building, folder)
        shutil.rmtree(old, ignore_errors=True)


def _chunks(documents: Iterable[Document], skips: Skips, totals: Counter) -> Iterator[list[str]]:
    """Usable texts in bounded chunks, their bytes into `totals`; the unusable into `skips`."""
    chunk, characters = [], 0
    for document in documents:
        text = document.text
        if not text.strip():
            skips.add("empty document", document.id)
            continue
        if "\0" in text:
            skips.add("NUL character", document.id)
            continue
        try:
            totals["bytes"] += len(text.encode())
        except UnicodeEncodeError:
            skips.add("lone surrogate", document.id)
            continue
        skips.kept += 1
        chunk.append(text)
        characters += len(text)
        if len(chunk) >= CHUNK_DOCUMENTS or characters >= CHUNK_CHARACTERS:
            yield chunk
            chunk, characters = [], 0
    if chunk:
        yield chunk


def _encoded(chunks: Iterator[list[str]], tokenizer, frame: Framing, workers: int) -> Iterator[list]:
    """Each chunk encoded, in order, with a bounded number of chunks in flight."""
    if workers <= 1:
        yield from (encode(tokenizer, chunk, frame) for chunk in chunks)
        return
    # spawn, since forking a process that has threads (torch, Rust) can deadlock
    with ProcessPoolExecutor(workers, get_context("spawn"), _start_worker, (tokenizer, frame)) as pool:
        waiting = deque()
        for chunk in chunks:
            waiting.append(pool.submit(_encode_in_worker, chunk))
            if len(waiting) > 2 * workers:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


def _start_worker(tokenizer, frame: Framing) -> None:
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # here the processes are the parallelism
    _encode_in_worker.state = tokenizer, frame  # sent once, not with every chunk


def _encode_in_worker(texts: list[str]) -> list[list[int]]:
    tokenizer, frame = _encode_in_worker.state
    return encode(tokenizer, texts, frame)


# ---- from a folder to sequences ----


class Packed:
    """A packing opened for reading: `n_sequences` sequences of `length` tokens, memory-mapped.

    Attributes:
        name: the folder's name.
        tokens, remainder: `n_sequences` x `length`, and the tokens after them, stored but not served.
        documents, bytes: how many were packed, and the UTF-8 bytes of their texts (the remainder's too).
        vocabulary: rows that a model's embedding needs.
        framing, key, tokenizer: how it was made. skips: documents left out, with reasons.
        fingerprint: 16 hex digits of content and length; the same wherever the folder lies.

    Raises:
        TokenError: no manifest, a manifest that disagrees with the files or with `key`, a file cut short;
            with `verify`, also content that no longer has its checksum (reads all of it once).
    """

    def __init__(self, folder: Path, *, key: str = "", verify: bool = False) -> None:
        self.folder = Path(folder)
        self.name = self.folder.name
        fix = f"delete {self.folder} and pack it again"
        try:
            manifest = json.loads((self.folder / "manifest.json").read_text(encoding="utf-8"))
            self.key, self.tokenizer = manifest["key"], manifest["tokenizer"]
            self.framing, self.vocabulary = Framing(**manifest["framing"]), manifest["vocabulary"]
            self.length, self.n_sequences = manifest["length"], manifest["n_sequences"]
            self.tokens, self.remainder = manifest["tokens"], manifest["remainder"]
            self.documents, self.bytes = manifest["documents"], manifest["bytes"]
            self.skips = Skips(**manifest["skips"], kept=self.documents)
            self.skips.counts = Counter(self.skips.counts)
            sums, dtype = manifest["sha256"], np.dtype(manifest["dtype"])
            self._tokens = np.memmap(self.folder / "tokens.bin", dtype, "r")
            self._starts = np.load(self.folder / "starts.npy", mmap_mode="r")
        except FileNotFoundError as error:
            missing = Path(error.filename).name
            raise TokenError(f"{self.folder} is not a whole packing, {missing} is missing: {fix}") from error
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise TokenError(f"{self.folder}: a file is cut short or spoilt ({error!r}): {fix}") from error
        promised = (self.n_sequences * self.length + self.remainder, self.documents)
        found = (len(self._tokens), len(self._starts))
        if found != promised or manifest["format"] != 1:
            raise TokenError(
                f"{self.folder}: {found} tokens and documents where the manifest promises {promised}: {fix}"
            )
        if key and key != self.key:
            raise TokenError(f"{self.folder}: made from other text (key {self.key!r}, not {key!r}): {fix}")
        for what, data in (("tokens", self._tokens), ("starts", self._starts)) if verify else ():
            if hashlib.sha256(data).hexdigest() != sums[what]:
                raise TokenError(f"{self.folder}: its {what} have changed since they were packed: {fix}")
        content = f"{sums['tokens']} {sums['starts']} {self.length}"
        self.fingerprint = hashlib.sha256(content.encode()).hexdigest()[:16]

    def __reduce__(self):  # to another process goes the path, not the data
        return Packed, (self.folder,)

    def token_ids(self) -> np.ndarray:
        """Every token id that occurs, once, ascending. Reads all of the packing."""
        return np.unique(self._tokens).astype(np.int64)

    def sequence(self, i: int) -> dict[str, np.ndarray]:
        """Sequence `i` as int64 arrays [L]: `input_ids`, `position_ids`, `labels`.

        Positions restart at 0 where a document, or the sequence, starts. `labels[t]` is the token to be
        predicted at position t, that is `input_ids[t + 1]`; -100 at a document's last token and at the
        sequence's last.
        """
        if not 0 <= i < self.n_sequences:
            raise IndexError(f"{self.name} has sequences 0 to {self.n_sequences - 1}, not {i}")
        offset = i * self.length
        ids = self._tokens[offset : offset + self.length].astype(np.int64)
        low, high = np.searchsorted(self._starts, (offset + 1, offset + self.length))
        starts = self._starts[low:high] - offset  # of the documents that start after the first position
        latest = np.zeros(self.length, np.int64)
        latest[starts] = starts
        labels = np.append(ids[1:], IGNORE)
        labels[starts - 1] = IGNORE
        positions = np.arange(self.length) - np.maximum.accumulate(latest)
        return {"input_ids": ids, "position_ids": positions, "labels": labels}

    def batch(self, indices: Iterable[int]) -> dict[str, torch.Tensor]:
        """The sequences `indices` stacked: int64 tensors [B, L] with the keys of `sequence`."""
        import torch

        rows = [self.sequence(i) for i in indices]
        return {name: torch.from_numpy(np.stack([row[name] for row in rows])) for name in rows[0]}


# ---- from sequences to attention ----


def attention_mask(position_ids: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The mask under which a token sees itself and the earlier tokens of its own document, nothing else.

    Args:
        position_ids: [B, L], 0 at the start of every document, as from `Packed.batch`.
        dtype: of the model's activations: 0 where visible, the type's lowest number elsewhere, added to
            the scores. With `torch.bool`: True where visible (SDPA takes either, eager only numbers).

    Returns:
        [B, 1, L, L] on the device of `position_ids`, for a model in "eager" or "sdpa" attention.
    """
    import torch

    document = (position_ids == 0).cumsum(dim=1)
    visible = (document[:, :, None] == document[:, None, :]).tril()[:, None]
    if dtype == torch.bool:
        return visible
    mask = torch.zeros(visible.shape, dtype=dtype, device=visible.device)
    return mask.masked_fill_(~visible, torch.finfo(dtype).min)


def require_isolation(attn_implementation: str | None) -> None:
    """Refuse an attention backend (`model.config._attn_implementation`) that does not take a 4-D mask.

    Raises:
        TokenError: anything but "eager" or "sdpa": documents in one sequence would see each other.
    """
    if attn_implementation not in ("eager", "sdpa"):
        raise TokenError(
            f"attention backend {attn_implementation!r} does not take the mask that keeps packed documents "
            "apart: load the model with attn_implementation='sdpa' (or 'eager')"
        )
