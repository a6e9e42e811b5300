"""Every notebook, through the real runner and real kernels, in profile smoke; and how notebooks are kept."""

from __future__ import annotations

import ast
import shutil
from pathlib import Path

import nbformat
import pandas as pd
import pytest

from cptkit.study.parameters import declared
from cptkit.study.runner import run_study

NOTEBOOKS = sorted((Path(__file__).parents[1] / "notebooks").glob("*.ipynb"))
names = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)

FIGURES = {
    "00_setup": {"fertility", "emergence", "copain_tasks", "choices", "transfer"},
    "01_english_mixing": {
        "fig1a_perplexity", "fig1b_downstream", "fig2_copain", "fig3_label_perplexity", "fig4_drift",
        "choices", "copain_tasks", "learning_rates", "learning_rates_perplexity", "drift_definitions",
        "drift_layers", "event_times",
    },
    "02_curriculum": {"over_steps", "spent", "conditions"},
    "03_averaging": {"over_steps", "rates", "replay", "merging", "plane"},
    "04_lora": {"rates", "plane", "matched_drift"},
    "05_replay_ratios": {"fig5_loss_against_compute", "laws", "shares", "fig6_choices", "fig6_copain"},
    "06_scaling": {
        "printed_constants", "rates", "fig1_loss_against_compute", "residuals", "gamma", "fig2_transfer",
        "fig4_allocation",
    },
    "07_languages": {"closeness", "fig3_accuracy"},
    "08_topic_mixture": {"classifier", "shares", "by_topic", "regret"},
    "09_ppl_curriculum": {"what_a_score_prefers", "over_steps", "plane"},
    "10_synthetic_qa": {"shares", "errors", "proxies"},
}  # fmt: skip


@pytest.fixture(scope="module")
def smoke(tmp_path_factory):
    """All notebooks run once in a tree of their own, and what the terminal was told."""
    root = tmp_path_factory.mktemp("smoke")
    shutil.copytree(NOTEBOOKS[0].parent, root / "notebooks")
    said: list[str] = []
    outcomes = run_study("smoke", root=root, say=said.append)
    return root, outcomes, said


@pytest.mark.slow
def test_all_run_and_leave_their_figures(smoke):
    root, outcomes, said = smoke
    assert [(o.notebook, o.status, o.error) for o in outcomes] == [(p.stem, "done", None) for p in NOTEBOOKS]
    for path in NOTEBOOKS:
        folder = root / "figures" / "smoke" / path.stem
        for name in FIGURES[path.stem]:
            for suffix in (".png", ".svg", ".csv"):
                assert (folder / (name + suffix)).stat().st_size > 0, f"{path.stem}/{name}{suffix}"
        assert len(pd.read_csv(folder / "ledger.csv")) > 0
    assert any("to train" in line for line in said)  # what a kernel prints reaches the terminal


@pytest.mark.slow
def test_smoke_is_no_measurement_and_says_so(smoke):
    root, _, _ = smoke
    for path in NOTEBOOKS:
        verdicts = pd.read_csv(root / "figures" / "smoke" / path.stem / "ledger.csv")["verdict"]
        assert set(verdicts) == {"not testable at this scale"}


@pytest.mark.slow
def test_a_second_call_runs_nothing(smoke):
    root, _, _ = smoke
    before = {f: f.stat().st_mtime_ns for f in (root / "runs").rglob("*") if f.is_file()}
    again = run_study("smoke", root=root, say=lambda _: None)
    assert {o.status for o in again} == {"up to date"}
    assert before == {f: f.stat().st_mtime_ns for f in (root / "runs").rglob("*") if f.is_file()}


@names
def test_committed_without_outputs(path):
    for cell in nbformat.read(path, as_version=4).cells:
        if cell.cell_type == "code":
            assert not cell.outputs
            assert cell.execution_count is None


@names
def test_thin_one_idea_a_cell_and_no_helpers(path):
    notebook = nbformat.read(path, as_version=4)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            kinds = (ast.FunctionDef, ast.ClassDef, ast.Lambda)
            tree = ast.parse(cell.source)
            assert not any(isinstance(node, kinds) for node in ast.walk(tree)), cell.source
            assert not any(
                alias.name == "*"
                for n in ast.walk(tree)
                if isinstance(n, ast.ImportFrom)
                for alias in n.names
            )
            assert len(cell.source.splitlines()) <= 12


@names
def test_parameters_are_typed_and_include_the_profile(path):
    parameters = declared(nbformat.read(path, as_version=4))
    assert {"profile", "seeds", "overrides"} <= set(parameters)
    assert parameters["profile"].default == "lab"
