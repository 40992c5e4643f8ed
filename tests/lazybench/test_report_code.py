"""Rows whose code differs are kept apart or told apart: another engine, another commit, an edited method or metric."""

import pytest
from report_runs import rows_of, write_run

from lazybench.analysis.blocks import Block, blocks
from lazybench.analysis.reading import find
from lazybench.report.caveats import warnings

TASK = ("hotpotqa", "2wikimqa", "musique")
LAZY = "LazyLLM 10:0.7,20:0.5"


@pytest.fixture
def add(tmp_path):
    """Write a run with some environment and code; each call makes another folder."""
    made = []

    def write(name: str, code: dict[str, str] | None = None, tasks=TASK, **environment: object) -> None:
        made.append(name)
        digest = f"{len(made):012d}"
        folder = write_run(tmp_path / "runs", name, rows_of(tasks, 1), digest=digest, environment=environment)
        if code is not None:
            with open(folder / "config.yaml", "a") as file:
                file.write(f"code: {code}\n")

    return write


@pytest.fixture
def block(tmp_path):
    def read() -> Block:
        (only,) = blocks(find([str(tmp_path / "runs")])[0])
        return only

    return read


@pytest.mark.parametrize(("key", "values"), [("results_version", (2, 3)), ("weights_format", ("GGUF Q4_1", "float32"))])
def test_rows_of_other_engines_or_weights_are_kept_apart(add, block, key, values):
    add("baseline", **{key: values[1]})
    for value in values:
        add("lazyllm", **{key: value})
    labels = [row.label for row in block().rows]
    assert labels == [f"baseline [{key}={values[1]}]", *(f"{LAZY} [{key}={value}]" for value in values)]
    said = f"the runs differ in {key} ({', '.join(sorted(map(str, values)))}): kept as separate rows"
    assert any(said in text for text in warnings(block()))


def test_different_commits_are_told_with_their_rows(add, block):
    add("baseline", commit="08229ba4e09e")
    add("lazyllm", commit="195e72d1f9dd+")
    add("static_pruning", commit="08229ba4e09e")
    assert warnings(block()) == [
        "Llama 2 7B Chat on LongBench: rows from different commits, whose code may differ: 08229ba4e09e (baseline, "
        f"static pruning layer=4 keep=0.5); 195e72d1f9dd with uncommitted changes ({LAZY})"
    ]


@pytest.mark.parametrize(
    ("commit", "told"), [("08229ba4e09e", 0), (None, 0), ("08229ba4e09e+", 1), ("08229ba4e09e, 195e72d1f9dd", 1)]
)
def test_one_commit_is_told_only_if_there_is_code_beyond_it(add, block, commit, told):
    add("baseline", commit=commit)
    add("lazyllm", commit=commit)
    assert len(warnings(block())) == told


def test_a_method_that_was_edited_is_two_rows_and_code_of_others_is_no_difference(add, block):
    metric = {"lazybench.metrics.qa_f1": "1"}
    add("baseline", code=metric)
    add("ends", code={"ends": "a", **metric}, tasks=["hotpotqa"])
    assert warnings(block()) == []
    add("ends", code={"ends": "b", **metric}, tasks=["musique"])
    assert [row.label for row in block().rows] == ["baseline", "ends [code.ends=a]", "ends [code.ends=b]"]
    (said,) = warnings(block())
    assert "the runs differ in code.ends (a, b): kept as separate rows" in said
