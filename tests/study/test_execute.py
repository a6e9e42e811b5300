"""One notebook through the hardened papermill: field bugs B70 to B78 and B81. Each kernel costs 1-2 s."""

from __future__ import annotations

import errno
import itertools
import json
import math
import os
import signal
import sys
import time
from pathlib import Path

import nbformat
import pytest

from cptkit.study import execute
from cptkit.study.execute import Outcome, _Lines, run_notebook
from cptkit.study.parameters import NotebookError


def write_notebook(path: Path, *cells: str, parameters: str | None = 'profile = "lab"', **metadata) -> Path:
    """A notebook file with a title, a parameters cell (unless None) and code cells."""
    made = [nbformat.v4.new_markdown_cell("# A study")]
    if parameters is not None:
        made.append(nbformat.v4.new_code_cell(parameters, metadata={"tags": ["parameters"]}))
    made += [nbformat.v4.new_code_cell(cell) for cell in cells]
    spec = {"name": "python3", "display_name": "Python 3", "language": "python"}
    path.parent.mkdir(parents=True, exist_ok=True)
    nbformat.write(nbformat.v4.new_notebook(cells=made, metadata={"kernelspec": spec} | metadata), path)
    return path


def strict(path: Path) -> dict:
    """The notebook as strict JSON, in which NaN is an error."""

    def refuse(name: str) -> None:
        raise AssertionError(f"{path.name} contains {name}")

    loaded = json.loads(path.read_bytes(), parse_constant=refuse)
    nbformat.validate(nbformat.from_dict(loaded))
    return loaded


def printed(notebook: dict) -> str:
    outputs = [out for cell in notebook["cells"] for out in cell.get("outputs", [])]
    return "".join("".join(out["text"]) for out in outputs if out["output_type"] == "stream")


def wait_for_end(pid: int, seconds: float = 10) -> bool:
    """Whether the process ends (a zombie has ended)."""
    for _ in range(int(seconds / 0.1)):
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except FileNotFoundError:
            return True
        time.sleep(0.1)
    return False


needs_proc = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks processes up in /proc")

PARAMETERS = """
profile = "lab"
language = "eu"
run = "001"
rate = 1e-3
seeds: tuple[int, ...] = ()
bound = 0.0
names = {1: "one"}
"""
CELLS = [
    "import os, sys\nprint('interpreter', sys.executable)\nprint('folder', os.getcwd())",
    "print('values', [profile, language, run, rate, seeds, bound, names])\n"
    "print('threads', os.environ.get('OMP_NUM_THREADS'))\n"
    "print('memory', os.environ.get('MALLOC_MMAP_THRESHOLD_'))",
    "try:\n    print('start-up file', from_startup)\nexcept NameError:\n    print('clean')",
    "import matplotlib.pyplot as plt\nfig, ax = plt.subplots(figsize=(1, 1)); ax.plot([1, 2]);",
    "from IPython.display import JSON, display\ndisplay(JSON({'x': float('nan'), 'y': float('inf')}))",
    "import time\nfor i in range(50):\n    print(f'\\rstep {i}', end='', file=sys.stderr, flush=True)\n"
    "    time.sleep(0.002)\nprint(file=sys.stderr)\nprint('last line')",
]


@pytest.fixture(scope="module")
def executed(tmp_path_factory) -> tuple[Outcome, dict, list[str], Path]:
    """One notebook on a machine that is set up to mislead it."""
    folder = tmp_path_factory.mktemp("executed")
    bogus = folder / "jupyter" / "kernels" / "python3"
    bogus.mkdir(parents=True)
    (bogus / "kernel.json").write_text(
        json.dumps(
            {"argv": ["/bin/false", "{connection_file}"], "display_name": "bogus", "language": "python"}
        )
    )
    startup = folder / "ipython" / "profile_default" / "startup"
    startup.mkdir(parents=True)
    (startup / "00.py").write_text("from_startup = 1\n")
    drawn = folder / "figures" / "lab"
    drawn.mkdir(parents=True)
    for name in ("a.png", "b.png", "a.svg"):
        (drawn / name).write_text("")
    source = write_notebook(folder / "notebooks" / "01_all.ipynb", *CELLS, parameters=PARAMETERS)
    lines: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JUPYTER_PATH", str(folder / "jupyter"))
        patch.setenv("IPYTHONDIR", str(folder / "ipython"))
        patch.setenv("MPLBACKEND", "TkAgg")
        patch.setenv("DISPLAY", ":987")
        patch.delenv("OMP_NUM_THREADS", raising=False)
        outcome = run_notebook(
            source,
            folder / "executed" / "lab" / "01_all.ipynb",
            {
                "language": "nan",
                "run": "007",
                "rate": math.nan,
                "seeds": [0, 1],
                "bound": -math.inf,
                "names": {1: 'a "b" \\ \ud800'},
            },
            timeout=120,
            progress=lines.append,
            figures=drawn,
            record={"fingerprint": "f00d", "loss": math.nan},
            kernels=execute.Kernels(threads=1),
        )
    return outcome, strict(folder / "executed" / "lab" / "01_all.ipynb"), lines, folder


