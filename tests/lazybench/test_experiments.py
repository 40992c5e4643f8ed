"""The sweeps of the paper compose, and give way to what is given."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from omegaconf import OmegaConf
from support import folders

EXPERIMENTS = sorted(path.stem for path in (Path(__file__).parents[2] / "conf" / "experiment").glob("*.yaml"))


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_experiments_compose_for_every_method_they_sweep(name):
    from hydra import compose, initialize_config_dir

    from lazybench import config as schema
    from lazybench.config import CONF
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


def test_an_experiment_of_the_users_gives_way_too(tmp_path):
    from lazybench.cli.experiments import settle

    (tmp_path / "experiment").mkdir()
    path = tmp_path / "experiment" / "mine.yaml"
    path.write_text("hydra: {sweeper: {params: {method: 'baseline,lazyllm', task: 'code,fewshot'}}}")
    words = ["-m", "+experiment=mine", "task=code"]
    settled = [*words, f"--config-dir={tmp_path}", "hydra.sweeper.params=null", "method=baseline,lazyllm"]
    assert settle([*words, f"--config-dir={tmp_path}"]) == settled
    assert settle([*words, "--config-dir", str(tmp_path)])[-2:] == settled[-2:]
    for nothing in ("- a list", "{", "hydra: null", "hydra: {sweeper: {params: many}}"):
        path.write_text(nothing)
        assert settle([*words, f"--config-dir={tmp_path}"]) == [*words, f"--config-dir={tmp_path}"]
    assert settle([*words, "--config-dir"]) == [*words, "--config-dir"]


def test_what_is_given_replaces_what_an_experiment_sweeps(run, tmp_path):
    code, _, err = run("-m", "+experiment=smoke", "method=baseline,random_drop", "task=2wikimqa")
    assert code == 0, err
    assert sorted(folder.parts[-2] for folder in folders(tmp_path / "runs")) == ["baseline", "random_drop"]
