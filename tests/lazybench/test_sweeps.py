"""Sweeps: checked before they start, planned, and followed."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import yaml
from support import LAZY, folders, stubborn_method

from lazybench.jobs import states

SCHEDULES = "method.schedule=[1:0.6],[1:0.4],[2:0.5]"


@pytest.fixture
def stubborn(tmp_path):
    """Words that choose a method which may fail once its job runs."""
    return stubborn_method(tmp_path)


def shown(lazybench, output: Path) -> list[list[str]]:
    """The rows of the status table, their first and last words."""
    code, out, _ = lazybench("status", f"runs={output}")
    assert code == 0
    lines = out[out.index("state ") :].splitlines()
    return [[line.split()[0], line.split()[-1]] for line in lines[2 : lines.index("")]]


def test_a_sweep_runs_every_combination(run, tmp_path):
    code, _, err = run("-m", "method=lazyllm", SCHEDULES)
    assert code == 0, err
    schedules = [
        yaml.safe_load((f / "config.yaml").read_text())["method"]["schedule"] for f in folders(tmp_path / "runs")
    ]
    assert sorted(schedules) == ["1:0.4", "1:0.6", "2:0.5"]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["method=lazyllm", "method.schedule=[1:0.6],[9:0.5],[1:0.4]"], "the model has 4 layers"),
        (["task=2wikimqa,hotpot"], "did you mean 'hotpotqa'"),
        (["model.limit=900,4090"], "4096 positions"),
        (["model.limit=900,many"], "model.limit=many"),
        (["data=longbench", "data.limit=1,2", "data.root=/no/such/folder"], "/no/such/folder"),
        (["model.path=/no/such/folder"], "no such folder"),
        (["timing.warmup=0,-1"], "at least 0"),
        (["shard=1/2,3/2"], "write i/n"),
        (["method=lazyllm,lazzy"], "lazyllm"),
        (["method=lazyllm", "method.schedule=[9:0.5],[1:2]"], "1 more"),
    ],
)
def test_a_wrong_job_stops_a_sweep_before_its_first(run, tmp_path, words, says):
    code, out, err = run("-m", *([] if words[0].startswith("method") else LAZY), *words)
    assert code == 2
    assert len(err.strip().splitlines()) == 1, err
    assert says in err
    assert "model tiny" not in out
    assert not (tmp_path / "runs").exists()


def test_a_job_that_fails_does_not_stop_the_others_and_status_says_why(run, lazybench, tmp_path, stubborn):
    code, _, err = run("-m", *stubborn, "method.mood=good,bad,fine")
    assert code == 2
    assert "the mood is bad" in err
    assert "the same command runs what is missing" in err
    assert len(folders(tmp_path / "runs")) == 2
    assert shown(lazybench, tmp_path / "runs") == [["failed", "0/2"], ["done", "2/2"], ["done", "2/2"]]
    _, out, _ = lazybench("status", f"runs={tmp_path / 'runs'}")
    assert "the mood is bad" in out
    assert out.splitlines()[-1] == "1 failed, 2 done"


def test_status_tells_the_stopped_from_what_never_began(run, lazybench, tmp_path, stubborn):
    with pytest.raises(KeyboardInterrupt):
        run("-m", *stubborn, "method.mood=good,stopped,fine")
    assert shown(lazybench, tmp_path / "runs") == [["stopped", "0/2"], ["missing", "0/?"], ["done", "2/2"]]


def test_status_tells_the_running_from_the_killed(run, lazybench, tmp_path):
    run(*LAZY)
    (state,) = (tmp_path / "runs" / states.FOLDER).glob("*.json")
    state.write_text(json.dumps({**json.loads(state.read_text()), "state": "running"}))
    (folder,) = folders(tmp_path / "runs")
    assert shown(lazybench, tmp_path / "runs") == [["failed", "2/2"]]
    assert "killed" in lazybench("status", f"runs={tmp_path / 'runs'}")[1]
    held = os.open(folder / ".lock", os.O_RDWR)
    try:
        import fcntl

        fcntl.flock(held, fcntl.LOCK_EX)
        assert shown(lazybench, tmp_path / "runs") == [["running", "2/2"]]
    finally:
        os.close(held)


def test_status_knows_runs_without_a_state(run, lazybench, tmp_path):
    run(*LAZY)
    (state,) = (tmp_path / "runs" / states.FOLDER).glob("*.json")
    state.unlink()
    assert shown(lazybench, tmp_path / "runs") == [["done", "2/2"]]
    (folder,) = folders(tmp_path / "runs")
    (folder / "scores.json").unlink()
    assert shown(lazybench, tmp_path / "runs") == [["stopped", "2/?"]]


@pytest.mark.parametrize("words", [["runs=/no/such/folder"], ["folder=x"], ["x"], ["runs="], ["--foo"]])
def test_status_of_nothing(lazybench, words):
    code, _, err = lazybench("status", *words)
    assert code == 2
    assert len(err.strip().splitlines()) == 1


def plan(lazybench, run, *words: str) -> str:
    """What `plan` prints for the words that `run` would take."""
    code, out, err = run(*words, command="plan")
    assert code == 0, err
    return out


def test_a_plan_runs_nothing_and_knows_what_is_done(run, lazybench, tmp_path):
    words = ("method=lazyllm", SCHEDULES, "task=2wikimqa,hotpotqa")
    out = plan(lazybench, run, *words)
    assert "6 jobs, 6 of them with records to run" in out
    assert not (tmp_path / "runs").exists()
    run(*LAZY)
    run(*LAZY, "task=hotpotqa", "shard=1/2")
    out = plan(lazybench, run, *words)
    assert "6 jobs, 5 of them with records to run" in out
    assert out.count("2/2") == 1
    assert "1/2" in plan(lazybench, run, *LAZY, "task=hotpotqa", "shard=1/2,2/2")
    assert out.count("0/4") == 0
    assert "0/4" in plan(lazybench, run, *LAZY, "data.limit=4")  # other records are another run


def test_a_plan_of_one_job_estimates_a_7b_model(run, lazybench, tmp_path):
    shape = (
        "{model_type:llama,vocab_size:32000,hidden_size:4096,intermediate_size:11008,num_hidden_layers:32,"
        "num_attention_heads:32,num_key_value_heads:32}"
    )
    words = (
        *LAZY,
        f"+model.shape={shape}",
        "model.limit=1500",
        "model.dtype=bfloat16",
        "task=gov_report",
        "data.limit=50",
    )
    line = next(line for line in plan(lazybench, run, *words).splitlines() if "gov_report" in line)
    hours, memory = map(float, line.split()[-2:])
    # 50 answers of 512 tokens, twice, at some 40 ms a token; 13.5 GB of weights and half a megabyte a token of cache.
    assert 0.4 < hours < 0.8
    assert 15 < memory < 18


def test_a_fault_of_a_check_does_not_start_the_sweep(run, tmp_path):
    (tmp_path / "odd.py").write_text(
        "from lazybench.methods import Method\n\n\nclass Odd(Method):\n"
        "    def check(self, model):\n        raise ZeroDivisionError\n\n"
        "    def generate(self, prompt, decode, seed):\n        raise AssertionError\n"
    )
    (tmp_path / "method").mkdir()
    (tmp_path / "method" / "odd.yaml").write_text("_target_: odd.Odd\nname: odd\n")
    for command in (["plan"], ["run", "-m"]):
        code, out, _ = run(*command[1:], "--config-dir", str(tmp_path), "method=odd", command=command[0])
        assert code == 1
        assert "model tiny" not in out
    assert not (tmp_path / "runs").exists()


def test_what_is_no_model_ends_a_plan_in_one_line(run):
    code, _, err = run(*LAZY, "+model.shape={model_type:nonsense}", command="plan")
    assert code == 2
    assert err.startswith("lazybench: model.shape: ")
    assert err.count("\n") == 1


def test_a_stopped_second_start_says_nothing_of_the_first(run, lazybench, tmp_path, monkeypatch):
    run(*LAZY)
    (state,) = (tmp_path / "runs" / states.FOLDER).glob("*.json")
    at_work = {**json.loads(state.read_text()), "state": "running", "where": "another machine"}
    state.write_text(json.dumps(at_work))
    monkeypatch.setattr("lazybench.runner.prepare", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        run(*LAZY)
    assert json.loads(state.read_text()) == at_work


def test_a_cluster_without_a_sweep_is_asked_about(run, tmp_path):
    for words, says in ((["+cluster=local"], "add -m"), (["-m", "cluster=local"], "+cluster=local")):
        code, _, err = run(*LAZY, *words)
        assert code == 2
        assert says in err
    assert not (tmp_path / "runs").exists()


def test_a_plan_refuses_what_the_sweep_would(run, tmp_path):
    code, _, err = run("task=hotpot", command="plan")
    assert code == 2
    assert err.count("\n") == 1
    assert "hotpotqa" in err
