"""The sweeps of the paper compose, and give way to what is given."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from omegaconf import OmegaConf
from support import folders, one_line

from lazybench.config import CONF

EXPERIMENTS = sorted(path.stem for path in (Path(__file__).parents[2] / "conf" / "experiment").glob("*.yaml"))


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_experiments_compose_for_every_method_they_sweep(name):
    from hydra import compose, initialize_config_dir

    from lazybench import config as schema
    from lazybench.methods import build_method

    schema.register()
    params = yaml.safe_load((CONF / "experiment" / f"{name}.yaml").read_text())["hydra"]["sweeper"]["params"]
    with initialize_config_dir(str(CONF), version_base="1.3"):
        for method in params.get("method", "lazyllm").split(","):
            composed = compose("config", [f"+experiment={name}", f"method={method}"])
            settings = OmegaConf.to_object(composed)
            assert settings.task == "all"
            assert build_method(settings.method).name == method.rpartition("/")[2].removesuffix("_gentle").removesuffix(
                "_strong"
            )


@pytest.fixture
def mine(tmp_path):
    """An experiment of the user's, as a file to write."""
    (tmp_path / "experiment").mkdir()
    return tmp_path / "experiment" / "mine.yaml"


@pytest.mark.parametrize("config_dir", [("--config-dir={}",), ("--config-dir", "{}"), ("-cd", "{}")])
def test_an_experiment_of_the_users_gives_way_too(run, mine, config_dir):
    mine.write_text(
        "# @package _global_\nhydra: {sweeper: {params: "
        "{method: 'baseline,random_drop', task: 'code,fewshot', data.seed: '1,2'}}}"
    )
    words = [word.format(mine.parents[1]) for word in config_dir]
    code, out, err = run(
        "+experiment=mine", *words, "method=baseline,prompt_compression", "task=2wikimqa", command="plan"
    )
    assert code == 0, err
    assert "4 jobs" in out
    assert "prompt_compression" in out
    assert "random_drop" not in out


def test_an_experiment_may_be_called_like_a_number(run, mine):
    mine.with_name("e2.yaml").write_text("# @package _global_\nhydra: {sweeper: {params: {data.seed: '1,2'}}}")
    code, out, err = run("+experiment=e2", f"--config-dir={mine.parents[1]}", command="plan")
    assert code == 0, err
    assert "2 jobs" in out


def test_a_config_without_the_settings_schema_is_not_planned(run, tmp_path):
    text = (CONF / "config.yaml").read_text("utf-8").replace("  - schema\n", "")
    (tmp_path / "other.yaml").write_text(text)
    said = one_line(*run(f"--config-dir={tmp_path}", "--config-name=other", command="plan")[::2])
    assert "begin it with defaults: [config]" in said
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("text", ["- a list", "{", "hydra: null", "hydra: {sweeper: {params: many}}"])
def test_an_experiment_that_cannot_be_read_costs_one_line(run, mine, tmp_path, text):
    mine.write_text(f"# @package _global_\n{text}")
    words = ("-m", "+experiment=mine", f"--config-dir={tmp_path}", "task=code")
    one_line(*run(*words)[::2])
    assert not (tmp_path / "runs").exists()


def test_what_is_given_replaces_what_an_experiment_sweeps(run, tmp_path):
    code, _, err = run("-m", "+experiment=smoke", "method=baseline,random_drop", "task=2wikimqa")
    assert code == 0, err
    assert sorted(folder.parts[-2] for folder in folders(tmp_path / "runs")) == ["baseline", "random_drop"]
