"""P2's 42 model shapes (Table 4): printed size against counted weights, and why they differ.

Every printed size is 16 h^2 L + 32,000 h to within a million: attention 4 h^2 and a gated feed-forward of
three matrices of width 4 h, with one embedding matrix of 32,000 pieces. The printed FFN width is another
number: 2 x 256 x (floor(8 h / 768) + 1), the gate and the up projection of a Llama feed-forward of width near
8 h / 3 side by side. Built as printed, the models are up to a quarter smaller than their names.
"""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from cptkit.study.claims import PAPERS
from cptkit.study.views.style import keep_table
from cptkit.train.shapes import Shape

VOCABULARY = 32_000  # Llama 2's pieces; P2 does not name its tokenizer
COLUMNS = {
    "hidden_size": "hidden",
    "layers": "layers",
    "attention_heads": "heads",
    "intermediate_size": "ffn",
}


def printed(published: pd.DataFrame) -> pd.DataFrame:
    """A row a model, in the paper's order: name, size (weights, by its name), hidden, layers, heads, ffn."""
    rows = published[(published["paper"] == PAPERS["P2"]) & (published["table_or_figure"] == "Table 4")]
    rows = rows[rows["metric"].isin(COLUMNS)]
    table = rows.pivot(index="model", columns="metric", values="value").rename(columns=COLUMNS).astype(int)
    table = table.loc[rows["model"].drop_duplicates()].reset_index(names="name")
    return table.assign(size=table["name"].str.removesuffix("M").astype(float) * 1e6)


def shapes(published: pd.DataFrame) -> dict[str, Shape]:
    """Name -> the shape as it can be built.

    Where the printed heads do not divide the width (4016M: 22 in 2,688) the next lower number that does.
    """
    return {
        row.name: Shape(row.hidden, row.layers, _heads(row.hidden, row.heads), row.ffn // 2)
        for row in printed(published).itertuples(index=False)
    }


def _heads(hidden: int, heads: int) -> int:
    return next(h for h in range(heads, 0, -1) if hidden % h == 0)


def size_table(published: pd.DataFrame, folder: Path | None = None) -> pd.DataFrame:
    """Printed size, the rule it follows, what is counted with one embedding and with two, N, and the gap."""
    table, built = printed(published), shapes(published)
    rule = 16 * table["hidden"] ** 2 * table["layers"] + VOCABULARY * table["hidden"]
    counted = [built[name].parameters(VOCABULARY) for name in table["name"]]
    table = table.assign(
        rule=rule,
        counted=counted,
        untied=[built[name].parameters(VOCABULARY, tied=False) for name in table["name"]],
        N=[built[name].weights for name in table["name"]],
        gap=[c / s - 1 for c, s in zip(counted, table["size"], strict=True)],
        heads_built=[built[name].heads for name in table["name"]],
    )
    return keep_table(table, folder, "table4_sizes")
