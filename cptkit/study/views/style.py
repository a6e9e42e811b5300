"""How every figure of the study looks: one colour and label per arm, fonts for any script, one way to save.

Colours are Okabe and Ito's and, for arms not named here, Tol's muted scheme, chosen by a checksum of the
name, so the same arm is the same colour in every figure and session. Colour is never the only sign: each arm
also has a marker. No global state: pyplot is never imported and rcParams are set only inside `drawing`.

Cost: fonts are searched only for characters that DejaVu Sans, which matplotlib ships, does not have.
"""

from __future__ import annotations

import io
import os
import subprocess
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pandas as pd
from matplotlib import font_manager, rc_context
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ft2font import FT2Font
from matplotlib.text import Text


@dataclass(frozen=True, slots=True)
class Arm:
    label: str
    colour: str
    marker: str = "o"


ARMS = {
    "base": Arm("before CPT", "#000000", ""),
    "none": Arm("target only", "#D55E00", "o"),
    "mix1": Arm("1 % English", "#E69F00", "v"),
    "mix5": Arm("5 % English", "#CC79A7", "^"),
    "mix10": Arm("10 % English", "#56B4E9", "D"),
    "mix20": Arm("20 % English", "#0072B2", "s"),
    "mix50": Arm("50 % English", "#009E73", "X"),
    "mix80": Arm("80 % English", "#882255", "P"),
    "early1": Arm("English in the first 1 % of steps", "#F0E442", "v"),
    "early5": Arm("English in the first 5 %", "#E69F00", "^"),
    "early10": Arm("English in the first 10 %", "#CC79A7", "D"),
    "early20": Arm("English in the first 20 %", "#882255", "P"),
    "late10": Arm("English in the last 10 %", "#009E73", "X"),
    "even": Arm("as much English as in 10 %, evenly", "#56B4E9", "v"),
    "low92": Arm("rate x 0.08", "#332288", "s"),
    "low992": Arm("rate x 0.008", "#332288", "v"),
    "mix20_low": Arm("20 % English, rate x 0.08", "#0072B2", "P"),
    "ema92_1": Arm("fed-back average 0.92, every step", "#88CCEE", "o"),
    "ema92_10": Arm("fed-back average 0.92, every 10", "#88CCEE", "s"),
    "ema92_50": Arm("fed-back average 0.92, every 50", "#88CCEE", "D"),
    "ema992_1": Arm("fed-back average 0.992, every step", "#44AA99", "o"),
    "ema992_10": Arm("fed-back average 0.992, every 10", "#44AA99", "s"),
    "ema992_50": Arm("fed-back average 0.992, every 50", "#44AA99", "D"),
    "shadow": Arm("shadow average (not fed back)", "#999933", "^"),
    "released": Arm("the rule as released", "#661100", "X"),
    "trust_region": Arm("trust region", "#AA4499", "s"),
    "coherence": Arm("coherent steps", "#AA4499", "^"),
    "gate": Arm("gated by lists", "#AA4499", "D"),
    "l2sp_0.003": Arm("L2-SP 0.003", "#777777", "o"),
    "l2sp_0.01": Arm("L2-SP 0.01", "#777777", "v"),
    "l2sp_0.1": Arm("L2-SP 0.1", "#777777", "^"),
    "lists1": Arm("1 % lists", "#DDCC77", "v"),
    "lists5": Arm("5 % lists", "#DDCC77", "^"),
    "lists20": Arm("20 % lists", "#DDCC77", "s"),
    "few_lists20": Arm("20 % lists, three rules", "#DDCC77", "X"),
    "lists": Arm("language-free lists", "#B8860B", "s"),
    "few_lists": Arm("lists of three rules", "#CC6677", "X"),
    "English": Arm("English", "#0072B2", "o"),
    "lora4": Arm("LoRA, rank 4", "#CC6677", "v"),
    "lora16": Arm("LoRA, rank 16", "#CC6677", "s"),
    "lora64": Arm("LoRA, rank 64", "#CC6677", "^"),
    "lora16_low": Arm("LoRA, rank 16, lowest rate", "#CC6677", "D"),
    "lora16_embeddings": Arm("LoRA, rank 16, embeddings trained", "#117733", "P"),
    "proportional": Arm("proportional shares", "#777777", "o"),
    "uniform": Arm("uniform shares", "#0072B2", "s"),
    "dynamic": Arm("shares follow perplexity", "#D55E00", "D"),
    "excess loss": Arm("excess loss (DoReMi)", "#009E73", "^"),
    "data sets": Arm("feedback between data sets", "#CC79A7", "v"),
    "random": Arm("random order", "#777777", "o"),
    "easy to hard": Arm("easy to hard", "#009E73", "^"),
    "hard to easy": Arm("hard to easy", "#D55E00", "v"),
    "buckets": Arm("stages of difficulty, mixed", "#56B4E9", "s"),
    "paced": Arm("paced by competence", "#CC79A7", "D"),
    "subjects": Arm("subject by subject", "#882255", "P"),
    "bilingual": Arm("both languages", "#117733", "D"),
    "cpt": Arm("continued pretraining", "#332288", "s"),
    "scratch": Arm("from scratch", "#777777", "o"),
}
OTHER_COLOURS = ("#44AA99", "#CC6677", "#999933", "#AA4499", "#88CCEE", "#117733", "#DDCC77", "#661100")
OTHER_MARKERS = ("o", "s", "^", "D", "v", "P", "X")

