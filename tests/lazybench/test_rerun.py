"""`rerun=true`: a run's records once more, with nothing lost on the way."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support import LAZY, folders, rows

from lazybench.config import Shard
from lazybench.errors import LazyBenchError
from lazybench.run.bench import Bench
from lazybench.store import RunFolder

TASK = ("task=multidoc_qa", "data.limit=2", "timing.warmup=0", "timing.paired=false")


@pytest.fixture
def passes(monkeypatch):
    """Counts the rows that are made, and marks each with its number; `stop_at` ends the run before that one."""

    class Passes:
        made = 0
        stop_at: int | None = None

    row, counted = Bench.row, Passes()

    def marked(self, *args, **kwargs):
        if counted.made == counted.stop_at:
            raise LazyBenchError("stopped")
        counted.made += 1
        return row(self, *args, **kwargs) | {"length": counted.made}

    monkeypatch.setattr(Bench, "row", marked)
    return counted


def marks(folder: Path) -> list[int]:
    return [row["length"] for row in rows(folder)]


def kinds(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if not path.name.startswith("."))


def test_a_finished_run_runs_anew_into_the_same_folder(run, tmp_path, passes):
    run(*LAZY, *TASK)
    (folder,) = folders(tmp_path / "runs")
    before = kinds(folder)
    environment = folder / "environment.json"
    environment.write_text(json.dumps(json.loads(environment.read_text()) | {"commit": "earlier"}))
    code, out, err = run(*LAZY, *TASK, "rerun=true")
    assert code == 0, err
    assert "running anew: the 6 records in" in out
    assert marks(folder) == [7, 8, 9, 10, 11, 12]
    assert kinds(folder) == before
    assert json.loads(environment.read_text())["commit"] != "earlier"
    assert folders(tmp_path / "runs") == [folder]
    assert "finished earlier" in run(*LAZY, *TASK)[1]
    run(*LAZY, *TASK, "rerun=true")
    assert marks(folder)[0] == 13


def test_a_rerun_that_was_stopped_leaves_the_run_as_it_was_and_goes_on(run, lazybench, tmp_path, passes):
    run(*LAZY, *TASK)
    (folder,) = folders(tmp_path / "runs")
    before = {name: (folder / name).read_bytes() for name in kinds(folder)}
    passes.stop_at = 8
    assert run(*LAZY, *TASK, "rerun=true")[0] == 2
    assert {name: (folder / name).read_bytes() for name in before} == before
    _, out, _ = lazybench("status", f"runs={tmp_path / 'runs'}")
    assert "rerun under way: 2 records so far; rerun=true continues it" in out
    assert "6/6" in out
    assert "finished earlier" in run(*LAZY, *TASK)[1]
    passes.stop_at = None
    assert "2/6" in run(*LAZY, *TASK, "rerun=true", command="plan")[1]
    _, out, _ = run(*LAZY, *TASK, "rerun=true")
    assert "2 of 6 records are done" in out
    assert marks(folder) == [7, 8, 9, 10, 11, 12]
    assert kinds(folder) == sorted(before)


@pytest.mark.slow
def test_a_run_that_never_ran_and_a_damaged_one_run_anew(run, tmp_path, passes):
    passes.stop_at = 3
    assert run(*LAZY, *TASK, "rerun=true")[0] == 2
    passes.stop_at = None
    assert run(*LAZY, *TASK, "rerun=true")[0] == 0
    (folder,) = folders(tmp_path / "runs")
    assert marks(folder) == [1, 2, 3, 4, 5, 6]
    predictions = folder / "predictions.jsonl"
    predictions.write_text("garbage\n" + predictions.read_text())
    assert run(*LAZY, *TASK, "rerun=true")[0] == 0
    assert marks(folder) == [7, 8, 9, 10, 11, 12]


@pytest.mark.slow
def test_traces_are_taken_again_or_go(run, tmp_path, passes):
    run(*LAZY, *TASK, "trace=true")
    (folder,) = folders(tmp_path / "runs")
    traces = folder / "traces.jsonl"
    before = traces.read_text()
    traces.write_text(before.replace('"first_token_kl"', '"old": 1, "first_token_kl"'))
    run(*LAZY, *TASK, "trace=true", "rerun=true")
    assert traces.read_text() == before
    run(*LAZY, *TASK, "rerun=true")
    assert not traces.exists()


@pytest.mark.parametrize("whole", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_a_shard_runs_its_own_records_anew(run, tmp_path, passes, whole):
    for shard in ("1/2", "2/2")[: 2 if whole else 1]:
        run(*LAZY, *TASK, f"shard={shard}")
    (folder,) = folders(tmp_path / "runs")
    code, out, err = run(*LAZY, *TASK, "shard=1/2", "rerun=true")
    assert code == 0, err
    if not whole:
        assert "3 of the run's 6 records are" in out
        run(*LAZY, *TASK, "shard=2/2")
        assert marks(folder) == [4, 7, 5, 8, 6, 9]
    else:
        assert marks(folder) == [7, 4, 8, 5, 9, 6]
    assert kinds(folder) == ["config.yaml", "environment.json", "predictions.jsonl", "scores.json"]


def test_a_whole_rerun_takes_up_what_reruns_of_shards_have_left(run, tmp_path, passes):
    run(*LAZY, *TASK)
    (folder,) = folders(tmp_path / "runs")
    passes.stop_at = 8
    assert run(*LAZY, *TASK, "shard=1/2", "rerun=true")[0] == 2
    passes.stop_at = None
    code, out, err = run(*LAZY, *TASK, "rerun=true")
    assert code == 0, err
    assert "2 of 6 records are done" in out
    assert marks(folder) == [7, 9, 8, 10, 11, 12]
    assert kinds(folder) == ["config.yaml", "environment.json", "predictions.jsonl", "scores.json"]


@pytest.mark.slow
def test_shards_that_run_anew_side_by_side_take_their_places_at_the_end(run, tmp_path, passes):
    run(*LAZY, *TASK)
    (folder,) = folders(tmp_path / "runs")
    with RunFolder(folder, Shard(2, 2), rerun=True).opened({}, {}):
        assert run(*LAZY, *TASK, "shard=1/2", "rerun=true")[0] == 0
        assert marks(folder) == [1, 2, 3, 4, 5, 6]
    assert run(*LAZY, *TASK, "shard=2/2", "rerun=true")[0] == 0
    assert marks(folder) == [7, 10, 8, 11, 9, 12]
    assert (folder / "scores.json").exists()
    assert kinds(folder) == ["config.yaml", "environment.json", "predictions.jsonl", "scores.json"]
