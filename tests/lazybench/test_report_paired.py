"""Paired tests between methods at equal speed: which rows are paired, on which records, and their numbers."""

import numpy as np
import pandas as pd
import pytest
from report_runs import failed, row, timed, trial, write_run
from scipy.stats import gmean, wilcoxon

from lazybench.analysis.blocks import group
from lazybench.analysis.paired import compare, holm
from lazybench.analysis.records import find

DATASETS = ("hotpotqa", "musique")
LAZY, STATIC, DROP = "LazyLLM", "static pruning", "random drop"


def divergences(records, mean=0.02, seed=0):
    """One KL a record, as a run's record keeps it."""
    values = np.random.default_rng(seed).lognormal(np.log(mean), 1, (len(DATASETS), records))
    return np.round(values, 6)


def rows_with(kl, speedup=2.0, score=0.5):
    """Lines of both datasets with these KLs, for `add`."""
    return [
        row(dataset, number, kl=float(value), score=score, speedup=speedup)
        for dataset, of_dataset in zip(DATASETS, kl, strict=True)
        for number, value in enumerate(of_dataset)
    ]


@pytest.fixture
def add(tmp_path):
    """Write runs of a method, one a dataset; lines have their `kl` and `speedup`."""

    def write(name, rows, **changes):
        for dataset in DATASETS:
            lines = [line for line in rows if line["dataset"] == dataset]
            traces = [line for line in lines if line.get("kl") is not None]
            times = [
                timed(
                    dataset, line["_id"].rpartition("-")[2], {f"{name}/{dataset}": trial()}, trial(line["speedup"], 9.0)
                )
                for line in lines
                if "speedup" in line
            ]
            write_run(
                tmp_path / "runs", name, lines, task=dataset, digest=dataset, traces=traces, times=times, **changes
            )

    return write


@pytest.fixture
def pairs(tmp_path):
    """The pairs of the one model and data, by the labels of both."""

    def make():
        blocks = group(*find([tmp_path / "runs"]))
        return {(one["first"], one["second"]): one for block in blocks for one in compare(block).to_dict("records")}

    return make


def test_holm_by_hand():
    # 0.01 times 4, 0.02 times 3, 0.03 times 2, which is no less than the one before it, and 0.5 times 1.
    adjusted = holm(pd.Series([0.03, 0.01, 0.5, 0.02]))
    assert adjusted.sort_index().tolist() == pytest.approx([0.06, 0.04, 0.5, 0.06])
    assert holm(pd.Series([0.6, 0.7])).tolist() == [1, 1]


def test_a_pair_that_differs(add, pairs):
    kl = divergences(12)
    other = np.round(kl * np.linspace(2, 4, 12), 6)
    other[1, 3] = kl[1, 3] / 2
    add("lazyllm", rows_with(kl, 2.0, score=0.6))
    add("static_pruning", rows_with(other, 2.1))
    ((labels, pair),) = pairs().items()
    assert labels == (STATIC, LAZY)  # in the order of the tables
    assert (pair["first_ttft_speedup"], pair["second_ttft_speedup"]) == pytest.approx((2.1, 2.0))
    assert pair["records"] == pair["kl_records"] == 24
    assert pair["kl_ratio"] == pytest.approx(gmean(other.ravel()) / gmean(kl.ravel()))
    assert pair["kl_ratio_low"] < pair["kl_ratio"] < pair["kl_ratio_high"]
    assert pair["records_first_lower_kl"] == 1
    assert pair["kl_p"] == pytest.approx(wilcoxon(other.ravel(), kl.ravel()).pvalue)
    assert pair["kl_p_holm"] == pair["kl_p"] < 0.05
    assert pair["score_difference"] == pytest.approx(-10)


