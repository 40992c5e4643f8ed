"""`lazybench status` shows the state that a run has now, also of run folders of earlier versions."""

import json

import pytest
import yaml
from support import LAZY, folders, rows, stubborn_method

from lazybench.config import Shard
from lazybench.data.facts import load_facts
from lazybench.identity import run_hash
from lazybench.store.run_folder import RunFolder

QUICK = (*LAZY, "timing.paired=false", "timing.warmup=0")


@pytest.fixture
def shown(lazybench, tmp_path):
    """Call `lazybench status`; returns the state, the records and the whole line of each run."""

    def show() -> list[tuple[str, str, str]]:
        code, out, err = lazybench("status", f"runs={tmp_path / 'runs'}")
        assert code == 0, err
        lines = out[out.index("state ") :].splitlines()
        return [(line.split()[0], line.split()[-1], line) for line in lines[2 : lines.index("")]]

    return show


def test_a_run_whose_records_are_gone_is_not_done(run, shown, tmp_path):
    run(*QUICK, "data.limit=4")
    (folder,) = folders(tmp_path / "runs")
    predictions = folder / "predictions.jsonl"
    lines = predictions.read_text().splitlines(keepends=True)
    assert [run[:2] for run in shown()] == [("done", "4/4")]
    for remaining, note in (
        (lines[:3], "1 of the 4 records that its scores include are gone"),
        ([*lines[:1], "garbage\n", *lines[2:]], "predictions.jsonl:2 is not a record"),
    ):
        predictions.write_text("".join(remaining))
        ((state, _, line),) = shown()
        assert state == "stopped"
        assert note in line
    predictions.write_text("".join(lines))
    (folder / "environment.json").unlink()
    assert "environment.json missing: a report leaves it out" in shown()[0][2]


def test_status_tells_failed_stopped_running_and_done_runs_apart(run, shown, tmp_path):
    stubborn = [*stubborn_method(tmp_path), "timing.paired=false", "timing.warmup=0"]
    with pytest.raises(KeyboardInterrupt):
        run("-m", *stubborn, "method.mood=good,bad,stopped,fine")
    runs = shown()
    assert [run[:2] for run in runs] == [("failed", "0/2"), ("stopped", "0/2"), ("done", "2/2")]
    assert "the mood is bad" in runs[0][2]
    run(*QUICK)
    (folder,) = (path for path in folders(tmp_path / "runs") if path.parent.name == "lazyllm")
    with RunFolder(folder, Shard(1, 2)).opened({"task": "code"}, {}):
        assert shown()[0][:2] == ("running", "2/?")
    (folder / "scores.json").unlink(missing_ok=True)
    assert shown()[1][0] == "stopped"


def test_a_run_that_starts_anew_names_what_changed(run, tmp_path):
    run(*QUICK)
    (folder,) = folders(tmp_path / "runs")
    environment = json.loads((folder / "environment.json").read_text())
    environment |= {"threads": 99, "versions": environment["versions"] | {"torch": "0.1"}, "commit": "other"}
    settings = yaml.safe_load((folder / "config.yaml").read_text())
    name = run_hash(settings, environment, {"2wikimqa": load_facts()["2wikimqa"]})
    older = folder.rename(folder.with_name(name))
    (older / "environment.json").write_text(json.dumps(environment))
    code, out, _ = run(*QUICK)
    assert code == 0
    assert "; since then threads, torch changed: results would not compare, so it begins anew" in out
    assert "begins anew" not in run(*QUICK)[1]
    assert "begins anew" not in run(*QUICK, "data.limit=1")[1]  # another run


def test_a_rerun_that_an_earlier_version_began_resumes(run, shown, tmp_path):
    run(*QUICK, "data.limit=4")
    (folder,) = folders(tmp_path / "runs")
    lines = (folder / "predictions.jsonl").read_text().splitlines(keepends=True)
    (folder / "rerun-predictions.jsonl").write_text(lines[0])
    (folder / "predictions.jsonl").write_text("".join(lines[:3]))
    (folder / "scores.json").unlink()
    (folder / ".lock").touch()
    assert [run[:2] for run in shown()] == [("stopped", "3/4")]
    code, out, _ = run(*QUICK, "data.limit=4")
    assert code == 0
    assert "3 of 4 records are done" in out
    assert [json.dumps(row) + "\n" for row in rows(folder)][:3] == lines[:3]
