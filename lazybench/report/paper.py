"""The paper's own numbers (Fu et al. 2024, Tables 1 and 2, Figure 1), to stand beside the measured ones."""

from __future__ import annotations

import csv
from collections.abc import Iterator

from lazybench.config import CONF
from lazybench.report.blocks import Block

XGEN = "xgen_7b"
LLAMA = "llama2_7b"
# They lie beside the configs inside an installed wheel, and under results/ in a checkout.
_FOLDER = next(folder for folder in (CONF.parent / "paper", CONF.parent / "results/paper") if folder.is_dir())


def model_for(block: Block) -> str:
    """The paper's model to compare with: the same one, else Llama 2."""
    return XGEN if block.model == XGEN else LLAMA


def heading(block: Block) -> str:
    """What a column of the paper's numbers is called beside this block's."""
    if block.model == XGEN:
        return "paper, XGen"
    return "paper, Llama 2" if block.model == LLAMA else "paper, Llama 2 (another model)"


def value(block: Block, task: str, method: str, column: str) -> str:
    """The number as printed; empty where the paper has none, and beside data with none of LongBench's datasets.

    Args:
        block: whose numbers it stands beside.
        task: one of the six tasks.
        method: one of `labels.METHODS`.
        column: a column of `table1.csv` or `table2.csv`.
    """
    if not block.of_longbench:
        return ""
    wanted = model_for(block), task, method
    rows = (row for name in ("table1", "table2") for row in _rows(name))
    met = (row for row in rows if (row["model"], row["task"], row["method"]) == wanted and column in row)
    return next((row[column] for row in met), "")


def figure1() -> dict[str, float]:
    """TTFT over a decode step (ratio) and TTFT's share of the generation time (%), of Llama 2 7B on LongBench."""
    (row,) = (row for row in _rows("figure1") if row["model"] == LLAMA)
    return {key: float(row[key]) for key in ("ttft_over_decode_step", "ttft_share")}


def _rows(name: str) -> Iterator[dict[str, str]]:
    with (_FOLDER / f"{name}.csv").open(encoding="utf-8", newline="") as file:
        yield from csv.DictReader(file)
