"""Packaged text: pages made here for the rules, the real packages for the figures that are pinned."""

from __future__ import annotations

import gzip
import os
import shutil
import subprocess
import warnings
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cptkit.data import packages
from cptkit.data.documents import DataError, Document

pytest.importorskip("lxml", reason="packaged pages need the extra: pip install cptkit[real]")

CACHE = Path(os.environ.get("CPTKIT_CACHE", Path(__file__).parents[2] / "cache"))
PINNED = sorted(packages.PINNED)


def help_html(*paragraphs: str) -> str:
    body = "".join(f'<p id="par_{i}">{p}</p>' for i, p in enumerate(paragraphs))
    return f'<html><body><p id="menu">Menu</p><div id="DisplayArea">{body}</div></body></html>'


def place(cache: Path, package: str, folder: str, pages: dict[str, str]) -> None:
    for name, html in pages.items():
        path = cache / "packages" / package / "usr/share" / folder / f"{name}.html"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(html, encoding="utf-8")


@pytest.fixture
def small_help(tmp_path: Path) -> Path:
    long = "The toolbar shows the icons that are described in the section named {} of this manual."
    place(
        tmp_path,
        "libreoffice-help-en-us",
        "libreoffice/help/en-US/text",
        {
            "scalc/01/sum": help_html("Adds all numbers.", "SUM", long.format("Sheets")),
            "swriter/main": help_html("Adds all numbers.", "Writes text."),
        },
    )
    place(
        tmp_path,
        "libreoffice-help-eu",
        "libreoffice/help/eu/text",
        {
            "scalc/01/sum": help_html("Zenbaki guztiak  gehitzen\n ditu.", "SUM", long.format("Orriak")),
            "swriter/main": help_html("Zenbaki guztiak gehitzen ditu.", "Testua idazten du."),
            "swriter/untranslated": help_html("Writes text."),
        },
    )
    return tmp_path


@pytest.mark.filterwarnings("ignore:.*not the pinned one")
def test_help_is_deduplicated_translated_and_parallel(small_help: Path) -> None:
    eu = packages.libreoffice_help("eu", small_help)
    assert eu == [
        Document("Zenbaki guztiak gehitzen ditu.", "libreoffice_help/eu/scalc/01/sum", "eu", topic="scalc"),
        Document("Testua idazten du.", "libreoffice_help/eu/swriter/main", "eu", topic="swriter"),
    ]
    en = packages.libreoffice_help("en", small_help)
    assert [d.text.split("\n")[0] for d in en] == ["Adds all numbers.", "Writes text."]
    assert [packages.page_of(d) for d in en] == [packages.page_of(d) for d in eu]


def test_another_text_is_a_warning_with_both_checksums(small_help: Path) -> None:
    with pytest.warns(UserWarning, match="not the pinned one") as caught:
        checksum = packages.text_checksum("libreoffice_help", "eu", small_help)
    assert checksum in str(caught[0].message)
    assert packages.PINNED["libreoffice_help", "eu"] in str(caught[0].message)


@pytest.mark.filterwarnings("ignore:.*not the pinned one")
def test_the_text_is_cached_and_damage_is_named(small_help: Path) -> None:
    before = packages.libreoffice_help("eu", small_help)
    shutil.rmtree(small_help / "packages")
    assert packages.libreoffice_help("eu", small_help) == before
    (cached,) = (small_help / "texts").iterdir()
    cached.write_bytes(cached.read_bytes()[:-9])
    with pytest.raises(DataError, match=r"damaged.*delete it"):
        packages.libreoffice_help("eu", small_help)
    with pytest.raises(DataError, match="no language 'ar'; it has en, eu"):
        packages.libreoffice_help("ar", small_help)


def test_help_page_keeps_paragraphs_only() -> None:
    from lxml import html

    page = html.fromstring(
        """<body><p id="menu">Menu</p><div id="DisplayArea"><h1 id="h"><a name="x"></a>Title</h1>
        <p id="a">One <b>bold</b>&nbsp;word.</p><p>No id</p><p id="c" class="bascode">Print 1</p>
        <pre><p id="d">code</p></pre><script>x</script><noscript><p id="e">n</p></noscript></div></body>"""
    )
    assert packages.help_page(page) == ["Title", "One bold word."]
    assert packages.help_page(html.fromstring("<body><p id='x'>no body</p></body>")) == []


