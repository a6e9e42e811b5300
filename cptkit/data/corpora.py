"""Where documents come from: local files, hub data sets, packages and the lab world, as one stream.

`read_documents(spec, cache)` yields `Document`s; what was read is described by a frozen `CorpusSpec` and
identified by `fingerprint`. Records that cannot be used are left out, counted by reason with file and
line, and never end the stream; but when more than `max_skipped` of them are unusable, or none is left, the
run must not go on and a `DataError` says why.

- **files**: txt, JSON lines and Parquet, plain or compressed (see `files.py`); `path` is a file, a folder
  or a glob.
- **hub**: a data set on the Hugging Face hub or in a local folder, streamed by `datasets`. Remote code is
  never run: `datasets` itself has no such option since version 4.
- **package**: `libreoffice_help` or `debian_handbook` (see `packages.py`).
- **made**: what `topics.py` has labelled or `synthesis.py` written, and left in the cache.
- **world**: the lab world (see `world.py`). **lists**: language-free lists (see `lists.py`).

Nothing in the data is executed. Cost: memory for one record; JSON lines are read at about 60 MB/s, gzip
at about 40 MB/s, on one core. `fingerprint` reads every local file once, at the speed of sha256.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import tempfile
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from pathlib import Path

from cptkit.data import packages
from cptkit.data.corpus import CorpusSpec
from cptkit.data.documents import DataError, Document, Skips
from cptkit.data.files import Records, all_files, find_files, from_row, read_files
from cptkit.data.lists import Lists

READER = 1  # part of every fingerprint: raise it when the same files give other documents
CERTAIN = 1_000  # so many unusable records with no usable one before: the settings are wrong, not the data


def read_documents(spec: CorpusSpec, cache: Path, skips: Skips | None = None) -> Iterator[Document]:
    """The documents of `spec`, in a fixed order. Pass a fresh `Skips` to see what was left out.

    Raises `DataError`: files or data set missing or unreadable, a text field that no record has, no document
    at all, more than `spec.max_skipped` of the records unusable (known at the end of the corpus, or after
    1,000 unusable ones without a usable one).
    """
    found = 0
    for document in _all_topics(spec, cache, Skips() if skips is None else skips):
        if spec.topic is None or document.topic == spec.topic:
            found += 1
            yield document
    if not found:
        raise DataError(f"{spec.name}: no {spec.split} document")


def _all_topics(spec: CorpusSpec, cache: Path, skips: Skips) -> Iterator[Document]:
    if spec.kind == "world":
        from cptkit.data.world import World

        yield from World(**spec.params).documents(spec.lang, spec.split, megabytes=spec.megabytes)
        return
    if spec.kind == "lists":
        yield from Lists(**spec.params).documents(spec.split, megabytes=spec.megabytes)
        return
    if spec.kind == "made":
        yield from _made(spec, cache)
        return
    left = float("inf") if spec.megabytes is None else spec.megabytes * 1e6
    key: Callable[[Document], str] = packages.page_of if spec.kind == "package" else lambda d: d.text
    found = 0
    for document in _SOURCES[spec.kind](spec, Path(cache), skips):
        if document is None:
            if not skips.kept and skips.total >= CERTAIN:
                break
            continue
        skips.kept += 1
        if packages.side(key(document), spec.validation, spec.test) != spec.split:
            continue
        found += 1
        yield document
        left -= len(document.text.encode())
        if left <= 0:
            break
    skips.check(spec.max_skipped, f"{spec.name} (max_skipped = {spec.max_skipped})")
    if not found:
        why = f"all {skips.kept} documents are on other sides" if skips.kept else "it holds no text"
        raise DataError(f"{spec.name}: no {spec.split} document: {why}")


def fingerprint(spec: CorpusSpec, cache: Path) -> str:
    """sha256 over the spec and the data: equal fingerprints, equal documents.

    Local files count by content, in order, whatever folder they are in. A hub data set without `revision` can
    change under its name, so it gets a warning.
    """
    known = {k: v for k, v in asdict(spec).items() if k not in ("path", "max_skipped")} | {"reader": READER}
    if spec.topic is None:  # younger than the fingerprints that are in use
        del known["topic"]
    if spec.kind == "world":
        from cptkit.data.world import World

        known["data"] = World(**spec.params).fingerprint
    elif spec.kind == "made":
        known["data"] = spec.path
    elif spec.kind == "lists":
        known["data"] = Lists(**spec.params).fingerprint
    elif spec.kind == "package":
        known["data"] = [spec.path, packages.text_checksum(spec.path, spec.lang, Path(cache))]
    elif spec.kind == "files" or Path(spec.path).is_dir():
        files = find_files(spec.path) if spec.kind == "files" else all_files(Path(spec.path))
        known["data"] = [(path.name, _digest(path)) for _, path in files]
    else:
        if spec.revision is None:
            warnings.warn(
                f"{spec.name}: no revision is set, so the data set may change under its name", stacklevel=2
            )
        known["data"] = spec.path
    return hashlib.sha256(json.dumps(known, sort_keys=True).encode()).hexdigest()


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


# ---------------------------------------------------------------------------------------------- made text


def made_file(key: str, cache: Path) -> Path:
    """Where a corpus lies that was made here."""
    return Path(cache) / "made" / f"{key}.jsonl.gz"


def make(key: str, lang: str, documents: Callable[[], Iterable[Document]], cache: Path) -> CorpusSpec:
    """The corpus of `documents()`, written under `key` unless it is there; whole or not at all.

    `key` must stand for the texts: it is all of the corpus that enters a fingerprint.
    """
    place = made_file(key, cache)
    if not place.exists():
        place.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=place.parent, prefix=f".{key}.", delete=False) as file:
            try:
                with gzip.GzipFile("", "wb", fileobj=file, mtime=0) as packed:
                    for d in documents():
                        row = {"id": d.id, "topic": d.topic, "kind": d.kind, "text": d.text}
                        packed.write(json.dumps(row, ensure_ascii=False).encode() + b"\n")
                file.close()
                os.replace(file.name, place)
            except BaseException:
                os.unlink(file.name)
                raise
    return CorpusSpec("made", lang, path=key)


def _made(spec: CorpusSpec, cache: Path) -> Iterator[Document]:
    place = made_file(spec.path, cache)
    try:
        with gzip.open(place, "rt", encoding="utf-8") as file:
            for line in file:
                row = json.loads(line)
                yield Document(row["text"], row["id"], spec.lang, row["kind"], row["topic"])
    except (OSError, EOFError, ValueError, KeyError) as error:
        raise DataError(f"{place} cannot be read ({error!r}): make the corpus again") from error


# ------------------------------------------------------------------------------------------- hub, packages


def _hub(spec: CorpusSpec, skips: Skips) -> Records:
    import datasets

    number = 0
    try:
        rows = datasets.load_dataset(
            spec.path, spec.config, split=spec.hub_split, streaming=True, revision=spec.revision
        )
        for row in rows:
            number += 1
            yield from_row(row, f"{spec.path}:{spec.hub_split}:{number}", spec, skips)
    except DataError:
        raise
    except Exception as error:  # the hub client, fsspec, pyarrow and every builder have errors of their own
        raise DataError(
            f"{spec.name}: `datasets` could not read it after record {number}: {type(error).__name__}: "
            f"{error}. Without a network, use local files (kind 'files') or a package."
        ) from error


_SOURCES: dict[str, Callable[[CorpusSpec, Path, Skips], Records]] = {
    "files": lambda spec, cache, skips: read_files(spec, skips),
    "hub": lambda spec, cache, skips: _hub(spec, skips),
    "package": lambda spec, cache, skips: packages.SETS[spec.path](spec.lang, cache),
}
