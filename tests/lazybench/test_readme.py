"""What the README tells people to write works as it stands there."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from support import folders, rows

README = (Path(__file__).parents[2] / "README.md").read_text()


def block_after(words: str) -> str:
    """The first fenced block after `words`."""
    found = re.search(re.escape(words) + r".*?```\w+\n(.*?)```", README, re.DOTALL)
    assert found, f"the README no longer says {words!r}"
    return found.group(1)


def test_the_method_of_ones_own(run, tmp_path):
    method, settings = block_after("`keep_ends.py`:"), block_after("`method/keep_ends.yaml`")
    assert len((method + settings).strip().splitlines()) < 30
    (tmp_path / "keep_ends.py").write_text(method)
    (tmp_path / "method").mkdir()
    (tmp_path / "method" / "keep_ends.yaml").write_text(settings)
    code, _, err = run("--config-dir", str(tmp_path), "method=keep_ends", "method.ends=30")
    assert code == 0, err
    (folder,) = folders(tmp_path / "runs")
    assert folder.parts[-2] == "keep_ends"
    assert [row["prompt_computed"] for row in rows(folder)] == [60 / row["prompt_tokens"] for row in rows(folder)]


def test_the_dataset_of_ones_own(run, tmp_path):
    (tmp_path / "records").mkdir()
    (tmp_path / "records" / "my_qa.jsonl").write_text(
        '{"_id": "1", "input": "Who?", "context": "It was Ada.", "answers": ["Ada"], "length": 3, "dataset": "my_qa", '
        '"language": "en", "all_classes": null}\n'
    )
    (tmp_path / "data").mkdir()
    about = block_after("a YAML in `data/`").replace("/data/mine ", str(tmp_path / "records") + " ")
    (tmp_path / "data" / "mine.yaml").write_text(about)
    code, _, err = run("--config-dir", str(tmp_path), "data=mine", "task=my_qa", "method=baseline", "data.tokens=512")
    assert code == 0, err
    (folder,) = folders(tmp_path / "runs")
    assert [row["dataset"] for row in rows(folder)] == ["my_qa"]


@pytest.mark.parametrize("command", re.findall(r"python -m lazybench (\w+)", README))
def test_every_command_named_there_exists(command):
    from lazybench.__main__ import _COMMANDS

    assert command in _COMMANDS


RUNS = [line.split("#")[0] for line in re.findall(r"^python -m lazybench (?:run|plan) (.*)$", README, re.MULTILINE)]


@pytest.mark.parametrize("line", RUNS)
def test_every_run_named_there_has_settings_that_fit(lazybench, monkeypatch, line):
    words = [word for word in shlex.split(line) if word not in ("-m", "$small")]
    if "--config-dir" in words:
        pytest.skip("a method of one's own is tried above")
    if "experiment=" in line:  # what else is given there takes the place of values that it sweeps over
        words = [word for word in words if word.startswith(("+", "data.", "output="))]
    # The first job of a sweep stands for all.
    first = [word if "[" in word else word.partition(",")[0] for word in words]
    task = [] if "task=" in line or "experiment=" in line else ["task=code"]
    code, out, err = lazybench("run", *first, "--cfg", "job", *task)
    assert code == 0, err
    assert "task:" in out