def test_handbook_page_splits_nested_blocks() -> None:
    from lxml import html

    page = html.fromstring(
        """<html><head><title>T</title></head><body><ul class="docnav top"><li>Next</li></ul>
        <div id="toc"><dl class="toc"><dt>1. Contents</dt></dl></div><h2 class="title">A title</h2>
        <div class="para">It has: <ul><li><div class="para">an item;</div></li><li>another</li></ul> and more.
        </div>
        <div class="para"><pre class="screen">ls</pre>Text <code>ls</code>.<!-- no --></div></body></html>"""
    )
    assert packages.handbook_page(page) == ["A title", "It has: and more.", "an item;", "another", "Text ls."]


# ---------------------------------------------------------------------------------------------- packages


def test_no_client_names_the_alternatives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(DataError) as error:
        packages.fetch("debian-handbook", tmp_path)
    message = str(error.value)
    assert "no apt-get" in message
    assert str(tmp_path / "packages" / "debian-handbook") in message
    assert "kind 'files'" in message
    with pytest.raises(DataError, match="not the name of a Debian package"):
        packages.fetch("../etc", tmp_path)


def test_lists_are_updated_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bin_, log = tmp_path / "bin", tmp_path / "log"
    bin_.mkdir()
    scripts = {
        "apt-get": f'echo "$@" >> {log}\n'
        f"[ $1 = update ] && touch {tmp_path}/lists && exit 0\n"
        f"[ -e {tmp_path}/lists ] || {{ echo 'Unable to locate package' >&2; exit 100; }}\n"
        "echo deb > ${2}_1.0_all.deb\n",
        "dpkg-deb": 'mkdir -p "$3/usr/share"\n',
    }
    for name, script in scripts.items():
        (bin_ / name).write_text("#!/bin/sh\n" + script)
        (bin_ / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{bin_}:{os.environ['PATH']}")
    for _ in range(2):  # the second call finds the folder
        assert (packages.fetch("some-text", tmp_path / "cache") / "usr/share").is_dir()
    assert log.read_text().split("\n") == ["download some-text", "update", "download some-text", ""]
    assert [p.name for p in (tmp_path / "cache/packages").iterdir()] == ["some-text"]


@pytest.mark.skipif(shutil.which("dpkg-deb") is None, reason="this machine has no dpkg-deb")
def test_a_deb_put_there_by_hand_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tree = tmp_path / "tree"
    (tree / "DEBIAN").mkdir(parents=True)
    (tree / "DEBIAN/control").write_text(
        "Package: some-text\nVersion: 1\nArchitecture: all\nMaintainer: a <a@b.c>\nDescription: d\n"
    )
    (tree / "usr/share").mkdir(parents=True)
    (tree / "usr/share/text").write_text("kaixo")
    home = tmp_path / "cache/packages"
    home.mkdir(parents=True)
    deb = home / "some-text_1_all.deb"
    subprocess.run(["dpkg-deb", "-b", str(tree), str(deb)], check=True, capture_output=True)
    whole = deb.read_bytes()

    deb.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataError, match=r"cannot unpack some-text_1_all\.deb"):
        packages.fetch("some-text", tmp_path / "cache")
    assert [p.name for p in home.iterdir()] == ["some-text_1_all.deb"]

    deb.write_bytes(whole)
    assert (packages.fetch("some-text", tmp_path / "cache") / "usr/share/text").read_text() == "kaixo"


# ------------------------------------------------------------------------------------------------- split


