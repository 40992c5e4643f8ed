"""Scores against LongBench's official evaluation, and each metric against values worked out by hand."""

import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from lazybench import metrics
from lazybench.data.dataset_configs import load_dataset_configs
from lazybench.errors import LazyBenchError
from lazybench.metrics import matching
from lazybench.run import scoring

PARITY = Path(__file__).parents[2].parent / "shared/parity/longbench_scores.jsonl"
CONFIGS = load_dataset_configs()
CLASSES = ["city", "capital city", "old capital city", "river"]


@pytest.mark.skipif(not PARITY.exists(), reason="the official scores are not beside this checkout")
def test_official_scores():
    rows = [json.loads(line) for line in PARITY.read_text("utf-8").splitlines()]
    assert len(rows) == 124
    for row in rows:
        score = scoring.score(CONFIGS[row["dataset"]], row["prediction"], row["answers"], row["all_classes"])
        assert score == pytest.approx(row["score"], abs=1e-9), row["dataset"]


@pytest.mark.parametrize(
    ("dataset", "prediction", "answers", "classes", "expected"),
    [
        ("hotpotqa", "Paris\nis wrong", ["Paris"], None, 2 * (1 / 3) / (1 / 3 + 1)),  # every line counts
        ("triviaqa", "\n\nParis\nis wrong", ["London", "Paris"], None, 1.0),  # first line, best reference
        ("triviaqa", " \nParis", ["Paris"], None, 0.0),  # only newlines are stripped from the left
        ("trec", "Date\nCity", ["Date"], ["Date", "City"], 1.0),
        ("samsum", "\na b\nc", ["a b"], None, 2 / (2 + 1e-8)),
        ("lsht", "教育\n体育", ["教育"], ["教育", "体育"], 1.0),
        ("qasper", "anything", [], None, 0.0),
    ],
)
def test_of_a_dataset(dataset, prediction, answers, classes, expected):
    assert scoring.score(CONFIGS[dataset], prediction, answers, classes) == pytest.approx(expected, abs=1e-9)


marks = st.text(max_size=4) | st.sampled_from(["Wren", "wren-song", "41", "İ"])
answered = st.lists(marks | st.sampled_from([" ", "\t", "\x00", "\n", ", "]), max_size=12).map("".join)


@given(answered, st.lists(marks, min_size=1, max_size=5))
@example("The answer is: WREN,\x0041.", ["wren", "41", "42"])
@example("\t a\tb ", ["a\tb", "a"])
def test_rulers_scores_are_of_the_references_in_the_prediction(prediction, references):
    # scripts/eval/evaluate.py, `postprocess_pred`, and synthetic/constants.py, both metrics, implemented independently.
    bare = "".join("\n" if ord(letter) < 32 else letter for letter in prediction.strip()).strip().lower()
    is_there = [bare.find(reference.lower()) >= 0 for reference in references]
    for metric, expected in (
        ("string_match_all", sum(is_there) / len(is_there)),
        ("string_match_part", float(any(is_there))),
    ):
        score = scoring.score(CONFIGS["qasper"], prediction, references, None, metric)
        assert score == pytest.approx(expected)


def test_some_datasets_have_scores_beside_the_official():
    assert scoring.variants(CONFIGS["samsum"], "\na b\nc d", ["a b"], None) == {"rouge_score_l": 1.0}
    assert scoring.variants(CONFIGS["lcc"], "abcd", ["bcde", "abcd"], None) == {"code_sim_indel": 1.0}


