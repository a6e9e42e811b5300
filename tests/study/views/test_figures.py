from __future__ import annotations

import itertools
import math
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from matplotlib import colors, font_manager, rcParams
from matplotlib.image import imread
from matplotlib.text import Text

from cptkit.study import claims, stats
from cptkit.study.views import curves, figures, style

STEPS = (0, 1, 2, 4, 8, 16, 32, 48, 64, 96, 128, 192, 256, 320, 400)
TASKS = (
    "max_integer_in_list",
    "even_integer_in_odd_group",
    "odd_integer_in_even_group",
    "last_character_in_list",
)


def mixing(arms=("none", "mix20", "mix50"), seeds=(0, 1, 2), rate=1e-3) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    rows = []
    for arm in arms:
        for seed in seeds:
            for step in STEPS:
                fall = 1 - math.exp(-step / 8)
                noise = 1 + 0.02 * rng.standard_normal() * (step > 0)
                where = {
                    "profile": "lab", "experiment": "english_mixing", "arm": arm, "seed": seed,
                    "run": f"{arm}-{seed}-{rate:g}", "lr_peak": rate, "step": step, "tokens": step * 8192,
                }  # fmt: skip
                accuracy = (0.86 - (0.7 if arm == "none" else 0.03) * fall) * noise
                rows.append(
                    where
                    | {
                        "kind": "probe",
                        "ppl.target.perplexity": (60 - 57 * fall) * noise,
                        "ppl.source.perplexity": (3 + (27 if arm == "none" else 0.4) * fall) * noise,
                        "copain.accuracy": accuracy,
                        "copain.chance": 0.31,
                        "copain.in_list": min(1.0, accuracy + 0.1),
                        "choices.target.accuracy": (0.26 + 0.1 * fall) * noise,
                        "choices.target.chance": 0.25,
                        "choices.target.label_perplexity": (20 + 50 * fall * (arm == "none")) * noise,
                        "choices.target_cloze.accuracy": (0.2 + 0.3 * fall) * noise,
                        "choices.target_cloze.chance": 0.125,
                        "drift.mean_l2": math.sqrt(step) * noise,
                    }
                    | {f"drift.layer.{k}": math.sqrt(step) * (1 + k / 10) * noise for k in range(4)}
                    | {"drift.layer.rest": noise}
                    | {f"copain.{t}.accuracy": min(1.0, accuracy * noise) for t in TASKS}
                    | {f"copain.{t}.chance": 0.25 if "group" in t else 1 / 3 for t in TASKS}
                )
                rows.append(where | {"kind": "train", "loss": 2.0, "lr": rate * min(1, step / 10)})
    return pd.DataFrame(rows)


def transfer(languages=(("far", 0.0), ("middle", 0.5), ("near", 0.9))) -> pd.DataFrame:
    rows = []
    for language, similarity in languages:
        for arm, rate, seed in itertools.product(("cpt", "scratch"), (3e-4, 1e-3, 3e-3), (0, 1)):
            for step in range(0, 601, 40):
                speed = {3e-4: 0.5, 1e-3: 1.0, 3e-3: 0.8}[rate] * (1 + (similarity or 0) * (arm == "cpt"))
                rows.append(
                    {
                        "arm": arm, "seed": seed, "run": f"{language}{arm}{rate}{seed}", "lr_peak": rate,
                        "language": language, "similarity": similarity, "step": step, "tokens": step * 4096,
                        "kind": "probe",
                        "ppl.target.nats_per_token": 1.2 + (4 + 0.01 * seed) / (1 + speed * step / 80) ** 0.6,
                    }
                )  # fmt: skip
    return pd.DataFrame(rows)


FERTILITY = pd.DataFrame(
    {
        "language": ["en", "eu", "id", "zh", "fr", "ru", "ar", "nan"],
        "tokens_per_word": [1.3, 2.4, 2.0, 3.0, 1.7, 3.3, 3.6, 2.0],
        "bytes_per_token": [4.3, 2.4, 2.9, 1.3, 3.3, 3.5, 1.1, 2.0],
    }
)


