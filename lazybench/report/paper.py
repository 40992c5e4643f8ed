"""The paper's numbers (Fu et al. 2024), to show beside measured ones."""

from collections.abc import Collection, Mapping
from functools import cache

import pandas as pd

from lazybench.analysis.grouping import Row
from lazybench.config import CONF
from lazybench.data.facts import datasets_of, load_facts

# Beside the configs in an installed wheel, under results/ in a checkout.
_FOLDER = next(folder for folder in (CONF.parent / "paper", CONF.parent / "results/paper") if folder.is_dir())


def printed(row: Row, task: str, datasets: Collection[str]) -> Mapping[str, str]:
    """Return the paper's numbers as printed, by column of its Tables 1 and 2.

    They are empty unless the paper has the row's model and method, and the row was run on all LongBench `datasets` of
    the task.
    """
    on_longbench = all(run.settings["data"].get("source") == "longbench" for run in row.runs)
    key, tables = (row.runs[0].model, task, row.method), _tables()
    if not on_longbench or key not in tables.index or set(datasets) != set(datasets_of(task, load_facts())):
        return {}
    return tables.loc[key].to_dict()


def figure1() -> dict[str, float]:
    """Return TTFT over a decode step, and TTFT's share of the generation time (%), of Llama 2 7B on LongBench."""
    row = pd.read_csv(_FOLDER / "figure1.csv", index_col="model").loc["llama2_7b"]
    return {key: float(row[key]) for key in ("ttft_over_decode_step", "ttft_share")}


@cache
def _tables() -> pd.DataFrame:
    """Read Tables 1 and 2 by model, task and method."""
    tables = [pd.read_csv(_FOLDER / f"{name}.csv", dtype=str) for name in ("table1", "table2")]
    return tables[0].merge(tables[1], how="outer").set_index(["model", "task", "method"]).fillna("")
