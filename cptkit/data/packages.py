"""Real text that Debian packages ship: the LibreOffice help and the Debian handbook.

A package is downloaded with the system's own client and unpacked into the cache, never installed. Where
that client does not exist, `fetch` says where to put the package by hand. Every text set becomes a list
of documents, one a page, parallel over languages: the page is named in the document's id, so a page
has the same place in every language and `split` puts it on the same side in all of them.

What is done to the text: paragraphs only (no menus, no code listings), white space normalised, every
paragraph that occurs before in the same language left out (the help repeats thousands of shared snippets,
which would leak from training pages into held-out pages), every paragraph that is English left out of the
other languages (not translated). The result is cached as gzipped JSON lines and its sha256 compared with
`PINNED`: Debian republishes these packages, and it is the text that must be the same, not the version.

Cost: the help is a download of 2 to 4 MB a language and about 3 s to extract; the handbook is 35 MB for all
languages, 200 MB unpacked, about 2 s a language. A second call reads the cache in milliseconds.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import logging
import os
import re
import shutil
import subprocess
import tempfile
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from cptkit.data.documents import DataError, Document

if TYPE_CHECKING:
    from lxml.html import HtmlElement

log = logging.getLogger(__name__)

#: Part of the name of a cached text: raise it when extraction changes, and pin the new texts.
EXTRACTION = 1

#: language -> (package, folder of the pages)
LIBREOFFICE_HELP = {
    "en": ("libreoffice-help-en-us", "en-US"),
    "eu": ("libreoffice-help-eu", "eu"),
    "id": ("libreoffice-help-id", "id"),
    "zh": ("libreoffice-help-zh-cn", "zh-CN"),
    "fr": ("libreoffice-help-fr", "fr"),
    "ru": ("libreoffice-help-ru", "ru"),
}
DEBIAN_HANDBOOK = {"en": "en-US", "ar": "ar-MA", "id": "id-ID", "zh": "zh-CN", "fr": "fr-FR", "ru": "ru-RU"}

#: sha256 of the texts extracted from libreoffice-help 4:7.4.7-1+deb12u14 and debian-handbook 11.20220922.
PINNED = {
    ("libreoffice_help", "en"): "679999621926e578fbe4fc1ca32c0845d00c37c66e442cc834774d5f7f43d7a0",
    ("libreoffice_help", "eu"): "db1224a9a287fc042d156ae30d76ec89e38409324c7d4f7b3a5036691a212b67",
    ("libreoffice_help", "id"): "6745baaaff77cba6be3567122d41a988f3fc3e3ca2646568f58ee21763a48c80",
    ("libreoffice_help", "zh"): "72bcd3c0a1c56f2f73a381b921d49c1cd260cc51209a5cb1cea5754e031e863b",
    ("libreoffice_help", "fr"): "164e853dfc07bf9a171a10a2254cc5ec1058fd9aa3582494f57f8a7d91f3e1a3",
    ("libreoffice_help", "ru"): "5f7f642ae592185f9ec2a9b4d72d7c883cb220c250078622613368709ea648b0",
    ("debian_handbook", "en"): "8cb245b76986f3bc4b0eea9efe690a43f08115256daa8878f02c28fa5c297fd6",
    ("debian_handbook", "ar"): "f531d922a125b2ecaae571623e774d6fb7dcde8ad64961278fe842a03d5e8dc5",
    ("debian_handbook", "id"): "1f93ad28c89cc6c83d6522d38137115fdb95eaf432f79414c7d375a1d48bdcb2",
    ("debian_handbook", "zh"): "0ccc24dd375a2f39722fcfd4fe61ef0cfc386f1125896253a0ecc12fb3ab0cef",
    ("debian_handbook", "fr"): "74e4bac50d9b6eb3c68f88c84d159eea755cdc028a0b6e86631afda6cd514cb5",
    ("debian_handbook", "ru"): "cdbc78ff95efdb0f020e4ad2dba76ea67284cbc9dbfbd8f0deb560eef282bfbb",
}

HEADINGS = frozenset({"h1", "h2", "h3", "h4", "h5", "h6"})
WORD = re.compile(r"[^\W\d_]{2,}")


# ---------------------------------------------------------------------------------------------- packages


def fetch(package: str, cache: Path) -> Path:
    """The folder with the unpacked files of a Debian package (`<cache>/packages/<package>`).

    Reuses that folder, else unpacks a `<package>*.deb` lying beside it, else downloads one with `apt-get`
    (after one `apt-get update` where the package lists are missing). The folder appears whole or not at all.
    Raises `DataError`, naming the alternatives, where none of this is possible.
    """
    if not re.fullmatch(r"[a-z0-9][a-z0-9+.-]+", package):
        raise DataError(f"{package!r} is not the name of a Debian package")
    home = Path(cache).resolve() / "packages"
    target = home / package
    if target.is_dir():
        return target
    home.mkdir(parents=True, exist_ok=True)
    by_hand = sorted(home.glob(f"{package}_*.deb")) + sorted(home.glob(f"{package}.deb"))
    with tempfile.TemporaryDirectory(prefix=f".{package}.", dir=home) as work:
        deb = by_hand[-1] if by_hand else _download(package, Path(work), home)
        unpacked = Path(work, "root")
        _run(
            ["dpkg-deb", "-x", str(deb), str(unpacked)], f"{package}: cannot unpack {deb.name}", package, home
        )
        unpacked.chmod(0o755)
        try:
            unpacked.rename(target)
        except OSError:
            if not target.is_dir():  # else another process was faster; its folder is the same
                raise
    return target


def _download(package: str, work: Path, home: Path) -> Path:
    log.info("downloading the package %s", package)
    download, what = ["apt-get", "download", package], f"{package}: apt-get could not download it"
    try:
        _run(download, what, package, home, cwd=work)
    except DataError:
        if shutil.which("apt-get") is None:
            raise
        # On a fresh machine or container the package lists are missing or point to superseded versions.
        _run(["apt-get", "update"], f"{package}: apt-get could not update its lists", package, home)
        _run(download, what, package, home, cwd=work)
    return next(work.glob("*.deb"))


def _run(command: list[str], what: str, package: str, home: Path, cwd: Path | None = None) -> None:
    alternatives = (
        f"Alternatives: put the package's .deb file into {home} (it is unpacked with dpkg-deb); or unpack it "
        f"elsewhere and put the folder that contains usr/ at {home / package}; or use your own text with a "
        f"corpus of kind 'files'."
    )
    if shutil.which(command[0]) is None:
        raise DataError(f"{what}: this machine has no {command[0]}. {alternatives}")
    try:
        done = subprocess.run(
            command,
            cwd=cwd,
            env={**os.environ, "LC_ALL": "C"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=600,
        )
    except subprocess.TimeoutExpired:
        raise DataError(f"{what}: {command[0]} did not end within 10 minutes. {alternatives}") from None
    if done.returncode:
        reason = done.stderr.strip() or done.stdout.strip()
        raise DataError(
            f"{what} ({' '.join(command[:2])} ended with {done.returncode}): {reason}. {alternatives}"
        )


# ------------------------------------------------------------------------------------------------- texts


def libreoffice_help(lang: str, cache: Path) -> list[Document]:
    """The LibreOffice help in `lang` (en, eu, id, zh, fr, ru): about 2,000 pages, 2 to 3.5 MB of text.

    Ids are `libreoffice_help/<lang>/<page>`, the topic is the module (`scalc`, `swriter`, `shared`, ...).
    Raises `DataError` for a language that the set lacks, or when the package cannot be had.
    """

    def pages(of: str) -> dict[str, list[str]]:
        package, folder = LIBREOFFICE_HELP[of]
        return read_pages(fetch(package, cache) / "usr/share/libreoffice/help" / folder / "text", help_page)

    return _text_set("libreoffice_help", LIBREOFFICE_HELP, lang, cache, pages)


def debian_handbook(lang: str, cache: Path) -> list[Document]:
    """The Debian Administrator's Handbook in `lang` (en, ar, id, zh, fr, ru): about 120 pages, 0.5 to 0.9 MB.

    Ids are `debian_handbook/<lang>/<page>`; there is no topic. Raises as `libreoffice_help`.
    """

    def pages(of: str) -> dict[str, list[str]]:
        root = fetch("debian-handbook", cache) / "usr/share/doc/debian-handbook/html"
        return read_pages(root / DEBIAN_HANDBOOK[of], handbook_page)

    return _text_set("debian_handbook", DEBIAN_HANDBOOK, lang, cache, pages)


SETS = {"libreoffice_help": libreoffice_help, "debian_handbook": debian_handbook}


def text_checksum(name: str, lang: str, cache: Path) -> str:
    """The sha256 of a set's extracted text (extracted first where needed); part of a corpus fingerprint."""
    SETS[name](lang, cache)
    return hashlib.sha256(gzip.decompress(_cached(name, lang, cache).read_bytes())).hexdigest()


