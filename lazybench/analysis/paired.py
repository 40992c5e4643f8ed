"""Methods at equal speed, two by two, on the same records: which one is nearer to the unmodified model.

Records with the same KL under both methods count half for each side (`zsplit`). Left out, as Wilcoxon did, they would
leave p to the few records that differ, though each is a sign that the methods do not differ; Pratt's way keeps their
ranks but still leaves them out of the sums, and has no p where all are equal.
"""

from collections.abc import Iterator
from functools import cache
from itertools import combinations
from typing import Any

import numpy as np
import pandas as pd

from lazybench.analysis.averages import KL, SCORE_DIFFERENCE, TTFT, Measure, measured, part_of, ran, together
from lazybench.analysis.blocks import Block, Row, agree
from lazybench.analysis.intervals import columns

EQUAL = 0.1  # how much larger one of two equal speedups may be
FEWEST = 6  # five records cannot give a p below 0.05
_SIDES = ("first", "second")


def compare(block: Block) -> pd.DataFrame:
    """Every two of Table 1's rows at equal speed, without the baseline, which KL and speedup are measured against.

    Returns:
        A row a pair, with `model`, `data`, the labels of `first` and `second`; `first_ttft_speedup` and
        `second_ttft_speedup`, each over its own timed records of the datasets that they share; and, over the records
        that both ran without failing, `records` and `score_difference`, of 100, the first's less the second's, with its
        interval. Over those of them with a KL of the next token under both (`kl_records`): `first_kl`, `second_kl`
        (nats) and `kl_ratio`, below 1 where the first is nearer to the unmodified model; `records_first_lower_kl` and
        `records_equal_kl`; `kl_p` of Wilcoxon's signed-rank test, two-sided, and `kl_p_holm`, by Holm's method for the
        block's `comparisons`; `kl_missing`, why there is no KL or no p. No rows where no two are at equal speed.
    """
    found = pd.DataFrame(_pairs(block))
    if found.empty:
        return found
    counts, rest = ["records_first_lower_kl", "records_equal_kl"], ["first_kl", "second_kl", "kl_ratio", "kl_p"]
    found = found.astype(dict.fromkeys(counts, "Int64") | dict.fromkeys(rest, float))
    return found.assign(kl_p_holm=holm(found["kl_p"].dropna()), comparisons=found["kl_p"].count())


def holm(values: pd.Series) -> pd.Series:
    """Holm's (1979) adjustment: p-values that may be read as if there were one comparison; by the same index."""
    ordered = values.sort_values()
    return (ordered * np.arange(len(ordered), 0, -1)).clip(upper=1).cummax()


def _pairs(block: Block) -> Iterator[dict[str, Any]]:
    rows = [row for row in block.compared if row.method != "baseline"]
    complete = [_complete(row, block.judged()) for row in rows]
    datasets = [frozenset(records["dataset"]) for records in complete]

    @cache
    def speedup(row: int, of: frozenset[str]) -> float | None:
        found = measured(_of(complete[row], of), TTFT[0]).estimate
        return None if found is None else found.value

    for pair in combinations(range(len(rows)), 2):
        shared = frozenset.intersection(*(datasets[row] for row in pair))
        runs, others = (rows[row].runs for row in pair)
        if not shared or not all(agree(one, other) for one in runs for other in others):
            continue
        speedups = [speedup(row, shared) for row in pair]
        if None in speedups or max(speedups) > (1 + EQUAL + 1e-9) * min(speedups):
            continue
        key = ["task", "dataset", "_id"]
        first, second = (_of(complete[row], shared)[[*key, "kl", "score"]] for row in pair)
        both = first.merge(second, on=key, suffixes=("_first", "_second"))
        if len(both):
            about = {"model": block.model, "data": block.data}
            about |= {side: rows[row].label for side, row in zip(_SIDES, pair, strict=True)}
            about |= {f"{side}_ttft_speedup": value for side, value in zip(_SIDES, speedups, strict=True)}
            apart = measured(both.assign(score_difference=both["score_first"] - both["score_second"]), SCORE_DIFFERENCE)
            about |= {"records": len(both)} | _divergence(both)
            yield about | columns(SCORE_DIFFERENCE.key, apart.estimate)


def _complete(row: Row, tasks: dict[str, list[str]]) -> pd.DataFrame:
    """The records that the row could run, of the datasets that it is through with."""
    parts = [{task: part_of(row, [name])} for task, names in tasks.items() for name in names]
    whole = [together(part).records for part in parts if not together(part).reason]
    return ran(pd.concat(whole or [row.records.head(0)]))


def _of(records: pd.DataFrame, datasets: frozenset[str]) -> pd.DataFrame:
    return records[records["dataset"].isin(datasets)]


def _divergence(both: pd.DataFrame) -> dict[str, Any]:
    names = ["kl_records", "first_kl", "second_kl", "kl_ratio", "records_first_lower_kl", "records_equal_kl"]
    names += ["kl_p", "kl_p_holm", "comparisons", "kl_missing"]
    traced = both.dropna(subset=["kl_first", "kl_second"])
    if traced["dataset"].nunique() < both["dataset"].nunique():
        return dict.fromkeys(names) | {"kl_records": 0, "kl_missing": "not traced"}
    means = [measured(traced, Measure(KL.key, "", f"kl_{side}", long_tailed=True)).estimate.value for side in _SIDES]
    apart = (traced["kl_first"] - traced["kl_second"]).to_numpy()
    p = signed_rank(apart)
    ratio = means[0] / means[1] if means[1] > 0 else None
    values = [len(traced), *means, ratio, (apart < 0).sum(), (apart == 0).sum(), p, None, None]
    return dict(zip(names, [*values, "too few records" if p is None else ""], strict=True))


def signed_rank(apart: np.ndarray) -> float | None:
    """p of Wilcoxon's signed-rank test of differences, two-sided; None where there are too few of them."""
    if len(apart) < FEWEST:
        return None
    if not apart.any():
        return 1.0
    from scipy.stats import wilcoxon  # takes long to import

    return float(wilcoxon(apart, zero_method="zsplit").pvalue)
