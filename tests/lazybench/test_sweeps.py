"""Sweeps: checked before they start, and followed."""

from __future__ import annotations

import re
import sys

import pytest
import yaml
from support import LAZY, folders, one_line, stubborn_method

from lazybench.data import hub

SCHEDULES = "method.schedule=[1:0.6],[1:0.4],[2:0.5]"


@pytest.fixture
def stubborn(tmp_path):
    """Words that choose a method which may fail once its job runs."""
    return stubborn_method(tmp_path)


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
    _, out, _ = lazybench("status", f"runs={tmp_path / 'runs'}")
    assert "the mood is bad" in out
    assert out.splitlines()[-1] == "1 failed, 2 done"


FAULTY = """
from dataclasses import dataclass

from faulty_part import divided
from lazybench.methods import Method, Output


@dataclass
class Faulty(Method):
    where: str = "generate"

    def __post_init__(self):
        self.seen = set()
        self.at("init")

    def at(self, place):
        if place == self.where:
            divided(1, 0)

    def check(self, model):
        self.at("check")

    def prepare(self, model):
        self.at("prepare")

    def generate(self, prompt, decode, seed):
        self.seen.add(prompt.record.id)
        if len(self.seen) == 2:
            self.at("generate")
        if self.where == "library":
            prompt.ids.view(0, 0)
        return Output(decode(prompt.ids), prompt_computed=1.0)
"""


@pytest.fixture
def faulty(tmp_path, monkeypatch):
    """Words that choose a method of the user's own with a fault in it, in a module next to it."""
    (tmp_path / "faulty.py").write_text(FAULTY)
    (tmp_path / "faulty_part.py").write_text("def divided(a, b):\n    return a / b\n")
    (tmp_path / "method").mkdir()
    (tmp_path / "method" / "faulty.yaml").write_text("_target_: faulty.Faulty\nname: faulty\nwhere: generate\n")
    monkeypatch.setattr("sys.path", list(sys.path))
    yield "--config-dir", str(tmp_path), "method=faulty", "timing.warmup=0"
    for name in ("faulty", "faulty_part"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize("command", [["plan"], ["run", "-m"]])
def test_a_fault_of_a_check_does_not_start_the_sweep(run, tmp_path, faulty, command):
    code, out, err = run(*command[1:], *faulty, "method.where=check,generate", command=command[0])
    assert code == 2
    assert err.splitlines()[-1] == "lazybench: method faulty: check raised ZeroDivisionError: division by zero"
    assert "model tiny" not in out
    assert not (tmp_path / "runs").exists()


def shown_frames(err: str) -> list[str]:
    """File and function of the frames in a traceback."""
    return re.findall(r'File ".*/(\S+)", line \d+, in (\S+)', err)


@pytest.mark.parametrize("where", ["init", "check", "prepare", "generate"])
def test_a_fault_in_a_method_shows_its_own_frames(run, faulty, where):
    code, _, err = run(*faulty, f"method.where={where}")
    assert code == 2
    first = "__post_init__" if where == "init" else where
    assert err.splitlines()[-1] == f"lazybench: method faulty: {first} raised ZeroDivisionError: division by zero"
    assert shown_frames(err) == [("faulty.py", first), ("faulty.py", "at"), ("faulty_part.py", "divided")]


def test_a_fault_behind_a_method_shows_the_last_frame_alone(run, faulty):
    code, _, err = run(*faulty, "method.where=library")
    assert code == 2
    assert "method faulty: generate raised RuntimeError: " in err.splitlines()[-1]
    assert shown_frames(err) == [("faulty.py", "generate")]


@pytest.mark.parametrize("launcher", [(), pytest.param(("+cluster=joblib",), marks=pytest.mark.slow)])
def test_a_fault_in_one_job_leaves_the_others_and_what_was_done(run, tmp_path, faulty, launcher):
    if launcher:
        pytest.importorskip("hydra_plugins.hydra_joblib_launcher")
    code, _, err = run("-m", *launcher, *faulty, "method.where=generate,nowhere")
    assert code == 2
    assert "jobs of the sweep failed" in err.splitlines()[-1]
    if not launcher:
        assert "lazybench: method faulty: generate raised ZeroDivisionError: division by zero" in err
        assert ("faulty_part.py", "divided") in shown_frames(err)
        assert not any("hydra" in path for path, _ in shown_frames(err))
    done = sorted(len((f / "predictions.jsonl").read_text().splitlines()) for f in folders(tmp_path / "runs"))
    assert done == [1, 2]


def test_a_fault_of_ours_shows_the_whole_traceback(run, faulty, monkeypatch):
    monkeypatch.setattr("lazybench.run.runner.load_model", lambda config: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        run(*faulty)


@pytest.fixture
def offline(monkeypatch, tmp_path):
    """No hub, and nothing of it in the cache."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    hub.unreachable.cache_clear()
    yield
    hub.unreachable.cache_clear()


def test_a_sweep_does_not_start_without_what_its_models_need(lazybench, offline, tmp_path):
    output = tmp_path / "runs"
    code, out, err = lazybench("run", "-m", "model=llama2_7b,xgen_7b", "task=lcc", "data.limit=1", f"output={output}")
    assert "model.path=meta-llama/Llama-2-7b-chat-hf cannot be loaded" in one_line(code, err)
    assert out == "checking 2 jobs before any starts\n"
    assert not output.exists()


def test_a_sweep_on_a_device_that_is_not_there_does_not_start(run, tmp_path):
    code, _, err = run("-m", *LAZY, "model.device=cpu,xpu")
    assert "model.device=xpu is not available here" in one_line(code, err)
    assert not (tmp_path / "runs").exists()


def test_a_cluster_without_a_sweep_is_asked_about(run, tmp_path):
    for words, says in ((["+cluster=local"], "add -m"), (["-m", "cluster=local"], "+cluster=local")):
        code, _, err = run(*LAZY, *words)
        assert code == 2
        assert says in err
    assert not (tmp_path / "runs").exists()
