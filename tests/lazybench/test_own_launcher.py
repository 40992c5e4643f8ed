"""A launcher of one's own: one YAML in `cluster/` of a folder that `--config-dir` names."""

from __future__ import annotations

import pytest
import yaml
from support import LAZY, folders, one_line, rows

FOUND_BY_HYDRA = """# @package _global_
# My machine, its jobs in turn.
defaults:
  - override /hydra/launcher: basic
hydra:
  sweeper:
    max_batch_size: 1
"""
IN_PROCESSES = """# @package _global_
defaults:
  - override /hydra/launcher: joblib
hydra:
  launcher:
    n_jobs: 1
    backend: sequential
"""
SWEEP = ("-m", "method.schedule=[1:0.6],[1:0.4]", "data.limit=1", "timing.warmup=0")


@pytest.fixture
def own(tmp_path):
    """Write a cluster's YAML; returns the words that choose it."""

    def write(text: str) -> tuple[str, ...]:
        (tmp_path / "configs/cluster").mkdir(parents=True)
        (tmp_path / "configs/cluster/mine.yaml").write_text(text)
        return ("--config-dir", str(tmp_path / "configs"), "+cluster=mine")

    return write


@pytest.fixture(params=[FOUND_BY_HYDRA, IN_PROCESSES], ids=["basic", "joblib"])
def cluster(own, request):
    if request.param == IN_PROCESSES:
        pytest.importorskip("hydra_plugins.hydra_joblib_launcher", reason="needs lazybench[joblib]")
    return own(request.param)


def test_a_sweep_runs_on_it(run, lazybench, tmp_path, cluster):
    code, out, err = run(*cluster, *LAZY[:1], *SWEEP)
    assert code == 0, err
    assert [len(rows(folder)) for folder in folders(tmp_path / "runs")] == [1, 1]
    assert ("2 jobs; follow them with" in out) == ("joblib" in (tmp_path / "configs/cluster/mine.yaml").read_text())
    _, out, _ = lazybench("status", f"runs={tmp_path / 'runs'}")
    assert out.splitlines()[-1] == "2 done"


def test_a_plan_takes_it_and_a_single_run_does_not(run, tmp_path, cluster):
    code, out, err = run(*cluster, *LAZY[:1], *SWEEP[1:], command="plan")
    assert code == 0, err
    assert "2 jobs, 2 of them with records to run" in out
    code, _, err = run(*cluster, *LAZY)
    assert "+cluster=mine is where the jobs of a sweep run: add -m" in one_line(code, err)
    assert not folders(tmp_path / "runs")


def test_its_settings_can_be_set_in_words(lazybench, own):
    code, out, err = lazybench(
        "run", *own(FOUND_BY_HYDRA), "task=code", "hydra.sweeper.max_batch_size=7", "--cfg", "hydra"
    )
    assert code == 0, err
    hydra = yaml.safe_load(out)["hydra"]
    assert "BasicLauncher" in hydra["launcher"]["_target_"]
    assert hydra["sweeper"]["max_batch_size"] == 7


def test_a_launcher_that_is_not_there_is_one_line(run, own):
    code, _, err = run(
        *own("# @package _global_\ndefaults:\n  - override /hydra/launcher: nothing\n"), *LAZY[:1], *SWEEP
    )
    assert code == 2
    assert "nothing" in err
    assert "Traceback" not in err
