"""P3's figures and tables: saved whole, and the numbers beside them are the frame's."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from cptkit.data.topics import Report
from cptkit.study.arms import topics
from cptkit.study.views import data_figures
from tests.study.arms.test_paper3 import DIVISION, mixtures, ranked


@pytest.fixture
def frame():
    probes = topics.with_means(mixtures(), DIVISION)
    rows = [
        {
            "arm": "dynamic", "seed": s, "run": f"dynamic{s}", "kind": "feedback", "step": step,
            "feedback.target.law.share": 0.5 + step / 1000, "feedback.target.law.perplexity": 9.0,
            "feedback.target.arts.share": 0.3 - step / 1000, "feedback.target.arts.perplexity": 9.0,
        }
        for s in (0, 1)
        for step in (0, 50)
    ]  # fmt: skip
    return pd.concat([probes, pd.DataFrame(rows)], ignore_index=True)


def saved(folder, name) -> pd.DataFrame:
    for suffix in (".png", ".svg"):
        assert (folder / f"{name}{suffix}").stat().st_size > 0
    return pd.read_csv(folder / f"{name}.csv")


def test_shares_of_the_first_seed(frame, tmp_path):
    data_figures.shares(frame, tmp_path)
    table = saved(tmp_path, "shares")
    assert table["seed"].unique().tolist() == [0]
    assert table["feedback.target.law.share"].tolist() == pytest.approx([0.5, 0.55])
    assert data_figures.shares(frame[frame["kind"] == "probe"]) == "No shares were fed back here."


def test_losses_by_topic_are_differences_from_the_base(frame, tmp_path):
    data_figures.by_topic(frame, folder=tmp_path)
    table = saved(tmp_path, "by_topic").set_index("arm")
    assert table.loc["uniform", "law"] == pytest.approx(0.5)
    assert table.loc["uniform", "arts"] == pytest.approx(-1.0)
    assert table.loc["dynamic", "law"] == pytest.approx(0.0)
    assert "proportional" not in table.index


def test_regret_and_the_table_of_mixtures(frame, tmp_path):
    data_figures.regrets(frame, tmp_path)
    assert set(saved(tmp_path, "regret")["metric"]) == {"regret", "cumulated"}
    table = data_figures.mixture_table(frame, tmp_path).set_index("arm")
    assert table.loc["proportional shares", "topics.mean"] == pytest.approx(3.05)
    assert table.loc["proportional shares", "regret"] == pytest.approx(0.25)
    assert table.loc["proportional shares", "seeds"] == 2
    assert (tmp_path / "mixtures.csv").exists()


def test_the_classifier_is_drawn_with_its_numbers(tmp_path):
    confusion = pd.DataFrame([[8, 2], [1, 9]], index=["law", "arts"], columns=["law", "arts"])
    calibration = pd.DataFrame({"confidence": [0.6, 0.95], "accuracy": [0.5, 0.9], "documents": [4, 16]})
    report = Report(20, 0.85, 0.0, confusion, calibration, 0.06)
    fig = data_figures.classifier(report, tmp_path)
    titles = [ax.get_title("left") for ax in fig.axes]
    assert titles == ["85.0 % right of 20 documents", "Calibration error 0.060"]
    assert len(saved(tmp_path, "classifier")) == 2


def test_what_a_score_prefers(tmp_path):
    rng = np.random.default_rng(0)
    columns = ("repeated", "bytes_per_token", "per_token", "per_byte")
    table = pd.DataFrame({c: rng.uniform(size=40) for c in columns})
    data_figures.preferences(table, tmp_path)
    assert len(saved(tmp_path, "what_a_score_prefers")) == 40


def test_proxies_against_the_larger_model(tmp_path):
    frame = ranked([1.0, 2.0, 3.0], [0.3, 0.1, 0.2]).rename(columns={"loss": "ppl.target.nats_per_token"})
    data_figures.proxies(frame, tmp_path)
    table = saved(tmp_path, "proxies").set_index("arm")
    assert table.loc["a1", ["own", "proxy"]].tolist() == [2.0, 0.1]
    assert "no smaller" in data_figures.proxies(frame[frame["size"] == "own"])


def test_orders_and_stages_at_their_end(frame, tmp_path):
    table = data_figures.order_table(frame, tmp_path).set_index("arm")
    assert table.loc["uniform shares", "ppl.source.perplexity"] == 3.0
    assert data_figures.stages_table(pd.DataFrame()) == "This profile has no stages."
