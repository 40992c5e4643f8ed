"""`lazybench status` says what there is, not what there was; old run folders are read as they are."""

import json
import shutil
from pathlib import Path

import pytest
from report_runs import rows_of, write_run
from support import LAZY, folders, rows, stubborn_method

from lazybench.config import Shard
from lazybench.store.run_folder import RunFolder

QUICK = (*LAZY, "timing.paired=false", "timing.warmup=0")


@pytest.fixture
def shown(lazybench, tmp_path):
    """The status of the runs there are: of each its state, its records and the whole line."""

    def show() -> list[tuple[str, str, str]]:
        code, out, err = lazybench("status", f"runs={tmp_path / 'runs'}")
        assert code == 0, err
        lines = out[out.index("state ") :].splitlines()
        return [(line.split()[0], line.split()[-1], line) for line in lines[2 : lines.index("")]]

    return show


def test_records_that_have_gone_are_not_done(run, shown, tmp_path):
    run(*QUICK, "data.limit=4")
    (folder,) = folders(tmp_path / "runs")
    predictions = folder / "predictions.jsonl"
    lines = predictions.read_text().splitlines(keepends=True)
    assert [of[:2] for of in shown()] == [("done", "4/4")]

    for left, said in (
        (lines[:3], "1 of the 4 records that its scores are about are gone"),
        ([*lines[:1], "garbage\n", *lines[2:]], "predictions.jsonl:2 is not a record"),
    ):
        predictions.write_text("".join(left))
        ((state, _, line),) = shown()
        assert state == "stopped"
        assert said in line
    predictions.write_text("".join(lines))
    (folder / "environment.json").unlink()
    assert "environment.json missing: a report leaves it out" in shown()[0][2]


def test_status_tells_failed_stopped_running_and_done_runs_apart(run, shown, tmp_path):
    stubborn = [*stubborn_method(tmp_path), "timing.paired=false", "timing.warmup=0"]
    with pytest.raises(KeyboardInterrupt):
        run("-m", *stubborn, "method.mood=good,bad,stopped,fine")
    found = shown()
    assert [of[:2] for of in found] == [("failed", "0/2"), ("stopped", "0/2"), ("done", "2/2")]
    assert "the mood is bad" in found[0][2]
    run(*QUICK)
    (folder,) = (path for path in folders(tmp_path / "runs") if path.parent.name == "lazyllm")
    with RunFolder(folder, Shard(1, 2)).opened({"task": "code"}, {}):
        assert shown()[0][:2] == ("running", "2/?")
    (folder / "scores.json").unlink(missing_ok=True)
    assert shown()[1][0] == "stopped"


@pytest.mark.parametrize("words", [["runs=/no/such/folder"], ["folder=x"], ["x"], ["runs="], ["--foo"]])
def test_status_of_nothing(lazybench, words):
    code, _, err = lazybench("status", *words)
    assert code == 2
    assert len(err.strip().splitlines()) == 1


@pytest.mark.parametrize("name", ["out, a=b", "a,", "it's [x], ü"])
def test_a_folders_name_may_hold_commas_and_equals_signs(lazybench, cwd, monkeypatch, name):
    monkeypatch.setattr("lazybench.report.figures.drawings.FIGURES", ())
    for folder, method in (("a", "baseline"), (name, "lazyllm")):
        write_run(Path(folder), method, rows_of(["hotpotqa"], 1), task="hotpotqa")
    for words in ((f"runs={name}",), ("--runs", name), (f"runs='{name}'",)):
        assert lazybench("status", *words)[1].endswith("\n1 stopped\n"), words
    for several in (f"a,{name}", f"{name}, a"):
        assert lazybench("status", f"runs={several}")[1].endswith("\n2 stopped\n"), several
    code, out, err = lazybench("report", f"runs={name}", f"times={name}", f"output={name}=")
    assert code == 0, err
    assert f"1 runs, 1 records; written to {name}=:" in out


def test_what_changed_is_said_where_a_run_begins_anew(run, tmp_path):
    run(*QUICK)
    (folder,) = folders(tmp_path / "runs")
    environment = json.loads((folder / "environment.json").read_text())
    older = folder.rename(folder.with_name("0" * 12))
    environment |= {"threads": 99, "versions": environment["versions"] | {"torch": "0.1"}, "commit": "other"}
    (older / "environment.json").write_text(json.dumps(environment))
    code, out, _ = run(*QUICK)
    assert code == 0
    assert "; since then threads, torch changed: results would not compare, so it begins anew" in out
    assert "begins anew" not in run(*QUICK)[1]
    assert "begins anew" not in run(*QUICK, "data.limit=1")[1]  # another run


def test_a_folder_of_earlier_versions_with_a_rerun_half_done_is_read_and_goes_on(run, lazybench, shown, tmp_path):
    run(*QUICK, "data.limit=4")
    (folder,) = folders(tmp_path / "runs")
    lines = (folder / "predictions.jsonl").read_text().splitlines(keepends=True)
    (folder / "rerun-predictions.jsonl").write_text(lines[0])
    (folder / "predictions.jsonl").write_text("".join(lines[:3]))
    (folder / "scores.json").unlink()
    (folder / ".lock").touch()
    (tmp_path / "runs" / ".jobs").mkdir()
    (tmp_path / "runs" / ".jobs" / "0.json").write_text('{"state": "running"}')
    assert [of[:2] for of in shown()] == [("stopped", "3/4")]
    code, out, _ = run(*QUICK, "data.limit=4")
    assert code == 0
    assert "3 of 4 records are done" in out
    assert [json.dumps(row) + "\n" for row in rows(folder)][:3] == lines[:3]
    code, out, _ = lazybench("report", f"runs={tmp_path / 'runs'}", f"output={tmp_path / 'report'}")
    assert code == 0
    assert "1 runs, 4 records" in out
    shutil.rmtree(folder)
    assert lazybench("status", f"runs={tmp_path / 'runs'}")[0] == 2
