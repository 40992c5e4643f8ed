"""A run's records shared out among jobs, and records that are run again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import LAZY, folders, rows

from lazybench.config import Shard
from lazybench.errors import LazyBenchError
from lazybench.store import RunFolder

TASK = ("task=multidoc_qa", "data.limit=2")


def answers(folder: Path) -> list[tuple[str, str, str]]:
    return [(row["dataset"], row["_id"], row["prediction"]) for row in rows(folder)]


@given(st.integers(1, 40), st.integers(0, 100))
def test_shards_hold_every_record_once_and_are_about_as_large(count, records):
    parts = [Shard(index, count).of(range(records)) for index in range(1, count + 1)]
    assert sorted(record for part in parts for record in part) == list(range(records))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


@pytest.mark.parametrize("text", ["0/2", "3/2", "1", "1/0", "a/b", "-1/2", "1/2/3", "", "1 / 2", "٣/٤"])
def test_what_is_no_shard_is_refused(run, tmp_path, text):
    with pytest.raises(LazyBenchError, match="write i/n"):
        Shard.parse(text)
    code, _, err = run(*LAZY, f"shard='{text}'")
    assert code == 2
    assert "write i/n" in err
    assert not (tmp_path / "runs").exists()


def test_shards_give_the_run_that_one_job_gives(run, lazybench, tmp_path):
    run(*LAZY, *TASK)
    (whole,) = folders(tmp_path / "runs")
    for shard in ("2/3", "3/3", "1/3"):
        code, out, _ = run(*LAZY, *TASK, f"shard={shard}", output="shared")
        assert code == 0
        assert ("2wikimqa" in out) == (shard == "1/3")  # scores come when all records are there
        code, out, _ = lazybench("report", f"runs={tmp_path / 'shared'}", f"output={tmp_path / 'report'}")
        assert code == 0
        assert "\n1 runs" in f"\n{out}"
    (shared,) = folders(tmp_path / "shared")
    assert shared.name == whole.name
    assert answers(shared) == answers(whole)
    assert sorted(path.name for path in shared.glob("*.jsonl")) == ["predictions.jsonl"]
    known = {"records", "failed", "score"}
    score, other = (json.loads((folder / "scores.json").read_text())["datasets"] for folder in (shared, whole))
    assert {name: {key: of[key] for key in known} for name, of in score.items()} == {
        name: {key: of[key] for key in known} for name, of in other.items()
    }
    code, out, _ = run(*LAZY, *TASK, "shard=2/3", output="shared")
    assert code == 0
    assert "nothing to do" in out


def test_a_whole_run_takes_up_what_shards_have_left(run, tmp_path):
    run(*LAZY, *TASK, "shard=2/3", "trace=true")
    (folder,) = folders(tmp_path / "runs")
    before = rows(folder / ".." / folder.name) if (folder / "predictions.jsonl").exists() else []
    assert before == []
    code, out, _ = run(*LAZY, *TASK, "trace=true")
    assert code == 0
    assert "2 of 6 records are done" in out
    assert len(answers(folder)) == len(set(answers(folder))) == 6
    assert not list(folder.glob("*-2of3.jsonl"))
    assert len((folder / "traces.jsonl").read_text().splitlines()) == 6


def test_one_process_to_a_run_and_one_to_a_shard(run, tmp_path):
    run(*LAZY, *TASK, "shard=1/2")
    (path,) = folders(tmp_path / "runs")
    with RunFolder(path, Shard(2, 2)).opened({}, {}):
        for taken in ("shard=2/2", "shard=null"):
            code, _, err = run(*LAZY, *TASK, taken)
            assert code == 2
            assert "another process is at work" in err
    code, out, _ = run(*LAZY, *TASK, "shard=2/2")
    assert code == 0
    assert "2wikimqa" in out


def test_shards_cut_otherwise_do_not_share_records(run, tmp_path):
    run(*LAZY, *TASK, "shard=1/2")
    (path,) = folders(tmp_path / "runs")
    with RunFolder(path, Shard(1, 4)).opened({}, {}):
        code, _, err = run(*LAZY, *TASK, "shard=2/2")
        assert code == 2
        assert "another process is at work" in err
    assert run(*LAZY, *TASK, "shard=2/2")[0] == 0


@pytest.mark.parametrize("lost", ["scores.json", "merge"])
@pytest.mark.slow
def test_what_a_kill_leaves_at_the_end_is_mended(run, tmp_path, lost):
    for shard in ("1/2", "2/2"):
        run(*LAZY, *TASK, f"shard={shard}")
    (folder,) = folders(tmp_path / "runs")
    whole = (folder / "predictions.jsonl").read_text()
    if lost == "merge":  # killed between the merge and the end of the parts
        (folder / "predictions-1of2.jsonl").write_text(whole.splitlines(keepends=True)[0])
    else:
        (folder / "scores.json").unlink()
    code, out, _ = run(*LAZY, *TASK, "shard=1/2")
    assert code == 0
    assert "nothing to do" not in out
    assert (folder / "scores.json").is_file()
    assert not list(folder.glob("predictions-*"))
    assert (folder / "predictions.jsonl").read_text() == whole


@pytest.mark.slow
def test_a_retry_that_was_stopped_leaves_nothing_that_looks_finished(run, tmp_path, monkeypatch):
    words = flaky_words(tmp_path)
    monkeypatch.setenv("FLAKY", "1")
    run(*words)
    (folder,) = folders(tmp_path / "runs")
    monkeypatch.delenv("FLAKY")
    monkeypatch.setattr(RunFolder, "finish", lambda *_: (_ for _ in ()).throw(LazyBenchError("stopped")))
    assert run(*words, "retry_failed=true")[0] == 2
    assert not (folder / "scores.json").exists()
    monkeypatch.undo()
    code, _, _ = run(*words)
    assert code == 0
    assert json.loads((folder / "scores.json").read_text())["tasks"]["multidoc_qa"]["failed"] == 0


def test_more_shards_than_records_are_refused(run, tmp_path):
    code, _, err = run(*LAZY, *TASK, "shard=7/7")
    assert code == 2
    assert "the run has 6 records" in err
    assert not (tmp_path / "runs").exists()


FLAKY = """
import os
from dataclasses import dataclass

