"""A run's records shared out among jobs, and records that are run again."""

import json
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from marks import slow
from support import LAZY

from lazybench.config import Shard
from lazybench.methods.baseline import Baseline
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


def test_shards_give_the_run_that_one_job_gives(ran, run):
    words = (*LAZY, "task=multidoc_qa", "data.limit=1", "timing.per_dataset=1", "timing.warmup=0")
    single, shared = ran(*words), ran(*words, "shard=2/2", output="shared")
    assert not (shared / "scores.json").exists()  # until all records are there
    assert ran(*words, "shard=1/2", output="shared") == shared
    assert (shared.name, answers(shared)) == (single.name, answers(single))
    times = [RunFolder(folder).rows("times.jsonl") for folder in (shared, single)]
    assert times[0].keys() == times[1].keys()
    assert sorted(name for name, _ in times[0]) == ["2wikimqa", "hotpotqa", "musique"]
    scores, others = (json.loads((folder / "scores.json").read_text())["datasets"] for folder in (shared, single))
    for name, other in others.items():
        assert all(scores[name][key] == other[key] for key in ("records", "failed", "score", "timed"))
    assert "nothing to do" in run(*words, "shard=2/2", output="shared")[1]


def test_one_process_to_a_run_and_one_to_a_shard(ran, run):
    words = (*LAZY, "timing.per_dataset=0")
    path = ran(*words, "shard=1/2")
    with RunFolder(path, Shard(2, 2)).opened({}, {}):
        for taken in ("shard=2/2", "shard=null"):
            code, _, err = run(*words, taken)
            assert code == 2
            assert "another process is at work" in err
        assert run(*words, "shard=2/3")[0] == 2  # which shares a record with it
    with RunFolder(path).opened({}, {}):
        assert run(*words, "shard=2/2")[0] == 2
    assert run(*words, "shard=2/2")[0] == 0


@pytest.mark.slow
@pytest.mark.parametrize(("first", "then"), [slow(["1/2", "2/2"], ["1/2", "2/2"]), (["1/4", "2/4", "3/4"], ["null"])])
def test_failed_records_are_run_again_on_request(ran, run, monkeypatch, first, then):
    def shorten(self, prompt, decode, seed):
        if prompt.record.dataset == "musique":
            raise torch.OutOfMemoryError("CUDA out of memory")
        return prompt.ids, 1.0

    words = ["method=baseline", *TASK]
    with monkeypatch.context() as patch:
        patch.setattr(Baseline, "shorten", shorten)
        (folder,) = {ran(*words, f"shard={shard}") for shard in first}
        assert any("failed: " in run(*words, f"shard={shard}")[1] for shard in first)
    assert any(row.get("error") for row in RunFolder(folder).rows("predictions.jsonl").values())
    for shard in then:
        assert run(*words, f"shard={shard}", "retry_failed=true")[0] == 0
    by_key = RunFolder(folder).rows("predictions.jsonl")
    assert len(by_key) == 6
    assert not any(row.get("error") for row in by_key.values())
    assert json.loads((folder / "scores.json").read_text())["tasks"]["multidoc_qa"]["failed"] == 0
    assert "nothing to do" in run(*words, "retry_failed=true")[1]
