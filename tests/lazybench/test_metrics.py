"""Each metric against values worked out by hand from its definition."""

import subprocess
import sys
from difflib import SequenceMatcher

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lazybench import metrics
from lazybench.errors import LazyBenchError

CLASSES = ["city", "capital city", "old capital city", "river"]


@pytest.mark.parametrize(
    ("metric", "prediction", "reference", "expected"),
    [
        ("qa_f1", "The cat.", "a CAT!", 1.0),
        ("qa_f1", "cat cat dog", "cat bird", 2 * (1 / 3) * (1 / 2) / (1 / 3 + 1 / 2)),
        ("qa_f1", "", "cat", 0.0),
        ("qa_f1", "the", "the", 0.0),  # nothing is left of either
        ("qa_f1", "state-of-the-art", "stateoftheart", 1.0),  # punctuation goes before articles
        ("qa_f1_zh", "北京。", "北京", 1.0),
        ("qa_f1_zh", "上海", "北京", 0.0),
        ("qa_f1_zh", "《北京》", "北京", 2 * (1 / 2) / (1 / 2 + 1)),  # 《 is not in LongBench's list, 》 is
        ("rouge", "", "a b", 0.0),
        ("rouge", ".", "a b", 0.0),
        ("rouge", "a b c", "a b d", 2 * (2 / 3) ** 2 / (4 / 3 + 1e-8)),
        ("rouge", "c d. a b", "a b. c d", 2 / (2 + 1e-8)),  # a union over sentences: their order is nothing
        ("rouge_zh", "我爱北京", "我爱北京", 2 / (2 + 1e-8)),
        ("rouge_score_l", "c d. a b", "a b. c d", 0.5),  # one sequence: the order counts
        ("rouge_score_l", "", "a", 0.0),
        ("count", "5 or 6, maybe 5", "5", 2 / 3),
        ("count", "15", "5", 0.0),
        ("count", "none", "5", 0.0),
        ("retrieval", "Paragraph 3, not 4", "Paragraph 3", 0.5),
        ("retrieval", "no number", "Paragraph 3", 0.0),
        ("retrieval_zh", "段落12", "段落12", 1.0),
        ("code_sim", "", "", 1.0),
        ("code_sim", "", "x = 1", 0.0),
        ("code_sim", "\n# note\n// note\n```\nx = 1\ny", "x = 1", 1.0),
        ("code_sim", "# only a comment", "x = 1", 0.0),
        ("code_sim", "abcd", "bcde", 0.75),
        ("code_sim_indel", "# note\nabcd", "bcde", 0.75),
    ],
)
def test_values(metric, prediction, reference, expected):
    assert metrics.get(metric)(prediction, reference, None) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(
    ("prediction", "reference", "expected"),
    [
        ("river", "river", 1.0),
        ("river or city", "river", 0.5),
        ("sea", "river", 0.0),
        # `city` is part of the reference's name and goes; `capital city` is skipped by the removal.
        ("old capital city", "old capital city", 0.5),
    ],
)
def test_classification_drops_matches_while_iterating(prediction, reference, expected):
    assert metrics.get("classification")(prediction, reference, CLASSES) == expected


@pytest.mark.slow
def test_rouge_gives_zero_to_what_overflows_the_official_script_from_any_depth():
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


@settings(max_examples=50, deadline=None)
@given(st.text(alphabet="ab #`/\n(", max_size=30), st.text(alphabet="ab (", max_size=30))
def test_code_sim_is_fuzzywuzzy_without_levenshtein(prediction, reference):
    fuzz = pytest.importorskip("fuzzywuzzy.fuzz")
    if fuzz.SequenceMatcher is not SequenceMatcher:
        pytest.skip("python-Levenshtein is installed, and changes fuzzywuzzy")
    from lazybench.metrics.matching import first_code_line

    expected = fuzz.ratio(first_code_line(prediction), reference) / 100
    assert metrics.get("code_sim")(prediction, reference, None) == expected


def test_code_sim_and_indel_differ():
    assert metrics.get("code_sim")("abcdabcf", "bcfabcd", None) == 0.53  # difflib's longest block, then its sides
    assert metrics.get("code_sim_indel")("abcdabcf", "bcfabcd", None) == 0.67  # the longest common subsequence


@settings(max_examples=30, deadline=None)
@given(st.sampled_from(sorted(set(metrics.names()) - {"retrieval", "retrieval_zh"})), st.text(max_size=40),
       st.text(min_size=1, max_size=40))  # fmt: skip
def test_every_metric_stays_within_0_and_1(name, prediction, reference):
    assert 0 <= metrics.get(name)(prediction, reference, ["a", "b"]) <= 1


def test_unknown_metric_is_one_line_with_a_suggestion():
    with pytest.raises(LazyBenchError, match=r"^unknown metric 'qa_f2': did you mean 'qa_f1'\?$"):
        metrics.get("qa_f2")
    with pytest.raises(LazyBenchError, match="choose one of: classification, code_sim"):
        metrics.get("_segment")


@pytest.mark.parametrize(
    ("metric", "message"),
    [
        ("retrieval", "must read 'Paragraph <number>', not 'three'"),
        ("retrieval_zh", "must read '段落<number>', not 'three'"),
        ("classification", "needs the class names in 'all_classes'"),
    ],
)
def test_unusable_references_are_named(metric, message):
    with pytest.raises(LazyBenchError, match=message):
        metrics.get(metric)("3", "three", None)


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "rapidfuzz", None)
    with pytest.raises(LazyBenchError, match="metric 'code_sim_indel' needs the package 'rapidfuzz"):
        metrics.get("code_sim_indel")


def test_importing_metrics_imports_no_package():
    heavy = "{'rouge', 'rouge_score', 'jieba', 'rapidfuzz', 'fuzzywuzzy'}"
    code = f"import sys, lazybench.metrics; assert not {heavy} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_jieba_is_silent_and_needs_no_writable_temporary_folder(tmp_path):
    code = "from lazybench import metrics; print(metrics.get('qa_f1_zh')('北京', '北京', None))"
    run = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env={"TMPDIR": str(tmp_path), "PYTHONPATH": ":".join(sys.path), "PYTHONUTF8": "1"},
    )
    assert (run.stdout, run.stderr) == ("1.0\n", "")
    assert list(tmp_path.iterdir()) == []
