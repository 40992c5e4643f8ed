"""The paper's names and numbers (Fu et al. 2024), to show beside measured ones."""

from collections.abc import Collection, Mapping
from functools import cache

import pandas as pd

from lazybench.analysis.grouping import Row
from lazybench.config import CONF
from lazybench.data.facts import datasets_of, load_facts

NAMES = {
    "baseline": "Baseline",
    "random_drop": "Random Token Drop",
    "static_pruning": "Static Token Pruning",
    "prompt_compression": "Prompt Compression",
    "lazyllm": "LazyLLM",
}
MODEL, TITLE = "llama2_7b", "Llama 2 7B, paper"  # shown beside every model
# Beside the configs in an installed wheel, under results/ in a checkout.
_FOLDER = next(folder for folder in (CONF.parent / "paper", CONF.parent / "results/paper") if folder.is_dir())


def numbers(model: str, task: str, method: str) -> Mapping[str, str]:
    """Return the paper's numbers as printed, by column of its Tables 1 and 2; empty without any."""
    tables = _tables()
    return tables.loc[model, task, method].to_dict() if (model, task, method) in tables.index else {}


def printed(row: Row, task: str, datasets: Collection[str]) -> Mapping[str, str]:
    """Return the paper's numbers of the row's own model, if the row was run on all LongBench `datasets` of the task."""
    published = numbers(row.runs[0].model, task, row.method)
    on_longbench = all(run.settings["data"].get("source") == "longbench" for run in row.runs)
    return published if published and on_longbench and set(datasets) == set(datasets_of(task, load_facts())) else {}


def figure1() -> dict[str, float]:
    """Return TTFT over a decode step, and TTFT's share of the generation time (%), of Llama 2 7B on LongBench."""
    row = pd.read_csv(_FOLDER / "figure1.csv", index_col="model").loc["llama2_7b"]
    return {key: float(row[key]) for key in ("ttft_over_decode_step", "ttft_share")}


@cache
def _tables() -> pd.DataFrame:
    """Read Tables 1 and 2 by model, task and method."""
    tables = [pd.read_csv(_FOLDER / f"{name}.csv", dtype=str) for name in ("table1", "table2")]
    return tables[0].merge(tables[1], how="outer").set_index(["model", "task", "method"]).fillna("")
