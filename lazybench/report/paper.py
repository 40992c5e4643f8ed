"""The paper's own numbers (Fu et al. 2024, Tables 1 and 2, Figure 1), to stand beside the measured ones."""

from __future__ import annotations

from collections.abc import Collection
from functools import cache

import pandas as pd

from lazybench.analysis.blocks import Block, Row
from lazybench.config import CONF
from lazybench.data.facts import datasets_of, load_facts, tasks

_MODELS = {"llama2_7b": "Llama 2", "xgen_7b": "XGen"}
# They lie beside the configs inside an installed wheel, and under results/ in a checkout.
_FOLDER = next(folder for folder in (CONF.parent / "paper", CONF.parent / "results/paper") if folder.is_dir())


def heading(block: Block) -> str:
    """What a column of the paper's numbers is called beside this block's."""
    return f"paper, {_MODELS[block.model]}"


def value(row: Row, task: str, datasets: Collection[str], column: str) -> str:
    """The number as printed, where model, method and data are the paper's; else an empty text.

    Args:
        row: whose numbers it stands beside.
        task: one of the six tasks.
        datasets: what the row was run on in that task.
        column: a column of `table1.csv` or `table2.csv`.
    """
    model = row.runs[0].model
    papers = model in _MODELS and all(run.settings["data"].get("source") == "longbench" for run in row.runs)
    if not papers or task not in tasks() or set(datasets) != set(datasets_of(task, load_facts())):
        return ""
    table = next(table for table in map(_table, ("table1", "table2")) if column in table)
    return table[column].get((model, task, row.method), "")


def figure1() -> dict[str, float]:
    """TTFT over a decode step (ratio) and TTFT's share of the generation time (%), of Llama 2 7B on LongBench."""
    row = pd.read_csv(_FOLDER / "figure1.csv", index_col="model").loc["llama2_7b"]
    return {key: float(row[key]) for key in ("ttft_over_decode_step", "ttft_share")}


@cache
def _table(name: str) -> pd.DataFrame:
    """A table with its numbers as they are printed."""
    return pd.read_csv(_FOLDER / f"{name}.csv", dtype=str, index_col=["model", "task", "method"])