def test_outcome(executed) -> None:
    outcome, notebook, _, folder = executed
    assert (outcome.notebook, outcome.status, outcome.error, outcome.figures) == ("01_all", "done", None, 2)
    assert outcome.ok
    noted = notebook["metadata"]["cptkit"]
    assert noted["status"] == "done"
    assert noted["fingerprint"] == "f00d"
    assert noted["loss"] == "nan"
    assert noted["figures"] == ["a.png", "a.svg", "b.png"]
    assert math.isclose(noted["minutes"], outcome.minutes, abs_tol=1e-3)
    assert os.listdir(folder / "executed" / "lab") == ["01_all.ipynb"], "no temporary file is left"


def test_the_kernel_is_this_interpreter_in_the_folder_of_the_notebook(executed) -> None:
    text = printed(executed[1])
    assert f"interpreter {sys.executable}\n" in text
    assert f"folder {(executed[3] / 'notebooks').resolve()}\n" in text
    assert "clean\n" in text
    assert "threads 1\n" in text
    assert f"memory {2**30}\n" in text


def test_parameters_arrive_as_what_they_are(executed) -> None:
    line = next(line for line in printed(executed[1]).splitlines() if line.startswith("values"))
    assert line == "values " + repr(
        ["lab", "nan", "007", math.nan, (0, 1), -math.inf, {1: 'a "b" \\ \ud800'}]
    )
    assert executed[1]["metadata"]["papermill"]["parameters"]["rate"] == "nan"


def test_figures_are_drawn_without_a_display(executed) -> None:
    data = [out["data"] for cell in executed[1]["cells"] for out in cell.get("outputs", []) if "data" in out]
    assert any("image/png" in one for one in data)


def test_lines_are_seen_live_and_bars_now_and_then(executed) -> None:
    lines = executed[2]
    assert lines[-1] == "last line" or lines[-2] == "last line"  # stdout and stderr are two streams
    bars = [line for line in lines if line.startswith("step")]
    assert "step 49" in bars
    assert len(bars) <= 3


def test_a_failing_cell_ends_the_notebook_and_the_rest_is_kept(tmp_path: Path) -> None:
    source = write_notebook(tmp_path / "02_x.ipynb", "print('before')", "x = 1 / 0", "print('after')")
    outcome = run_notebook(source, tmp_path / "out.ipynb", {"profile": "smoke"})
    assert (outcome.status, outcome.ok) == ("failed", False)
    assert outcome.error == "cell 5 of 6: ZeroDivisionError: division by zero"
    notebook = strict(tmp_path / "out.ipynb")
    assert printed(notebook) == "before\n"
    assert notebook["cells"][4]["outputs"][0]["ename"] == "ZeroDivisionError"
    assert notebook["metadata"]["cptkit"]["status"] == "failed"


@needs_proc
def test_a_dead_kernel_ends_the_notebook_soon(tmp_path: Path) -> None:
    source = write_notebook(
        tmp_path / "02_x.ipynb",
        "import subprocess\nchild = subprocess.Popen(['sleep', '300']); print(child.pid, flush=True)",
        "import os, time\nprint('last words', flush=True); time.sleep(0.3)\nos.kill(os.getpid(), 9)",
        "print('after')",
    )
    begin = time.monotonic()
    outcome = run_notebook(source, tmp_path / "out.ipynb", {})
    assert time.monotonic() - begin < 30
    assert outcome.status == "failed"
    assert "cell 5 of 6: the kernel died" in outcome.error
    notebook = strict(tmp_path / "out.ipynb")
    child, words = printed(notebook).split("\n", 1)
    assert words == "last words\n"
    assert [cell["metadata"]["papermill"]["status"] for cell in notebook["cells"][-2:]] == [
        "failed",
        "pending",
    ]
    assert wait_for_end(int(child)), "what a dead kernel started is ended too"