def test_p_is_corrected_for_all_pairs_of_the_block(add, pairs):
    means = {LAZY: ("lazyllm", 0.02), STATIC: ("static_pruning", 0.03), DROP: ("random_drop", 0.06)}
    kl = {label: divergences(10, mean, seed) for seed, (label, (_, mean)) in enumerate(means.items())}
    for label, (method, _) in means.items():
        add(method, rows_with(kl[label]))
    compared = pairs()
    assert list(compared) == [(DROP, STATIC), (DROP, LAZY), (STATIC, LAZY)]
    plain = {both: wilcoxon(kl[both[0]].ravel(), kl[both[1]].ravel()).pvalue for both in compared}
    assert {both: pair["kl_p"] for both, pair in compared.items()} == pytest.approx(plain)
    adjusted = holm(pd.Series(list(plain.values()))).sort_index()
    assert [pair["kl_p_holm"] for pair in compared.values()] == pytest.approx(adjusted.tolist())


@pytest.mark.parametrize("differing", [0, 6])
def test_equal_records_count_half_for_each_side(add, pairs, differing):
    kl = divergences(10)
    other = kl.copy()
    other[0, :differing] *= 2  # all one way
    add("lazyllm", rows_with(kl))
    add("static_pruning", rows_with(np.round(other, 6)))
    (pair,) = pairs().values()
    apart = np.round(other, 6) - kl
    assert pair["kl_p"] == pytest.approx(wilcoxon(apart.ravel(), zero_method="zsplit").pvalue if differing else 1)


@pytest.mark.parametrize(
    ("speedup", "dtype", "paired"),
    [(2.2, "bfloat16", 1), (2.21, "bfloat16", 0), (1.82, "bfloat16", 1), (1.81, "bfloat16", 0), (2.0, "float32", 0)],
)
def test_only_rows_of_equal_speed_and_conditions_are_paired(add, pairs, speedup, dtype, paired):
    add("lazyllm", rows_with(divergences(6), 2.0))
    add("static_pruning", rows_with(divergences(6), speedup), environment={"dtype": dtype})
    assert len(pairs()) == paired


def test_only_shared_records_that_did_not_fail_count(add, pairs):
    kl, other = divergences(10), divergences(10, 0.05, 1)
    lines = rows_with(kl)
    lines[0] = failed("hotpotqa", 0)
    lines[4]["kl"] = None
    add("lazyllm", lines)
    lines = rows_with(other)
    lines[-1] = failed("musique", 9)
    add("static_pruning", lines)
    (pair,) = pairs().values()
    assert pair["first_ttft_speedup"] == pair["second_ttft_speedup"] == 2
    assert (pair["records"], pair["kl_records"]) == (18, 17)
    left = [np.delete(values[0], [0, 4]) for values in (other, kl)]
    both = [np.concatenate([first, values[1, :9]]) for first, values in zip(left, (other, kl), strict=True)]
    assert pair["kl_p"] == pytest.approx(wilcoxon(*both).pvalue)
    assert pair["kl_ratio"] == pytest.approx(gmean(both[0]) / gmean(both[1]))


def test_chinese_is_in_no_comparison(add, pairs, tmp_path):
    for seed, name in enumerate(("lazyllm", "static_pruning")):
        add(name, rows_with(divergences(10, seed=seed)))
        write_run(tmp_path / "runs", name, [row("dureader", number) for number in range(5)], task="chinese", digest="c")
    (pair,) = pairs().values()
    assert pair["records"] == 20


@pytest.mark.parametrize("records", [2, 3])
def test_few_records_give_no_test(add, pairs, records):
    add("lazyllm", rows_with(divergences(records)))
    add("static_pruning", rows_with(divergences(records, 0.05, 1)))
    (pair,) = pairs().values()
    assert pair["kl_records"] == 2 * records
    assert np.isnan(pair["kl_p"]) == np.isnan(pair["kl_p_holm"]) == (records == 2)


def test_runs_without_kl_are_compared_by_their_scores(tmp_path, report):
    for name, score in {"lazyllm": 0.5, "static_pruning": 0.25}.items():
        rows = [row("hotpotqa", number, score=score) for number in range(6)]
        times = [timed("hotpotqa", number, {f"{name}/1": trial()}) for number in range(6)]
        write_run(tmp_path / "runs", name, rows, task="hotpotqa", digest="1", times=times)
    folder = report()
    (paired,) = folder.glob("paired_*.tex")
    assert "KL" not in paired.read_text("utf-8")
    for path in (paired, folder / "report.md", folder / "report.html"):
        assert "−25.00" in path.read_text("utf-8").replace("$-$", "−")
