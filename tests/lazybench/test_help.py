"""Help: every command's settings on one page, at once; and what there is to choose from."""

import os
import subprocess
import sys
from dataclasses import fields

import pytest
import yaml

from lazybench.config import CONF, SCHEMAS, DataConfig, ModelConfig


@pytest.mark.parametrize("command", [*SCHEMAS, "plan"])
def test_every_setting_is_there(lazybench, command):
    code, out, _ = lazybench(command, "--help")
    assert code == 0
    assert "python -m lazybench" in out
    own = fields(SCHEMAS.get(command, SCHEMAS["run"]))
    for of in (*own, *fields(ModelConfig), *(fields(DataConfig) if "data" in {of.name for of in own} else ())):
        assert f"{of.name}: " in out or of.name in ("model", "method", "data", "timing"), of.name
    assert "hydra" not in out


@pytest.mark.parametrize("name", ["static_pruning", "snapkv"])
def test_the_settings_of_a_chosen_method_are_there(lazybench, name):
    out = lazybench("run", f"method={name}", "-h")[1]
    assert all(f"{key}:" in out for key in yaml.safe_load((CONF / "method" / f"{name}.yaml").read_text()))


def test_the_commands_and_all_there_is_to_choose(lazybench):
    for word in ("--help", "help"):
        code, out, _ = lazybench(word)
        assert code == 0
        assert all(f"lazybench {command}" in out for command in (*SCHEMAS, "plan", "status", "list", "report", "score"))
    code, out, _ = lazybench("list")
    assert code == 0
    assert all(name in out for name in ("lazyllm", "llama2_7b", "xgen_7b", "multidoc_qa", "repobench-p"))


@pytest.mark.parametrize("columns", [40, 100, None])
def test_list_marks_the_papers_methods_and_shows_whole_descriptions(lazybench, monkeypatch, tmp_path, columns):
    monkeypatch.delenv("COLUMNS", raising=False) if columns is None else monkeypatch.setenv("COLUMNS", str(columns))
    for group, head in (("method", ""), ("experiment", "# @package _global_\n")):
        (tmp_path / group).mkdir()
        (tmp_path / group / "mine.yaml").write_text(
            f"{head}# Keeps the first half\n# of it.\n#   python\n_target_: a\n"
        )
    code, out, _ = lazybench("list", "--config-dir", str(tmp_path))
    assert code == 0
    lines = out.splitlines()
    assert columns is None or max(map(len, lines)) <= max(columns, len(str(tmp_path)) + 40)
    text = " ".join(out.split())
    assert out.count("\n") == len(lines)
    if columns is None:
        five = [line.split()[0] for line in lines if "[one of the paper's five]" in line]
        assert five == ["baseline", "lazyllm", "prompt_compression", "random_drop", "static_pruning"]
    assert text.count("one of the paper's five") == 5
    assert "nothing can come back: method=lazyllm_for_good, static_pruning, gemfilter and fastkv prune it" in text
    assert text.count(f"mine Keeps the first half of it. [{tmp_path}]") == 2
    assert "table1 Tables 1 and 2, Figures 1, 2 and 7" in text


def test_the_settings_that_a_command_line_comes_to(lazybench):
    code, out, _ = lazybench("run", "--cfg", "job", "task=code", "model=llama2_7b")
    assert code == 0
    settings = yaml.safe_load(out)
    assert (settings["task"], settings["model"]["name"]) == ("code", "llama2_7b")
    assert "hydra" not in settings


@pytest.mark.slow
def test_a_missing_package_is_one_line(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", "import sys; sys.modules['hydra'] = None; from lazybench.__main__ import main; "
         "sys.argv = ['lazybench', 'run', 'task=code']; sys.exit(main())"],
        env=os.environ,
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr.startswith("lazybench: the package 'hydra' is missing")
    assert done.stderr.count("\n") == 1


@pytest.mark.slow
def test_help_does_not_wait_for_torch():
    code = "import sys; from lazybench.cli import commands; commands.start(['run', '--help']); "
    code += "sys.exit(bool({'torch', 'transformers', 'pandas'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], env=os.environ, capture_output=True).returncode == 0
