"""Parameters: the schema is the notebook's own cell; text is read by it and never guessed (B70 to B74)."""

from __future__ import annotations

import ast
import math

import nbformat
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cptkit.study.parameters import NotebookError, Parameter, declared, literal, resolve

CELL = '''
"""Change these."""
language = "eu"
run = "001"
learning_rate = 1e-3
steps = 10
english = True
seeds = (0, 1, 2)
sets: list[str] = []
limit: int | None = None
rates: tuple[float, ...] | None = None
anything = None
options = {"a": 1}
'''


def notebook(*sources: str, tag: str = "parameters"):
    cells = [nbformat.v4.new_code_cell(source, metadata={"tags": [tag]}) for source in sources]
    return nbformat.v4.new_notebook(cells=[*cells, nbformat.v4.new_code_cell("print(1)")])


@pytest.fixture
def known() -> dict[str, Parameter]:
    return declared(notebook(CELL))


def test_names_and_types_come_from_the_cell(known) -> None:
    assert {name: (one.kind, one.item) for name, one in known.items()} == {
        "language": (str, None),
        "run": (str, None),
        "learning_rate": (float, None),
        "steps": (int, None),
        "english": (bool, None),
        "seeds": (tuple, int),
        "sets": (list, str),
        "limit": (int, None),
        "rates": (tuple, float),
        "anything": (None, None),
        "options": (dict, None),
    }


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("language", "nan", "nan"),
        ("language", "no", "no"),
        ("language", "inf", "inf"),
        ("language", "true", "true"),
        ("language", "", ""),
        ("run", "007", "007"),
        ("run", "1_000", "1_000"),
        ("run", "1e5", "1e5"),
        ("learning_rate", "1e-4", 1e-4),
        ("learning_rate", "3", 3.0),
        ("learning_rate", "-inf", -math.inf),
        ("steps", "0123", 123),
        ("english", "False", False),
        ("english", "true", True),
        ("seeds", "7", (7,)),
        ("seeds", "0, 1", (0, 1)),
        ("seeds", "[3, 4]", (3, 4)),
        ("seeds", "", ()),
        ("sets", "nan,no,007", ["nan", "no", "007"]),
        ("sets", "['a, b']", ["a, b"]),
        ("limit", "5", 5),
        ("limit", "None", None),
        ("rates", "1e-3,2", (1e-3, 2.0)),
        ("options", "{'b': 2}", {"b": 2}),
    ],
)
def test_text_is_read_by_the_type_of_the_default(known, name, text, value) -> None:
    got = known[name].parse(text)
    assert got == value
    assert type(got) is type(value)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("steps", "ten"),
        ("steps", "1.5"),
        ("steps", "1e3"),
        ("steps", "None"),
        ("learning_rate", "fast"),
        ("english", "no"),
        ("english", "1"),
        ("seeds", "a,b"),
        ("seeds", "[1.5]"),
        ("seeds", "(1"),
        ("options", "[1]"),
        ("options", "__import__('os')"),
        ("anything", "5"),
    ],
)
def test_text_of_another_type_is_refused_by_name(known, name, text) -> None:
    with pytest.raises(NotebookError, match=name):
        known[name].parse(text)


def test_values_are_checked(known) -> None:
    good = {"learning_rate": 1, "seeds": [np.int64(0).item()], "limit": None, "anything": [1], "sets": ("x",)}
    assert resolve(known, good) == {
        "learning_rate": 1.0,
        "seeds": (0,),
        "limit": None,
        "anything": [1],
        "sets": ["x"],
    }
    assert type(resolve(known, {"learning_rate": np.float64(0.5)})["learning_rate"]) is float
    bad = {
        "steps": [1.0, True, "1", None],
        "english": [1, "True"],
        "language": [1, None, float("nan")],
        "learning_rate": ["1e-4", True],
        "seeds": [(0, "1"), 3, "0,1", (True,)],
        "anything": [object(), {1, 2}, b"x"],
        "limit": [2.5],
    }
    for name, values in bad.items():
        for value in values:
            with pytest.raises(NotebookError):
                resolve(known, {name: value})


def test_an_unknown_name_is_refused_and_the_nearest_is_given(known) -> None:
    with pytest.raises(NotebookError, match="'lerning_rate'; did you mean 'learning_rate'"):
        resolve(known, {"lerning_rate": 1.0})
    with pytest.raises(NotebookError, match="known: anything, english"):
        resolve(known, {"zzz": 1})


@pytest.mark.parametrize(
    "cell",
    [
        "import os",
        "x = 1 + n",
        "x = y = 1",
        "x, y = 1, 2",
        "x: int",
        "x += 1",
        "%matplotlib inline",
        "x = f()",
        "x = {1}",
    ],
)
def test_a_parameters_cell_holds_literals_only(cell: str) -> None:
    with pytest.raises(NotebookError):
        declared(notebook(cell))


def test_a_notebook_has_exactly_one_parameters_cell() -> None:
    for wrong in (notebook("x = 1", tag="parameter"), notebook("x = 1", "y = 2"), notebook()):
        with pytest.raises(NotebookError, match="exactly one"):
            declared(wrong)
    text = nbformat.v4.new_notebook(
        cells=[nbformat.v4.new_markdown_cell("x", metadata={"tags": ["parameters"]})]
    )
    with pytest.raises(NotebookError, match="exactly one"):
        declared(text)


SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner) | st.lists(inner).map(tuple) | st.dictionaries(st.text() | st.integers(), inner)
    ),
    max_leaves=8,
)


@given(VALUES)
def test_literal_is_python_for_the_same_value(value) -> None:
    again = eval(literal(value), {"float": float})
    assert again == value
    assert repr(again) == repr(value)


def test_literal_of_nan() -> None:
    source = literal([float("nan")])
    ast.parse(source)
    assert math.isnan(eval(source)[0])