import torch

from lazybench.methods import Method, Output


@dataclass
class Flaky(Method):
    def generate(self, prompt, decode, seed):
        if prompt.record.dataset == "musique" and "FLAKY" in os.environ:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return Output(decode(prompt.ids), prompt_computed=1.0)
"""


def flaky_words(folder: Path) -> list[str]:
    """Words that choose a method which fails on some records while FLAKY is set."""
    (folder / "flaky.py").write_text(FLAKY)
    (folder / "method").mkdir()
    (folder / "method" / "flaky.yaml").write_text("_target_: flaky.Flaky\nname: flaky\n")
    return ["--config-dir", str(folder), "method=flaky", *TASK]


@pytest.mark.parametrize(
    ("first", "shards"),
    [
        (["1/2", "2/2"], ["1/2", "2/2"]),
        pytest.param(["null"], ["null"], marks=pytest.mark.slow),
        pytest.param(["1/4", "2/4", "3/4"], ["1/2", "2/2"], marks=pytest.mark.slow),
    ],
)
def test_failed_records_are_run_again_where_asked_for(run, tmp_path, monkeypatch, first, shards):
    words = flaky_words(tmp_path)
    monkeypatch.setenv("FLAKY", "1")
    for shard in first:
        assert run(*words, f"shard={shard}")[0] == 0
    (folder,) = folders(tmp_path / "runs")
    failed = [row for row in RunFolder(folder).done().values() if row.get("error")]
    assert failed
    monkeypatch.delenv("FLAKY")
    if (folder / "scores.json").exists():
        code, out, _ = run(*words)
        assert "nothing to do" in out
    for shard in shards:
        code, out, _ = run(*words, f"shard={shard}", "retry_failed=true")
        assert code == 0
    assert len(rows(folder)) == 6
    assert not any(row.get("error") for row in rows(folder))
    assert json.loads((folder / "scores.json").read_text())["tasks"]["multidoc_qa"]["failed"] == 0
    code, out, _ = run(*words, "retry_failed=true")
    assert "nothing to do" in out
