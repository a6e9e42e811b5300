"""Local text files as documents: txt, JSON lines and Parquet, plain or compressed.

Compressions: gzip, xz, bzip2, zstd. Text is UTF-8; a byte order mark and Windows line ends are dropped. A
record that cannot be used (broken JSON, no text field, another encoding, NUL, lone surrogates, no text, too
long, the rest of a file that is cut short) is counted in a `Skips` with file and line, and reading goes on.

Nothing in the data is executed. Cost: memory for one record; see `corpora.py` for speed.
"""

from __future__ import annotations

import bz2
import glob
import gzip
import io
import json
import lzma
import os
import tempfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from cptkit.data.corpus import CorpusSpec
from cptkit.data.documents import DataError, Document, Skips

FORMATS = {".txt": "txt", ".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "jsonl", ".parquet": "parquet"}
COMPRESSED = (".gz", ".xz", ".bz2", ".zst")
DAMAGED = (EOFError, OSError, zlib.error, lzma.LZMAError)  # what a truncated or corrupt stream raises

#: Every reader yields a `Document`, or None for a record that it has left out and counted.
Records = Iterator[Document | None]


def find_files(path: str) -> list[tuple[str, Path]]:
    """(name within the corpus, path) of the files that a file, folder or glob names, in order of name.

    A folder stands for every file in it, at any depth, whose name ends in a format that can be read. Raises
    `DataError` when there is none, or when a file was named whose format cannot be read.
    """
    given = Path(path).expanduser()
    if given.is_dir():
        found = [(name, file) for name, file in all_files(given) if file_format(file)]
        what = f"the folder {path} holds no file ending in {', '.join(FORMATS)}, plain or compressed"
    else:
        # A name that exists is that file, even if it has brackets in it.
        names = [str(given)] if given.is_file() else sorted(glob.glob(str(given), recursive=True))
        files = [Path(name) for name in names if os.path.isfile(name)]
        for file in files:
            if not file_format(file):
                raise DataError(
                    f"{file}: cannot read this format; known are {', '.join(FORMATS)}, also compressed"
                )
        base = os.path.commonpath([file.parent for file in files]) if files else ""
        found = [(file.relative_to(base).as_posix(), file) for file in files]
        what = f"no file matches {path}"
    if not found:
        raise DataError(what)
    return found


def all_files(folder: Path) -> list[tuple[str, Path]]:
    """(name within the folder, path) of every file under it but hidden ones, in the order of their names."""
    files = {file.relative_to(folder).as_posix(): file for file in folder.rglob("*") if file.is_file()}
    return [(n, files[n]) for n in sorted(files) if not any(part.startswith(".") for part in n.split("/"))]


def file_format(path: Path) -> str | None:
    """`txt`, `jsonl`, `parquet`, or None, by the end of the name without that of a compression."""
    name = path.name.lower()
    return FORMATS.get(
        Path(name.removesuffix(Path(name).suffix) if name.endswith(COMPRESSED) else name).suffix
    )


def _open(path: Path) -> IO[bytes]:
    match path.suffix.lower():
        case ".gz":
            return gzip.open(path)
        case ".xz":
            return lzma.open(path)
        case ".bz2":
            return bz2.open(path)
        case ".zst":
            import pyarrow as pa  # unlike most readers of zstd, its reader notices a stream that is cut short

            return io.BufferedReader(pa.input_stream(str(path), compression="zstd"))
    return path.open("rb")


def read_files(spec: CorpusSpec, skips: Skips) -> Records:
    readers = {"txt": _txt, "jsonl": _jsonl, "parquet": _parquet}
    for name, path in find_files(spec.path):
        try:
            stream = _open(path)
        except OSError as error:
            raise DataError(f"cannot open {path}: {error}") from None
        with stream:
            yield from readers[file_format(path)](stream, name, spec, skips)


def _txt(stream: IO[bytes], name: str, spec: CorpusSpec, skips: Skips) -> Records:
    if spec.unit == "line":
        for number, line in _lines(stream, name, spec.max_bytes, skips):
            if line is None:
                yield None
            elif line.strip():
                yield _document(line, f"{name}:{number}", spec, skips)
        return
    block, size, first, whole = [], 0, 1, True
    for number, line in _lines(stream, name, spec.max_bytes, skips):
        if line is None:  # the document that this line belongs to is left out with it
            yield None
            whole = False
        elif line.strip() or spec.unit == "file":
            first = first if block else number
            size += len(line) + bool(block)
            if size <= spec.max_bytes or not block:
                block.append(line)
        else:
            if block and whole:
                yield _document(b"\n".join(block), f"{name}:{first}", spec, skips, size)
            block, size, whole = [], 0, True
    if whole and (block or spec.unit == "file"):
        yield _document(b"\n".join(block), f"{name}:{first}", spec, skips, size)


def _jsonl(stream: IO[bytes], name: str, spec: CorpusSpec, skips: Skips) -> Records:
    last = None  # a broken line is only known to be the last one when the file ends
    # A character may take six bytes in JSON.
    for number, line in _lines(stream, name, 6 * spec.max_bytes + 10_000, skips):
        if last is not None:
            yield _skip(skips, "not JSON", last)
        last = None
        if line is None:
            yield None
        elif line.strip():
            place = f"{name}:{number}"
            text = _decode(line, place, skips)
            if text is None:
                yield None
                continue
            try:
                row = json.loads(text)
            except (ValueError, RecursionError):
                last = place
                continue
            yield from_row(row, place, spec, skips)
    if last is not None:
        yield _skip(skips, "not JSON, and the last line: the file may be cut short", last)


def _parquet(stream: IO[bytes], name: str, spec: CorpusSpec, skips: Skips) -> Records:
    import pyarrow as pa
    import pyarrow.parquet as pq

    with tempfile.SpooledTemporaryFile(max_size=1 << 28) as plain:
        number = 0
        try:
            if not (isinstance(stream, io.BufferedReader) and stream.seekable()):
                while chunk := stream.read(1 << 20):  # Parquet is read from its end
                    plain.write(chunk)
                stream = plain
            file = pq.ParquetFile(stream)
            columns = [c for c in (spec.text_field, spec.topic_field) if c]
            for column in columns:
                index = file.schema_arrow.get_field_index(column)
                if index < 0:
                    names = ", ".join(file.schema_arrow.names)
                    raise DataError(f"{name}: no column {column!r}; its columns are {names}")
                kind = file.schema_arrow.field(index).type
                value = kind.value_type if pa.types.is_dictionary(kind) else kind
                if value not in (pa.string(), pa.large_string(), pa.string_view()):
                    raise DataError(f"{name}: column {column!r} holds {kind}, not text")
            for batch in file.iter_batches(batch_size=256, columns=columns):
                # As bytes, so that one badly encoded text does not spoil its batch.
                rows = [_as_bytes(batch.column(column)) for column in columns]
                for text, *topic in zip(*rows, strict=True):
                    number += 1
                    place = f"{name}:{number}"
                    if text is None:
                        yield _skip(skips, f"no text in field {spec.text_field!r}", place)
                    else:
                        label = topic[0].decode(errors="replace") if topic and topic[0] else ""
                        yield _document(text, place, spec, skips, topic=label)
        except (*DAMAGED, pa.ArrowException) as error:
            yield _skip(skips, f"damaged Parquet ({type(error).__name__})", f"{name}:{number + 1}")


def _as_bytes(column) -> list[bytes | None]:
    import pyarrow as pa

    plain = column.dictionary_decode() if pa.types.is_dictionary(column.type) else column
    return plain.cast(pa.binary() if plain.type == pa.string() else pa.large_binary()).to_pylist()


def _lines(stream: IO[bytes], name: str, limit: int, skips: Skips) -> Iterator[tuple[int, bytes | None]]:
    """(number from 1, line without its end), or (number, None) for a line left out and counted."""
    number = 0
    while True:
        number += 1
        try:
            line = stream.readline(limit + 2)
            if not line:
                return
            if len(line) > limit and not line.endswith(b"\n"):
                while (rest := stream.readline(1 << 20)) and not rest.endswith(b"\n"):
                    pass
                skips.add(f"longer than {limit} bytes", f"{name}:{number}")
                yield number, None
                continue
        except DAMAGED as error:
            skips.add(f"compressed data cut short or damaged ({type(error).__name__})", f"{name}:{number}")
            yield number, None
            return
        # A byte order mark is at the start of a file, or of each of the files that were joined to this one.
        yield number, line.rstrip(b"\r\n").removeprefix(b"\xef\xbb\xbf")


# ----------------------------------------------------------------------------------------------- records


def _skip(skips: Skips, reason: str, place: str) -> None:
    skips.add(reason, place)


def from_row(row: object, place: str, spec: CorpusSpec, skips: Skips) -> Document | None:
    if not isinstance(row, dict):
        return _skip(skips, "a record that is not an object", place)
    text = row.get(spec.text_field)
    if not isinstance(text, str):
        return _skip(skips, f"no text in field {spec.text_field!r}", place)
    topic = row.get(spec.topic_field) if spec.topic_field else None
    return _check(text, place, spec, skips, "" if topic is None else str(topic))


def _decode(data: bytes, place: str, skips: Skips) -> str | None:
    if b"\0" in data:
        return _skip(skips, "NUL characters (UTF-16, or a damaged file)", place)
    try:
        return data.decode()
    except UnicodeDecodeError:
        return _skip(skips, "not UTF-8 (convert it first, e.g. with iconv)", place)


def _document(
    data: bytes, place: str, spec: CorpusSpec, skips: Skips, size: int = 0, topic: str = ""
) -> Document | None:
    if max(size, len(data)) > spec.max_bytes:
        return _skip(skips, f"longer than {spec.max_bytes} bytes", place)
    text = _decode(data, place, skips)
    return None if text is None else _check(text, place, spec, skips, topic)


def _check(text: str, place: str, spec: CorpusSpec, skips: Skips, topic: str) -> Document | None:
    if not text.strip():
        return _skip(skips, "empty text", place)
    if "\0" in text:
        return _skip(skips, "NUL characters (UTF-16, or a damaged file)", place)
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        return _skip(skips, "lone surrogates (broken \\u escapes)", place)
    if size > spec.max_bytes:
        return _skip(skips, f"longer than {spec.max_bytes} bytes", place)
    return Document(text, place, spec.lang, topic=topic)
