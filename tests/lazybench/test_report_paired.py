"""Paired tests between methods at equal speed: which rows are paired, on which records, and what is said of them."""

from __future__ import annotations

import csv
import re
import shutil
import subprocess
from statistics import fmean

import numpy as np
import pytest
from report_runs import failed, row, write_run
from scipy.stats import wilcoxon

from lazybench.analysis.blocks import blocks
from lazybench.analysis.paired import compare, holm
from lazybench.analysis.reading import find
from lazybench.cli.report import main

DATASETS = ("hotpotqa", "musique")
LAZY, STATIC, DROP = "LazyLLM 10:0.7,20:0.5", "static pruning layer=4 keep=0.5", "random drop keep=0.5"
FILES = ("paired.md", "paired.csv", "paired.tex")


def divergences(records, mean=0.02, seed=0):
    """One KL a record, as a run's record keeps it."""
    values = np.random.default_rng(seed).lognormal(np.log(mean), 1, (len(DATASETS), records))
    return np.round(values, 6)


def rows_with(kl, speedup=2.0, score=0.5):
    """Lines of both datasets with these KLs."""
    values = {"ttft_s": 1.0, "baseline_ttft_s": speedup, "score": score}
    return [
        row(dataset, number, kl=float(value), **values)
        for dataset, of_dataset in zip(DATASETS, kl, strict=True)
        for number, value in enumerate(of_dataset)
    ]


@pytest.fixture
def add(tmp_path):
    """Writes runs of a method, one a dataset."""

    def make(name, rows, **changes):
        for place, dataset in enumerate(DATASETS):
            lines = [line for line in rows if line["dataset"] == dataset]
            traces = [
                {"_id": line["_id"], "dataset": dataset, "first_token_kl": line["kl"], "kl": line["kl"]}
                for line in lines
                if line.get("kl") is not None
            ]
            if lines:
                about = {"task": dataset, "digest": f"00000000000{place}", "traces": traces}
                write_run(tmp_path / "runs", name, lines, **about, **changes)

    return make


@pytest.fixture
def pairs(tmp_path):
    """The pairs of the one model and data."""

    def make():
        runs, _ = find([str(tmp_path / "runs")])
        return [pair for of in compare(blocks(runs)) for pair in of.pairs]

    return make


@pytest.fixture
def report(tmp_path, monkeypatch):
    """Makes a report without its figures, and gives its folder."""
    monkeypatch.setattr("lazybench.report.figures.FIGURES", ())

    def make():
        assert main([f"runs={tmp_path / 'runs'}", f"output={tmp_path / 'report'}"]) == 0
        return tmp_path / "report"

    return make


def test_holm_by_hand():
    # 0.01 times 4, 0.02 times 3, 0.03 times 2, which is no less than the one before it, and 0.5 times 1.
    assert holm([0.03, 0.01, 0.5, 0.02]) == pytest.approx([0.06, 0.04, 0.5, 0.06])
    assert holm([0.04, 0.03]) == pytest.approx([0.06, 0.06])
    assert holm([0.6, 0.7]) == [1, 1]
    assert holm([]) == []


def test_a_pair_that_differs(add, pairs):
    kl = divergences(12)
    other = np.round(kl * np.linspace(2, 4, 12), 6)
    other[1, 3] = kl[1, 3] / 2
    add("lazyllm", rows_with(kl, 2.0, score=0.6))
    add("static_pruning", rows_with(other, 2.1))
    (pair,) = pairs()
    assert (pair.first, pair.second) == (STATIC, LAZY)  # in the order of the tables
    assert pair.speedups == pytest.approx((2.1, 2.0))
    assert pair.records == pair.divergence.records == 24
    assert pair.divergence.means == pytest.approx((other.mean(), kl.mean()))
    assert pair.divergence.ratio == pytest.approx(other.mean() / kl.mean())
    assert (pair.divergence.lower, pair.divergence.equal) == (1, 0)
    assert pair.divergence.p == pytest.approx(wilcoxon(other.ravel(), kl.ravel()).pvalue)
    assert pair.divergence.adjusted == pair.divergence.p < 0.05
    assert pair.difference.value == pytest.approx(-10)


def test_p_is_corrected_for_all_pairs_of_the_block(add, pairs):
    means = {LAZY: ("lazyllm", 0.02), STATIC: ("static_pruning", 0.03), DROP: ("random_drop", 0.06)}
    kl = {label: divergences(10, mean, seed) for seed, (label, (_, mean)) in enumerate(means.items())}
    for label, (method, _) in means.items():
        add(method, rows_with(kl[label]))
    found = {(pair.first, pair.second): pair.divergence for pair in pairs()}
    assert list(found) == [(DROP, STATIC), (DROP, LAZY), (STATIC, LAZY)]
    plain = {both: wilcoxon(kl[both[0]].ravel(), kl[both[1]].ravel()).pvalue for both in found}
    assert {both: of.p for both, of in found.items()} == pytest.approx(plain)
    order = sorted(plain, key=plain.get)
    least = 0
    for factor, both in zip((3, 2, 1), order, strict=True):
        least = max(least, min(1, factor * plain[both]))
        assert found[both].adjusted == pytest.approx(least)