def sweep() -> pd.DataFrame:
    return pd.concat([mixing(), mixing(("none", "mix20"), (0,), 3e-3)], ignore_index=True)


DRAWN = {
    "fig1a_perplexity": lambda out: figures.perplexity(mixing(), out, claims.published()),
    "fig1b_downstream": lambda out: figures.downstream(mixing(), out, claims.published()),
    "fig2_copain": lambda out: figures.copain(mixing(), out, claims.published()),
    "fig3_label_perplexity": lambda out: figures.label_perplexity(mixing(), out),
    "fig4_drift": lambda out: figures.drift(mixing(), out),
    "learning_rates": lambda out: figures.learning_rates(sweep(), out),
    "fertility": lambda out: figures.fertility(FERTILITY, out),
    "transfer": lambda out: figures.transfer(transfer(), out),
    "copain_tasks": lambda out: figures.copain_tasks(mixing(), out),
    "choices": lambda out: figures.choices_bars(mixing(), out),
}


def visible(fig) -> list[Text]:
    """The texts of a figure that are drawn inside their axes' view or belong to no axis."""
    renderer = fig.canvas.get_renderer()
    fig.draw(renderer)
    hidden = set()
    for ax in fig.axes:
        for axis in (ax.xaxis, ax.yaxis):
            low, high = sorted(axis.get_view_interval())
            for tick in [*axis.get_major_ticks(), *axis.get_minor_ticks()]:
                if not low <= tick.get_loc() <= high:
                    hidden |= {tick.label1, tick.label2}
    return [t for t in fig.findobj(Text) if t.get_visible() and t.get_text().strip() and t not in hidden]


def check_texts(fig) -> None:
    """Every text lies on the canvas, and no two cover each other."""
    texts = visible(fig)
    assert texts
    canvas = fig.bbox.padded(1)
    boxes = []
    for text in texts:
        box = text.get_window_extent()
        inside = (canvas.x0 <= box.x0, box.x1 <= canvas.x1, canvas.y0 <= box.y0, box.y1 <= canvas.y1)
        assert all(inside), text.get_text()
        boxes.append((box.padded(-1), text.get_text()))
    for (a, one), (b, other) in itertools.combinations(boxes, 2):
        assert not a.overlaps(b), (one, other)


@pytest.mark.parametrize("name", DRAWN)
@pytest.mark.filterwarnings("error")
def test_every_figure_is_saved_whole_and_nothing_is_cut_or_covered(name, tmp_path):
    fig = DRAWN[name](tmp_path)
    assert {p.name for p in tmp_path.iterdir()} == {f"{name}.png", f"{name}.svg", f"{name}.csv"}
    assert imread(tmp_path / f"{name}.png").std() > 0.05
    numbers = pd.read_csv(tmp_path / f"{name}.csv")
    assert len(numbers) > 3
    assert set(numbers["revision"]) == {style.revision()}
    check_texts(fig)


@pytest.mark.parametrize("last", [1, 120, 10_000])
def test_ticks_of_runs_of_any_length_do_not_collide(last):
    frame = pd.concat([mixing(("none", "mix20"), (0,), rate) for rate in (1e-3, 3e-3, 5e-3)])
    frame["step"] = (frame["step"] * last / 400).round().astype(int)
    frame = frame.drop_duplicates(["run", "step", "kind"], keep="last")
    check_texts(figures.learning_rates(frame))


