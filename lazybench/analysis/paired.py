"""Paired tests of methods at equal speed: whose KL to the unmodified model is lower on the same records.

Records with the same KL under both methods count half for each side (`zsplit`).
"""

from itertools import combinations
from typing import Any

import numpy as np
import pandas as pd

from lazybench.analysis.averages import SCORE_DIFFERENCE, TTFT, average, drop_failed
from lazybench.analysis.grouping import Block, Row, agree
from lazybench.analysis.intervals import NEGLIGIBLE, Estimate, geometric_mean

EQUAL = 0.1  # relative difference up to which two speedups count as equal
FEWEST = 6  # five records cannot give a p below 0.05
_PAIR = ("model", "data", "first", "second", "first_ttft_speedup", "second_ttft_speedup")


def compare(block: Block) -> pd.DataFrame:
    """Compare every two rows of methods that prune, in Table 1, at equal speed.

    Returns:
        A row a pair, with `model`, `data`, the labels of `first` and `second`, and `first_ttft_speedup` and
        `second_ttft_speedup`, each over its own timed records of the datasets that they share. Over the records that
        both ran without failing: `records`, and `score_difference`, of 100, the first's minus the second's, with its
        interval. Over those of them with a KL of the next token under both (`kl_records`): `kl_ratio` of the geometric
        means with its interval, below 1 where the first is nearer to the unmodified model; `records_first_lower_kl`;
        `kl_p` of Wilcoxon's signed-rank test, two-sided, and `kl_p_holm`, by Holm's method for the block's
        `comparisons`. No rows where no two are at equal speed.
    """
    rows = [(row, _complete(row, block.tasks_compared())) for row in block.pruned]
    pairs = []
    for (first, first_records), (second, second_records) in combinations(rows, 2):
        shared = {*first_records["dataset"]} & {*second_records["dataset"]}
        if not shared or not all(agree(one, other) for one in first.runs for other in second.runs):
            continue
        speedups = [
            average(records[records["dataset"].isin(shared)], TTFT[0]).value
            for records in (first_records, second_records)
        ]
        both = first_records.merge(second_records, on=["task", "dataset", "_id"], suffixes=("_first", "_second"))
        if len(both) and None not in speedups and max(speedups) <= (1 + EQUAL + 1e-9) * min(speedups):
            values = (block.model, block.data, first.label, second.label, *speedups)
            pairs.append(dict(zip(_PAIR, values, strict=True)) | differences(both))
    table = pd.DataFrame(pairs)
    if table.empty:
        return table
    table = table.astype({"kl_ratio": float, "kl_p": float})
    return table.assign(kl_p_holm=holm(table["kl_p"].dropna()), comparisons=table["kl_p"].count())


def holm(values: pd.Series) -> pd.Series:
    """Adjust p-values for their number by Holm's (1979) method; keep their index."""
    ordered = values.sort_values()
    return (ordered * np.arange(len(ordered), 0, -1)).clip(upper=1).cummax()


def signed_rank(differences: np.ndarray) -> float | None:
    """Return p of Wilcoxon's signed-rank test, two-sided; None for fewer than `FEWEST` differences."""
    if len(differences) < FEWEST:
        return None
    if not differences.any():
        return 1.0
    from scipy.stats import wilcoxon  # takes long to import

    return float(wilcoxon(differences, zero_method="zsplit").pvalue)


def _complete(row: Row, tasks: dict[str, list[str]]) -> pd.DataFrame:
    """Return a row's records without failed ones, of the datasets that it has finished."""
    finished = [name for names in tasks.values() for name in names if not row.select({name: [name]})[2]]
    records = drop_failed(row.select(tasks)[0])
    return records[records["dataset"].isin(finished)]


def differences(both: pd.DataFrame) -> dict[str, Any]:
    """Compare two methods on records that both ran, whose columns end in `_first` and `_second`."""
    traced = both.dropna(subset=["kl_first", "kl_second"])
    first, second = (traced[f"kl_{side}"].to_numpy() for side in ("first", "second"))
    ratios = np.maximum(first, NEGLIGIBLE) / np.maximum(second, NEGLIGIBLE)
    ratio = geometric_mean(ratios) if len(traced) else Estimate()
    scores = both.assign(score_difference=both["score_first"] - both["score_second"])
    return {
        "records": len(both),
        "kl_records": len(traced),
        **ratio.columns("kl_ratio"),
        "records_first_lower_kl": (first < second).sum(),
        "kl_p": signed_rank(first - second),
        **average(scores, SCORE_DIFFERENCE).columns(SCORE_DIFFERENCE.key),
    }