def test_rows_that_are_identical(add, pairs, report):
    kl = divergences(5)
    add("lazyllm", rows_with(kl))
    add("static_pruning", rows_with(kl))
    (pair,) = pairs()
    assert (pair.divergence.p, pair.divergence.adjusted, pair.divergence.ratio) == (1, 1, 1)
    assert (pair.divergence.lower, pair.divergence.equal, pair.difference.value) == (0, 10, 0)
    assert "| 1.00 | 0 of 10, 10 equal | 1.000 | +0.00 |" in (report() / "paired.md").read_text("utf-8")


def test_equal_records_count_half_for_each_side(add, pairs):
    kl = divergences(10)
    other = kl.copy()
    other[0, :6] *= 2  # six differ, all one way, and fourteen do not
    add("lazyllm", rows_with(kl))
    add("static_pruning", rows_with(np.round(other, 6)))
    (pair,) = pairs()
    apart = np.round(other, 6) - kl
    assert pair.divergence.equal == 14
    assert pair.divergence.p == pytest.approx(wilcoxon(apart.ravel(), zero_method="zsplit").pvalue)
    assert pair.divergence.p > wilcoxon(apart[0, :6]).pvalue


@pytest.mark.parametrize(("speedup", "paired"), [(2.0, 1), (2.2, 1), (2.21, 0), (1.82, 1), (1.81, 0)])
def test_only_rows_of_equal_speed_are_paired(add, pairs, speedup, paired):
    add("baseline", rows_with(np.zeros((2, 6)), 2.0))
    add("lazyllm", rows_with(divergences(6), 2.0))
    add("static_pruning", rows_with(divergences(6), speedup))
    assert len(pairs()) == paired


def test_rows_under_other_conditions_are_not_paired(add, pairs):
    add("lazyllm", rows_with(divergences(6)))
    add("static_pruning", rows_with(divergences(6)), environment={"dtype": "float32"})
    assert not pairs()


def test_only_shared_records_that_did_not_fail_count(add, pairs):
    kl, other = divergences(10), divergences(10, 0.05, 1)
    lines = rows_with(kl)
    lines[0] = failed("hotpotqa", 0)
    lines[4]["kl"] = None
    add("lazyllm", lines)
    lines = rows_with(other)
    lines[-1] = failed("musique", 9)
    # A disturbed record is in no speedup: with this one, the two would not be at equal speed.
    lines[3] |= {"disturbed": True, "baseline_ttft_s": 1000.0}
    add("static_pruning", lines)
    (pair,) = pairs()
    assert pair.speedups == (2, 2)
    assert (pair.records, pair.divergence.records) == (18, 17)
    left = [np.delete(values[0], [0, 4]) for values in (other, kl)]
    means = [fmean([first.mean(), values[1, :9].mean()]) for first, values in zip(left, (other, kl), strict=True)]
    assert pair.divergence.means == pytest.approx(means)
    both = [np.concatenate([first, values[1, :9]]) for first, values in zip(left, (other, kl), strict=True)]
    assert pair.divergence.p == pytest.approx(wilcoxon(*both).pvalue)


def test_rows_meet_on_the_datasets_that_both_have(add, pairs):
    add("lazyllm", rows_with(divergences(8)))
    lines = rows_with(divergences(8, 0.05, 1))
    for line in lines[8:]:
        line["baseline_ttft_s"] = 4.0
    add("static_pruning", lines[:8])
    add("random_drop", lines)  # faster over both datasets, as fast on the one
    found = {(pair.first, pair.second): pair for pair in pairs()}
    assert list(found) == [(DROP, STATIC), (STATIC, LAZY)]
    assert found[STATIC, LAZY].records == 8
    assert found[DROP, STATIC].speedups == (2, 2)


def test_the_score_difference_is_over_tasks_of_datasets(add, pairs):
    generator = np.random.default_rng(3)
    scores = generator.uniform(0, 1, (2, 2, 20)).round(6)
    for name, values in zip(("static_pruning", "lazyllm"), scores, strict=True):
        lines = rows_with(divergences(20))
        for line, score in zip(lines, values.ravel(), strict=True):
            line["score"] = float(score)
        add(name, lines[:30])  # fewer records of the second dataset, which still counts as much
    (pair,) = pairs()
    apart = 100 * (scores[0] - scores[1])
    assert pair.difference.value == pytest.approx(fmean([apart[0].mean(), apart[1, :10].mean()]))
    assert pair.difference.low < pair.difference.value < pair.difference.high


