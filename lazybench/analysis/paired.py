"""Paired tests of methods at equal speed: whose KL to the unmodified model is lower on the same records.

Records with the same KL under both methods count half for each side (`zsplit`).
"""

from dataclasses import replace
from itertools import combinations
from typing import Any

import numpy as np
import pandas as pd

from lazybench.analysis.averages import SCORE, TTFT, average
from lazybench.analysis.blocks import Block, pruned
from lazybench.analysis.intervals import NEGLIGIBLE, Estimate, geometric_mean, rounded

_DIFFERENCE = replace(SCORE, by_seed="", least=-100.0)
EQUAL = 0.1  # relative difference up to which two speedups count as equal
FEWEST = 6  # five records cannot give a p below 0.05


def compare(block: Block) -> pd.DataFrame:
    """Compare all pairs of pruning rows of the tables that have equal speed.

    Returns:
        A row per pair, none without pairs of equal speed: the names `first` and `second`, and

        - `first_ttft_speedup`, `second_ttft_speedup`, each over its timed records of the datasets that both finished;
        - `records` on which neither failed, and their `score_difference`, first minus second, of 100, with interval;
        - `kl_records`, those with a KL under both, and over these `kl_ratio` of the geometric means with its interval,
          below 1 if the first is nearer to the unmodified model; `records_first_lower_kl`; `kl_p` of Wilcoxon's
          signed-rank test, two-sided, and `kl_p_holm`, corrected for all pairs by Holm's method.
    """
    pairs, averaged = [], block.averaged(block.compared)
    for first, second in combinations(pruned(block.compared), 2):
        shared = first.datasets & second.datasets
        tasks = {task: [name for name in names if name in shared] for task, names in averaged.items()}
        records = [row.select(tasks) for row in (first, second)]
        speedups = [average(part, TTFT).value for part in records]
        both = records[0].merge(records[1], on=["task", "dataset", "_id"], suffixes=("_first", "_second"))
        if len(both) and None not in speedups and max(speedups) <= (1 + EQUAL + 1e-9) * min(speedups):
            pair: dict[str, Any] = {"first": first.name, "second": second.name}
            pair |= {"first_ttft_speedup": speedups[0], "second_ttft_speedup": speedups[1]}
            traced = both.dropna(subset=["kl_first", "kl_second"])
            one, other = (traced[f"kl_{side}"].to_numpy() for side in ("first", "second"))
            ratios = np.maximum(one, NEGLIGIBLE) / np.maximum(other, NEGLIGIBLE)
            ratio = geometric_mean(ratios) if len(traced) else Estimate()
            difference = average(both.assign(score=both["score_first"] - both["score_second"]), _DIFFERENCE)
            pair |= {"records": len(both), "kl_records": len(traced), **ratio.columns("kl_ratio")}
            pair |= {"records_first_lower_kl": int((one < other).sum()), "kl_p": signed_rank(one - other)}
            pairs.append(pair | difference.columns("score_difference"))
    table = pd.DataFrame(pairs)
    if table.empty:
        return table
    table = table.astype({"kl_ratio": float, "kl_p": float})
    return table.assign(kl_p_holm=holm(table["kl_p"].dropna()))


def holm(values: pd.Series) -> pd.Series:
    """Adjust p-values for their number by Holm's (1979) method; keep their index."""
    ordered = values.sort_values()
    return (ordered * np.arange(len(ordered), 0, -1)).clip(upper=1).cummax()


def signed_rank(differences: np.ndarray) -> float | None:
    """Return p of Wilcoxon's signed-rank test, two-sided; None for fewer than `FEWEST` differences."""
    from scipy.stats import wilcoxon  # takes long to import

    if len(differences) < FEWEST or not differences.any():
        return None if len(differences) < FEWEST else 1.0
    # KLs have six decimals: equal differences must stay equal, as they share a rank.
    return rounded(float(wilcoxon(differences.round(6), zero_method="zsplit").pvalue), 300)
