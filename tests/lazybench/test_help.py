"""Help and completion: every command's settings on one page, without slow imports; and what there is to choose."""

import os
import subprocess
import sys
from dataclasses import fields

import pytest
import yaml

from lazybench.__main__ import CONFIGURED, SIMPLE
from lazybench.config import CONF, SCHEMAS, DataConfig, ModelConfig


@pytest.mark.parametrize("command", CONFIGURED)
def test_help_has_every_setting(lazybench, command):
    code, out, _ = lazybench(command, "--help")
    assert code == 0
    assert "python -m lazybench" in out
    own = fields(SCHEMAS.get(command, SCHEMAS["run"]))
    data = fields(DataConfig) if "data" in {field.name for field in own} else ()
    for field in (*own, *fields(ModelConfig), *data):
        assert f"{field.name}: " in out or field.name in ("model", "method", "data", "timing"), field.name
    assert "hydra" not in out


def test_help_has_the_settings_of_the_chosen_method(lazybench):
    out = lazybench("run", "method=static_pruning", "-h")[1]
    assert all(f"{key}:" in out for key in yaml.safe_load((CONF / "method/static_pruning.yaml").read_text()))


def test_usage_has_every_command(lazybench):
    for word in ("--help", "help"):
        code, out, _ = lazybench(word)
        assert code == 0
        assert all(f"lazybench {command}" in out for command in (*CONFIGURED, *SIMPLE))


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
    lines, text = out.splitlines(), " ".join(out.split())
    assert columns is None or max(map(len, lines)) <= max(columns, len(str(tmp_path)) + 40)
    if columns is None:
        five = [line.split()[0] for line in lines if "[one of the paper's five]" in line]
        assert five == ["baseline", "lazyllm", "prompt_compression", "random_drop", "static_pruning"]
    assert text.count(f"mine Keeps the first half of it. [{tmp_path}]") == 2
    assert all(name in text for name in ("llama2_7b", "table1 Tables 1 and 2", "multidoc_qa", "repobench-p"))


def test_the_settings_that_a_command_line_comes_to(lazybench):
    code, out, _ = lazybench("run", "--cfg", "job", "task=code", "model=llama2_7b")
    assert code == 0
    settings = yaml.safe_load(out)
    assert (settings["task"], settings["model"]["name"]) == ("code", "llama2_7b")
    assert "hydra" not in settings


@pytest.mark.parametrize(
    ("line", "choices"),
    [
        ("lazybench st", [*CONFIGURED, *SIMPLE]),
        ("lazybench run method=static", ["method=static_pruning"]),
        ("lazybench run -m method=lazyllm,baseline timing.wa", ["timing.warmup="]),
        ("lazybench status ", []),
    ],
)
def test_a_shell_completes(lazybench, monkeypatch, line, choices):
    monkeypatch.setenv("COMP_LINE", line)
    code, out, _ = lazybench("-sc", "query=bash")
    assert (code, out.split()) == (0, choices)


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
    code = "import sys; from lazybench.__main__ import main; sys.argv = ['', 'run', '--help']; main(); "
    code += "sys.exit(bool({'torch', 'transformers', 'pandas'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], env=os.environ, capture_output=True).returncode == 0