@pytest.mark.parametrize("records", [2, 3])
def test_few_records_give_no_test(add, pairs, report, records):
    add("lazyllm", rows_with(divergences(records)))
    add("static_pruning", rows_with(divergences(records, 0.05, 1)))
    (pair,) = pairs()
    assert (pair.divergence.p is None) == (pair.records < 6) == (records == 2)
    for name in FILES:
        assert ("too few records" in (report() / name).read_text("utf-8")) == (records == 2)


def test_runs_without_kl_have_scores_alone(add, report):
    for name in ("lazyllm", "static_pruning"):
        add(name, [row("hotpotqa", number) for number in range(6)])
    text = (report() / "paired.md").read_text("utf-8")
    head = "| First | Second | TTFT speedups (×) | Records | Score difference, first − second |"
    assert head in text
    assert "Wilcoxon" not in text
    assert "KL" not in text


def test_csv_holds_the_numbers(add, pairs, report, tmp_path):
    add("lazyllm", rows_with(divergences(10)))
    add("static_pruning", rows_with(divergences(10, 0.05, 1), score=0.25))
    (pair,) = pairs()
    with (report() / "paired.csv").open(encoding="utf-8") as file:
        (line,) = csv.DictReader(file)
    assert (line["model"], line["data"]) == ("llama2_7b", "longbench")
    assert (line["first"], line["second"], line["kl_missing"]) == (STATIC, LAZY, "")
    of = pair.divergence
    expected = {"first_ttft_speedup": 2, "second_ttft_speedup": 2, "records": 20, "kl_records": 20}
    expected |= {"first_kl": of.means[0], "second_kl": of.means[1], "kl_ratio": of.ratio, "comparisons": 1}
    expected |= {"records_first_lower_kl": of.lower, "records_equal_kl": 0, "kl_p": of.p, "kl_p_holm": of.adjusted}
    expected["score_difference"] = -25
    assert {key: float(line[key]) for key in expected} == pytest.approx(expected, rel=1e-5)
    # The records that a report keeps give the same tests again, and a report replaces one that has them.
    kept = [(tmp_path / "report" / name).read_bytes() for name in FILES]
    assert main([f"runs={tmp_path / 'report/records'}", f"output={tmp_path / 'report'}"]) == 0
    assert [(tmp_path / "report" / name).read_bytes() for name in FILES] == kept


def test_the_page_shows_them_after_the_tables(add, report):
    add("lazyllm", rows_with(divergences(10)))
    add("static_pruning", rows_with(divergences(10, 0.2, 1)))
    html = (report() / "report.html").read_text("utf-8")
    titles = re.findall("<h3>(.*?)</h3>", html)
    assert titles == ["Tables", "Paired tests at equal speed", "Runs"]
    section = html[html.index(titles[1]) : html.index("<h3>Runs")]
    assert f"{STATIC}<br>against {LAZY}" in section
    said = ("at most 10%", "(n = 20)", "below 1 favours the first", "unit is the record", "Holm", "few records tell")
    for text in ("Wilcoxon", "(1 comparison)", *said):
        assert text in section
        assert text in (report() / "paired.md").read_text("utf-8")
    assert "&lt;0.001" in section


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="no pdflatex here")
def test_latex_compiles_and_fits_the_page(add, report, tmp_path):
    for place, name in enumerate(("random_drop", "static_pruning", "prompt_compression", "lazyllm")):
        add(name, rows_with(divergences(10, 0.02 * (place + 1), place), score=0.1 * place)[: 20 - place])
    head = "\\documentclass[twocolumn,10pt]{article}\n\\usepackage[letterpaper,margin=1in]{geometry}\n"
    text = (report() / "paired.tex").read_text("utf-8")
    assert text.isascii()
    whole = f"{head}\\usepackage{{booktabs}}\n\\begin{{document}}\n{text}\\end{{document}}\n"
    (tmp_path / "all.tex").write_text(whole, "utf-8")
    words = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "all.tex"]
    done = subprocess.run(
        words, cwd=tmp_path, capture_output=True, text=True, errors="replace", timeout=60, check=False
    )
    assert done.returncode == 0, done.stdout[-2000:]
    assert not re.search("Overfull|too large|Missing character|Font Warning", done.stdout), done.stdout[-2000:]


def test_nothing_is_written_where_nothing_is_paired(add, report):
    add("lazyllm", rows_with(divergences(6), 2.0))
    add("static_pruning", rows_with(divergences(6), 3.0))
    folder = report()
    assert not any((folder / name).exists() for name in FILES)
    assert "Paired" not in (folder / "report.html").read_text("utf-8")
