"""Document streams: every format and compression gives the same documents; every bad record is counted."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import random
from itertools import islice
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cptkit.data.corpora import fingerprint, read_documents
from cptkit.data.corpus import CorpusSpec
from cptkit.data.documents import DataError, Document, Skips

TEXTS = ["Kaixo, mundua!\nBigarren lerroa: ñ, ü, €.", "中文 文本", "نص عربي", "plain 🙂"]


def zstd(data: bytes) -> bytes:
    buffer = pa.BufferOutputStream()
    with pa.CompressedOutputStream(buffer, "zstd") as out:
        out.write(data)
    return buffer.getvalue().to_pybytes()


COMPRESS = {
    "": lambda data: data,
    ".gz": gzip.compress,
    ".xz": lzma.compress,
    ".bz2": bz2.compress,
    ".zst": zstd,
}


def jsonl(texts: list[str], **more: str) -> bytes:
    return "".join(json.dumps({"text": t, **more}, ensure_ascii=False) + "\n" for t in texts).encode()


def parquet(columns: dict[str, pa.Array | list]) -> bytes:
    buffer = pa.BufferOutputStream()
    pq.write_table(pa.table(columns), buffer, row_group_size=2)
    return buffer.getvalue().to_pybytes()


def read(path: Path | str, **options) -> tuple[list[Document], Skips]:
    skips = Skips()
    options = {"max_skipped": 1.0} | options
    return list(read_documents(CorpusSpec("files", "eu", str(path), **options), Path("unused"), skips)), skips


# ------------------------------------------------------------------------------------------------ formats


@pytest.mark.parametrize("compression", COMPRESS)
@pytest.mark.parametrize("format_", ["jsonl", "json", "parquet", "txt"])
def test_every_format_and_compression(tmp_path: Path, format_: str, compression: str) -> None:
    data = {
        "parquet": parquet({"text": TEXTS, "n": [1, 2, 3, 4]}),
        "txt": "\n\n".join(TEXTS).encode(),
    }.get(format_, jsonl(TEXTS))
    path = tmp_path / f"a.{format_}{compression}"
    path.write_bytes(COMPRESS[compression](data))
    documents, skips = read(path, unit="block", max_skipped=0.0)
    assert [d.text for d in documents] == TEXTS
    assert {(d.lang, d.kind, d.topic) for d in documents} == {("eu", "prose", "")}
    assert (skips.kept, skips.total) == (4, 0)
    # Lines 1 and 2 are one block, line 3 is empty, and so on.
    numbers = [1, 4, 6, 8] if format_ == "txt" else [1, 2, 3, 4]
    assert [d.id for d in documents] == [f"{path.name}:{n}" for n in numbers]


@pytest.mark.parametrize(
    ("unit", "expected"),
    [
        ("file", ["one\ntwo\n\n  three"]),
        ("block", ["one\ntwo", "  three"]),
        ("line", ["one", "two", "  three"]),
    ],
)
def test_units_of_txt(tmp_path: Path, unit: str, expected: list[str]) -> None:
    (tmp_path / "a.txt").write_bytes(b"\xef\xbb\xbfone\r\ntwo\r\n\r\n  three\r\n")
    documents, skips = read(tmp_path / "a.txt", unit=unit)
    assert [d.text for d in documents] == expected
    assert skips.total == 0


def test_folders_and_globs(tmp_path: Path) -> None:
    for name in ("b.jsonl", "a/x.jsonl", "a/y.jsonl.gz", "odd[1].jsonl"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(COMPRESS[".gz" if name.endswith("gz") else ""](jsonl([name])))
    (tmp_path / "notes.md").write_text("not text of the corpus")
    (tmp_path / ".hidden.jsonl").write_text("{")
    in_folder = [d.text for d in read(tmp_path)[0]]
    assert in_folder == ["a/x.jsonl", "a/y.jsonl.gz", "b.jsonl", "odd[1].jsonl"]
    documents, _ = read(f"{tmp_path}/a/*.jsonl*")
    assert [d.id for d in documents] == ["x.jsonl:1", "y.jsonl.gz:1"]
    assert len({d.id for d in read(f"{tmp_path}/**/*.jsonl")[0]}) == 3
    assert [d.text for d in read(tmp_path / "odd[1].jsonl")[0]] == ["odd[1].jsonl"]
    for path, message in (
        (tmp_path / "none-*.txt", "no file matches .*none-"),
        (tmp_path / "none.txt", "no file matches"),
        (tmp_path / "notes.md", "cannot read this format"),
    ):
        with pytest.raises(DataError, match=message):
            read(path)
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="holds no file"):
        read(tmp_path / "empty")


def test_topics_and_other_fields(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b'{"body": "x", "of": "law"}\n{"body": "y", "of": null}\n')
    table = {
        "body": pa.array(["x", "y"]).dictionary_encode(),
        "of": pa.array(["law", None]).dictionary_encode(),
    }
    (tmp_path / "a.parquet").write_bytes(parquet(table))
    for name in ("a.jsonl", "a.parquet"):
        documents, _ = read(tmp_path / name, text_field="body", topic_field="of")
        assert [(d.text, d.topic) for d in documents] == [("x", "law"), ("y", "")]
    with pytest.raises(DataError, match=r"no column 'text'; its columns are body, of"):
        read(tmp_path / "a.parquet")
    (tmp_path / "n.parquet").write_bytes(parquet({"text": [1, 2]}))
    with pytest.raises(DataError, match="holds int64, not text"):
        read(tmp_path / "n.parquet")


# ---------------------------------------------------------------------------------------------- bad input

BAD_LINES = {
    "not JSON": (b'{"text": "a"', b"{'text': 1}", b"[" * 30_000),
    "a record that is not an object": (b"3", b'"text"', b"null", b'["text"]'),
    "no text in field 'text'": (b"{}", b'{"text": null}', b'{"text": 3}', b'{"text": ["a"]}'),
    "lone surrogates": (b'{"text": "a\\ud800b"}', b'{"text": "\\udc00"}'),
    "NUL": (b'{"text": "a\\u0000"}', b'{"text": "a\0b"}', '{"text": "a"}'.encode("utf-16-le")),
    "not UTF-8": ('{"text": "añ"}'.encode("latin-1"), b'{"text": "\xed\xa0\x80"}'),
    "empty text": (b'{"text": ""}', b'{"text": " \\n\\t"}'),
    "longer than": (b'{"text": "' + "ñ".encode() * 2501 + b'"}', b'"' + b"x" * 100_000 + b'"'),
}


@pytest.mark.parametrize(("reason", "bad"), [(r, b) for r, lines in BAD_LINES.items() for b in lines])
def test_a_bad_line_is_counted_with_its_place(tmp_path: Path, reason: str, bad: bytes) -> None:
    good = jsonl(["before"]), jsonl(["after", "end"])
    (tmp_path / "a.jsonl").write_bytes(good[0] + bad + b"\n" + good[1])
    documents, skips = read(tmp_path / "a.jsonl", max_bytes=5000)
    assert [(d.text, d.id) for d in documents] == [
        ("before", "a.jsonl:1"),
        ("after", "a.jsonl:3"),
        ("end", "a.jsonl:4"),
    ]
    ((counted, count),) = skips.counts.items()
    assert counted.startswith(reason)
    assert count == 1
    assert skips.places[counted] == ["a.jsonl:2"]


def test_marks_and_blank_lines_lose_nothing(tmp_path: Path) -> None:
    bom = b"\xef\xbb\xbf"
    (tmp_path / "a.jsonl").write_bytes(
        bom + jsonl(["a"]) + b"\r\n\n" + bom + b'{"text": "b"}\r\n{"text": "c"}'
    )
    documents, skips = read(tmp_path / "a.jsonl")
    assert [d.text for d in documents] == ["a", "b", "c"]
    assert skips.total == 0


def test_the_last_line_cut_short_is_told_apart(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(jsonl(["a", "b"])[:-5])
    documents, skips = read(tmp_path / "a.jsonl")
    assert [d.text for d in documents] == ["a"]
    assert list(skips.places.values()) == [["a.jsonl:2"]]
    assert "cut short" in next(iter(skips.counts))


@pytest.mark.parametrize("bom", [True, False])
def test_a_utf16_file_counts_by_line(tmp_path: Path, bom: bool) -> None:
    text = jsonl(["a", "b", "c"]).decode().encode("utf-16" if bom else "utf-16-le")
    (tmp_path / "a.jsonl").write_bytes(text)
    with pytest.raises(DataError, match="UTF-16"):
        read(tmp_path / "a.jsonl", max_skipped=0.1)


@pytest.mark.parametrize("compression", [c for c in COMPRESS if c])
def test_a_compressed_file_cut_short_keeps_what_was_whole(tmp_path: Path, compression: str) -> None:
    rng = random.Random(0)  # hard to compress, so that half of the file holds about half of the lines
    texts = [f"{n} {rng.randbytes(300).hex()}" for n in range(3000)]
    whole = COMPRESS[compression](jsonl(texts))
    (tmp_path / f"a.jsonl{compression}").write_bytes(whole[: len(whole) // 2])
    documents, skips = read(tmp_path / f"a.jsonl{compression}")
    assert 500 < len(documents) < 2500
    assert [d.text for d in documents] == texts[: len(documents)]
    assert skips.total == 1
    assert skips.places[next(iter(skips.counts))] == [f"a.jsonl{compression}:{len(documents) + 1}"]
    assert "cut short or damaged" in next(iter(skips.counts))


@pytest.mark.parametrize(
    "name", ["b.jsonl.gz", "b.jsonl.xz", "b.jsonl.bz2", "b.jsonl.zst", "b.parquet", "b.txt.gz"]
)
@pytest.mark.parametrize("data", [b"garbage" * 50, b""])
def test_garbage_under_a_known_name(tmp_path: Path, name: str, data: bytes) -> None:
    (tmp_path / name).write_bytes(data)
    (tmp_path / "a.jsonl").write_bytes(jsonl(["a"]))
    (tmp_path / "c.jsonl").write_bytes(jsonl(["c"]))
    documents, skips = read(tmp_path)  # the other files of the folder are still read
    assert [d.text for d in documents] == ["a", "c"]
    # An empty gzip or bzip2 file holds no record; an empty text or Parquet file is one that cannot be used.
    assert skips.total == 1 or (data == b"" and name.startswith("b.jsonl"))
    with pytest.raises(DataError):
        read(tmp_path / name)


@pytest.mark.parametrize("compression", ["", ".gz"])
def test_parquet_cut_short_and_badly_encoded(tmp_path: Path, compression: str) -> None:
    whole = parquet({"text": TEXTS})
    (tmp_path / f"a.parquet{compression}").write_bytes(COMPRESS[compression](whole[:-20]))
    (tmp_path / "b.jsonl").write_bytes(jsonl(["b"]))
    documents, skips = read(tmp_path)
    assert [d.text for d in documents] == ["b"]
    assert skips.places == {next(iter(skips.counts)): [f"a.parquet{compression}:1"]}
    assert "damaged Parquet" in next(iter(skips.counts))

    texts = pa.array([b"ok", b"\xff", b"", None, b"a\0b", b"\xed\xa0\x80", b"fine"]).view(pa.string())
    (tmp_path / f"a.parquet{compression}").write_bytes(COMPRESS[compression](parquet({"text": texts})))
    documents, skips = read(tmp_path / f"a.parquet{compression}")
    assert [(d.text, d.id.rsplit(":")[-1]) for d in documents] == [("ok", "1"), ("fine", "7")]
    assert sorted(skips.counts.values()) == [1, 1, 1, 2]


@pytest.mark.parametrize("unit", ["file", "block", "line"])
def test_giant_and_bad_txt(tmp_path: Path, unit: str) -> None:
    giant = (b"x" * 60 + b"\n") * 20 if unit != "line" else b"x" * 1001 + b"\n"
    for name, data in (("a", b"a"), ("b", giant), ("c", b"c"), ("d", b"\xff\xfea\0"), ("e", b"e" * 1000)):
        (tmp_path / f"{name}.txt").write_bytes(data)
    documents, skips = read(tmp_path, unit=unit, max_bytes=1000)
    assert [d.text[0] for d in documents] == ["a", "c", "e"]
    assert {reason.split(" ")[0]: places for reason, places in skips.places.items()} == {
        "longer": ["b.txt:1"],
        "NUL": ["d.txt:1"],
    }
    assert skips.total == 2


def test_a_document_with_a_giant_line_is_left_out_whole(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"start\n" + b"x" * 200 + b"\nend\n\nnext\n\n" + b"y" * 200 + b"\nend")
    documents, skips = read(tmp_path / "a.txt", unit="block", max_bytes=100)
    assert [(d.text, d.id) for d in documents] == [("next", "a.txt:5")]
    assert skips.places == {"longer than 100 bytes": ["a.txt:2", "a.txt:7"]}


@pytest.mark.parametrize(("bad", "fails"), [(10, False), (11, True)])
def test_the_share_of_bad_records_decides(tmp_path: Path, bad: int, fails: bool) -> None:
    good = jsonl([str(n) for n in range(100 - bad)])
    (tmp_path / "a.jsonl").write_bytes(b"{\n" * bad + good)
    if fails:
        with pytest.raises(
            DataError, match=r"11 of 100 records are unusable: 11 x not JSON \(e\.g\. a\.jsonl:1"
        ):
            read(tmp_path / "a.jsonl", max_skipped=0.1)
    else:
        assert len(read(tmp_path / "a.jsonl", max_skipped=0.1)[0]) == 90


def test_wrong_settings_end_an_endless_corpus(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b'{"content": "a"}\n' * 5000)
    with pytest.raises(DataError, match=r"1000 of 1000 .*no text in field 'text'"):
        read(tmp_path / "a.jsonl", max_skipped=0.1)


def test_no_document_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b"\n\n")
    with pytest.raises(DataError, match=rf"{tmp_path}/\*\.jsonl .*it holds no text"):
        read(f"{tmp_path}/*.jsonl")
    (tmp_path / "a.jsonl").write_bytes(jsonl(["a"]))
    with pytest.raises(DataError, match="no validation document: all 1 documents are on other sides"):
        read(tmp_path / "a.jsonl", split="validation")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kind": "file"}, "kind 'file' is not one of files, hub, lists, made, package, world"),
        ({"split": "dev"}, "split 'dev'"),
        ({"unit": "page"}, "unit 'page'"),
        ({"path": ""}, "needs a path"),
        ({"kind": "package", "path": "help"}, "package set 'help' is not one of libreoffice_help"),
        ({"megabytes": 0}, "must be positive"),
        ({"validation": 1.0}, "held-out shares"),
    ],
)
def test_a_wrong_spec_says_so(options: dict, message: str) -> None:
    with pytest.raises(DataError, match=message):
        CorpusSpec(**{"kind": "files", "lang": "eu", "path": "a.txt", **options})


# ------------------------------------------------------------------------------------- properties of streams


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=60)
@given(st.lists(st.one_of(st.text(min_size=1), st.binary(max_size=20), st.none()), max_size=30))
def test_every_record_is_kept_or_counted(tmp_path: Path, records: list[str | bytes | None]) -> None:
    """Strings are written as records, bytes as they are (without line ends), None as one without text."""
    lines = [
        r.replace(b"\n", b"").replace(b"\r", b"")
        if isinstance(r, bytes)
        else json.dumps({"text": r}).encode()
        for r in records
    ]
    (tmp_path / "a.jsonl").write_bytes(b"\n".join(lines))
    good = [r for r in records if isinstance(r, str) and r.strip() and "\0" not in r]
    good = [r for r in good if not any(0xD800 <= ord(c) <= 0xDFFF for c in r)]
    (tmp_path / "z.jsonl").write_bytes(jsonl(["last"]))
    documents, skips = read(tmp_path)
    assert [d.text for d in documents] == [*good, "last"]
    assert skips.kept == len(documents)
    lines = [line.removeprefix(b"\xef\xbb\xbf").strip() for line in lines]
    blank = sum(isinstance(r, bytes) and not line for r, line in zip(records, lines, strict=True))
    assert skips.kept + skips.total == len(records) + 1 - blank


def test_splits_part_the_corpus_and_keep_equal_texts_together(tmp_path: Path) -> None:
    texts = [f"document {n % 700}" for n in range(1000)]
    (tmp_path / "a.jsonl").write_bytes(jsonl(texts))
    sides = {
        split: [d.text for d in read(tmp_path, split=split, validation=0.2, test=0.1)[0]]
        for split in ("train", "validation", "test")
    }
    assert sorted(text for side in sides.values() for text in side) == sorted(texts)
    assert not set(sides["train"]) & set(sides["validation"])
    assert 0.1 < len(sides["validation"]) / 1000 < 0.3


def test_megabytes_stop_the_stream(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(jsonl(["ñ" * 500] * 100))  # 1,000 bytes each
    assert len(read(tmp_path, megabytes=0.0095)[0]) == 10


def test_fingerprint_is_of_the_content(tmp_path: Path) -> None:
    for folder, text in (("a", "x"), ("b", "x"), ("c", "y")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "t.jsonl").write_bytes(jsonl([text]))
    spec = {f: CorpusSpec("files", "eu", str(tmp_path / f)) for f in "abc"}
    prints = {f: fingerprint(s, tmp_path) for f, s in spec.items()}
    assert prints["a"] == prints["b"] != prints["c"]
    other = CorpusSpec("files", "eu", str(tmp_path / "a"), validation=0.1)
    assert fingerprint(other, tmp_path) != prints["a"]


# ---------------------------------------------------------------------------------------- hub, package, world


def test_a_data_set_in_a_folder_through_datasets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    (tmp_path / "set").mkdir()
    rows = [{"body": "bat", "of": "a"}, {"body": "", "of": "b"}, {"body": "hiru", "of": "c"}]
    data = "".join(json.dumps(row) + "\n" for row in rows)
    (tmp_path / "set/train.jsonl").write_text(data)
    (tmp_path / "set/test.jsonl").write_text(data.replace("bat", "zero"))
    options = {"text_field": "body", "topic_field": "of", "max_skipped": 0.5}
    skips = Skips()
    spec = CorpusSpec("hub", "eu", str(tmp_path / "set"), **options)
    assert [(d.text, d.topic) for d in read_documents(spec, tmp_path, skips)] == [("bat", "a"), ("hiru", "c")]
    assert skips.places == {"empty text": [f"{tmp_path}/set:train:2"]}
    held_out = CorpusSpec("hub", "eu", str(tmp_path / "set"), hub_split="test", **options)
    assert next(read_documents(held_out, tmp_path)).text == "zero"
    assert fingerprint(spec, tmp_path) != fingerprint(held_out, tmp_path)
    with pytest.raises(DataError, match="could not read it after record 0"):
        list(read_documents(CorpusSpec("hub", "eu", str(tmp_path / "no set")), tmp_path))


def test_a_hub_set_without_revision_warns(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="no revision is set"):
        loose = fingerprint(CorpusSpec("hub", "eu", "some/set"), tmp_path)
    assert fingerprint(CorpusSpec("hub", "eu", "some/set", revision="abc"), tmp_path) != loose


@pytest.mark.filterwarnings("ignore:.*not the pinned one")
def test_a_package_is_read_by_side_of_its_pages(tmp_path: Path) -> None:
    pytest.importorskip("lxml", reason="packaged pages need the extra: pip install cptkit[real]")
    for package, lang in (("libreoffice-help-en-us", "en-US"), ("libreoffice-help-eu", "eu")):
        folder = tmp_path / "packages" / package / "usr/share/libreoffice/help" / lang / "text/scalc"
        folder.mkdir(parents=True)
        for n in range(40):
            html = f'<div id="DisplayArea"><p id="p">{lang} {n}</p></div>'
            (folder / f"{n}.html").write_text(f"<html><body>{html}</body></html>")
    pages = {}
    for lang in ("en", "eu"):
        for split in ("train", "validation"):
            spec = CorpusSpec("package", lang, "libreoffice_help", split=split, validation=0.3)
            pages[lang, split] = [d.id.split("/")[-1] for d in read_documents(spec, tmp_path)]
    assert pages["en", "train"] == pages["eu", "train"]
    assert pages["en", "validation"] == pages["eu", "validation"]
    assert sorted(pages["en", "train"] + pages["en", "validation"], key=int) == [str(n) for n in range(40)]
    before = fingerprint(CorpusSpec("package", "eu", "libreoffice_help"), tmp_path)
    (tmp_path / "packages/libreoffice-help-eu/usr/share/libreoffice/help/eu/text/scalc/0.html").unlink()
    for cached in (tmp_path / "texts").iterdir():
        cached.unlink()
    assert fingerprint(CorpusSpec("package", "eu", "libreoffice_help"), tmp_path) != before


def test_the_world_is_dispatched(tmp_path: Path) -> None:
    from cptkit.data.world import World

    spec = CorpusSpec("world", "target", split="validation", megabytes=0.02, params={"seed": 3})
    expected = list(World(seed=3).documents("target", "validation", megabytes=0.02))
    assert list(read_documents(spec, tmp_path)) == expected
    assert len(list(islice(read_documents(CorpusSpec("world", "l1"), tmp_path), 5))) == 5
    other = CorpusSpec("world", "target", split="validation", megabytes=0.02, params={"seed": 4})
    assert fingerprint(spec, tmp_path) != fingerprint(other, tmp_path)
