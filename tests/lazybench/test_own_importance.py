"""An importance of the user's own, in a file outside the package: run, calibrated with, and searched."""

from __future__ import annotations

import sys

import pandas as pd
import pytest
import yaml
from calibrating import line
from support import folders, one_line, rows

RANKING = '''
from dataclasses import dataclass, field

import torch

import lazyllm


@dataclass
class Later(lazyllm.Importance):
    """The later a token, the more it counts."""

    slope: float = field(default=0.5, metadata={"search": (0.25, 1.0)})

    def observe(self, layer, query, key, scaling, softcap):
        super().observe(layer, query, key, scaling, softcap)
        places = torch.linspace(0, self.slope, len(self.importance))
        self.importance = torch.where(self.importance < 0, self.importance, self.importance + places)


class Other:
    pass
'''
TARGET = "_target_:my_ranking.Later"


@pytest.fixture(autouse=True)
def ranking(tmp_path, monkeypatch):
    """The file with the importance, in a folder that Python imports from."""
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "my_ranking.py").write_text(RANKING)
    monkeypatch.syspath_prepend(tmp_path / "own")
    yield tmp_path / "own" / "my_ranking.py"
    sys.modules.pop("my_ranking", None)


def test_a_run_ranks_by_it(run, tmp_path):
    words = ("method=lazyllm", "method.schedule=[1:0.6]", "data.limit=1")
    for importance in ("eq1", f"{{{TARGET}}}", f"{{{TARGET},slope:2.0}}"):
        code, _, err = run(*words, f"method.importance={importance}")
        assert code == 0, err
    found = {}
    for folder in folders(tmp_path / "runs"):
        settings = yaml.safe_load((folder / "config.yaml").read_text())
        importance, code = settings["method"]["importance"], settings["code"]
        found[str(importance)] = folder.parts[-2], "my_ranking" in code
        assert len(rows(folder)) == 1
    assert found == {
        "eq1": ("lazyllm", False),
        "{'_target_': 'my_ranking.Later'}": ("lazyllm+", True),
        "{'_target_': 'my_ranking.Later', 'slope': 2.0}": ("lazyllm+", True),
    }


@pytest.mark.parametrize(
    ("importance", "says"),
    [
        (f"{{{TARGET},slop:1}}", "slop"),
        ("{_target_:my_ranking.Nothing}", "Nothing"),
        ("{_target_:my_ranking.Other}", "my_ranking.Other"),
    ],
)
def test_what_is_wrong_with_it_costs_one_line(run, calibrate, importance, says):
    code, _, err = run("method=lazyllm", "method.schedule=[1:0.6]", f"method.importance={importance}")
    assert says in one_line(code, err)
    code, _, err = calibrate(f"importance={importance}")
    assert says in one_line(code, err)


def test_its_own_parts_are_searched(calibrate, lazybench, six_layers, tmp_path):
    code, _, err = calibrate(f"importance={{{TARGET},search:true,heads:max}}", "speedups=[]", "confirm=false")
    assert code == 0, err
    (written,) = tmp_path.glob("calibrations/*/*/*/*/*/first/method/*.yaml")
    assert written.parts[-4] == "search_Later_heads_max"
    tried = pd.read_csv(written.parents[1] / "tried.csv")["importance"]
    assert tried.str.startswith("Later,").all()
    assert tried.str.contains("heads:max").all()
    assert tried.str.contains("slope:(?:0.25|1.0)").all()
    (fold,) = yaml.safe_load(written.read_text())["folds"]
    assert fold["importance"]["_target_"] == "my_ranking.Later"
    assert fold["importance"]["slope"] in (0.25, 1.0)
    words = line("run", six_layers, tmp_path / "runs", f"method={written.stem}", "data.half=second")
    code, _, err = lazybench(*words, "--config-dir", str(written.parents[1]))
    assert code == 0, err
    (run,) = folders(tmp_path / "runs")
    assert run.parts[-2] == "lazyllm+"
    assert "my_ranking" in yaml.safe_load((run / "config.yaml").read_text())["code"]


@pytest.mark.slow
def test_other_code_is_another_calibration(calibrate, ranking, tmp_path):
    def folders_after(importance):
        code, _, err = calibrate(f"importance={importance}", "speedups=[]", "confirm=false")
        assert code == 0, err
        return {path.parent for path in tmp_path.glob("calibrations/*/*/*/*/times.json")}

    (papers,) = folders_after("eq1")
    assert folders_after("{pooling:7}") == {papers}
    own = folders_after(f"{{{TARGET}}}") - {papers}
    assert len(own) == 1
    ranking.write_text(RANKING.replace("linspace(0,", "linspace(self.slope / 2,"))
    sys.modules.pop("my_ranking")
    assert len(folders_after(f"{{{TARGET}}}") - {papers} - own) == 1
