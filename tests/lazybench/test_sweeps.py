"""Sweeps: every combination, each model loaded once, faults in one job, the sweeps of the paper and of the user's."""

import sys

import pytest
import yaml
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf
from support import LAZY, folders, one_line, rows, stubborn_method

from lazybench.config import CONF
from lazybench.methods import build_method
from lazybench.run import execute, tracing

QUICK = ("timing.warmup=0", "timing.paired=false", "data.limit=1")
EXPERIMENTS = sorted(path.stem for path in (CONF / "experiment").glob("*.yaml"))


def test_a_sweep_runs_every_combination_and_loads_each_model_once(run, tmp_path, monkeypatch):
    loaded, load = [], execute.load_model
    monkeypatch.setattr(execute, "load_model", lambda config: (loaded.append(config.dtype), load(config))[1])
    words = ("method=lazyllm", "method.schedule=[1:0.6],[2:0.5]", "model.dtype=float32,bfloat16")
    code, _, err = run("-m", *words, *QUICK)
    assert code == 0, err
    settings = [yaml.safe_load((folder / "config.yaml").read_text()) for folder in folders(tmp_path / "runs")]
    found = sorted((of["method"]["schedule"], of["model"]["dtype"]) for of in settings)
    assert found == [(stages, dtype) for stages in ("1:0.6", "2:0.5") for dtype in ("bfloat16", "float32")]
    assert loaded == ["float32", "bfloat16"]


def test_jobs_of_a_sweep_ask_the_unmodified_model_once(run, tmp_path, monkeypatch):
    asked, expected = [], tracing.expected
    monkeypatch.setattr(
        tracing, "expected", lambda prompt, _: (asked.append(prompt.record.key), expected(prompt, _))[1]
    )
    settings = ("trace=true", "model.limit=301", "timing.paired=false", "timing.warmup=0")
    code, _, err = run("-m", "method=lazyllm", "method.schedule='1:0.3','2:0.3'", *settings)
    assert code == 0, err
    assert len(asked) == len(set(asked)) == 2


def test_a_job_that_fails_does_not_stop_the_others_and_status_says_why(run, lazybench, tmp_path):
    code, _, err = run("-m", *stubborn_method(tmp_path), "method.mood=good,bad,fine", *QUICK)
    assert code == 2
    assert "lazybench: the mood is bad" in err
    assert err.splitlines()[-1].endswith(
        "1 of 3 jobs of the sweep failed, as said above; the same command runs what is missing"
    )
    _, out, _ = lazybench("status", f"runs={tmp_path / 'runs'}")
    assert "the mood is bad" in out
    assert out.splitlines()[-1] == "1 failed, 2 done"


FAULTY = """
from dataclasses import dataclass

from lazybench.methods import Method, Output


@dataclass
class Faulty(Method):
    at: str = ""

    def check(self, model):
        1 / (self.at != "check")

    def generate(self, prompt, decode, seed):
        1 / (self.at != "generate")
        return Output(decode(prompt.ids), prompt_computed=1.0)
"""


@pytest.fixture
def faulty(tmp_path, monkeypatch):
    """Write a method of the user's own with a fault in it; returns the words that choose it."""
    monkeypatch.setattr("sys.path", list(sys.path))
    (tmp_path / "method").mkdir()
    (tmp_path / "method" / "faulty.yaml").write_text("_target_: faulty.Faulty\nname: faulty\nat: ''\n")

    def write(text):
        (tmp_path / "faulty.py").write_text(text)
        return ("--config-dir", str(tmp_path), "method=faulty", *QUICK)

    yield write
    sys.modules.pop("faulty", None)


def test_a_fault_in_a_method_shows_its_traceback(run, faulty):
    with pytest.raises(ZeroDivisionError):
        run(*faulty(FAULTY), "method.at=generate")