def test_curves_draw_and_write_the_means_of_the_frame(tmp_path):
    frame = mixing()
    fig = curves.curves(frame, "copain.accuracy", title="t", ylabel="y", name="c", folder=tmp_path)
    expected = frame[frame["kind"] == "probe"].groupby(["arm", "step"])["copain.accuracy"].mean()
    numbers = pd.read_csv(tmp_path / "c.csv").dropna(subset=["step"]).set_index(["arm", "step"])
    np.testing.assert_allclose(numbers["mean"].reindex(expected.index), expected, rtol=1e-12)
    one = frame[(frame["kind"] == "probe") & (frame["arm"] == "none") & (frame["step"] == 8)]
    assert numbers.loc[("none", 8), "low"] == pytest.approx(stats.interval(one["copain.accuracy"]).low)
    lines = {line.get_label(): line for line in fig.axes[0].get_lines()}
    np.testing.assert_allclose(lines["target only"].get_ydata(), expected["none"], rtol=1e-12)
    np.testing.assert_array_equal(lines["target only"].get_xdata(), STEPS)
    assert lines["before CPT"].get_linestyle() == "--"
    assert lines["before CPT"].get_ydata()[0] == pytest.approx(0.86)


def test_band_from_lowest_to_highest(tmp_path):
    frame = mixing()
    curves.curves(frame, "copain.accuracy", title="t", ylabel="y", name="c", folder=tmp_path, band="minmax")
    numbers = pd.read_csv(tmp_path / "c.csv").dropna(subset=["step"]).set_index(["arm", "step"])
    group = frame[frame["kind"] == "probe"].groupby(["arm", "step"])["copain.accuracy"]
    np.testing.assert_allclose(numbers["high"].reindex(group.max().index), group.max(), rtol=1e-12)


def test_an_unfiltered_sweep_is_not_averaged():
    twice = pd.concat([mixing(), mixing(("none",), (0,), 3e-3)], ignore_index=True)
    with pytest.raises(stats.StatsError, match="several runs of one seed"):
        figures.copain(twice)
    fig = figures.learning_rates(twice)
    assert [ax.get_title(loc="left") for ax in fig.axes] == ["learning rate 0.001", "learning rate 0.003"]
    with pytest.raises(KeyError, match=r"copain\.acuracy"):
        curves.curves(mixing(), "copain.acuracy", title="t", ylabel="y", name="c")


def test_an_arm_looks_the_same_everywhere():
    def colour(fig, label):
        handles, labels = fig.axes[0].get_legend_handles_labels()
        handle = handles[labels.index(label)]
        return colors.to_hex(
            handle.get_color() if hasattr(handle, "get_color") else handle[0].get_facecolor()
        )

    frame = mixing(("none", "mix20", "nameless"))
    seen = [figures.copain(frame), figures.drift(mixing(("nameless", "none"))), figures.choices_bars(frame)]
    for arm in ("none", "nameless"):
        label = style.arm_style(arm).label
        assert {colour(fig, label) for fig in seen} == {style.arm_style(arm).colour.lower()}
    assert style.arm_style("nameless").label == "nameless"
    assert style.arm_style("nameless").colour in style.OTHER_COLOURS


def test_colours_of_unknown_arms_do_not_depend_on_the_session():
    assert style.arm_style("nameless") == style.Arm("nameless", "#AA4499", "P")


def test_known_arms_are_told_apart_without_normal_colour_vision():
    # Machado et al. 2009, deuteranopia and protanopia at full severity, in linear RGB
    machado = (
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    )
    names = ["none", "mix1", "mix5", "mix10", "mix20", "mix50", "mix80"]
    rgb = np.array([colors.to_rgb(style.ARMS[n].colour) for n in names])
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    for matrix in machado:
        seen = np.clip(linear @ np.array(matrix).T, 0, 1) ** (1 / 2.2)
        for i, j in itertools.combinations(range(len(names)), 2):
            assert np.linalg.norm(seen[i] - seen[j]) > 0.12, (names[i], names[j])
    assert len({style.ARMS[n].marker for n in names}) == len(names)


# ---------------------------------------------------------------------------------------------- published


