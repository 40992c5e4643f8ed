"""Sweeps: every combination, each model loaded once, faults in one job, the sweeps of the paper and of the user's."""

import sys

import pytest
import yaml
from hydra import compose, initialize_config_dir
from marks import slow_but
from omegaconf import OmegaConf
from support import folders, one_line, rows, stubborn_method

from lazybench.config import CONF
from lazybench.methods import build_method
from lazybench.model import loading

QUICK = ("timing.per_dataset=0", "data.limit=1")
MATCHED = CONF.parent / "results/matched/smollm2_135m"
EXPERIMENTS = sorted(path.stem for path in (CONF / "experiment").glob("*.yaml"))


def test_a_sweep_runs_every_combination_and_loads_each_model_once(run, tmp_path, monkeypatch):
    loaded, load = [], loading.load_model
    monkeypatch.setattr(loading, "load_model", lambda config: (loaded.append(config.dtype), load(config))[1])
    words = ("method=lazyllm", "method.schedule=[1:0.6],[2:0.5]", "model.dtype=float32,bfloat16")
    code, _, err = run("-m", *words, *QUICK)
    assert code == 0, err
    settings = [yaml.safe_load((folder / "config.yaml").read_text()) for folder in folders(tmp_path / "runs")]
    combinations = sorted((each["method"]["schedule"], each["model"]["dtype"]) for each in settings)
    assert combinations == [(stages, dtype) for stages in ("1:0.6", "2:0.5") for dtype in ("bfloat16", "float32")]
    assert loaded == ["float32", "bfloat16"]


@pytest.fixture
def stubborn(tmp_path, monkeypatch):
    """A method of the user's own that fails as its `mood` says; the words that choose it."""
    monkeypatch.setattr("sys.path", list(sys.path))
    yield (*stubborn_method(tmp_path), *QUICK)
    sys.modules.pop("stubborn", None)


def test_a_fault_in_a_method_shows_its_traceback(run, stubborn):
    with pytest.raises(ZeroDivisionError):
        run(*stubborn, "method.mood=faulty")


def test_a_fault_of_a_check_does_not_start_the_sweep(run, tmp_path, stubborn):
    with pytest.raises(ZeroDivisionError):
        run("-m", *stubborn, "method.mood=unchecked,good")
    assert not (tmp_path / "runs").exists()


def test_a_fault_in_one_job_leaves_the_others(run, lazybench, tmp_path, stubborn):
    code, _, err = run("-m", *stubborn, "method.mood=faulty,good,bad")
    assert code == 2
    assert "of the sweep failed" in err.splitlines()[-1]
    assert "ZeroDivisionError: division by zero" in err
    assert [len(rows(folder)) for folder in folders(tmp_path / "runs") if (folder / "scores.json").exists()] == [1]
    _, out, _ = lazybench("status", f"runs={tmp_path / 'runs'}")
    assert "the mood is bad" in out
    assert out.splitlines()[-1] == "2 failed, 1 done"


def test_a_sweep_does_not_start_without_what_its_models_need(lazybench, offline, tmp_path):
    output = tmp_path / "runs"
    code, out, err = lazybench("run", "-m", "model=llama2_7b,xgen_7b", "task=lcc", "data.limit=1", f"output={output}")
    assert "model.path=meta-llama/Llama-2-7b-chat-hf cannot be loaded" in one_line(code, err)
    assert out == "checking 2 jobs before any starts\n"
    assert not output.exists()


@pytest.mark.parametrize("name", slow_but(["table1"], EXPERIMENTS))
def test_the_papers_sweeps_compose_for_every_method(name):
    params = yaml.safe_load((CONF / "experiment" / f"{name}.yaml").read_text())["hydra"]["sweeper"]["params"]
    with initialize_config_dir(str(CONF), version_base="1.3"):
        for method in params.get("method", "lazyllm").split(","):
            matched = f"hydra.searchpath=['file://{MATCHED}']"  # `study` has methods that `match` wrote
            settings = OmegaConf.to_object(compose("config", [matched, f"+experiment={name}", f"method={method}"]))
            assert settings.task == "all"
            assert method.rpartition("/")[2].startswith(build_method(settings.method).name)


def test_given_settings_replace_those_that_an_experiment_sweeps(run, tmp_path):
    params = "{method: 'baseline,random_drop', task: 'code,fewshot', data.seed: '1,2'}"
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment/mine.yaml").write_text(f"# @package _global_\nhydra: {{sweeper: {{params: {params}}}}}")
    words = ("-cd", str(tmp_path), "+experiment=mine")
    code, out, err = run(*words, "method=baseline,prompt_compression", command="plan")
    assert code == 0, err
    assert "4 jobs" in out
    assert "prompt_compression" in out
    assert "random_drop" not in out


def test_a_setting_is_checked_against_the_method_of_each_job(run):
    code, out, err = run("method=glob([static*,random*,gem*])", "method.keep=0.3", command="plan")
    assert code == 0, err
    assert out.count("keep=0.3") == 3
    refused = one_line(*run("method=static_pruning,random_drop", "method.layer=1", command="plan")[::2])
    assert "method=random_drop: there is no setting 'method.layer'" in refused
