"""Rows whose code differs are kept or told apart: another commit, an edited method, another class or metric."""

import pytest
from report_runs import row, rows_of, stage_traces, write_run

from lazybench.analysis.grouping import Block, group
from lazybench.analysis.run_files import find
from lazybench.report.caveats import warnings
from lazybench.report.figures.style import subtitle
from lazybench.report.tables import numbers

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
        (only,) = group(find([str(tmp_path / "runs")])[0])
        return only

    return read


def test_different_commits_are_told_with_their_rows(add, block):
    add("baseline", commit="08229ba4e09e")
    assert warnings(block()) == []
    add("lazyllm", commit="195e72d1f9dd+")
    add("static_pruning", commit="08229ba4e09e")
    assert warnings(block()) == [
        "Llama 2 7B Chat on LongBench: rows from different commits, whose code may differ: 08229ba4e09e (baseline, "
        f"static pruning layer=4 keep=0.5); 195e72d1f9dd with uncommitted changes ({LAZY})"
    ]


def test_labels_number_the_devices(add, block):
    devices = ("NVIDIA A100-SXM4-80GB", "NVIDIA H100 80GB HBM3")
    for device in devices:
        add("lazyllm", device=device)
    assert [row.label for row in block().rows] == [f"{LAZY} [device 1]", f"{LAZY} [device 2]"]
    (warning,) = warnings(block())
    assert f"the runs differ in device (device 1: {devices[0]}; device 2: {devices[1]}): kept" in warning
    assert subtitle(block(), block().rows).endswith(f"; device 1: {devices[0]}; device 2: {devices[1]}")


def test_a_method_that_was_edited_is_two_rows_and_code_of_others_is_no_difference(add, block):
    metric = {"lazybench.metrics.qa_f1": "1"}
    add("baseline", code=metric)
    add("ends", code={"ends": "a", **metric}, tasks=["hotpotqa"])
    assert warnings(block()) == []
    add("ends", code={"ends": "b", **metric}, tasks=["musique"])
    assert [row.label for row in block().rows] == ["baseline", "ends [code.ends=a]", "ends [code.ends=b]"]
    (warning,) = warnings(block())
    assert "the runs differ in code.ends (a; b): kept as separate rows" in warning


def test_rows_of_one_name_and_another_class_are_two(tmp_path, block):
    for digest, (target, dataset) in enumerate({"mine.Mine": "musique", "lazybench.Own": "hotpotqa"}.items()):
        changes = {"task": dataset, "digest": f"{digest:012d}", "method": {"_target_": target}}
        write_run(tmp_path / "runs", "ends", rows_of([dataset]), **changes)
    assert [len(row.runs) for row in block().rows] == [1, 1]


def test_runs_under_other_facts_are_not_compared(tmp_path, block):
    for name, metric in {"baseline": "qa_f1", "lazyllm": "rouge"}.items():
        facts = {"my_qa": {"prompt": "{context}", "max_new_tokens": 8, "metric": metric, "task": "mine"}}
        data = {"datasets": facts, "has": ["my_qa"]}
        rows = [one | {"baseline_score": None} for one in rows_of(["my_qa"])]
        write_run(tmp_path / "runs", name, rows, task="my_qa", data=data)
    (warning,) = warnings(block())
    assert "the facts of my_qa (prompt, metric and so on) differ" in warning
    lazy = numbers(block()).set_index("method").loc["lazyllm"]
    assert lazy["score_difference_note"] == "no baseline"


def test_all_runs_of_the_baseline_are_what_scores_are_compared_with(tmp_path, block):
    write_run(tmp_path / "runs", "baseline", rows_of(["musique"]), task="musique")
    write_run(tmp_path / "runs", "baseline", rows_of(TASK), digest="000000000002")
    write_run(tmp_path / "runs", "lazyllm", rows_of(TASK))
    lazy = numbers(block()).set_index("method").loc["lazyllm"]
    assert lazy["score_difference_records"] == 12


@pytest.mark.parametrize(
    ("method", "count", "changes", "values", "records"),
    [
        ("lazyllm", 4, {}, {}, [12]),
        ("baseline", 2, {"finished": False}, {}, [12]),
        ("baseline", 9, {"data": {"limit": None}}, {}, [17]),
        # Runs that differ in more than that are rows of their own.
        ("baseline", 9, {}, {}, [9, 12]),
        ("baseline", 4, {"data": {"seed": 1}}, {}, [4, 12]),
        ("baseline", 4, {}, {"prediction": "another"}, [4, 12]),
        ("lazyllm", 9, {"data": {"limit": None}}, {}, [9, 12]),
    ],
)
def test_runs_that_differ_in_their_records_alone_are_one_row(tmp_path, block, method, count, changes, values, records):
    runs, limit = tmp_path / "runs", {"limit": 4}
    write_run(runs, method, [row(name, number) for name in TASK for number in range(4)], data=limit)
    rows = [row("hotpotqa", number, **values) for number in range(count)]
    changes = changes | {"data": limit | changes.get("data", {})}
    write_run(runs, method, rows, task="hotpotqa", digest="000000000002", traces=stage_traces(rows), **changes)
    lines = numbers(block()).query("task == 'multidoc_qa' and method == @method")
    assert sorted(lines["records"]) == records
    assert [*lines["score"].round(6)] == [50] * len(records)
    assert bool(warnings(block())) == lines["label"].str.contains("[#[]").all() == (len(records) > 1)
    assert block().records["first_token_kl"].count() == count
