"""A run's records shared out among jobs, and records that are run again."""

import json
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from lazybench.run.record_runner import RecordRunner
from marks import slow
from support import LAZY, folders, rows

from lazybench.config import Shard
from lazybench.errors import LazyBenchError
from lazybench.methods.baseline import Baseline
from lazybench.store.run_folder import RunFolder

TASK = ("task=multidoc_qa", "data.limit=2", "timing.per_dataset=0")
FILES = ["config.yaml", "environment.json", "predictions.jsonl", "scores.json"]


def answers(folder: Path) -> list[tuple[str, str, str]]:
    return [(row["dataset"], row["_id"], row["prediction"]) for row in rows(folder)]


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@given(st.integers(1, 40), st.integers(0, 100))
def test_shards_hold_every_record_once_and_are_about_as_large(count, records):
    parts = [Shard(index, count).select(range(records)) for index in range(1, count + 1)]
    assert sorted(record for part in parts for record in part) == list(range(records))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_shards_give_the_run_that_one_job_gives(run, tmp_path):
    run(*LAZY, *TASK)
    (single,) = folders(tmp_path / "runs")
    for shard in ("2/3", "3/3", "1/3"):
        code, out, _ = run(*LAZY, *TASK, f"shard={shard}", output="shared")
        assert code == 0
        assert ("2wikimqa" in out) == (shard == "1/3")  # scores come when all records are there
    (shared,) = folders(tmp_path / "shared")
    assert shared.name == single.name
    assert answers(shared) == answers(single)
    assert files(shared) == FILES
    known = {"records", "failed", "score"}
    scores, others = (json.loads((folder / "scores.json").read_text())["datasets"] for folder in (shared, single))
    assert all(scores[name][key] == other[key] for name, other in others.items() for key in known)
    assert "nothing to do" in run(*LAZY, *TASK, "shard=2/3", output="shared")[1]


def test_one_process_to_a_run_and_one_to_a_shard(run, tmp_path):
    run(*LAZY, *TASK, "shard=1/2")
    (path,) = folders(tmp_path / "runs")
    with RunFolder(path, Shard(2, 2)).opened({}, {}):
        for taken in ("shard=2/2", "shard=null"):
            code, _, err = run(*LAZY, *TASK, taken)
            assert code == 2
            assert "another process is at work" in err
        assert run(*LAZY, *TASK, "shard=1/3")[0] == 2  # which shares records with it
    with RunFolder(path).opened({}, {}):
        assert run(*LAZY, *TASK, "shard=2/2")[0] == 2
    assert run(*LAZY, *TASK, "shard=2/2")[0] == 0


@pytest.mark.slow
def test_what_a_kill_leaves_at_the_end_is_mended(run, tmp_path):
    for shard in ("1/2", "2/2"):
        run(*LAZY, *TASK, f"shard={shard}")
    (folder,) = folders(tmp_path / "runs")
    merged = (folder / "predictions.jsonl").read_text()
    part = folder / "predictions-1of2.jsonl"
    # Killed between the merge and the end of the parts, or before the scores.
    for kill in (lambda: part.write_text(merged.splitlines(keepends=True)[0]), (folder / "scores.json").unlink):
        kill()
        code, out, _ = run(*LAZY, *TASK, "shard=1/2")
        assert code == 0
        assert "nothing to do" not in out
        assert files(folder) == FILES
        assert (folder / "predictions.jsonl").read_text() == merged


@pytest.fixture
def passes(monkeypatch):
    """Counts the rows that are made, and marks each with its number; `stop_at` ends the run before that one."""

    class Passes:
        made = 0
        stop_at: int | None = None

    timed_row, counted = RecordRunner.timed_row, Passes()

    def marked(self, *args, **kwargs):
        if counted.made == counted.stop_at:
            raise LazyBenchError("stopped")
        counted.made += 1
        return timed_row(self, *args, **kwargs) | {"length": counted.made}

    monkeypatch.setattr(RecordRunner, "timed_row", marked)
    return counted


def marks(folder: Path) -> list[int]:
    return [row["length"] for row in rows(folder)]


@pytest.mark.slow
def test_a_rerun_is_a_new_folder_and_keeps_the_finished_run(run, lazybench, undrawn, tmp_path, passes):
    run(*LAZY, *TASK)
    (folder,) = folders(tmp_path / "runs")
    passes.stop_at = 8
    assert run(*LAZY, *TASK, "rerun=true")[0] == 2
    kept = folder.with_name(f".{folder.name}-1")
    assert marks(kept) == [1, 2, 3, 4, 5, 6]
    assert files(kept) == FILES
    assert marks(folder) == [7, 8]
    passes.stop_at = None
    _, out, _ = run(*LAZY, *TASK, "rerun=true")  # it goes on
    assert "2 of 6 records are done" in out
    assert marks(folder) == [7, 8, 9, 10, 11, 12]
    assert "finished earlier" in run(*LAZY, *TASK)[1]
    predictions = folder / "predictions.jsonl"
    predictions.write_text("garbage\n" + predictions.read_text())  # damaged, it runs anew
    assert run(*LAZY, *TASK, "rerun=true")[0] == 0
    assert marks(folder) == [13, 14, 15, 16, 17, 18]
    assert folder.with_name(f".{folder.name}-2").exists()
    _, out, _ = lazybench("report", f"runs={tmp_path / 'runs'}", f"output={tmp_path / 'report'}")
    assert "\n1 runs, 6 records" in out


@pytest.mark.slow
def test_shards_run_anew_together(run, tmp_path, passes):
    run(*LAZY, *TASK)
    (folder,) = folders(tmp_path / "runs")
    for shard in ("1/2", "2/2"):
        code, _, err = run(*LAZY, *TASK, f"shard={shard}", "rerun=true")
        assert code == 0, err
    assert marks(folder) == [7, 10, 8, 11, 9, 12]
    assert files(folder) == FILES
    assert not folder.with_name(f".{folder.name}-2").exists()


@pytest.mark.slow
@pytest.mark.parametrize(("first", "then"), [slow(["1/2", "2/2"], ["1/2", "2/2"]), (["1/4", "2/4", "3/4"], ["null"])])
def test_failed_records_are_run_again_where_asked_for(run, tmp_path, monkeypatch, first, then):
    def shorten(self, prompt, decode, seed):
        if prompt.record.dataset == "musique":
            raise torch.OutOfMemoryError("CUDA out of memory")
        return prompt.ids, 1.0

    words = ["method=baseline", *TASK]
    with monkeypatch.context() as patch:
        patch.setattr(Baseline, "shorten", shorten)
        for shard in first:
            assert run(*words, f"shard={shard}")[0] == 0
    (folder,) = folders(tmp_path / "runs")
    assert any(row.get("error") for row in RunFolder(folder).done().values())
    with monkeypatch.context() as patch:  # stopped right before its end
        patch.setattr(RunFolder, "finish", lambda *_: (_ for _ in ()).throw(LazyBenchError("stopped")))
        assert run(*words, f"shard={then[0]}", "retry_failed=true")[0] == 2
    assert not (folder / "scores.json").exists()
    for shard in then:
        assert run(*words, f"shard={shard}", "retry_failed=true")[0] == 0
    assert len(rows(folder)) == 6
    assert not any(row.get("error") for row in rows(folder))
    assert json.loads((folder / "scores.json").read_text())["tasks"]["multidoc_qa"]["failed"] == 0
    assert "nothing to do" in run(*words, "retry_failed=true")[1]
