"""A run's records shared out among jobs, and records that are run again."""

import json
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from marks import slow
from support import LAZY, folders

from lazybench.config import Shard
from lazybench.errors import LazyBenchError
from lazybench.methods.baseline import Baseline
from lazybench.store.journal import Journal
from lazybench.store.run_folder import RunFolder

TASK = ("task=multidoc_qa", "data.limit=2", "timing.per_dataset=0")


def answers(folder: Path) -> dict[tuple[str, str], str]:
    """The predictions of a run's files, in which each record is once."""
    lines = [line for path in folder.glob("predictions*.jsonl") for line in path.read_text().splitlines()]
    by_key = {(row["dataset"], row["_id"]): row["prediction"] for row in map(json.loads, lines)}
    assert len(by_key) == len(lines)
    return by_key


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


def test_a_shard_times_its_own_records(run, tmp_path):
    timed = [word for word in TASK if "per_dataset" not in word]
    for shard in ("1/2", "2/2"):
        code, _, err = run(*LAZY, *timed, "timing.per_dataset=1", "timing.warmup=0", f"shard={shard}")
        assert code == 0, err
    (folder,) = folders(tmp_path / "runs")
    assert sorted(name for name, _ in RunFolder(folder).rows("times.jsonl")) == ["2wikimqa", "hotpotqa", "musique"]
    assert json.loads((folder / "scores.json").read_text())["datasets"]["musique"]["ttft_speedup"] is not None


@pytest.fixture
def numbered(monkeypatch):
    """Marks each row that is made with its number; `stop_at` ends the run before that one."""

    class Numbered:
        made = 0
        stop_at: int | None = None

    counted, add = Numbered(), Journal.add

    def marked(self, row):
        if "prediction" in row:
            if counted.made == counted.stop_at:
                raise LazyBenchError("stopped")
            counted.made += 1
            row = row | {"length": counted.made}
        add(self, row)

    monkeypatch.setattr(Journal, "add", marked)
    return counted


def marks(folder: Path) -> list[int]:
    return sorted(row["length"] for row in RunFolder(folder).rows("predictions.jsonl").values())


@pytest.mark.slow
def test_a_rerun_is_a_new_folder_and_keeps_the_finished_run(run, lazybench, undrawn, tmp_path, numbered):
    run(*LAZY, *TASK)
    (folder,) = folders(tmp_path / "runs")
    numbered.stop_at = 8
    assert run(*LAZY, *TASK, "rerun=true")[0] == 2
    kept = folder.with_name(f".{folder.name}-1")
    assert marks(kept) == [1, 2, 3, 4, 5, 6]
    assert marks(folder) == [7, 8]
    numbered.stop_at = None
    _, out, _ = run(*LAZY, *TASK, "rerun=true")  # it continues
    assert "2 of 6 are answered" in out
    assert marks(folder) == [7, 8, 9, 10, 11, 12]
    assert "finished earlier" in run(*LAZY, *TASK)[1]
    assert run(*LAZY, *TASK, "rerun=true")[0] == 0
    assert marks(folder) == [13, 14, 15, 16, 17, 18]
    assert folder.with_name(f".{folder.name}-2").exists()
    _, out, _ = lazybench("report", f"runs={tmp_path / 'runs'}", f"output={tmp_path / 'report'}")
    assert "\n1 runs; written to" in out


@pytest.mark.slow
def test_shards_run_again_together(run, tmp_path, numbered):
    run(*LAZY, *TASK)
    (folder,) = folders(tmp_path / "runs")
    for shard in ("1/2", "2/2"):
        code, _, err = run(*LAZY, *TASK, f"shard={shard}", "rerun=true")
        assert code == 0, err
    assert marks(folder) == [7, 8, 9, 10, 11, 12]
    assert not folder.with_name(f".{folder.name}-2").exists()


@pytest.mark.slow
@pytest.mark.parametrize(("first", "then"), [slow(["1/2", "2/2"], ["1/2", "2/2"]), (["1/4", "2/4", "3/4"], ["null"])])
def test_failed_records_are_run_again_on_request(run, tmp_path, monkeypatch, first, then):
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
    assert any(row.get("error") for row in RunFolder(folder).rows("predictions.jsonl").values())
    for shard in then:
        assert run(*words, f"shard={shard}", "retry_failed=true")[0] == 0
    by_key = RunFolder(folder).rows("predictions.jsonl")
    assert len(by_key) == 6
    assert not any(row.get("error") for row in by_key.values())
    assert json.loads((folder / "scores.json").read_text())["tasks"]["multidoc_qa"]["failed"] == 0
    assert "nothing to do" in run(*words, "retry_failed=true")[1]
