"""Disturbed passes: detected by CPU time, taken again, marked, left out of speedups."""

import json
import math
import time
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace

import pandas as pd
import peers
import pytest
import torch
from marks import slow
from support import LAZY, folders, rows

from lazybench.methods import OnEngine, Output
from lazybench.methods.baseline import Baseline
from lazybench.model.decoding import Decoder
from lazybench.run import timing
from lazybench.run.timing import Pass, timed, undisturbed
from lazybench.store.journal import read_rows

QUIET = Pass(Output([1, 2, 3], 1.0), times_s=[1.0, 1.5, 3.0], ttft_cpu_s=1.0, generation_cpu_s=3.0)
LATE = replace(QUIET, generation_cpu_s=2.6)  # 0.87 of the whole
EARLY = replace(QUIET, ttft_cpu_s=0.8)  # 0.8 up to the first token, 1.0 of the whole
BASELINE = ("method=baseline",)
CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def one_thread(monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)


def on(device):
    """A decoder on a device, for passes that are made up."""
    return Decoder(SimpleNamespace(device=device), max_new_tokens=1)


@pytest.mark.parametrize(
    ("passes", "retaken", "disturbed"),
    [
        ([QUIET], 0, False),
        ([replace(QUIET, ttft_cpu_s=0.9, generation_cpu_s=2.7)], 0, False),
        ([LATE, QUIET], 1, False),
        ([EARLY, LATE, LATE, QUIET], 3, False),
        ([EARLY, LATE, LATE, EARLY], 3, True),
    ],
)
def test_a_disturbed_pass_is_taken_again_three_times_at_most(monkeypatch, passes, retaken, disturbed):
    left = list(passes)
    monkeypatch.setattr(timing, "timed", lambda *_: left.pop(0))
    done = undisturbed(Baseline("baseline"), None, on(CPU), 0, 0.9)
    assert not left
    assert (done.retaken, done.disturbed) == (retaken, disturbed)
    assert replace(done, retaken=0, disturbed=False) == passes[-1]


def test_a_decode_step_leaves_prefilling_out():
    assert QUIET.decode_step_s == 1
    assert replace(QUIET, times_s=[1.0]).decode_step_s is None


