"""The parameters of a notebook: what its `parameters` cell declares, and values that fit it.

A notebook declares its parameters as plain assignments in the one cell that has the tag `parameters`:

    profile = "lab"
    seeds: tuple[int, ...] = (0, 1, 2)
    steps: int | None = None

The defaults are the schema. A name that the cell does not have, or a value of another type, is refused
before a kernel starts. Text from a command line is read by the type of the default and by nothing else
(no YAML, no guessing), so the languages `nan` and `no` and the run `007` stay text where the default is
text. Costs nothing: the cell is parsed with `ast`, never executed.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Mapping
from dataclasses import dataclass

from cptkit.train.config import nearest

TAG = "parameters"
_TYPES = {kind.__name__: kind for kind in (bool, int, float, str, list, tuple, dict)}


class NotebookError(ValueError):
    """A notebook, or a parameter for it, that cannot be run; the message says what to change."""


@dataclass(frozen=True)
class Parameter:
    """One assignment of the parameters cell.

    `kind` is None when the default is None and no annotation says more; `item` is the type of the
    members of a list or tuple, None when it is not known.
    """

    name: str
    default: object
    kind: type | None
    item: type | None = None

    def parse(self, text: str) -> object:
        """The value that `text` from a command line stands for. Raises `NotebookError`."""
        if self.default is None and text == "None":
            return None
        if self.kind is None:
            raise NotebookError(
                f"{self.name} = None says no type; annotate it, e.g. `{self.name}: int | None = None`"
            )
        if self.kind in (list, tuple) and not text.strip().startswith(("[", "(")):
            if self.item is None and text.strip():
                raise NotebookError(
                    f"{self.name} = {self.default!r} says no type for its members; "
                    f"annotate it, e.g. `{self.name}: tuple[str, ...] = ()`"
                )
            members = [part.strip() for part in text.split(",")] if text.strip() else []
            return self.check([self._scalar(self.item, member) for member in members])
        if self.kind in (list, tuple, dict):
            try:
                return self.check(ast.literal_eval(text.strip()))
            except (ValueError, SyntaxError):
                raise self._mistyped(text) from None
        return self.check(self._scalar(self.kind, text))

    def _scalar(self, kind: type, text: str) -> object:
        if kind is str:
            return text
        if kind is bool:
            if text.lower() not in ("true", "false"):
                raise self._mistyped(text)
            return text.lower() == "true"
        try:
            return kind(text)
        except ValueError:
            raise self._mistyped(text) from None

    def check(self, value: object) -> object:
        """`value` with this type (an int becomes a float, a list a tuple). Raises `NotebookError`."""
        literal(value)
        if self.kind is None or (value is None and self.default is None):
            return value
        if self.kind in (list, tuple) and isinstance(value, (list, tuple)):
            return self.kind(self._fit(self.item, member, value) for member in value)
        return self._fit(self.kind, value, value)

    def _fit(self, kind: type | None, value: object, whole: object) -> object:
        if kind is None or type(value) is kind:
            return value
        if isinstance(value, kind) and not isinstance(value, bool):  # e.g. numpy.float64, a str subclass
            return kind(value)
        if kind is float and isinstance(value, int) and not isinstance(value, bool):
            return float(value)
        raise self._mistyped(whole)

    def _mistyped(self, value: object) -> NotebookError:
        kind = self.kind.__name__ + (f" of {self.item.__name__}" if self.item else "")
        return NotebookError(f"parameter {self.name} = {value!r} is not of type {kind} like {self.default!r}")


def declared(notebook: Mapping) -> dict[str, Parameter]:
    """The parameters that `notebook` (nbformat 4) declares, by name, in order.

    Raises `NotebookError` when there is no cell, or more than one, with the tag `parameters`, or when the
    cell holds anything but assignments of literals.
    """
    cells = [cell for cell in notebook["cells"] if TAG in cell.get("metadata", {}).get("tags", [])]
    if len(cells) != 1 or cells[0]["cell_type"] != "code":
        raise NotebookError(f"needs exactly one code cell with the tag {TAG!r}, has {len(cells)}")
    try:
        body = ast.parse(cells[0]["source"]).body
    except SyntaxError as error:
        raise NotebookError(f"the {TAG} cell is not Python: {error}") from None
    found = {}
    for node in body:
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            continue  # a docstring
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        if not (isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value) or not (
            len(targets) == 1 and isinstance(targets[0], ast.Name)
        ):
            raise NotebookError(f"the {TAG} cell holds only `name = literal`, not `{ast.unparse(node)}`")
        name = targets[0].id
        try:
            default = ast.literal_eval(node.value)
            literal(default)
        except ValueError:
            raise NotebookError(f"the default of {name} is not a literal: `{ast.unparse(node)}`") from None
        kind, item = _types(default, getattr(node, "annotation", None))
        found[name] = Parameter(name, default, kind, item)
    return found


def _types(default: object, annotation: ast.expr | None) -> tuple[type | None, type | None]:
    kind, item = (None if default is None else type(default)), None
    if isinstance(default, (list, tuple)) and len({type(member) for member in default}) == 1:
        item = type(default[0])
    if annotation is not None and (default is None or not item):
        # The names in reading order: the first is the type, the next is that of its members.
        names = [_TYPES[node.id] for node in ast.walk(annotation) if getattr(node, "id", None) in _TYPES]
        kind = kind or (names[0] if names else None)
        item = names[1] if kind in (list, tuple) and len(names) > 1 else None
    return kind, item if item in (bool, int, float, str) else None


def resolve(known: Mapping[str, Parameter], given: Mapping[str, object]) -> dict[str, object]:
    """`given` with the declared types. Raises `NotebookError` on an unknown name or another type."""
    for name in given:
        if name not in known:
            raise NotebookError(f"unknown parameter {name!r}{nearest(name, known)}")
    return {name: known[name].check(value) for name, value in given.items()}


def literal(value: object) -> str:
    """Python source for `value`. Raises `NotebookError` for what a parameter cannot be."""
    if value is None or isinstance(value, bool):
        return repr(value)
    if isinstance(value, float):
        return repr(float(value)) if math.isfinite(value) else f"float({str(float(value))!r})"
    if isinstance(value, (int, str)):
        return repr(int(value) if isinstance(value, int) else str(value))
    if isinstance(value, (list, tuple)):
        inside = ", ".join(map(literal, value))
        return f"[{inside}]" if isinstance(value, list) else f"({inside},)" if value else "()"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{literal(key)}: {literal(member)}" for key, member in value.items()) + "}"
    raise NotebookError(f"a parameter is made of bool, int, float, str, list, tuple and dict, not {value!r}")