def _cached(name: str, lang: str, cache: Path) -> Path:
    return Path(cache) / "texts" / f"{name}.{lang}.v{EXTRACTION}.jsonl.gz"


def _text_set(name: str, langs: Iterable[str], lang: str, cache: Path, pages) -> list[Document]:
    if lang not in langs:
        raise DataError(f"{name} has no language {lang!r}; it has {', '.join(langs)}")
    path = _cached(name, lang, cache)
    if not path.exists():
        english = None if lang == "en" else pages("en")
        documents = clean(name, lang, pages(lang), english)
        if not documents:
            raise DataError(f"{name}/{lang}: the package has no text where it was expected")
        _write(path, documents)
    try:
        data = gzip.decompress(path.read_bytes())
        rows = [json.loads(line) for line in data.splitlines()]
    except (OSError, EOFError, ValueError) as error:
        raise DataError(f"{path} is damaged ({error}); delete it, it will be extracted again") from None
    found, pinned = hashlib.sha256(data).hexdigest(), PINNED.get((name, lang))
    if pinned and found != pinned:
        warnings.warn(
            f"{name}/{lang}: this text (sha256 {found}, in {path}) is not the pinned one (sha256 {pinned}): "
            f"another version of the package. Results are comparable within this text only.",
            stacklevel=3,
        )
    return [Document(row["text"], row["id"], lang, topic=row["topic"]) for row in rows]


