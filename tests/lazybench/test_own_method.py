"""Methods and rankings from outside the package, as the methods' page says to write them."""

import json
import re
import sys
from pathlib import Path

import pytest
import yaml
from support import folders, one_line, rows

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
    assert environment["appearance"] == {"label": "loudest head", "colour": "tab:olive"}
    assert all(row["prompt_computed"] < 1 for row in rows(folder))


def test_its_fields_are_settings(run, tmp_path, outside):
    words = ("--config-dir", str(outside), "method=loudest", "timing.paired=false", "timing.warmup=0")
    code, _, err = run(*words, "method.schedule=[0:0.60,2:0.5]")
    assert code == 0, err
    (folder,) = folders(tmp_path / "runs")
    assert settings_of(folder)["method"]["schedule"] == "0:0.6,2:0.5"
    for schedule, message in (("[9:0.6]", "the schedule prunes after layer 9"), ("[1:0]", "")):
        code, _, err = run(*words, f"method.schedule={schedule}")
        assert one_line(code, err).startswith(f"lazybench: method.schedule: {message}")


def test_a_term_of_the_ranking_is_run(run, tmp_path, outside):
    words = ("--config-dir", str(outside), "method=lazyllm", "method.schedule=[1:0.6]", "timing.paired=false")
    code, _, err = run(*words, "method.ranking={_target_:fading.Fading,fade:0.3}")
    assert code == 0, err
    (folder,) = folders(tmp_path / "runs")
    assert folder.parent.name == "lazyllm+"
    assert settings_of(folder)["method"]["ranking"] == {"_target_": "fading.Fading", "fade": 0.3}
    assert set(settings_of(folder)["code"]) >= {"fading"}


@pytest.mark.parametrize(
    ("ranking", "message"),
    [
        ("{_target_:fading.Fading,fad:1}", "fad'"),
        ("{_target_:fading.Fading,fade:0.3,queries:0}", "queries=0 must be a whole number"),
        ("{_target_:lazyllm.StaticRanking}", "StaticRanking object"),
    ],
)
def test_what_is_no_ranking_is_refused_in_one_line(run, outside, ranking, message):
    words = ("--config-dir", str(outside), "method=lazyllm", "method.schedule=[1:0.6]")
    code, _, err = run(*words, f"method.ranking={ranking}")
    assert message in one_line(code, err)