def test_published_points_are_shares_and_fractions():
    points = curves.published_points(claims.published(), "copain_exact_match")
    values = points.set_index("arm")
    assert values["value"].to_dict() == pytest.approx({"base": 0.4467, "mix20": 0.4343, "none": 0.2012})
    assert values["share"].to_dict() == {"base": 0.0, "mix20": 1.0, "none": 1.0}
    curve = curves.published_points(claims.published(), "validation_perplexity")
    assert set(curve["provenance"]) == {"second-hand", "digitised"}
    assert curve["share"].between(0, 1).all()


def test_published_marks_are_hollow_and_marked_by_provenance():
    fig = figures.downstream(mixing(), None, claims.published())
    hollow = [line for line in fig.axes[0].get_lines() if line.get_markerfacecolor() == "none"]
    assert {line.get_marker() for line in hollow} == {"D", "s"}
    ends = {colors.to_hex(line.get_markeredgecolor()): line for line in hollow if line.get_marker() == "D"}
    final = ends[style.ARMS["mix20"].colour.lower()]
    assert final.get_xdata().tolist() == [STEPS[-1]]
    assert final.get_ydata().tolist() == pytest.approx([0.3414])
    texts = [t.get_text() for t in fig.legends[0].get_texts()]
    assert "published, read second-hand" in texts
    assert "published, read off a figure" in texts


def test_table_two(tmp_path):
    frame = mixing()
    table = figures.english_mixing_table(frame, claims.published(), tmp_path)
    assert list(table.index) == ["before CPT", "20 % English", "target only", "50 % English"]
    assert table.loc["target only", "Copain, published"] == "20.12 % †"
    assert table.loc["50 % English", "Copain, published"] == "–"
    last = frame[(frame["kind"] == "probe") & (frame["step"] == 400) & (frame["arm"] == "none")]
    ours = stats.interval(last["copain.accuracy"])
    half = 100 * (ours.high - ours.mean)
    assert table.loc["target only", "Copain"] == f"{100 * ours.mean:.1f} % ± {half:.1f}"
    assert table.loc["before CPT", "Copain"] == "86.0 %"
    numbers = pd.read_csv(tmp_path / "table2_english_mixing.csv").set_index(["arm", "column"])
    assert numbers.loc[("none", "Copain"), "mean"] == pytest.approx(ours.mean)
    assert numbers.loc[("none", "target perplexity"), "published"] == 3.58
    html = (tmp_path / "table2_english_mixing.html").read_text(encoding="utf-8")
    assert "20.12 % †" in html
    missing = figures.english_mixing_table(frame[frame["arm"] != "mix50"], claims.published())
    assert missing.loc["50 % English", "Copain"] == "–"


# -------------------------------------------------------------------------------------------- notebook 00


def test_transfer_shows_each_arm_at_its_best_rate_and_what_it_saves(tmp_path):
    fig = figures.transfer(transfer(), tmp_path)
    titles = [ax.get_title(loc="left") for ax in fig.axes]
    # with loss a function of speed x tokens, CPT needs 1 / 1.5 of the tokens at similarity 0.5
    assert titles[1] == "middle\nCPT needs 33 % fewer tokens"
    assert titles[0].startswith("far\nCPT needs 0 %")
    assert set(pd.read_csv(tmp_path / "transfer.csv")["lr_peak"]) == {1e-3}


def test_transfer_of_real_languages_without_a_similarity():
    fig = figures.transfer(transfer((("fr", None), ("zh", None))))
    titles = [ax.get_title(loc="left").split("\n")[0] for ax in fig.axes]
    assert titles == [style.language("fr"), style.language("zh")]


def test_copain_tasks_of_one_model_marks_each_chance(tmp_path):
    chance = {t: 0.25 if "group" in t else 1 / 3 for t in TASKS}
    score = {t: SimpleNamespace(accuracy=0.5, chance=c, in_list=0.9) for t, c in chance.items()}
    fig = figures.copain_tasks(SimpleNamespace(tasks=score), tmp_path)
    heights = [bar.get_height() for bar in fig.axes[0].patches]
    assert heights == [0.5] * len(TASKS)
    marks = [line.get_ydata()[0] for line in fig.axes[0].get_lines() if line.get_linestyle() == ":"]
    assert marks == pytest.approx([s.chance for s in score.values()])
    assert list(pd.read_csv(tmp_path / "copain_tasks.csv")["task"]) == list(TASKS)