def test_a_fault_of_a_check_does_not_start_the_sweep(run, tmp_path, faulty):
    with pytest.raises(ZeroDivisionError):
        run("-m", *faulty(FAULTY), "method.at=check,''")
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("launcher", [(), pytest.param(("+cluster=joblib",), marks=pytest.mark.slow)])
def test_a_fault_in_one_job_leaves_the_others(run, tmp_path, faulty, launcher):
    if launcher:
        pytest.importorskip("hydra_plugins.hydra_joblib_launcher")
    code, _, err = run("-m", *launcher, *faulty(FAULTY), "method.at=generate,''")
    assert code == 2
    assert "of the sweep failed" in err.splitlines()[-1]
    assert launcher or "ZeroDivisionError: division by zero" in err
    assert [len(rows(folder)) for folder in folders(tmp_path / "runs") if (folder / "scores.json").exists()] == [1]


def test_a_sweep_does_not_start_without_what_its_models_need(lazybench, offline, tmp_path):
    output = tmp_path / "runs"
    code, out, err = lazybench("run", "-m", "model=llama2_7b,xgen_7b", "task=lcc", "data.limit=1", f"output={output}")
    assert "model.path=meta-llama/Llama-2-7b-chat-hf cannot be loaded" in one_line(code, err)
    assert out == "checking 2 jobs before any starts\n"
    assert not output.exists()


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_the_papers_sweeps_compose_for_every_method(name):
    params = yaml.safe_load((CONF / "experiment" / f"{name}.yaml").read_text())["hydra"]["sweeper"]["params"]
    with initialize_config_dir(str(CONF), version_base="1.3"):
        for method in params.get("method", "lazyllm").split(","):
            settings = OmegaConf.to_object(compose("config", [f"+experiment={name}", f"method={method}"]))
            assert settings.task == "all"
            assert method.rpartition("/")[2].startswith(build_method(settings.method).name)


@pytest.fixture
def mine(tmp_path):
    """An experiment of the user's, as a file to write."""
    (tmp_path / "experiment").mkdir()
    return tmp_path / "experiment" / "mine.yaml"


@pytest.mark.parametrize("config_dir", [("--config-dir={}",), ("-cd", "{}")])
def test_what_is_given_replaces_what_an_experiment_sweeps(run, mine, config_dir):
    params = "{method: 'baseline,random_drop', task: 'code,fewshot', data.seed: '1,2'}"
    mine.write_text(f"# @package _global_\nhydra: {{sweeper: {{params: {params}}}}}")
    words = [word.format(mine.parents[1]) for word in config_dir]
    code, out, err = run(*words, "+experiment=mine", "method=baseline,prompt_compression", command="plan")
    assert code == 0, err
    assert "4 jobs" in out
    assert "prompt_compression" in out
    assert "random_drop" not in out


IN_TURN = "defaults: [{override /hydra/launcher: basic}]"
IN_PROCESSES = "defaults: [{override /hydra/launcher: joblib}]\nhydra: {launcher: {n_jobs: 1, backend: sequential}}"


@pytest.mark.parametrize("cluster", [IN_TURN, IN_PROCESSES], ids=["basic", "joblib"])
def test_a_launcher_of_ones_own_takes_sweeps(run, tmp_path, cluster):
    if cluster == IN_PROCESSES:
        pytest.importorskip("hydra_plugins.hydra_joblib_launcher", reason="needs lazybench[joblib]")
    (tmp_path / "cluster").mkdir()
    (tmp_path / "cluster/mine.yaml").write_text(f"# @package _global_\n{cluster}\n")
    words = ("--config-dir", str(tmp_path), "+cluster=mine", LAZY[0], "method.schedule=[1:0.6],[1:0.4]", *QUICK)
    code, out, err = run(*words, command="plan")
    assert code == 0, err
    assert "2 jobs, 2 of them with records to run" in out
    code, out, err = run("-m", *words)
    assert code == 0, err
    assert [len(rows(folder)) for folder in folders(tmp_path / "runs")] == [1, 1]
    assert ("2 jobs; follow them with" in out) == (cluster == IN_PROCESSES)
