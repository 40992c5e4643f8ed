"""Published numbers to show beside measured ones: the paper's (Fu et al. 2024), and LongBench's of baselines."""

from collections.abc import Collection
from functools import cache

import pandas as pd

from lazybench.analysis.grouping import Block, Row
from lazybench.config import CONF
from lazybench.data.facts import datasets_of, load_facts, tasks

# The names of models in the paper and in LongBench.
_MODELS = {"llama2_7b": ("Llama 2", "Llama2-7B-chat-4k"), "xgen_7b": ("XGen", "XGen-7B-8k")}
# Beside the configs in an installed wheel, under results/ in a checkout.
_FOLDER = next(folder for folder in (CONF.parent / "paper", CONF.parent / "results/paper") if folder.is_dir())


def heading(block: Block, by_dataset: bool) -> str:
    """Return the heading of a column of the paper's numbers, which are by task, or of LongBench's, by dataset."""
    in_paper, in_longbench = _MODELS[block.model]
    return f"LongBench, {in_longbench}" if by_dataset else f"paper, {in_paper}"


def published(block: Block) -> list[str]:
    """Return the datasets that the baseline ran on and for which LongBench published the model's score."""
    rows = [row for row in block.baselines if _is_published(row)]
    ran = {name for row in rows for run in row.runs for name in run.datasets}
    return [name for model, name in _table("longbench").index if model == block.model and name in ran]


def value(row: Row, section: str, datasets: Collection[str], column: str) -> str:
    """Return the published number for a row as printed; empty if its model, method or data are not published.

    `section` is a dataset, or a task of which the row was run on `datasets`; `column` is one of Table 1 or 2.
    """
    model = row.runs[0].model
    if not _is_published(row):
        return ""
    if section not in tasks():
        return _table("longbench")["score"].get((model, section), "") if row.method == "baseline" else ""
    if set(datasets) != set(datasets_of(section, load_facts())):
        return ""
    table = next(table for table in map(_table, ("table1", "table2")) if column in table)
    return table[column].get((model, section, row.method), "")


def _is_published(row: Row) -> bool:
    return row.runs[0].model in _MODELS and all(run.settings["data"].get("source") == "longbench" for run in row.runs)


def figure1() -> dict[str, float]:
    """Return TTFT over a decode step, and TTFT's share of the generation time (%), of Llama 2 7B on LongBench."""
    row = pd.read_csv(_FOLDER / "figure1.csv", index_col="model").loc["llama2_7b"]
    return {key: float(row[key]) for key in ("ttft_over_decode_step", "ttft_share")}


@cache
def _table(name: str) -> pd.DataFrame:
    """Read a table, its numbers as printed, by model, by task or dataset, and by method if it has several."""
    table = pd.read_csv(_FOLDER / f"{name}.csv", dtype=str)
    return table.set_index([key for key in ("model", "task", "dataset", "method") if key in table])
