"""Results are those of the code there is: an edit of a user's method, metric or tokenizer makes another run."""

import importlib
import json
import sys
from pathlib import Path

import pytest
import yaml
from support import folders, rows

from lazybench.run import own_code

METHOD = """
from dataclasses import dataclass

from lazybench.methods import Method, Output


@dataclass
class Ends(Method):
    ends: int = 100

    def generate(self, prompt, decode, seed):
        return Output(decode(prompt.ids[:, -self.ends :]), prompt_computed=0.5)
"""


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder of modules; what is imported from it is forgotten at the end."""
    folder = tmp_path / "own"
    folder.mkdir()
    monkeypatch.syspath_prepend(folder)
    yield folder
    forget(folder)


def forget(folder: Path) -> None:
    """As in a new process: import the modules in a folder anew when they are asked for."""
    for name, module in list(sys.modules.items()):
        if str(folder) in str(getattr(module, "__file__", "")):
            del sys.modules[name]
    importlib.invalidate_caches()


def write(folder: Path, modules: dict[str, str]) -> None:
    """Write modules by their paths without the ending."""
    forget(folder)
    for name, text in modules.items():
        path = folder / f"{name}.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)


def digest(target: str) -> dict[str, str]:
    """The digests of the code of a method whose class `target` names."""
    module, _, name = target.rpartition(".")
    made = getattr(importlib.import_module(module), name)()
    return own_code.digests(made, {"method": {"_target_": target}}, ())


BESIDE = {
    "way": "import helper\nfrom kit import part\nclass Way: pass\n",
    "helper": "from deeper import base\n",
    "deeper": "base = 1\n",
    "apart": "y = 1\n",
    "kit/__init__": "version = 1\n",
    "kit/part": "b = 1\n",
}
PACKAGE = {
    "kit/__init__": "version = 1\n",
    "kit/way": "from . import part\nclass Way:\n    def go(self):\n        import kit.late\n",
    "kit/late": "a = 1\n",
    "kit/part": "b = 1\n",
    "kit/apart": "c = 1\n",
}


@pytest.mark.parametrize(("sources", "target"), [(BESIDE, "way.Way"), (PACKAGE, "kit.way.Way")])
def test_what_a_method_names_counts_and_what_lies_apart_does_not(place, sources, target):
    write(place, sources)
    before = digest(target)
    assert list(before) == [target.removesuffix(".Way")]
    for name, text in sources.items():
        write(place, {name: text + "z = 1\n"})
        assert (digest(target) != before) == ("apart" not in name), name
        write(place, {name: "# a remark\n\n" + text})
    assert digest(target) == before


def test_what_settings_name_counts_and_the_project_itself_does_not(place):
    write(place, {"tokens": "def make(): pass\n"})
    importlib.import_module("tokens")
    settings = {"tokenizer": {"_target_": "tokens.make", "inner": [{"_target_": "lazybench.config.plain"}]}}
    assert list(own_code.digests(object(), settings, {"qa_f1_zh", "count"})) == ["tokens"]


def test_a_sweep_keeps_to_the_code_that_it_loaded(place):
    write(place, {"way": "class Way: pass\n"})
    before = digest("way.Way")
    (place / "way.py").write_text("class Way: x = 1\n")
    assert digest("way.Way") == before
    forget(place)
    assert digest("way.Way") != before


def test_a_method_that_was_edited_runs_again_and_says_so(run, tmp_path, place):
    (place / "method").mkdir()
    (place / "method" / "ends.yaml").write_text("_target_: ends.Ends\nname: ends\n")
    words = ("--config-dir", str(place), "method=ends", "timing.warmup=0", "timing.paired=false", "data.limit=1")
    write(place, {"ends": METHOD})
    assert run(*words)[0] == 0
    (folder,) = folders(tmp_path / "runs")
    assert list(yaml.safe_load((folder / "config.yaml").read_text())["code"]) == ["ends"]
    write(place, {"ends": METHOD.replace("-self.ends", "self.ends")})
    assert "1 of them with records to run" in run(*words, command="plan")[1]
    code, out, err = run(*words)
    assert code == 0, err
    assert "since then the code of ends changed: results would not compare, so it begins anew" in out
    assert len(folders(tmp_path / "runs")) == 2
    assert "finished earlier" in run(*words)[1]


def test_a_metric_that_was_edited_scores_again(run, tmp_path, place):
    (place / "data").mkdir()
    record = {"_id": "1", "input": "Who?", "context": "Ada.", "answers": ["Ada"], "length": 1, "dataset": "mine"}
    (place / "mine.jsonl").write_text(json.dumps(record | {"language": "en", "all_classes": None}) + "\n")
    (place / "data" / "own.yaml").write_text(
        f"name: own\nsource: longbench\nroot: {place}\ndatasets:\n"
        "  mine: {prompt: '{context} {input}', max_new_tokens: 2, metric: always.score}\n"
    )
    words = ("--config-dir", str(place), "method=baseline", "data=own", "task=mine", "timing.warmup=0")
    for score in (0.25, 0.75):
        write(place, {"always": f"def score(prediction, reference, all_classes):\n    return {score}\n"})
        code, _, err = run(*words)
        assert code == 0, err
    assert sorted(rows(folder)[0]["score"] for folder in folders(tmp_path / "runs")) == [0.25, 0.75]
