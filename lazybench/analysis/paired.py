"""Methods with the same number of operations before the first token, on the records that both answered."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations
from typing import Any

import pandas as pd

from lazybench.analysis.averages import SCORE_DIFFERENCE, average
from lazybench.analysis.blocks import Block, Row, pruned
from lazybench.analysis.intervals import Estimate, ratio_of_geometric_means, ratio_of_means
from lazybench.analysis.labels import natural_order

_NAMES = ["operations", "first", "second", "records", "kl_records"]
_DIFFERENCE = replace(SCORE_DIFFERENCE, top="score")


def by_operations(rows: Sequence[Row]) -> dict[str, dict[str, Row]]:
    """Return by target of `lazybench match`, such as `2x`, its row of each method.

    A method that was never matched stands beside those of the least target; without any, the target is empty. A method
    with several rows of one target is left out of it.
    """
    matched = {row.method for row in rows if row.target}
    targets = sorted({row.target for row in rows if row.target}, key=natural_order) or [""]
    members: dict[str, dict[str, list[Row]]] = {target: {} for target in targets}
    for row in rows:
        if row.target or row.method not in matched:
            members[row.target or targets[0]].setdefault(row.method, []).append(row)
    return {target: {name: own[0] for name, own in by.items() if len(own) == 1} for target, by in members.items()}


def pair(block: Block, first: Row, second: Row) -> dict[str, Estimate]:
    """Compare two rows on the records that neither failed.

    Returns:
        `score_difference`, the first's minus the second's, of 100; and over the records with a KL under both
        `geometric_kl_ratio` and `kl_ratio`, the first's geometric and arithmetic mean over the second's.
    """
    shared = first.datasets & second.datasets
    averaged = block.averaged(block.compared)
    tasks = {task: [name for name in names if name in shared] for task, names in averaged.items()}
    both = first.select(tasks).merge(second.select(tasks), on=["task", "dataset", "_id"], suffixes=("", "_second"))
    difference = average(both.assign(score=both["score"] - both["score_second"]), _DIFFERENCE)
    traced = both.dropna(subset=["kl", "kl_second"])
    kls, ratios = [traced[key].to_numpy(float) for key in ("kl", "kl_second")], {}
    for name, ratio in (("geometric_kl_ratio", ratio_of_geometric_means), ("kl_ratio", ratio_of_means)):
        ratios[name] = replace(ratio(*kls), records=len(traced)) if len(traced) else Estimate()
    return {"score_difference": difference, **ratios}


def compare(block: Block) -> pd.DataFrame:
    """Compare all pairs of pruning methods of the tables that have the same number of operations.

    Returns:
        A line per pair: `operations` (`by_operations`), the names `first` and `second`, the estimates of `pair` with
        their intervals, and the number of their `records` and `kl_records`.
    """
    lines = []
    for target, rows in by_operations(pruned(block.compared)).items():
        for second, first in combinations(rows.values(), 2):
            results = pair(block, first, second)
            line: dict[str, Any] = {"operations": target, "first": first.name, "second": second.name}
            line |= {"records": results["score_difference"].records, "kl_records": results["kl_ratio"].records}
            for name, result in results.items():
                line |= {name: result.value, f"{name}_low": result.low, f"{name}_high": result.high}
            lines += [line] * any(result.records for result in results.values())  # not all data have scores
    frame = pd.DataFrame(lines)
    return frame.astype(dict.fromkeys(frame.columns.difference(_NAMES), float))
