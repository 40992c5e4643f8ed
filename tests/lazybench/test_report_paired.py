"""Pairs of methods with the same number of operations: which rows are paired, on which records, and their numbers."""

import numpy as np
import pandas as pd
import pytest
from report_runs import failed, row, write_run
from scipy.stats import gmean

from lazybench.analysis.blocks import group
from lazybench.analysis.paired import compare
from lazybench.analysis.records import find

DATASETS = ("hotpotqa", "musique")
LAZY, STATIC, DROP = "LazyLLM", "static pruning", "random drop"


def divergences(records, mean=0.02, seed=0):
    """One KL a record, as a run's record keeps it."""
    values = np.random.default_rng(seed).lognormal(np.log(mean), 1, (len(DATASETS), records))
    return np.round(values, 6)


def rows_with(kl, score=0.5):
    """Lines of both datasets with these KLs, for `add`."""
    return [
        row(dataset, number, kl=float(value), score=score)
        for dataset, of_dataset in zip(DATASETS, kl, strict=True)
        for number, value in enumerate(of_dataset)
    ]


@pytest.fixture
def add(tmp_path):
    """Write a run of a method whose lines have their `kl`, matched to a target if it has one."""

    def write(name, rows, target="", **changes):
        fold = {"method": {"name": name, "layer": 3}, "records": ["a"]}
        method = {"speedup": target, "folds": [fold]} if target else {}
        traces = [line for line in rows if line.get("kl") is not None]
        changes = {"method": method, "digest": f"{name}{target}"} | changes
        write_run(tmp_path / "runs", name, rows, traces=traces, **changes)

    return write


@pytest.fixture
def pairs(tmp_path):
    """The pairs of the one model and data, by the names of both."""

    def make():
        blocks = group(*find([tmp_path / "runs"]))
        return {(one["first"], one["second"]): one for block in blocks for one in compare(block).to_dict("records")}

    return make


def test_a_pair_that_differs(add, pairs):
    kl = divergences(40)
    other = np.round(kl * np.random.default_rng(1).uniform(2, 4, kl.shape), 6)
    add("lazyllm", rows_with(kl, score=0.6))
    add("static_pruning", rows_with(other))
    ((names, pair),) = pairs().items()
    assert names == (LAZY, STATIC)  # the later one of the tables first
    assert pair["records"] == pair["kl_records"] == 80
    assert pair["geometric_kl_ratio"] == pytest.approx(gmean(kl.ravel()) / gmean(other.ravel()))
    assert pair["kl_ratio"] == pytest.approx(kl.mean() / other.mean())
    for name in ("geometric_kl_ratio", "kl_ratio"):
        assert pair[f"{name}_low"] < pair[name] < pair[f"{name}_high"] < 1
    assert pair["score_difference"] == pytest.approx(10)
    assert pair["score_difference_low"] > 0


def test_records_that_a_method_leaves_as_they_are_count(add, pairs):
    kl = divergences(10)
    add("lazyllm", rows_with(kl))
    kl[0] = 0
    add("prompt_compression", rows_with(kl))
    (pair,) = pairs().values()
    assert pair["kl_records"] == 20
    assert pair["kl_ratio"] > 1


def test_rows_of_one_target_are_paired_and_what_has_no_target_with_the_least(add, pairs):
    for target in ("3x", "2x"):
        add("lazyllm", rows_with(divergences(6)), target)
        add("static_pruning", rows_with(divergences(6)), target)
    add("prompt_compression", rows_with(divergences(6)))
    add("lazyllm", rows_with(divergences(6)), digest="other")  # beside those that were matched
    assert {names: pair["operations"] for names, pair in pairs().items()} == {
        (f"{LAZY}, 2x", f"{STATIC}, 2x"): "2x",
        (f"{LAZY}, 2x", "prompt compression"): "2x",
        ("prompt compression", f"{STATIC}, 2x"): "2x",
        (f"{LAZY}, 3x", f"{STATIC}, 3x"): "3x",
    }


def test_only_rows_of_equal_conditions_and_methods_with_one_row_are_paired(add, pairs):
    add("lazyllm", rows_with(divergences(6)))
    add("static_pruning", rows_with(divergences(6)), environment={"dtype": "float32"})
    for keep in (0.3, 0.5):
        add("random_drop", rows_with(divergences(6)), digest=f"{keep}", method={"keep": keep})
    assert not pairs()


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
    assert (pair["records"], pair["kl_records"]) == (18, 17)
    both = [np.concatenate([np.delete(values[0], [0, 4]), values[1, :9]]) for values in (kl, other)]
    assert pair["geometric_kl_ratio"] == pytest.approx(gmean(both[0]) / gmean(both[1]))


def test_chinese_is_in_no_comparison(add, pairs, tmp_path):
    for seed, name in enumerate(("lazyllm", "static_pruning")):
        add(name, rows_with(divergences(10, seed=seed)))
        write_run(tmp_path / "runs", name, [row("dureader", number) for number in range(5)], task="chinese", digest="c")
    (pair,) = pairs().values()
    assert pair["records"] == 20


def test_runs_without_kl_are_compared_by_their_scores(tmp_path, report):
    for name, score in {"lazyllm": 0.25, "static_pruning": 0.5}.items():
        write_run(
            tmp_path / "runs", name, [row("hotpotqa", number, score=score) for number in range(6)], task="hotpotqa"
        )
    folder = report()
    paired = folder / "paired.tex"
    assert "KL" not in paired.read_text("utf-8")
    for path in (paired, folder / "report.md", folder / "report.html"):
        assert "−25.0 " in path.read_text("utf-8").replace("$-$", "−")


def test_a_report_shows_the_pairs_with_lazyllm_and_its_variants_follow_it(add, report):
    for name in ("lazyllm", "lazyllm_no_revival", "lazyllm+", "static_pruning", "fastkv"):
        add(name, rows_with(divergences(6)))
    table = (report() / "report.md").read_text("utf-8").partition("### Pairs")[2].partition("\n- ")[0]
    shown = [{cell.strip() for cell in line.split("|")[2:4]} for line in table.splitlines() if line.startswith("| ")]
    assert sum(bool(pair & {LAZY, "LazyLLM+"}) for pair in shown) == 7
    assert {STATIC, "FastKV (TSP)"} not in shown
    assert pd.read_csv(report() / "paired.csv").groupby("first", sort=False).size().to_dict() == {
        LAZY: 1,
        f"{LAZY} without revival": 2,
        "FastKV (TSP)": 3,
        "LazyLLM+": 4,
    }
