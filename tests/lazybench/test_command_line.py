"""Bad settings, help, listing and completion."""

from __future__ import annotations

import pytest
import yaml
from support import LAZY, one_line


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["task=multidoc"], "did you mean 'multidoc_qa'"),
        (["method=lazzyllm"], "did you mean 'lazyllm'"),
        (["methd=lazyllm"], "did you mean 'method'"),
        (["method=lazyllm", "method.shedule=1"], "did you mean 'method.schedule'"),
        (["method=lazyllm", "method.schedule=1"], "not layer:keep"),
        (["method=lazyllm", "method.schedule=[1:0.5,1:0.4]"], "must increase"),
        (["method=lazyllm", "method.schedule=[3:0.5]"], "the model has 4 layers"),
        (["model.limit=many"], "model.limit=many"),
        (["model.limit=1"], "at least 2"),
        (["model.limit=4090"], "4096 positions"),
        (["model.dtype=int8"], "choose one of: auto, float32"),
        (["model.attention=magic"], "choose one of: sdpa"),
        (["model.path=/no/such/folder"], "no such folder"),
        (["model.path=./none.gguf"], "no such file"),
        (["model.path=package:no_such_package/x.gguf"], "is not installed"),
        (["model.chat=hello"], "{prompt}"),
        (["model.chat=template"], "no chat template"),
        (["model.device=cuda:7"], "; use model.device=cpu or auto"),
        (["model.device=xpu"], "model.device=xpu is not available here: "),
        (["data.limit=0"], "at least 1"),
        (["data.limit=null"], "give a number"),
        (["data.tokens=12"], "512"),
        (["data=longbench", "data.root=/no/such/folder"], "/no/such/folder"),
        (["timing.warmup=-1"], "at least 0"),
        (["method._target_=no.such.Class"], "method._target_"),
        (["model.attention=eager"], "choose one of: sdpa"),
        (["model.name=../other"], "names a folder"),
        (["data.name=a/b"], "names a folder"),
        (["method.name=a/b"], "names a folder"),
        (["method=baseline", "+method.repeats=0"], "at least 1"),
        (["method._target_=builtins.dict"], "not a lazybench.methods.Method"),
    ],
)
def test_bad_settings_end_in_one_line_and_leave_nothing(run, tmp_path, words, says):
    code, _, err = run(*words)
    assert code == 2
    lines = [line for line in err.splitlines() if line.strip()]
    assert len(lines) == 1, err
    assert says in lines[0]
    assert not (tmp_path / "runs").exists()


def test_a_missing_task_is_named(lazybench):
    code, _, err = lazybench("run")
    assert code == 2
    assert "task" in err
    assert len(err.strip().splitlines()) == 1


def test_output_that_cannot_be_written(run, tmp_path):
    (tmp_path / "runs").write_text("a file, not a folder")
    code, _, err = run(*LAZY)
    assert code == 2
    assert "cannot be written" in err


def test_help_list_and_completion(lazybench, monkeypatch):
    for word in ("--help", "help"):
        code, out, _ = lazybench(word)
        assert code == 0
        assert "lazybench run" in out
    code, out, _ = lazybench("run", "--help")
    assert code == 0
    assert "method: baseline" in out
    assert "records a dataset at most" in out
    code, out, _ = lazybench("run", "--cfg", "job", "task=code")
    assert code == 0
    assert yaml.safe_load(out)["task"] == "code"
    code, out, _ = lazybench("list")
    assert code == 0
    assert all(name in out for name in ("lazyllm", "llama2_7b", "xgen_7b", "multidoc_qa", "repobench-p"))
    for line, expected in [
        ("lazybench sc", "score"),
        ("lazybench run method=l", "method=lazyllm"),
        ("lazybench plan model=x", "model=xgen_7b"),
        ("lazybench speed method=l", "method=lazyllm"),
        ("lazybench match data=l", "data=longbench"),
        ("lazybench calibrate model=x", "model=xgen_7b"),
        ("lazybench run method=lazyllm task=mult", "task=multidoc_qa"),
        ("lazybench run -m task=code,hot", "task=code,hotpotqa"),
        ("lazybench run task=chin", "task=chinese"),
    ]:
        monkeypatch.setenv("COMP_LINE", line)
        monkeypatch.setenv("COMP_POINT", str(len(line)))
        code, out, _ = lazybench("-sc", "query=bash")
        assert expected in out.split()
    code, _, err = lazybench("rum")
    assert code == 2
    assert "did you mean 'run'" in err


@pytest.mark.parametrize("command", ["status", "report"])
def test_a_bare_folder_is_asked_about(lazybench, tmp_path, command):
    assert f"did you mean runs={tmp_path}?" in one_line(*lazybench(command, str(tmp_path))[::2])
