"""Methods and rankings from outside the package, as the methods' page says to write them."""

import json
import re
import sys
from pathlib import Path

import pytest
import yaml
from support import folders, rows

import lazybench.methods

PAGE = Path(lazybench.methods.__file__).with_name("README.md").read_text("utf-8")
# The files that the page says to write: their names are in the first line.
FILES = {
    name: text
    for text in re.findall(r"^```(?:python|yaml)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    for name in re.findall(r"\A# (\S+\.(?:py|yaml))\n", text)
}


@pytest.fixture
def outside(tmp_path, monkeypatch):
    """A folder with the page's files, as `--config-dir`."""
    for name, text in FILES.items():
        path = tmp_path / "outside" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        monkeypatch.delitem(sys.modules, path.stem, raising=False)
    monkeypatch.setattr(sys, "path", [*sys.path])
    return tmp_path / "outside"


def settings_of(folder):
    return yaml.safe_load((folder / "config.yaml").read_text())


def test_a_ranking_of_ones_own_takes_fifteen_lines(run, tmp_path, outside):
    assert {"loudest.py", "method/loudest.yaml", "fading.py"} <= set(FILES)
    lines = FILES["loudest.py"].splitlines()[1:]
    assert len([line for line in lines if line.strip()]) <= 15
    code, _, err = run("--config-dir", str(outside), "method=loudest")
    assert code == 0, err
    (folder,) = folders(tmp_path / "runs")
    assert folder.parent.name == "loudest"
    settings = settings_of(folder)
    assert settings["method"] == {
        "_target_": "loudest.Loudest",
        "name": "loudest",
        "repeats": 1,
        "schedule": "33%:0.7,67%:0.5",
    }
    assert set(settings["code"]) >= {"loudest"}
    environment = json.loads((folder / "environment.json").read_text())
    assert environment["appearance"] == {"label": "loudest head"}
    assert all(row["prompt_computed"] < 1 for row in rows(folder))


def test_a_term_of_the_ranking_is_run(run, tmp_path, outside):
    words = ("--config-dir", str(outside), "method=lazyllm", "method.schedule=[1:0.6]", "timing.paired=false")
    code, _, err = run(*words, "method.ranking={_target_:fading.Fading,fade:0.3}")
    assert code == 0, err
    (folder,) = folders(tmp_path / "runs")
    assert folder.parent.name == "lazyllm+"
    assert settings_of(folder)["method"]["ranking"] == {"_target_": "fading.Fading", "fade": 0.3}
    assert set(settings_of(folder)["code"]) >= {"fading"}
