"""`lazybench status` shows the current state of each run."""

import pytest
from support import LAZY, folders, stubborn_method

from lazybench.config import Shard
from lazybench.store.run_folder import RunFolder

QUICK = (*LAZY, "timing.per_dataset=0")


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
    predictions.write_text("".join(lines[:3]))
    assert [run[:2] for run in shown()] == [("stopped", "3/4")]
    predictions.write_text("".join([*lines[:1], "garbage\n", *lines[2:]]))
    ((state, _, line),) = shown()
    assert state == "stopped"
    assert "predictions.jsonl:2 is not a record" in line


def test_status_tells_failed_stopped_running_and_done_runs_apart(run, shown, tmp_path):
    stubborn = [*stubborn_method(tmp_path), "timing.per_dataset=0"]
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