@given(
    names=st.sets(st.text(st.characters(codec="utf-8", exclude_characters="/"), min_size=1), max_size=30),
    small=st.floats(0, 0.4),
    more=st.floats(0, 0.3),
    test=st.floats(0, 0.29),
)
def test_split_is_by_page(names: set[str], small: float, more: float, test: float) -> None:
    documents = [Document("t", f"set/{lang}/mod/{n}", lang) for n in sorted(names) for lang in ("en", "eu")]
    sides = packages.split(documents, small, test)
    assert sorted(d.id for side in sides.values() for d in side) == sorted(d.id for d in documents)
    for side in sides.values():
        pages = {lang: {packages.page_of(d) for d in side if d.lang == lang} for lang in ("en", "eu")}
        assert pages["en"] == pages["eu"]
    wider = packages.split(documents, small + more, test)
    assert set(map(id, sides["validation"])) <= set(map(id, wider["validation"]))
    assert set(map(id, sides["test"])) == set(map(id, wider["test"]))


def test_split_shares() -> None:
    sides = packages.split([Document("t", f"set/en/{i}", "en") for i in range(4000)], 0.1, 0.2)
    assert len(sides["validation"]) == pytest.approx(400, abs=4 * 19)  # four standard deviations
    assert len(sides["test"]) == pytest.approx(800, abs=4 * 26)
    with pytest.raises(DataError, match="held-out shares"):
        packages.split([Document("t", "a", "en")], 0.5, 0.5)


# --------------------------------------------------------------------------------------- the real packages


def real(name: str, lang: str) -> list[Document]:
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("error", message=".*not the pinned one")
            return packages.SETS[name](lang, CACHE)
    except UserWarning as other:
        pytest.skip(f"this machine's package has another text: {other}")
    except DataError as error:
        if "no apt-get" in str(error) or "apt-get could not" in str(error):
            pytest.skip(f"the package cannot be downloaded here: {error}")
        raise


@pytest.mark.real
@pytest.mark.parametrize(("name", "lang"), PINNED)
def test_real_text(name: str, lang: str) -> None:
    documents = real(name, lang)
    checksum = packages.text_checksum(name, lang, CACHE)
    assert checksum == packages.PINNED[name, lang]
    paragraphs = [p for d in documents for p in d.text.split("\n")]
    assert len(set(paragraphs)) == len(paragraphs)  # so no paragraph is on two sides of a split
    assert len({d.id for d in documents}) == len(documents)
    assert sum(len(d.text.encode()) for d in documents) > (1.7e6 if name == "libreoffice_help" else 5e5)
    # The text is in its language: its most usual short words are there, and untranslated English is not.
    text = " ".join(paragraphs)
    english = sum(f" {w} " in f" {p} " for p in paragraphs for w in ("the",)) / len(paragraphs)
    assert english > 0.4 if lang == "en" else english < 0.01
    letters = {"ar": ("\u0600", "\u06ff"), "ru": ("\u0400", "\u04ff"), "zh": ("\u3400", "\u9fff")}
    if lang in letters:
        low, high = letters[lang]
        assert sum(low <= c <= high for c in text) > 0.45 * sum(c.isalpha() for c in text)
    else:
        word = {"en": "the", "eu": "eta", "fr": "les", "id": "yang"}[lang]
        assert text.split().count(word) > 1000


@pytest.mark.real
def test_real_pages_are_held_out_together() -> None:
    held_out = {}
    for lang in ("en", "eu"):
        sides = packages.split(real("libreoffice_help", lang))
        held_out[lang] = {packages.page_of(d) for d in sides["validation"]}
        assert {d.topic for d in sides["validation"]} >= {"scalc", "swriter", "sbasic", "shared"}
    assert held_out["en"] == held_out["eu"]
    assert len(held_out["en"]) == pytest.approx(237, abs=60)


def test_cached_texts_are_the_same_bytes_whoever_writes_them(tmp_path: Path) -> None:
    documents = [Document("a\nñ", "s/eu/p", "eu", topic="t")]
    packages._write(tmp_path / "one.gz", documents)
    packages._write(tmp_path / "two.gz", documents)
    assert (tmp_path / "one.gz").read_bytes() == (tmp_path / "two.gz").read_bytes()
    assert gzip.decompress((tmp_path / "one.gz").read_bytes()).decode() == (
        '{"id": "s/eu/p", "topic": "t", "text": "a\\nñ"}\n'
    )
    assert sorted(p.name for p in tmp_path.iterdir()) == ["one.gz", "two.gz"]
