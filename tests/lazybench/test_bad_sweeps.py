"""A sweep that cannot be, and stages that may be one schedule or several, cost one line."""

from __future__ import annotations

import pytest
from bad_lines import check, check_each, lines, names, words
from hypothesis import strategies as st

_SMALL = ("model=smollm2_135m", "data=sample")


def _beyond_repair():
    """Sweeps of which the first word already says that they cannot be."""
    word = st.one_of(
        words("--", names),
        words(
            ("task='x", "task=[1,", "task=a,", "=", "+", "task", "task=\udc80", "~task", "~model", "+task=code", "-z")
        ),
        words(("method=", "model=", "method=,", "=,", ",", "task=,code", "task=choice()", "task=interval(1,2)")),
        words(("model.limit=x", "model.limit=nan", "model.limit=null", "+method=lazyllm", "lazyllm")),
        words("hydra.job.name=", names, ",b"),
        words(names, "=1"),
    )
    return word.map(lambda line: ("-m", *line)) | lines(("--cfg", "job", "-m"), ("--run", "--multirun"))


@pytest.mark.parametrize("count", [8, pytest.param(20, marks=pytest.mark.slow)])
def test_a_bad_sweep_costs_one_line(run, tmp_path, cwd, count):
    check_each(_beyond_repair(), run, cwd, count)
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (["method=static_pruning", "method.layer=1", "method.keep=0.5,2"], "method.keep=2 must be a number above 0"),
        (["task=code,nothing_like_it_zq"], "unknown task or dataset 'nothing_like_it_zq'"),
        (["method=baseline,lazylm"], "did you mean 'lazyllm'?"),
        (["data.limit=1,x"], "data.limit=x: must be a whole number or null"),
        (["data.limit=1,0"], "data.limit=0 is out of range"),
        (["methd=baseline,lazyllm"], "did you mean 'method'?"),
        (["method.schedule=[1:0.5],[9:2]"], "method.schedule: keep 2.0 after layer 9"),
        (["task="], "unknown task or dataset ''"),
        (["task=code", "model.path=/nowhere,/nothing"], "model.path=/nowhere: no such folder"),
    ],
)
def test_a_sweep_with_one_bad_job_costs_one_line(run, tmp_path, cwd, line, says):
    assert says in check(tuple(line), *run("-m", *line), cwd)
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("stages", ["1:0.6,2:0.5", "10%:0.6,20%:0.5,60%:0.5", "1:0.6,50%:0.5"])
@pytest.mark.parametrize("command", ["run", "plan"])
def test_stages_that_may_be_one_schedule_or_several_are_asked_about(run, tmp_path, cwd, stages, command):
    line = (f"method.schedule={stages}", *(["-m"] if command == "run" else []))
    said = check(line, *run(*line, command=command), cwd)
    several = ",".join(f"[{stage}]" for stage in stages.split(","))
    assert f"one schedule of {stages.count(',') + 1} stages, 'method.schedule=[{stages}]'" in said
    assert f"-m 'method.schedule={several}'" in said
    assert not (tmp_path / "runs").exists()


def test_stages_are_asked_about_where_speed_is_swept(lazybench, cwd):
    line = ("speed", "-m", "method.schedule=1:0.6,2:0.5")
    assert "may be one schedule of 2 stages" in check(line, *lazybench(*line), cwd)


@pytest.mark.parametrize(
    ("line", "schedules"),
    [
        (["method.schedule=[1:0.6,2:0.5]"], ["1:0.6,2:0.5"]),
        (["method.schedule=[1:0.6],[2:0.5]"], ["1:0.6", "2:0.5"]),
        (["method.schedule=[0:0.9,1:0.6],[2:0.5]"], ["0:0.9,1:0.6", "2:0.5"]),
        (["method.schedule='1:0.6,2:0.5'"], ["1:0.6,2:0.5"]),
        (["method.schedule='1:0.6','2:0.5'"], ["1:0.6", "2:0.5"]),
        (["method.schedule=choice(1:0.6,2:0.5)"], ["1:0.6", "2:0.5"]),
        (["method.schedule=2:0.6,1:0.5"], ["2:0.6", "1:0.5"]),  # layers of a schedule increase
        (["method.schedule=1:0.6,2:0.6,1:0.5,2:0.5"], ["1:0.6", "2:0.6", "1:0.5", "2:0.5"]),
        (["+experiment=figure6", *_SMALL, "method.schedule=20%:0.7,40%:0.7"], ["20%:0.7", "40%:0.7"]),
    ],
)
def test_schedules_that_can_mean_one_thing_alone_are_taken(run, line, schedules):
    code, out, err = run(*line, *([] if "+experiment=figure6" in line else ["method=lazyllm"]), command="plan")
    assert code == 0, err
    assert [text.split("schedule=")[1].split()[0] for text in out.splitlines() if "schedule=" in text] == schedules
