"""The paper's numbers (Fu et al. 2024), to show beside measured ones."""

from collections.abc import Collection
from functools import cache

import pandas as pd

from lazybench.analysis.grouping import Row
from lazybench.config import CONF
from lazybench.data.facts import datasets_of, load_facts, tasks

MODELS = {"llama2_7b": "Llama 2", "xgen_7b": "XGen"}  # the paper's names
# Beside the configs in an installed wheel, under results/ in a checkout.
_FOLDER = next(folder for folder in (CONF.parent / "paper", CONF.parent / "results/paper") if folder.is_dir())


def value(row: Row, task: str, datasets: Collection[str], column: str) -> str:
    """Return the paper's number as printed; empty if it has none for the row's model, method and data.

    Args:
        row: a method on some data.
        task: the task, or another name for a mean, which the paper does not have.
        datasets: the datasets of the task that the row was run on.
        column: a column of the paper's Table 1 or 2.
    """
    on_longbench = all(run.settings["data"].get("source") == "longbench" for run in row.runs)
    if not on_longbench or task not in tasks() or set(datasets) != set(datasets_of(task, load_facts())):
        return ""
    table = next(table for table in map(_table, ("table1", "table2")) if column in table)
    return table[column].get((row.runs[0].model, task, row.method), "")


def figure1() -> dict[str, float]:
    """Return TTFT over a decode step, and TTFT's share of the generation time (%), of Llama 2 7B on LongBench."""
    row = pd.read_csv(_FOLDER / "figure1.csv", index_col="model").loc["llama2_7b"]
    return {key: float(row[key]) for key in ("ttft_over_decode_step", "ttft_share")}


@cache
def _table(name: str) -> pd.DataFrame:
    """Read a table by model, task and method, its numbers as printed."""
    return pd.read_csv(_FOLDER / f"{name}.csv", dtype=str).set_index(["model", "task", "method"])