LANGUAGES = {
    "ar": "العربية",
    "de": "Deutsch",
    "en": "English",
    "es": "Español",
    "eu": "Euskara",
    "fr": "Français",
    "id": "Bahasa Indonesia",
    "ja": "日本語",
    "ko": "한국어",
    "ru": "Русский",
    "zh": "中文",
}

# Hollow marks of published values, by how we know them.
PROVENANCE = {
    "full-text": ("o", "published"),
    "authors-repo": ("o", "published"),
    "authors-dataset": ("o", "published"),
    "second-hand": ("D", "published, read second-hand"),
    "digitised": ("s", "published, read off a figure"),
    "third-party": ("^", "measured by others"),
}

RC = {
    "font.family": ["DejaVu Sans"],
    "font.size": 10,
    "axes.titlesize": 11,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#e6e6e6",
    "grid.linewidth": 0.7,
    "axes.axisbelow": True,
    "legend.frameon": False,
    "legend.fontsize": 9,
    "figure.constrained_layout.use": True,
    "savefig.dpi": 150,
    "svg.hashsalt": "cptkit",  # the same figure gives the same file
}


def arm_style(name: str) -> Arm:
    """The look of an arm; one that `ARMS` does not name has its name as label and a colour from it."""
    if name in ARMS:
        return ARMS[name]
    number = zlib.crc32(name.encode())
    colour = OTHER_COLOURS[number % len(OTHER_COLOURS)]
    return Arm(name, colour, OTHER_MARKERS[number // len(OTHER_COLOURS) % len(OTHER_MARKERS)])


@cache
def _characters(path: str, index: int) -> frozenset[int]:
    return frozenset(FT2Font(path, face_index=index).get_charmap())


@cache
def _regular_fonts() -> dict[str, tuple[str, int]]:
    """Installed text families with the file of their regular face. Last Resort draws a box for everything."""
    unfit = ("Last Resort", "cm", "STIX", "DejaVu")
    faces = {"DejaVu Sans": (font_manager.findfont("DejaVu Sans"), 0)}
    for entry in sorted(font_manager.fontManager.ttflist, key=lambda e: ("Sans" not in e.name, e.name)):
        if entry.style == "normal" and entry.weight in (400, "normal") and not entry.name.startswith(unfit):
            faces.setdefault(entry.name, (entry.fname, entry.index))
    return faces


@cache
def families(text: str) -> tuple[str, ...] | None:
    """Font families that together have every character of `text`, DejaVu Sans first; None if none have."""
    wanted = {ord(c) for c in text if not c.isspace()}
    chosen = ["DejaVu Sans"]
    for name, face in _regular_fonts().items():
        found = wanted & _characters(*face)
        if found and name not in chosen:
            chosen.append(name)
        wanted -= found
        if not wanted:
            return tuple(chosen)
    return None


def language(code: str) -> str:
    """A language's own name with its code, or the code alone where no installed font can write the name.

    Text stays in logical order: matplotlib (from 3.11) shapes and orders Arabic itself.
    """
    name = LANGUAGES.get(code)
    return f"{name} ({code})" if name and families(name) else code


class StudyFigure(Figure):
    """A figure without pyplot: a notebook shows it once, when it is a cell's last value."""

    def _repr_png_(self) -> bytes:
        buffer = io.BytesIO()
        with rc_context(RC):
            self.savefig(buffer, format="png")
        return buffer.getvalue()


@contextmanager
def drawing() -> Iterator[None]:
    """The study's settings, for this block only."""
    with rc_context(RC):
        yield


def new(width: float, height: float) -> StudyFigure:
    """An empty figure of this size in inches, on the Agg canvas; call inside `drawing`."""
    fig = StudyFigure(figsize=(width, height))
    FigureCanvasAgg(fig)
    return fig


@cache
def revision() -> str:
    """The git revision of this code, `+` for uncommitted changes, "unknown" outside a repository."""
    command = ["git", "describe", "--always", "--dirty=+", "--abbrev=12", "--exclude=*"]
    try:
        answer = subprocess.run(
            command, cwd=Path(__file__).parent, capture_output=True, text=True, timeout=10, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return answer.stdout.strip()


def save_numbers(data: pd.DataFrame, path: Path) -> None:
    """Write `data` with a revision column, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    data.assign(revision=revision()).to_csv(partial, index=False)
    os.replace(partial, path)


def keep_table(table: pd.DataFrame, folder: Path | None, name: str) -> pd.DataFrame:
    """The table, written to folder/name.csv where there is a folder."""
    if folder is not None:
        save_numbers(table, Path(folder) / f"{name}.csv")
    return table


def save(fig: Figure, data: pd.DataFrame, folder: Path | None, name: str) -> Figure:
    """Set fonts, write folder/name.png, .svg and .csv (the numbers drawn), return the figure.

    Without a folder nothing is written.
    """
    for text in fig.findobj(Text):
        if not text.get_text().isascii() and (found := families(text.get_text())):
            text.set_fontfamily(list(found))
    if folder is None:
        return fig
    folder = Path(folder)
    save_numbers(data, folder / f"{name}.csv")
    with drawing():
        for kind, metadata in (("png", {"Software": None}), ("svg", {"Date": None})):
            partial = folder / f"{name}.{kind}.partial"
            fig.savefig(partial, format=kind, metadata=metadata)
            os.replace(partial, folder / f"{name}.{kind}")
    return fig
