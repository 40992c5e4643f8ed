"""The paper's numbers (Fu et al. 2024), to show beside measured ones."""

from functools import cache

import pandas as pd

from lazybench.config import CONF

# Beside the configs in an installed wheel, under results/ in a checkout.
_FOLDER = next(folder for folder in (CONF.parent / "paper", CONF.parent / "results/paper") if folder.is_dir())


def models_beside(model: str) -> list[str]:
    """Return the paper's models to show beside one: itself, or all if the paper lacks it."""
    models = [*_tables().index.get_level_values("model").unique()]
    return [model] if model in models else models


def number(model: str, task: str, method: str, key: str) -> str:
    """Return a number of the paper's Tables 1 and 2 as printed; empty if it has none."""
    tables = _tables()
    return tables.loc[(model, task, method), key] if (model, task, method) in tables.index and key in tables else ""


def figure1() -> tuple[float, float]:
    """Return TTFT's share of the generation time (%), and TTFT over a decode step, of Llama 2 7B on LongBench."""
    row = pd.read_csv(_FOLDER / "figure1.csv", index_col="model").loc["llama2_7b"]
    return float(row["ttft_share"]), float(row["ttft_over_decode_step"])


def prompt_computed() -> tuple[float, float]:
    """Return the least and the largest share (%) of computed prompt tokens of a task in Table 2."""
    shares = pd.to_numeric(_tables()["prompt_computed"])
    return float(shares.min()), float(shares.max())


@cache
def _tables() -> pd.DataFrame:
    """Read Tables 1 and 2 by model, task and method."""
    tables = [pd.read_csv(_FOLDER / f"{name}.csv", dtype=str) for name in ("table1", "table2")]
    return tables[0].merge(tables[1], how="outer").set_index(["model", "task", "method"]).fillna("")