@needs_proc
def test_a_cell_that_takes_too_long_is_ended_with_its_kernel(tmp_path: Path) -> None:
    source = write_notebook(
        tmp_path / "02_x.ipynb", "import os\nprint(os.getpid(), flush=True)", "import time; time.sleep(300)"
    )
    outcome = run_notebook(source, tmp_path / "out.ipynb", {}, timeout=2)
    assert outcome.error == "cell 5 of 5: took longer than 2 s"
    assert wait_for_end(int(printed(strict(tmp_path / "out.ipynb"))))


@needs_proc
def test_an_interrupt_ends_the_kernel_and_keeps_the_partial_notebook(tmp_path: Path) -> None:
    source = write_notebook(
        tmp_path / "02_x.ipynb", "import os, time\nprint(os.getpid(), flush=True)\ntime.sleep(300)"
    )
    seen: list[str] = []

    def interrupt(line: str) -> None:
        seen.append(line)
        signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        run_notebook(source, tmp_path / "out.ipynb", {}, progress=interrupt)
    assert wait_for_end(int(seen[0]))
    assert strict(tmp_path / "out.ipynb")["metadata"]["cptkit"]["status"] == "interrupted"


def test_a_kernel_that_cannot_start_is_a_failure_and_not_a_wait(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    begin = time.monotonic()
    outcome = run_notebook(write_notebook(tmp_path / "02_x.ipynb", "1"), tmp_path / "out.ipynb", {})
    assert time.monotonic() - begin < 30
    assert outcome.status == "failed"
    assert "died" in outcome.error
    assert strict(tmp_path / "out.ipynb")["metadata"]["cptkit"]["status"] == "failed"


@pytest.mark.parametrize(
    ("parameters", "given", "message"),
    [
        (None, {}, "exactly one"),
        ("lr = 1", {"lr ": 1}, "did you mean|known"),
        ("learning_rate = 1.0", {"lerning_rate": 1.0}, "did you mean 'learning_rate'"),
        ("learning_rate = 1.0", {"learning_rate": "1e-4"}, "not of type float"),
        ("seeds = (1,)", {"seeds": object()}, "made of"),
    ],
)
def test_refused_before_anything_is_written(tmp_path: Path, parameters, given, message) -> None:
    source = write_notebook(tmp_path / "02_x.ipynb", "1", parameters=parameters)
    with pytest.raises(NotebookError, match=message):
        run_notebook(source, tmp_path / "out" / "x.ipynb", given)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("text", ["", "{", "[]", '{"cells": []}', "\udcff"])
def test_what_is_no_notebook_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "x.ipynb").write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(NotebookError, match=r"x\.ipynb|exactly one"):
        run_notebook(tmp_path / "x.ipynb", tmp_path / "out.ipynb", {})
    with pytest.raises(NotebookError, match="missing"):
        run_notebook(tmp_path / "missing.ipynb", tmp_path / "out.ipynb", {})


def test_a_full_disk_leaves_the_old_output_whole(tmp_path: Path, monkeypatch) -> None:
    output = tmp_path / "out.ipynb"
    output.write_text("what was there")

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    source = write_notebook(tmp_path / "02_x.ipynb", "1")
    outcome = run_notebook(source, output, {})
    assert outcome.status == "failed"
    assert "No space left" in outcome.error
    assert output.read_text() == "what was there"
    assert sorted(os.listdir(tmp_path)) == ["02_x.ipynb", "out.ipynb"]


def test_an_output_folder_that_cannot_be_made_is_a_failure(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    outcome = run_notebook(write_notebook(tmp_path / "02_x.ipynb", "1"), tmp_path / "file" / "out.ipynb", {})
    assert outcome.status == "failed"


def test_lines_are_cut_wherever_the_stream_is_cut() -> None:
    text = "one\n\ntwo\r\n" + "".join(f"\r{i} %" for i in range(9)) + "\nend"
    for size in (1, 3, len(text)):
        lines: list[str] = []
        cut = _Lines(lines.append, clock=itertools.count(step=2).__next__)  # 2 s from line to line
        for i in range(0, len(text), size):
            cut.feed(text[i : i + size])
        cut.end()
        assert lines[:2] == ["one", "two"]
        assert lines[-2:] == ["8 %", "end"]
        assert 2 <= len(lines[2:-2]) <= 4, "of a bar, a line about every 5 s"
