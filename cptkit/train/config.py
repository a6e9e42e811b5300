"""Frozen dataclasses from TOML and back, strictly: the ~100 lines every configuration goes through.

A key that no dataclass names is an error that says the nearest known name, a value of the wrong type is an
error that says where, and nothing is ever executed. TOML has real types, so `no`, `nan` and `1e-4` mean
what they say (YAML 1.1 reads the first as False and the last as text).
"""

from __future__ import annotations

import dataclasses
import difflib
import tomllib
import types
import typing
from pathlib import Path
from typing import Any, TypeVar

import tomli_w

T = TypeVar("T")


class ConfigError(ValueError):
    """A configuration that cannot mean anything; the message names the key."""


def from_dict(cls: type[T], data: dict[str, Any], where: str = "") -> T:
    """Build dataclass `cls` from plain `data`. Raises `ConfigError` on unknown, missing or mistyped keys."""
    if not isinstance(data, dict):
        raise ConfigError(f"{where or cls.__name__}: expected a table, got {data!r}")
    hints = typing.get_type_hints(cls)
    fields = {f.name: f for f in dataclasses.fields(cls) if f.init}
    for key in data:
        if key not in fields:
            raise ConfigError(f"unknown key {_at(where, key)!r}{nearest(key, fields)}")
    missing = [
        name
        for name, f in fields.items()
        if name not in data and f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING
    ]
    if missing:
        raise ConfigError(f"missing key {_at(where, missing[0])!r}")
    values = {key: _convert(hints[key], value, _at(where, key)) for key, value in data.items()}
    try:
        return cls(**values)
    except ConfigError:
        raise
    except ValueError as error:
        raise ConfigError(f"{where or cls.__name__}: {error}") from error


def to_dict(value: Any) -> Any:
    """The plain form of a dataclass: what `from_dict` reads. `None` is left out, since TOML has no null."""
    if dataclasses.is_dataclass(value):
        pairs = {f.name: getattr(value, f.name) for f in dataclasses.fields(value) if f.init}
        plain = {k: to_dict(v) for k, v in pairs.items() if v is not None}
        return (
            {"kind": type(value).kind} | plain
            if isinstance(getattr(type(value), "kind", None), str)
            else plain
        )
    if isinstance(value, dict):
        return {k: to_dict(v) for k, v in value.items()}
    if isinstance(value, (tuple, list)):
        return [to_dict(v) for v in value]
    return value


def read_toml(path: Path) -> dict[str, Any]:
    """Parse one TOML file. Raises `ConfigError` naming the file when it is missing or malformed."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"no such file: {path}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: {error}") from error


def dumps(value: Any) -> str:
    return tomli_w.dumps(to_dict(value))


def nearest(key: str, known: typing.Iterable[str]) -> str:
    """`; did you mean 'x'?` or the list of what is known, for the end of an error message."""
    known = list(known)
    close = difflib.get_close_matches(key, known, n=1, cutoff=0.6)
    return f"; did you mean {close[0]!r}?" if close else f"; known: {', '.join(sorted(known))}"


def _at(where: str, key: object) -> str:
    return f"{where}.{key}" if where else str(key)


def _convert(hint: Any, value: Any, where: str) -> Any:
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return value
    if origin in (typing.Union, types.UnionType):
        return _convert_union(args, value, where)
    if origin is typing.Literal:
        if value in args:
            return value
        raise ConfigError(f"{where}: {value!r} is not one of {', '.join(map(repr, args))}")
    if origin is tuple:
        if not isinstance(value, (list, tuple)):
            raise ConfigError(f"{where}: expected a list, got {value!r}")
        if len(args) == 2 and args[1] is Ellipsis:
            return tuple(_convert(args[0], v, f"{where}[{i}]") for i, v in enumerate(value))
        if len(args) != len(value):
            raise ConfigError(f"{where}: expected {len(args)} values, got {len(value)}")
        return tuple(
            _convert(a, v, f"{where}[{i}]") for i, (a, v) in enumerate(zip(args, value, strict=True))
        )
    if origin is dict:
        if not isinstance(value, dict):
            raise ConfigError(f"{where}: expected a table, got {value!r}")
        return {_convert(args[0], k, where): _convert(args[1], v, _at(where, k)) for k, v in value.items()}
    if dataclasses.is_dataclass(hint):
        return value if isinstance(value, hint) else from_dict(hint, value, where)
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if (isinstance(value, bool) and hint is not bool) or not isinstance(value, hint):
        raise ConfigError(f"{where}: expected {hint.__name__}, got {value!r}")
    return value


def _convert_union(args: tuple, value: Any, where: str) -> Any:
    options = [a for a in args if a is not type(None)]
    if value is None and len(options) < len(args):
        return None
    if len(options) == 1:
        return _convert(options[0], value, where)
    kinds = {a.kind: a for a in options if isinstance(getattr(a, "kind", None), str)}
    if kinds and not isinstance(value, tuple(kinds.values())):  # a table that says which dataclass it is
        if not isinstance(value, dict) or value.get("kind") not in kinds:
            got = value.get("kind") if isinstance(value, dict) else value
            raise ConfigError(f"{where}.kind: {got!r} is not one of {', '.join(map(repr, sorted(kinds)))}")
        return from_dict(kinds[value["kind"]], {k: v for k, v in value.items() if k != "kind"}, where)
    errors = []
    for option in options:
        try:
            return _convert(option, value, where)
        except ConfigError as error:
            errors.append(str(error))
    raise ConfigError(errors[0])