@pytest.mark.parametrize(
    ("metric", "prediction", "reference", "expected"),
    [
        ("qa_f1", "The cat.", "a CAT!", 1.0),
        ("qa_f1", "cat cat dog", "cat bird", 2 * (1 / 3) * (1 / 2) / (1 / 3 + 1 / 2)),
        ("qa_f1", "the", "the", 0.0),  # nothing is left of either
        ("choice", "**The correct answer is (A)**, or (B).", "A", 1.0),
        ("choice", "The correct answer is B. Or: The correct answer is (A).", "B", 0.0),  # parentheses come first
        ("choice", "The correct answer is **B**.", "B", 1.0),
        ("choice", "(A)", "A", 0.0),
        ("qa_f1", "state-of-the-art", "stateoftheart", 1.0),  # punctuation goes before articles
        ("qa_f1_zh", "北京。", "北京", 1.0),
        ("qa_f1_zh", "《北京》", "北京", 2 * (1 / 2) / (1 / 2 + 1)),  # 《 is not in LongBench's list, 》 is
        ("rouge", "", "a b", 0.0),
        ("rouge", "a b c", "a b d", 2 * (2 / 3) ** 2 / (4 / 3 + 1e-8)),
        ("rouge", "c d. a b", "a b. c d", 2 / (2 + 1e-8)),  # a union over sentences: their order is nothing
        ("rouge_zh", "我爱北京", "我爱北京", 2 / (2 + 1e-8)),
        ("rouge_score_l", "c d. a b", "a b. c d", 0.5),  # one sequence: the order counts
        ("count", "5 or 6, maybe 5", "5", 2 / 3),
        ("count", "15", "5", 0.0),
        ("retrieval", "Paragraph 3, not 4", "Paragraph 3", 0.5),
        ("retrieval_zh", "段落12", "段落12", 1.0),
        ("code_sim", "\n# note\n// note\n```\nx = 1\ny", "x = 1", 1.0),
        ("code_sim", "abcdabcf", "bcfabcd", 0.53),  # difflib's longest block, then its sides
        ("code_sim_indel", "abcdabcf", "bcfabcd", 0.67),  # the longest common subsequence
        ("classification", "river or city", "river", 0.5),
        # `city` is part of the reference's name and goes; `capital city` is skipped by the removal.
        ("classification", "old capital city", "old capital city", 0.5),
    ],
)
def test_values(metric, prediction, reference, expected):
    assert metrics.get(metric)(prediction, reference, CLASSES) == pytest.approx(expected, abs=1e-12)


def test_code_similarity_is_difflibs_beside_python_levenshtein(monkeypatch):
    beside = ModuleType("fuzzywuzzy.StringMatcher")
    beside.StringMatcher = lambda *texts: pytest.fail("another ratio")
    monkeypatch.setitem(sys.modules, beside.__name__, beside)
    monkeypatch.delitem(sys.modules, "fuzzywuzzy.fuzz", raising=False)
    matching._fuzz.cache_clear()
    assert metrics.get("code_sim")("abcdabcf", "bcfabcd", None) == 0.53


@pytest.mark.slow
def test_rouge_is_zero_if_the_official_script_overflows_at_any_depth():
    rouge = metrics.get("rouge")

    def score(words, frames):
        if frames:
            return score(words, frames - 1)
        text = " ".join(f"w{i}" for i in range(words))
        return rouge(text, text, None)

    limit = sys.getrecursionlimit()
    for frames in (0, 400):
        assert score(980, frames) == pytest.approx(1.0, abs=1e-6)
        assert score(991, frames) == 0.0
    assert sys.getrecursionlimit() == limit


@pytest.mark.parametrize(
    ("metric", "message"),
    [
        ("retrieval", "must read 'Paragraph <number>', not 'three'"),
        ("classification", "needs the class names in 'all_classes'"),
        ("qa_f2", r"^unknown metric 'qa_f2': did you mean 'qa_f1'\?$"),
        ("no_such.metric", r"^metric 'no_such\.metric' cannot be imported: No module named 'no_such'"),
        ("builtins.max", r"^metric 'builtins\.max' raised TypeError: "),
        ("builtins.slice", r"^metric 'builtins\.slice' gave .*: a score is from 0 to 1$"),
    ],
)
def test_a_metric_that_cannot_score_ends_in_one_line(metric, message):
    with pytest.raises(LazyBenchError, match=message):
        metrics.get(metric)("3", "three", None)


@pytest.mark.slow
def test_jieba_is_silent_and_needs_no_writable_temporary_folder(tmp_path):
    heavy = "{'rouge', 'rouge_score', 'jieba', 'rapidfuzz', 'fuzzywuzzy', 'datasets'}"
    code = f"import sys; from lazybench import metrics; assert not {heavy} & set(sys.modules)\n"
    code += "print(metrics.get('qa_f1_zh')('北京', '北京', None))"
    environment = {"TMPDIR": str(tmp_path), "PYTHONPATH": ":".join(sys.path), "PYTHONUTF8": "1"}
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    assert (run.stdout, run.stderr) == ("1.0\n", "")
    assert list(tmp_path.iterdir()) == []