def test_choices_bars_end_where_the_runs_end(tmp_path):
    frame = mixing()
    figures.choices_bars(frame, tmp_path)
    numbers = pd.read_csv(tmp_path / "choices.csv").set_index(["set", "arm"])
    last = frame[(frame["kind"] == "probe") & (frame["step"] == 400)]
    assert numbers.loc[("target_cloze", "mix20"), "mean"] == pytest.approx(
        last.loc[last["arm"] == "mix20", "choices.target_cloze.accuracy"].mean()
    )
    assert numbers.loc[("target", "base"), "mean"] == pytest.approx(0.26)
    assert numbers.loc[("target", "base"), "n"] == 1
    assert ("source", "mix20") not in numbers.index


# -------------------------------------------------------------------------------------------------- fonts


@pytest.mark.parametrize("code", ["eu", "fr", "ru", "ar", "zh", "ja", "id"])
def test_language_labels_have_every_glyph_or_fall_back_to_the_code(code):
    label = style.language(code)
    chosen = style.families(label)
    assert chosen is not None
    faces = [font_manager.FontProperties(family=f) for f in chosen]
    paths = [font_manager.findfont(p, fallback_to_default=False) for p in faces]
    have = set().union(*(font_manager.get_font(p).get_charmap() for p in paths))
    assert {ord(c) for c in label if c != " "} <= have
    name = style.LANGUAGES[code]
    assert label == (f"{name} ({code})" if style.families(name) else code)


def test_what_no_font_has_is_known():
    assert style.families("\U000f1234") is None
    assert style.families("English, Euskara, Русский") == ("DejaVu Sans",)
    assert style.language("xx") == "xx"
    assert style.language("nan") == "nan"


def test_arabic_is_kept_in_logical_order():
    if style.families(style.LANGUAGES["ar"]) is None:
        pytest.skip("no Arabic font here")
    fig = figures.fertility(FERTILITY)
    labels = [t.get_text() for t in fig.axes[0].get_yticklabels()]
    assert "العربية (ar)" in labels
    assert labels[-1] == "nan"


# --------------------------------------------------------------------------------------------- no globals


def test_drawing_leaves_no_trace_and_needs_no_pyplot(tmp_path):
    before = dict(rcParams)
    fig = figures.drift(mixing(), tmp_path)
    assert dict(rcParams) == before
    assert fig._repr_png_()[:8] == b"\x89PNG\r\n\x1a\n"
    code = (
        "import sys; from cptkit.study.views import figures; "
        "assert 'matplotlib.pyplot' not in sys.modules and 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_same_figure_is_the_same_file(tmp_path):
    for folder in ("a", "b"):
        figures.label_perplexity(mixing(), tmp_path / folder)
    for kind in ("png", "svg", "csv"):
        name = f"fig3_label_perplexity.{kind}"
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


def test_a_failed_save_leaves_the_old_file(tmp_path, monkeypatch):
    figures.label_perplexity(mixing(), tmp_path)
    old = (tmp_path / "fig3_label_perplexity.png").read_bytes()

    def full(self, *args, **kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(style.StudyFigure, "savefig", full)
    with pytest.raises(OSError, match="No space"):
        figures.label_perplexity(mixing(("none",)), tmp_path)
    assert (tmp_path / "fig3_label_perplexity.png").read_bytes() == old


@pytest.mark.parametrize(("values", "floor"), [([0.0, 0.0], -0.005), ([0.0, 0.5], -0.025)])
def test_shares_that_are_all_zero_have_no_axis_below_zero(values, floor):
    ax = style.new(3, 3).subplots()
    ax.plot([0, 1], values)
    curves.percent_axis(ax.yaxis)
    assert ax.get_ylim()[0] == pytest.approx(floor)
