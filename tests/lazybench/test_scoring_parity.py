"""Scores against LongBench's official evaluation, to 1e-9."""

import json
from pathlib import Path

import pytest

from lazybench.data.facts import load_facts
from lazybench.run import scoring

PARITY = Path(__file__).parents[2].parent / "shared/parity/longbench_scores.jsonl"
FACTS = load_facts()

# (dataset, prediction, answers, classes, score): what the official code's arithmetic gives, worked by hand.
GOLDEN = [
    ("hotpotqa", "Paris\nis wrong", ["Paris"], None, 2 * (1 / 3) / (1 / 3 + 1)),  # every line counts
    ("triviaqa", "\n\nParis\nis wrong", ["London", "Paris"], None, 1.0),  # first line, best reference
    ("triviaqa", " \nParis", ["Paris"], None, 0.0),  # only newlines are stripped from the left
    ("trec", "Date\nCity", ["Date"], ["Date", "City"], 1.0),
    ("trec", "City of birth", ["City"], ["City", "City of birth", "birth"], 1 / 3),
    ("samsum", "\na b\nc", ["a b"], None, 2 / (2 + 1e-8)),
    ("gov_report", "a b\nc", ["a b"], None, 2 * (2 / 3) / (2 / 3 + 1 + 1e-8)),
    ("passage_count", "7, 8 and 7", ["7"], None, 2 / 3),
    ("passage_retrieval_en", "Paragraph 2", ["Paragraph 2"], None, 1.0),
    ("lcc", "\n# step\nabcd\n", ["bcde"], None, 0.75),
    ("repobench-p", "x", ["y", "x"], None, 1.0),
    ("lsht", "教育\n体育", ["教育"], ["教育", "体育"], 1.0),
    ("qasper", "anything", [], None, 0.0),
]


@pytest.mark.parametrize(("dataset", "prediction", "answers", "classes", "expected"), GOLDEN)
def test_golden_cases(dataset, prediction, answers, classes, expected):
    assert scoring.score(FACTS[dataset], prediction, answers, classes) == pytest.approx(expected, abs=1e-9)


@pytest.mark.skipif(not PARITY.exists(), reason="the official scores are not beside this checkout")
def test_official_scores():
    rows = [json.loads(line) for line in PARITY.read_text("utf-8").splitlines()]
    assert len(rows) == 124
    for row in rows:
        score = scoring.score(FACTS[row["dataset"]], row["prediction"], row["answers"], row["all_classes"])
        assert score == pytest.approx(row["score"], abs=1e-9), row["dataset"]


def test_beside_scores_have_their_own_names():
    assert scoring.beside(FACTS["samsum"], "\na b\nc d", ["a b"], None) == {"rouge_score_l": 1.0}
    assert scoring.beside(FACTS["lcc"], "abcd", ["bcde", "abcd"], None) == {"code_sim_indel": 1.0}
    assert scoring.beside(FACTS["hotpotqa"], "a", ["a"], None) == {}


def test_a_dataset_stands_under_its_task():
    scores = {"lcc": 40.0, "repobench-p": 60.0, "trec": 10.0, "dureader": 99.0}
    assert scoring.by_task(scores, FACTS) == {"code": [40.0, 60.0], "fewshot": [10.0], "chinese": [99.0]}
