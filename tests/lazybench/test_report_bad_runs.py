"""A run that cannot be read is named and left out, whatever is wrong with it, and the report goes on."""

import json
import shutil
from pathlib import Path

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from report_runs import row, rows_of, stage_traces, write_run

from lazybench.analysis.blocks import blocks
from lazybench.analysis.reading import find
from lazybench.cli.report import main
from lazybench.errors import LazyBenchError
from lazybench.report.caveats import warnings

TASK = ("hotpotqa", "2wikimqa", "musique")
PREDICTIONS, CONFIG, ENVIRONMENT, SCORES = "predictions.jsonl", "config.yaml", "environment.json", "scores.json"


@pytest.fixture
def runs(tmp_path):
    """A folder with a sound run, and another, `bad`, to be spoilt."""
    write_run(tmp_path / "runs", "baseline", rows_of(TASK, 1))
    return tmp_path / "runs"


@pytest.fixture
def bad(runs):
    rows = rows_of(TASK, 1)
    return write_run(runs, "lazyllm", rows, digest="bad", traces=stage_traces(rows))


def config(folder: Path, **changes: object) -> None:
    """Change settings; None takes one out."""
    settings = yaml.safe_load((folder / CONFIG).read_text()) | changes
    (folder / CONFIG).write_text(yaml.safe_dump({key: value for key, value in settings.items() if value is not None}))


DAMAGES = {
    "a line": (
        lambda at: (at / PREDICTIONS).write_text("no\n" + (at / PREDICTIONS).read_text()),
        "predictions.jsonl:1 is not a record",
    ),
    "a number": (
        lambda at: (at / PREDICTIONS).write_text(json.dumps(row("hotpotqa", 1) | {"ttft_s": "fast"}) + "\n"),
        "could not convert string to float: 'fast'",
    ),
    "a dataset": (
        lambda at: (at / PREDICTIONS).write_text(json.dumps(row("gone", 1)) + "\n"),
        "its records are of 'gone', which is no dataset",
    ),
    "a task": (lambda at: config(at, task="own"), "unknown task or dataset 'own'"),
    "no task": (lambda at: config(at, task=None), "'task', or the name of model, data or method, is missing"),
    "config": (lambda at: (at / CONFIG).write_text("["), "while parsing a flow"),
    "no environment": (lambda at: (at / ENVIRONMENT).unlink(), "No such file"),
    "odd environment": (lambda at: (at / ENVIRONMENT).write_text('{"versions": 1}'), "lazyllm/bad"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_run_that_cannot_be_read_is_named_and_left_out(runs, bad, damage):
    spoil, reason = DAMAGES[damage]
    spoil(bad)
    found, (said,) = find([str(runs)])
    assert [run.method for run in found] == ["baseline"]
    assert said.startswith("a run is left out: ")
    assert "llama2_7b/longbench/lazyllm/bad" in said
    assert reason in said
    assert str(runs) not in said
    shutil.rmtree(runs / "llama2_7b/longbench/baseline")
    with pytest.raises(LazyBenchError, match="no run there can be read: "):
        find([str(runs)])


@settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_whatever_is_broken_the_report_goes_on(runs, bad, data):
    kept = {path: path.read_bytes() for path in sorted(bad.iterdir())}
    path = data.draw(st.sampled_from(list(kept)))
    start = data.draw(st.integers(0, len(kept[path]) - 1))
    inserted = data.draw(st.sampled_from([b"", b"\x00", b"[", b"\n", b"null", b": {"]) | st.binary(max_size=4))
    path.write_bytes(kept[path][:start] + inserted + kept[path][start + 9 :])
    try:
        found, _ = find([str(runs)])
        assert found[0].method == "baseline"
        for block in blocks(found):
            warnings(block)
    finally:
        path.write_bytes(kept[path])


@pytest.mark.parametrize("spoil", ["no csv", "columns", "cut"])
def test_what_is_left_out_is_said_everywhere_for_records_too(runs, bad, tmp_path, capsys, monkeypatch, spoil):
    monkeypatch.setattr("lazybench.report.figures.drawings.FIGURES", ())
    main([f"runs={runs}", f"output={tmp_path / 'first'}"])
    (about,) = (tmp_path / "first/records").rglob("bad.json")
    if spoil == "no csv":
        about.with_suffix(".csv").unlink()
    elif spoil == "columns":
        about.with_suffix(".csv").write_text("a,b\n1,2\n")
    else:
        about.write_text(about.read_text()[:-100])
    assert main([f"runs={tmp_path / 'first/records'}", f"output={tmp_path / 'out'}"]) == 0
    assert "warning: a run is left out: llama2_7b/longbench/lazyllm/bad" in capsys.readouterr().out
    for name in ("table1.md", "table1.tex", "report.html"):
        assert "left out" in (tmp_path / "out" / name).read_text("utf-8")


def test_records_that_have_gone_leave_a_run_unfinished(runs, bad):
    scores = {"datasets": {name: {"records": 1, "failed": 0} for name in TASK}}
    (bad / SCORES).write_text(json.dumps(scores))
    lines = (bad / PREDICTIONS).read_text().splitlines(keepends=True)
    (bad / PREDICTIONS).write_text("".join(lines[:2]))
    assert [run.finished for run in find([str(runs)])[0]] == [True, False]


def test_what_is_no_run_is_passed_over(runs):
    for name in ("plain", ".hidden"):
        (runs / name).mkdir()
        (runs / name / CONFIG).write_text("a: 1")
        (runs / name / "some.json").write_text("{}")
    (runs / ".hidden" / PREDICTIONS).write_text("no\nno\n")
    (runs / "calibration").mkdir()
    (runs / "calibration" / CONFIG).write_text("model: {}\nbudget: speedup >= 2\n")
    (runs / "calibration" / ENVIRONMENT).write_text("{}")
    found, said = find([str(runs)])
    assert len(found) == 1
    assert said == []