def _write(path: Path, documents: list[Document]) -> None:
    lines = (
        json.dumps({"id": d.id, "topic": d.topic, "text": d.text}, ensure_ascii=False) for d in documents
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", delete=False) as file:
        try:
            file.write(gzip.compress("".join(f"{line}\n" for line in lines).encode(), mtime=0))
            file.close()
            os.replace(file.name, path)
        except BaseException:
            os.unlink(file.name)
            raise


def clean(
    name: str, lang: str, pages: dict[str, list[str]], english: dict[str, list[str]] | None
) -> list[Document]:
    """Pages to documents, without repeated paragraphs and, given `english`, without untranslated ones."""
    english = english or {}
    seen = {p for paragraphs in english.values() for p in paragraphs}
    documents = []
    for page, paragraphs in pages.items():
        vocabulary = {word for p in english.get(page, ()) for word in WORD.findall(p)}
        kept = [p for p in paragraphs if not (p in seen or seen.add(p) or _untranslated(p, vocabulary))]
        if kept:
            topic = page.split("/")[0] if "/" in page else ""
            documents.append(Document("\n".join(kept), f"{name}/{lang}/{page}", lang, topic=topic))
    return documents


def _untranslated(paragraph: str, vocabulary: set[str]) -> bool:
    """Whether a long paragraph is made of words of the English page.

    An untranslated paragraph is not always equal to the English one: it holds the translated title of what it
    refers to, or is that of an older edition. Without this rule, 5 % of the Arabic handbook is English.
    """
    words = WORD.findall(paragraph)
    return len(words) >= 8 and sum(len(w) for w in words if w in vocabulary) >= 0.75 * sum(map(len, words))


# ------------------------------------------------------------------------------------------------- pages


def read_pages(folder: Path, page) -> dict[str, list[str]]:
    """`{page name: paragraphs}` of every HTML file under `folder`, in the order of their names."""
    files = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*.html")}
    return {name.removesuffix(".html"): page(parsed(files[name])) for name in sorted(files)}


def parsed(path: Path) -> HtmlElement:
    try:
        from lxml import html
    except ImportError:
        raise DataError("reading packaged pages needs lxml: pip install 'cptkit[real]'") from None
    return html.fromstring(path.read_bytes() or b"<html/>", parser=html.HTMLParser(encoding="utf-8"))


def help_page(root: HtmlElement) -> list[str]:
    """Paragraphs of a LibreOffice help page: headings and paragraphs with an id, in the page's body."""
    return [text for _, text in help_places(root)]


def help_places(root: HtmlElement) -> list[tuple[str, str]]:
    """(id, text) of the paragraphs of a help page. Translators keep the id."""
    area = root.get_element_by_id("DisplayArea", None)
    if area is None:
        return []

    def dropped(e: HtmlElement) -> bool:
        return e.tag in {"script", "style", "noscript", "nav", "pre"} or "code" in e.get("class", "")

    def block(e: HtmlElement) -> bool:
        return e.tag in HEADINGS | {"p"} and e.get("id") is not None

    return [(e.get("id"), text) for e, text in _paragraphs(area, block, dropped)]


def handbook_page(root: HtmlElement) -> list[str]:
    """Paragraphs of a Debian handbook page: headings, paragraphs, items and cells, without listings."""

    def dropped(e: HtmlElement) -> bool:
        classes = e.get("class", "")
        return (
            e.tag in {"script", "style", "nav", "pre", "head"}
            or any(word in classes for word in ("docnav", "programlisting", "screen"))
            or "toc" in (classes, e.get("id"))
            or e.get("id") == "banner"
        )

    def block(e: HtmlElement) -> bool:
        return e.tag in HEADINGS | {"p", "dt", "dd", "li", "td", "th"} or (
            e.tag == "div" and "para" in e.get("class", "").split()
        )

    return [text for _, text in _paragraphs(root, block, dropped)]


def _paragraphs(root: HtmlElement, block, dropped) -> Iterator[tuple[HtmlElement, str]]:
    """Each block with its text, in page order, without the blocks inside it (they come on their own)."""
    for element in root.iter():
        if not isinstance(element.tag, str) or not block(element):
            continue
        if dropped(element) or any(dropped(above) for above in element.iterancestors()):
            continue
        text = " ".join("".join(_own_text(element, block, dropped)).split())
        if text:
            yield element, text


def _own_text(element: HtmlElement, block, dropped) -> Iterator[str]:
    yield element.text or ""
    for child in element:
        if isinstance(child.tag, str) and not block(child) and not dropped(child):
            yield from _own_text(child, block, dropped)
        yield child.tail or ""


# ------------------------------------------------------------------------------------------------- split


def page_of(document: Document) -> str:
    """The document's id without its language: the same for a page in every language."""
    return document.id.replace(f"/{document.lang}/", "/", 1)


def side(key: str, validation: float, test: float) -> str:
    """`train`, `validation` or `test` for a key, by its hash alone.

    A larger share only moves keys from train: what was held out before stays held out.
    Raises `DataError` when the shares are negative or do not leave anything to train on.
    """
    if not (validation >= 0 and test >= 0 and validation + test < 1):
        raise DataError(f"held-out shares must be >= 0 and leave some training text: {validation=}, {test=}")
    place = int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "big") / 2**64
    return "validation" if place < validation else "test" if place >= 1 - test else "train"


def split(
    documents: Iterable[Document], validation: float = 0.1, test: float = 0.0
) -> dict[str, list[Document]]:
    """Documents by side (`train`, `validation`, `test`), cut by page and never by paragraph.

    Shares are of the pages, in expectation. The same page is on the same side in every language.
    """
    sides: dict[str, list[Document]] = {"train": [], "validation": [], "test": []}
    for document in documents:
        sides[side(page_of(document), validation, test)].append(document)
    return sides
