"""All notebooks: which run, in what order, what is skipped, and what an interrupt leaves (B71, B76, B78)."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from cptkit.study import runner
from cptkit.study.execute import Outcome
from cptkit.study.parameters import NotebookError
from cptkit.study.runner import run_study, study
from tests.study.test_execute import needs_proc, printed, strict, wait_for_end, write_notebook

PARAMETERS = 'profile = "lab"\nlanguage = "eu"\nseeds: tuple[int, ...] = (0,)'


class Pretend:
    """Stands for `run_notebook`: leaves a finished notebook and a figure, and notes what ran beside what."""

    def __init__(self) -> None:
        self.ran: list[str] = []
        self.given: dict[str, dict] = {}
        self.beside: dict[str, set[str]] = {}
        self.failing: set[str] = set()
        self.threads: int | None = None
        self._now: set[str] = set()
        self._lock = threading.Lock()

    def __call__(self, source, output, parameters, *, figures, record, kernels, **_) -> Outcome:
        name = source.stem
        with self._lock:
            self.ran.append(name)
            self._now.add(name)
            self.given[name], self.threads = dict(parameters), kernels.threads
        time.sleep(0.05)
        with self._lock:
            self.beside[name] = self._now - {name}
            self._now.discard(name)
        if name in self.failing:
            raise OSError("disk on fire")
        figures.mkdir(parents=True, exist_ok=True)
        (figures / "curve.png").write_text("")
        output.parent.mkdir(parents=True, exist_ok=True)
        noted = {**record, "status": "done", "minutes": 2.0, "figures": ["curve.png"]}
        output.write_text(json.dumps({"metadata": {"cptkit": noted}}))
        return Outcome(name, "done", 2.0, 1)


@pytest.fixture
def pretend(monkeypatch) -> Pretend:
    stand_in = Pretend()
    monkeypatch.setattr(runner, "run_notebook", stand_in)
    monkeypatch.setattr(runner, "_digest", lambda files: "sources")
    return stand_in


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name in ("00_setup", "01_mixing", "02_curriculum", "11_verdicts"):
        metadata = {"cptkit": {"runs": "alone"}} if name == "11_verdicts" else {}
        write_notebook(tmp_path / "notebooks" / f"{name}.ipynb", "1", parameters=PARAMETERS, **metadata)
    (tmp_path / "notebooks" / "scratch.ipynb").write_text("not part of the study")
    return tmp_path


def statuses(outcomes: list[Outcome]) -> dict[str, str]:
    return {outcome.notebook[:2]: outcome.status for outcome in outcomes}


def test_all_notebooks_run_in_order_and_once(root: Path, pretend: Pretend) -> None:
    lines: list[str] = []
    first = run_study("lab", root=root, say=lines.append)
    assert pretend.ran == ["00_setup", "01_mixing", "02_curriculum", "11_verdicts"]
    assert pretend.given["01_mixing"] == {"profile": "lab"}
    assert pretend.threads is None, "one at a time: the threads are the user's affair"
    assert (root / "executed" / "lab" / "01_mixing.ipynb").exists()
    assert set(statuses(first).values()) == {"done"}
    assert any(line.split() == ["01_mixing", "done", "2.0", "1"] for line in lines)
    assert "3 left, about 6 min" in next(line for line in lines if "[1/4] 00_setup: done" in line)

    pretend.ran.clear()
    again = run_study("lab", root=root, say=lines.append)
    assert pretend.ran == []
    assert set(statuses(again).values()) == {"up to date"}
    assert [outcome.figures for outcome in again] == [1] * 4
    assert set(statuses(run_study("lab", force=True, root=root, say=lines.append)).values()) == {"done"}


def test_a_second_call_estimates_from_the_first(root: Path, pretend: Pretend) -> None:
    run_study("lab", root=root, say=lambda line: None)
    lines: list[str] = []
    run_study("lab", force=True, root=root, say=lines.append)
    assert lines[0] == "[1/4] 00_setup: started; 4 left, about 8 min"
    (root / "figures" / "lab" / "01_mixing" / "curve.png").unlink()
    run_study("lab", root=root, say=lines.append)
    assert "[1/4] 00_setup: started; 4 left, about 2 min" in lines, "what is up to date takes no time"


@pytest.mark.parametrize(
    "change", ["cell", "tag", "parameter", "sources", "figure", "status", "damage", "profile"]
)
def test_what_makes_an_executed_notebook_out_of_date(root, pretend, monkeypatch, change) -> None:
    quiet = {"root": root, "say": lambda line: None}
    run_study("lab", ["01", "02"], **quiet)
    output = root / "executed" / "lab" / "01_mixing.ipynb"
    source = root / "notebooks" / "01_mixing.ipynb"
    arguments: dict = {"only": ["01", "02"]}
    ran = ["01_mixing"]
    profile = "lab"
    if change in ("cell", "tag"):
        book = json.loads(source.read_text())
        cell = book["cells"][-1]
        cell.update({"source": "2"} if change == "cell" else {"metadata": {"tags": ["raises-exception"]}})
        source.write_text(json.dumps(book))
    elif change == "figure":
        (root / "figures" / "lab" / "01_mixing" / "curve.png").unlink()
    elif change == "status":
        output.write_text(output.read_text().replace("done", "interrupted"))
    elif change == "damage":
        output.write_bytes(output.read_bytes()[:-5])
    else:
        ran = ["01_mixing", "02_curriculum"]
        if change == "parameter":
            arguments["parameters"] = ["language=nan"]
        elif change == "sources":
            monkeypatch.setattr(runner, "_digest", lambda files: "other sources")
        else:
            profile = str(root / "mine.toml")
            Path(profile).write_text('extends = "lab"\nname = "mine"\n')
    pretend.ran.clear()
    run_study(profile, **arguments, **quiet)
    assert pretend.ran == ran
    if change == "parameter":
        assert pretend.given["01_mixing"] == {"profile": "lab", "language": "nan"}
    if change == "profile":
        assert pretend.given["01_mixing"] == {"profile": profile}
        assert (root / "executed" / "mine" / "01_mixing.ipynb").exists()


def test_outputs_and_metadata_of_the_source_do_not_count(root: Path, pretend: Pretend) -> None:
    run_study("lab", ["01"], root=root, say=lambda line: None)
    source = root / "notebooks" / "01_mixing.ipynb"
    book = json.loads(source.read_text())
    book["metadata"]["kernelspec"]["display_name"] = "mine"
    book["cells"][-1]["execution_count"] = 7
    source.write_text(json.dumps(book))
    assert statuses(run_study("lab", ["1"], root=root, say=lambda line: None)) == {"01": "up to date"}


def test_side_by_side_except_those_that_must_be_alone(root: Path, pretend: Pretend, monkeypatch) -> None:
    monkeypatch.setattr(runner.os, "sched_getaffinity", lambda pid: set(range(7)), raising=False)
    outcomes = run_study("lab", jobs=3, root=root, say=lambda line: None)
    assert [outcome.notebook[:2] for outcome in outcomes] == ["00", "01", "02", "11"]
    assert pretend.ran[0] == "00_setup"
    assert pretend.ran[-1] == "11_verdicts"
    assert pretend.beside["00_setup"] == pretend.beside["11_verdicts"] == set()
    assert pretend.beside["01_mixing"] | pretend.beside["02_curriculum"]
    assert pretend.threads == 2


def test_a_failing_or_refused_notebook_does_not_stop_the_others(root: Path, pretend: Pretend) -> None:
    pretend.failing = {"00_setup"}
    write_notebook(root / "notebooks" / "01_mixing.ipynb", "1", parameters=None)
    write_notebook(root / "notebooks" / "02_curriculum.ipynb", "1", parameters="seed = 1")
    lines: list[str] = []
    outcomes = run_study("lab", root=root, say=lines.append)
    assert statuses(outcomes) == {"00": "failed", "01": "refused", "02": "refused", "11": "done"}
    assert "exactly one" in outcomes[1].error
    assert "unknown parameter 'profile'" in outcomes[2].error
    assert any("disk on fire" in line for line in lines)


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        ({"profile": "labb"}, "did you mean 'lab'"),
        ({"profile": "nowhere.toml"}, "nowhere"),
        ({"only": ["07"]}, "07"),
        ({"jobs": 0}, "jobs"),
        ({"parameters": ["lnguage=eu"]}, "did you mean 'language'"),
        ({"parameters": ["language"]}, "name=value"),
        ({"parameters": ["profile=smoke"]}, "profile"),
        ({"parameters": ["seeds=1", "seeds=2"]}, "once"),
    ],
)
def test_a_request_that_cannot_be_met_starts_nothing(root: Path, pretend: Pretend, request_, message) -> None:
    with pytest.raises(NotebookError, match=message):
        run_study(**({"profile": "lab", "root": root} | request_))
    assert pretend.ran == []
    assert not (root / "executed").exists()


def test_a_mistyped_parameter_refuses_the_notebooks_that_have_it(root: Path, pretend: Pretend) -> None:
    write_notebook(root / "notebooks" / "02_curriculum.ipynb", "1", parameters='profile = "lab"')
    outcomes = run_study("lab", ["01", "02"], root=root, parameters=["seeds=a"], say=lambda line: None)
    assert statuses(outcomes) == {"01": "refused", "02": "done"}


def test_exit_status(root: Path, pretend: Pretend, monkeypatch, capsys) -> None:
    monkeypatch.setattr(runner, "PACKAGE", root / "cptkit")
    assert study("lab") == 0
    assert study("lab") == 0
    pretend.failing = {"01_mixing"}
    assert study("lab", force=True) == 1
    assert study("labb") == 2
    assert "did you mean" in capsys.readouterr().err

    def terminated(source, *_, **__) -> Outcome:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0.5)
        return Outcome(source.stem, "interrupted", 0.0, 0)

    monkeypatch.setattr(runner, "run_notebook", terminated)
    assert study("lab", only=("01",), force=True) == 130
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_the_digest_covers_sources_and_profile(tmp_path: Path, monkeypatch) -> None:
    package = tmp_path / "cptkit"
    package.mkdir()
    monkeypatch.setattr(runner, "PACKAGE", package)
    profile = tmp_path / "p.toml"
    seen = set()
    for file, text in [(profile, "a"), (profile, "b"), (package / "x.py", "1"), (package / "x.py", "2")]:
        file.write_text(text)
        seen.add(runner._digest([profile]))
    (package / "x.py").rename(package / "y.py")
    seen.add(runner._digest([profile]))
    (package / "published.csv").write_text("1")
    seen.add(runner._digest([profile]))
    assert len(seen) == 6
    (package / "x.pyc").write_text("compiled")
    assert runner._digest([profile]) in seen


def test_spans_are_readable() -> None:
    assert [runner._span(minutes) for minutes in (0.5, 1, 59.4, 125)] == [
        "30 s",
        "1 min",
        "59 min",
        "2 h 05 min",
    ]


def test_two_real_kernels_side_by_side(tmp_path: Path, monkeypatch) -> None:
    """One finishes, one fails; the second call runs only what failed, and is shown as such."""
    monkeypatch.setattr(runner, "_digest", lambda files: "sources")
    books = tmp_path / "notebooks"
    write_notebook(books / "01_good.ipynb", "print(f'profile is {profile}')")
    write_notebook(books / "02_bad.ipynb", "raise ValueError('first line\\nsecond line')")
    lines: list[str] = []
    outcomes = run_study("lab", jobs=2, root=tmp_path, say=lines.append)
    assert statuses(outcomes) == {"01": "done", "02": "failed"}
    assert outcomes[1].error == "cell 4 of 4: ValueError: first line"
    assert "01_good | profile is lab" in lines
    assert printed(strict(tmp_path / "executed" / "lab" / "01_good.ipynb")) == "profile is lab\n"
    write_notebook(books / "02_bad.ipynb", parameters=None)
    assert statuses(run_study("lab", root=tmp_path, say=lines.append)) == {
        "01": "up to date",
        "02": "refused",
    }


@needs_proc
def test_sigterm_ends_every_kernel_and_keeps_what_there_is(tmp_path: Path) -> None:
    for name in ("01_a", "02_b"):
        cell = "import os, time\nprint('kernel', os.getpid(), flush=True)\ntime.sleep(300)"
        write_notebook(tmp_path / "notebooks" / f"{name}.ipynb", cell)
    code = (
        "import sys; from pathlib import Path; from cptkit.study import runner; "
        f"runner.PACKAGE = Path({str(tmp_path / 'cptkit')!r}); sys.exit(runner.study('lab', jobs=2))"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=os.getcwd(),
    )
    try:
        kernels: list[int] = []
        for line in process.stdout:
            if "| kernel" in line:
                kernels.append(int(line.split()[-1]))
            if len(kernels) == 2:
                break
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=30)
    finally:
        process.kill()
    assert process.returncode == 130, err
    assert all(wait_for_end(pid) for pid in kernels)
    assert out.count("interrupted") >= 2
    for name in ("01_a", "02_b"):
        notebook = strict(tmp_path / "executed" / "lab" / f"{name}.ipynb")
        assert notebook["metadata"]["cptkit"]["status"] == "interrupted"
        assert printed(notebook).startswith("kernel ")
