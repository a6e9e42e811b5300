"""Strict TOML: what a typo, a wrong type or YAML's habits do."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Literal

import pytest

from cptkit.train.config import ConfigError, dumps, from_dict, read_toml, to_dict


@dataclass(frozen=True)
class Inner:
    rate: float = 1e-3
    names: tuple[str, ...] = ()


@dataclass(frozen=True)
class Circle:
    kind: ClassVar[str] = "circle"
    radius: float


@dataclass(frozen=True)
class Square:
    kind: ClassVar[str] = "square"
    side: float


@dataclass(frozen=True)
class Outer:
    shape: Circle | Square
    mode: Literal["fast", "slow"] = "fast"
    inner: Inner = Inner()
    parts: dict[str, Inner] = field(default_factory=dict)
    pairs: tuple[tuple[int, float], ...] = ()
    limit: int | None = None


FULL = {
    "shape": {"kind": "square", "side": 2},
    "mode": "slow",
    "inner": {"rate": 0.5, "names": ["no", "nan", "007"]},
    "parts": {"eu": {"rate": 1}},
    "pairs": [[1, 0.5]],
    "limit": 3,
}


def test_reads_nested_tables_and_keeps_text_as_text():
    made = from_dict(Outer, FULL)
    assert made.shape == Square(2.0)
    assert made.inner.names == ("no", "nan", "007")
    assert made.parts["eu"].rate == 1.0
    assert isinstance(made.parts["eu"].rate, float)
    assert made.pairs == ((1, 0.5),)


def test_round_trip_through_toml(tmp_path):
    made = from_dict(Outer, FULL)
    (tmp_path / "a.toml").write_text(dumps(made))
    assert from_dict(Outer, read_toml(tmp_path / "a.toml")) == made


def test_none_is_left_out_and_read_back():
    made = from_dict(Outer, {"shape": {"kind": "circle", "radius": 1.0}})
    assert "limit" not in to_dict(made)
    assert from_dict(Outer, to_dict(made)) == made


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"moed": "fast"}, "unknown key 'moed'; did you mean 'mode'"),
        ({"inner": {"ratee": 1.0}}, "unknown key 'inner.ratee'; did you mean 'rate'"),
        ({"inner": {"rate": "1e-4"}}, "inner.rate: expected float, got '1e-4'"),
        ({"inner": {"rate": True}}, "inner.rate: expected float, got True"),
        ({"inner": {"names": "eu"}}, "inner.names: expected a list"),
        ({"inner": {"names": [1]}}, r"inner.names\[0\]: expected str"),
        ({"mode": "fasst"}, "mode: 'fasst' is not one of 'fast', 'slow'"),
        ({"shape": {"kind": "star", "side": 1}}, "shape.kind: 'star' is not one of 'circle', 'square'"),
        ({"shape": {"side": 1}}, "shape.kind: None"),
        ({"shape": {"kind": "circle", "side": 1}}, "unknown key 'shape.side'"),
        ({"shape": {"kind": "circle"}}, "missing key 'shape.radius'"),
        ({"limit": 1.5}, "limit: expected int, got 1.5"),
        ({"parts": {"eu": 1}}, "parts.eu: expected a table"),
        ({"pairs": [[1]]}, r"pairs\[0\]: expected 2 values, got 1"),
        ({"inner": 3}, "inner: expected a table"),
    ],
)
def test_mistakes_name_the_key(change, message):
    with pytest.raises(ConfigError, match=message):
        from_dict(Outer, FULL | change)


def test_missing_and_malformed_files_name_the_file(tmp_path):
    with pytest.raises(ConfigError, match=r"no such file: .*gone\.toml"):
        read_toml(tmp_path / "gone.toml")
    (tmp_path / "bad.toml").write_text("a = = 1")
    with pytest.raises(ConfigError, match=r"bad\.toml"):
        read_toml(tmp_path / "bad.toml")
