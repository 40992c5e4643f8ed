"""LongBench-E: thirteen of LongBench's English datasets with other records, evenly spread over lengths.

Its files are `<dataset>_e.jsonl` in LongBench's archive. `conf/data/longbench_e.yaml` has the datasets.
"""

import math
from collections.abc import Mapping
from typing import Any

from lazybench.data import longbench
from lazybench.data.record import Record

LENGTHS = {"0-4k": (0, 4000), "4-8k": (4000, 8000), "8k+": (8000, math.inf)}
"""Ranges of record lengths with a score each: least number of words, and the first beyond (eval.py, `scorer_e`)."""


def read(dataset: str, root: str | None, *, datasets: Mapping[str, Mapping[str, Any]]) -> list[Record]:
    """Read the records of `dataset`; see `longbench.load`.

    `datasets` has settings by dataset, as a config gives them; a record may name the dataset that its own is `like`.
    """
    return longbench.load(dataset, root, None, like=datasets[dataset].get("like"))
