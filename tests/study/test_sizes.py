"""P2's Table 4: printed sizes, the rule they follow, and the models that are built."""

from __future__ import annotations

import pytest

from cptkit.study import claims, sizes
from tests.train.test_shapes import built


@pytest.fixture(scope="module")
def table():
    return sizes.size_table(claims.published())


def test_there_are_42_and_they_follow_the_rule(table):
    assert len(table) == 42
    assert (table["size"] - table["rule"]).abs().max() <= 1.0e6
    assert table["ffn"].tolist() == [2 * 256 * (8 * h // 768 + 1) for h in table["hidden"]]


def test_built_as_printed_they_are_smaller(table):
    """The gap that the printed FFN leaves: an embedding counted, up to a quarter."""
    assert table["gap"].max() < -0.1
    assert table["gap"].min() > -0.25
    assert table["gap"].iloc[-1] == pytest.approx(-0.23, abs=0.01)


@pytest.mark.parametrize("name", ["49M", "616M", "4016M", "5534M"])
def test_shapes_can_be_built_and_count_as_counted(table, name):
    shape, row = sizes.shapes(claims.published())[name], table.set_index("name").loc[name]
    model = built(shape, sizes.VOCABULARY)
    assert sum(p.numel() for p in model.parameters()) == row["counted"]
    untied = built(shape, sizes.VOCABULARY, tied=False)
    assert sum(p.numel() for p in untied.parameters()) == row["untied"]


def test_the_heads_that_do_not_divide(table):
    odd = table[table["heads"] != table["heads_built"]]
    assert odd[["name", "heads", "heads_built"]].values.tolist() == [["4016M", 22, 21]]
