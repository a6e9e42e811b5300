"""Shared by all tests: one thread, a cache that survives the session, a tiny run in the lab world."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from cptkit.data.corpus import CorpusSpec
from cptkit.data.weights import Constant
from cptkit.train.schedule import Schedule
from cptkit.train.spec import ModelSpec, ProbesSpec, RunSpec, TokenizerSpec


@pytest.fixture(autouse=True, scope="session")
def one_thread():
    """Two cores are shared by everything on the machine: tests do not fight over them."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def package_cache() -> Path:
    """Where packages are downloaded once: CPTKIT_CACHE, else the checkout's cache."""
    return Path(os.environ.get("CPTKIT_CACHE", Path(__file__).parents[1] / "cache"))


@pytest.fixture(scope="session")
def cache(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("cache")


def world(lang: str, split: str = "train", megabytes: float = 0.06, **params) -> CorpusSpec:
    return CorpusSpec("world", lang, split=split, megabytes=megabytes, params=params)


def tiny_run(**changes) -> RunSpec:
    """A run of 12 steps that takes about a second: two layers, two sources, one perplexity probe."""
    spec = {
        "model": ModelSpec(
            tokenizer=TokenizerSpec(320, (world("l1"),)), hidden=32, layers=2, heads=2, feed_forward=48
        ),
        "sources": {"target": world("l2"), "source": world("l1")},
        "mixture": Constant({"target": 0.75, "source": 0.25}),
        "steps": 12,
        "sequences": 4,
        "length": 64,
        "schedule": Schedule("cosine", peak=1e-2, warmup=2),
        "probes": ProbesSpec(
            steps=(0, 1, 2, 4, 8), perplexity={"target": world("l2", "validation", 0.004)}, documents=5
        ),
    }
    return RunSpec(**(spec | changes))