def test_the_share_is_of_all_threads(monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    busy = replace(QUIET, ttft_cpu_s=2.0, generation_cpu_s=6.0)
    assert busy.cpu_share == 1
    assert QUIET.cpu_share == 0.5


def test_what_a_session_takes_is_in_no_time():
    class Slow(Baseline):
        @contextmanager
        def session(self, prompt, decode):
            time.sleep(1)
            yield
            time.sleep(1)

    done = timed(Slow("slow"), peers.prompt_of(peers.random_ids(0, 9)), Decoder(peers.build(0), max_new_tokens=2), 0)
    assert done.generation_s < 1


def test_work_on_the_prompt_is_in_the_time_of_the_first_token():
    class Protecting(OnEngine):
        def protected(self, prompts):
            time.sleep(0.5)

    prompt, decode = peers.prompt_of(peers.random_ids(0, 9)), Decoder(peers.build(0), max_new_tokens=2)
    assert timed(Protecting("protecting"), prompt, decode, 0).ttft_s > 0.5


def test_a_run_marks_and_counts_what_stays_disturbed(run, tmp_path, monkeypatch):
    clock = time.perf_counter
    timing.tell_retaken.cache_clear()  # a test before this one may have been disturbed, too
    monkeypatch.setattr("lazybench.model.decoding.time.process_time", lambda: 0.5 * clock())
    code, out, err = run(*LAZY, "timing.cpu_share=0.9", "data.limit=1", "timing.warmup=2")
    assert code == 0, err
    assert "warm-up: 100%" in err
    assert "4/4" in err  # two rounds of two passes
    (folder,) = folders(tmp_path / "runs")
    (row,) = rows(folder)
    assert row["disturbed"] is True
    assert row["retaken"] == 2 * 3  # the unmodified model's and the method's own
    assert row["generation_cpu_s"] == pytest.approx(0.5 * row["generation_s"], rel=0.1)
    numbers = json.loads((folder / "scores.json").read_text())["datasets"]["2wikimqa"]
    assert (numbers["records"], numbers["disturbed"]) == (1, 1)
    assert numbers["ttft_speedup"] is None
    assert numbers["score"] == 100 * row["score"]
    assert out.count("timing.cpu_share=0 takes every pass as it is") == 1
    assert out.index("taken again, up to 3 times each") < out.index("disturbed 1 records, which are in no speedup")


@pytest.mark.parametrize(("method", "names"), [(LAZY, ["baseline", "lazyllm"]), (BASELINE, ["keep_1", "baseline"])])
def test_what_is_compared_is_timed_side_by_side_in_alternating_order(run, tmp_path, monkeypatch, method, names):
    taken = []
    monkeypatch.setattr(timing, "timed", lambda method, *rest: (taken.append(method.name), timed(method, *rest))[1])
    code, _, err = run(*method, "data.limit=3", "timing.warmup=0")
    assert code == 0, err
    assert taken == [*names, *names[::-1], *names]
    (folder,) = folders(tmp_path / "runs")
    for row in rows(folder):
        for whose in ["", "baseline_"] + ["keep_1_"] * (method == BASELINE):
            steps = row["baseline_new_tokens" if whose else "new_tokens"] - 1
            step = (row[f"{whose}generation_s"] - row[f"{whose}ttft_s"]) / steps
            assert row[f"{whose}decode_step_s"] == pytest.approx(step)
        if method == BASELINE:
            assert row["ttft_s"] == row["baseline_ttft_s"]
            assert row["prediction"] == row["baseline_prediction"]
            assert row["prompt_computed"] == 1.0
    speedup = json.loads((folder / "scores.json").read_text())["tasks"]["multidoc_qa"]["ttft_speedup"]
    assert (speedup == 1.0) == (method == BASELINE)


@pytest.mark.parametrize(("method", "part", "count"), [(LAZY, "computed", 3), slow(BASELINE, "attention", 2)])
def test_records_that_are_not_timed_are_scored_and_compared(run, tmp_path, method, part, count):
    code, _, err = run(*method, "timing.per_dataset=2", "data.limit=3", "timing.warmup=0", "trace=true")
    assert code == 0, err
    (folder,) = folders(tmp_path / "runs")
    answered, traces = rows(folder), read_rows(folder, "traces.jsonl")
    assert [row["ttft_s"] is not None for row in answered] == [True, True, False]
    assert [row["baseline_ttft_s"] is not None for row in answered] == [True, True, False]
    assert [part in traces["2wikimqa", row["_id"]] for row in answered] == [True, True, count == 3]
    assert all("kl" in trace for trace in traces.values())
    for row in answered:
        assert (row["score"] is None, row["prediction"] is None, row["prompt_computed"] is None) == (False,) * 3
    numbers = json.loads((folder / "scores.json").read_text())["datasets"]["2wikimqa"]
    timed = [row for row in answered if row["ttft_s"] is not None]
    before, after = (sum(row[key] for row in timed) for key in ("baseline_ttft_s", "ttft_s"))
    assert numbers["records"] == 3
    assert numbers["ttft_speedup"] == pytest.approx(before / after, rel=1e-6)
    assert numbers["score"] == pytest.approx(100 * sum(row["score"] for row in answered) / 3)


@pytest.mark.slow
def test_a_report_compares_with_nothing_pruned_as_the_baselines_run_timed_it(run, tmp_path, report):
    for method in (LAZY, BASELINE, ("method=random_drop", "method.repeats=1")):
        assert run(*method, "data.limit=2", "timing.warmup=0")[0] == 0
    table = pd.read_csv(report() / "table1.csv").set_index("method")["ttft_speedup_over_keep_1"]
    by_method = {folder.parent.name: rows(folder) for folder in folders(tmp_path / "runs")}
    ratios = {row["_id"]: row["keep_1_ttft_s"] / row["ttft_s"] for row in by_method["baseline"]}
    lazy = by_method["lazyllm"]
    expected = sum(row["baseline_ttft_s"] * ratios[row["_id"]] for row in lazy) / sum(row["ttft_s"] for row in lazy)
    assert table["lazyllm"] == pytest.approx(expected, rel=1e-4)
    assert math.isnan(table["random_drop"])  # it does not run on the engine
