"""A run that cannot be read is named and left out of the report, whatever is wrong with it."""

import json
import shutil

import pytest
from marks import slow
from report_runs import row, rows_of, stage_traces, write_run

from lazybench.analysis.run_files import find
from lazybench.errors import LazyBenchError

TASK = ("hotpotqa", "2wikimqa", "musique")
PREDICTIONS, CONFIG, ENVIRONMENT = "predictions.jsonl", "config.yaml", "environment.json"


@pytest.fixture
def runs(tmp_path):
    """A folder with a sound run, and another, `bad`, to be spoilt."""
    write_run(tmp_path / "runs", "baseline", rows_of(TASK, 1))
    return tmp_path / "runs"


@pytest.fixture
def bad(runs):
    rows = rows_of(TASK, 1)
    return write_run(runs, "lazyllm", rows, digest="bad", traces=stage_traces(rows))


DAMAGES = {
    "a number": (
        lambda folder: (folder / PREDICTIONS).write_text(json.dumps(row("hotpotqa", 1) | {"ttft_s": "fast"}) + "\n"),
        "could not convert string to float: 'fast'",
    ),
    "no data": (lambda folder: (folder / CONFIG).write_text("model: {}"), "KeyError: 'data'"),
    "no environment": (lambda folder: (folder / ENVIRONMENT).unlink(), "No such file"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_run_that_cannot_be_read_is_named_and_left_out(runs, bad, damage):
    spoil, reason = DAMAGES[damage]
    spoil(bad)
    readable, (warning,) = find([str(runs)])
    assert [run.method for run in readable] == ["baseline"]
    assert warning.startswith("a run is left out: ")
    assert "llama2_7b/longbench/lazyllm/bad" in warning
    assert reason in warning
    assert str(runs) not in warning
    shutil.rmtree(runs / "llama2_7b/longbench/baseline")
    with pytest.raises(LazyBenchError, match="no run there can be read: "):
        find([str(runs)])


@pytest.mark.parametrize("spoil", [lambda path: path.unlink(), slow(lambda path: path.write_text("a,b\n1,2\n"))])
def test_what_is_left_out_is_reported_everywhere_for_records_too(runs, bad, report, capsys, spoil):
    spoil(next((report() / "records").rglob("bad.csv")))
    (runs.parent / "report/records").rename(runs.parent / "records")
    folder = report(f"runs={runs.parent / 'records'}")
    assert "warning: a run is left out: llama2_7b/longbench/lazyllm/bad" in capsys.readouterr().out
    for name in ("table1.md", "table1.tex", "report.html"):
        assert "left out" in (folder / name).read_text("utf-8")


def test_records_that_have_gone_leave_a_run_unfinished(runs, bad):
    lines = (bad / PREDICTIONS).read_text().splitlines(keepends=True)
    (bad / PREDICTIONS).write_text("".join(lines[:2]))
    assert [run.finished for run in find([str(runs)])[0]] == [True, False]
