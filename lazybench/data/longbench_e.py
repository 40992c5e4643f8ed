"""LongBench-E: thirteen of LongBench's English datasets with other records, about as many of each length.

Its files lie beside LongBench's as `<dataset>_e.jsonl`. `conf/data/longbench_e.yaml` names the datasets.
"""

import math
from collections.abc import Mapping
from typing import Any

from lazybench.data import longbench
from lazybench.data.record import Record
from lazybench.errors import LazyBenchError, suggest

LENGTHS = {"0-4k": (0, 4000), "4-8k": (4000, 8000), "8k+": (8000, math.inf)}
"""Lengths of records that have a score of their own: from so many words on, below so many (eval.py, `scorer_e`)."""


def read(dataset: str, root: str | None, *, datasets: Mapping[str, Mapping[str, Any]]) -> list[Record]:
    """The records of `dataset`, one of `datasets` (facts as a config gives them); see `longbench.load`.

    `like` is the dataset of LongBench whose name its records may bear, too.
    """
    if dataset not in datasets:
        raise LazyBenchError(f"LongBench-E has no dataset {dataset!r}: {suggest(dataset, datasets)}")
    return longbench.load(dataset, root, None, like=datasets[dataset].get("like"))
