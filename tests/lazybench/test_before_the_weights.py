"""What needs no weights is checked before they are loaded, so that a user of a large model is told in seconds."""

from __future__ import annotations

import json
import shutil
import sys

import pytest
from support import LAZY, folders, one_line

from lazybench.run import runner, sources


@pytest.fixture
def no_weights(monkeypatch):
    """Nothing may load the model's weights."""
    monkeypatch.setattr(runner, "load_model", lambda config: pytest.fail("the weights were loaded"))


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["method=lazyllm", "method.schedule=[9:0.5]"], "the model has 4 layers"),
        (["method=static_pruning", "method.layer=7"], "the model has 4 layers"),
        ([*LAZY, "model.limit=4090"], "are more than the 4096 positions of tiny: set model.limit=4064 or less"),
        ([*LAZY, "output=taken/runs"], "cannot be written: Not a directory"),
    ],
)
def test_what_cannot_work_is_told_at_once(run, tmp_path, monkeypatch, no_weights, words, says):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "taken").write_text("a file")
    for mode in ([], ["-m"]):
        code, _, err = run(*mode, *words)
        assert says in one_line(code, err)


def test_a_chat_template_that_fails_is_told_at_once(run, tmp_path, tiny_model, no_weights):
    folder = shutil.copytree(tiny_model, tmp_path / "copy")
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    settings["chat_template"] = "{{ messages[0].content.no() }}"
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    (folder / "chat_template.jinja").unlink(missing_ok=True)
    code, _, err = run(*LAZY, f"model.path={folder}", "model.chat=template", "task=2wikimqa")
    assert "the chat template of" in one_line(code, err)


def test_a_metric_that_lacks_its_package_is_told_at_once(run, monkeypatch, no_weights):
    monkeypatch.setitem(sys.modules, "rouge", None)
    code, _, err = run(*LAZY, "task=gov_report")
    assert "metric 'rouge' needs the package 'rouge'" in one_line(code, err)


def test_a_finished_run_prints_its_numbers_and_needs_no_more(run, tmp_path, monkeypatch):
    run(*LAZY)
    (folder,) = folders(tmp_path / "runs")
    monkeypatch.setattr(runner, "load_model", lambda config: pytest.fail("the weights were loaded"))
    monkeypatch.setattr(sources, "load_skeleton", lambda config: pytest.fail("the model was made"))
    code, out, _ = run(*LAZY)
    assert code == 0
    assert "finished earlier: nothing to do" in out
    assert "2wikimqa" in out
    assert str(folder) in out


def test_what_the_weights_are_is_said_with_the_model(run, monkeypatch):
    describe = runner.environment.describe
    found = {"weights_format": "GGUF Q4_1, 4-bit, dequantised"}
    monkeypatch.setattr(runner.environment, "describe", lambda config: describe(config) | found)
    _, out, _ = run(*LAZY)
    assert "model tiny, data sample" in out
    assert "weights: GGUF Q4_1, 4-bit, dequantised\n" in out
