"""Results are those of the code there is: an edit of a user's method, metric or tokenizer makes another run."""

from __future__ import annotations

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


def write(folder: Path, **modules: str) -> None:
    """Write modules; `a_b` is `b` in the package `a`, and `a_init` the package itself."""
    forget(folder)
    for name, text in modules.items():
        path = folder / f"{name.replace('_', '/').replace('/init', '/__init__')}.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)


def digest(target: str) -> dict[str, str]:
    """The digests of the code of a method whose class `target` names."""
    module, _, name = target.rpartition(".")
    made = getattr(importlib.import_module(module), name)()
    return own_code.digests(made, {"method": {"_target_": target}}, ())


@pytest.mark.parametrize(
    ("edit", "counts"),
    [
        ({"way": "import helper\n\n# a remark\nclass Way:\n  keep   = (0.5)\n"}, False),
        ({"way": "import helper\nclass Way:\n    keep = 0.6\n"}, True),
        ({"helper": "from deeper import base\nx = 2\n"}, True),
        ({"deeper": "base = 2\n"}, True),
        ({"apart": "y = 2\n"}, False),
    ],
)
def test_what_a_method_imports_counts_and_its_layout_does_not(place, edit, counts):
    write(
        place,
        way="import helper\nclass Way:\n    keep = 0.5\n",
        helper="from deeper import base\nx = 1\n",
        deeper="base = 1\n",
        apart="y = 1\n",
    )
    before = digest("way.Way")
    assert list(before) == ["way"]
    write(place, **edit)
    assert (digest("way.Way") != before) == counts


@pytest.mark.parametrize("edited", ["kit_init", "kit_way", "kit_late", "kit_part"])
def test_all_of_a_package_that_a_method_reaches_counts(place, edited):
    sources = {
        "kit_init": "version = 1\n",
        "kit_way": "from . import part\nclass Way:\n    def go(self):\n        import kit.late\n",
        "kit_late": "a = 1\n",
        "kit_part": "b = 1\n",
        "kit_apart": "c = 1\n",
    }
    write(place, **sources)
    before = digest("kit.way.Way")
    write(place, kit_apart="c = 2\n")
    assert digest("kit.way.Way") == before
    write(place, **{edited: sources[edited] + "z = 1\n"})
    assert digest("kit.way.Way") != before


def test_installed_packages_do_not_count_unless_the_method_is_in_one(tmp_path, place, monkeypatch):
    packages = tmp_path / "site-packages"
    packages.mkdir()
    monkeypatch.syspath_prepend(packages)
    write(packages, plugin="class Way: pass\n")
    write(
        place,
        mine="import plugin, json, torch\nclass Way: pass\n",
        other="import plugin\nclass Way(plugin.Way): pass\n",
    )
    before = [digest(target) for target in ("mine.Way", "plugin.Way", "other.Way")]
    assert [list(one) for one in before] == [["mine"], ["plugin"], ["other", "plugin"]]
    write(packages, plugin="class Way: x = 1\n")
    forget(place)
    after = [digest(target) for target in ("mine.Way", "plugin.Way", "other.Way")]
    assert [one == two for one, two in zip(before, after, strict=True)] == [True, False, False]
    forget(packages)


def test_what_settings_name_counts_and_the_project_itself_does_not(place):
    write(place, tokens="def make(): pass\n")
    settings = {"tokenizer": {"_target_": "tokens.make", "inner": [{"_target_": "lazybench.config.plain"}]}}
    found = own_code.digests(object(), settings, {"qa_f1_zh", "count"})
    assert list(found) == ["tokens"]


def test_a_sweep_keeps_to_the_code_that_it_loaded(place):
    write(place, way="class Way: pass\n")
    before = digest("way.Way")
    (place / "way.py").write_text("class Way: x = 1\n")
    assert digest("way.Way") == before
    forget(place)
    assert digest("way.Way") != before


def test_a_method_that_was_edited_runs_again_and_says_so(run, lazybench, tmp_path, place):
    (place / "method").mkdir()
    (place / "method" / "ends.yaml").write_text("_target_: ends.Ends\nname: ends\n")
    words = ("--config-dir", str(place), "method=ends")
    write(place, ends=METHOD)
    assert run(*words)[0] == 0
    (folder,) = folders(tmp_path / "runs")
    assert list(yaml.safe_load((folder / "config.yaml").read_text())["code"]) == ["ends"]
    write(place, ends="# a remark\n" + METHOD)
    assert "finished earlier" in run(*words)[1]
    write(place, ends=METHOD.replace("-self.ends", "self.ends"))
    assert "1 of them with records to run" in run(*words, command="plan")[1]
    code, out, err = run(*words)
    assert code == 0, err
    assert "since then the code of ends changed: results would not compare, so it begins anew in" in out
    first, second = (
        rows(folder) for folder in sorted(folders(tmp_path / "runs"), key=lambda path: path.stat().st_mtime)
    )
    assert [row["prediction"] for row in first] != [row["prediction"] for row in second]
    assert "finished earlier" in run(*words)[1]


def test_a_metric_that_was_edited_scores_again(run, tmp_path, place):
    (place / "data").mkdir()
    record = {"_id": "1", "input": "Who?", "context": "Ada.", "answers": ["Ada"], "length": 1, "dataset": "mine"}
    (place / "mine.jsonl").write_text(json.dumps(record | {"language": "en", "all_classes": None}) + "\n")
    (place / "data" / "own.yaml").write_text(
        f"name: own\nsource: longbench\nroot: {place}\ndatasets:\n"
        "  mine: {prompt: '{context} {input}', max_new_tokens: 2, metric: always.score}\n"
    )
    words = ("--config-dir", str(place), "method=baseline", "data=own", "task=mine")
    for score in (0.25, 0.75):
        write(place, always=f"def score(prediction, reference, all_classes):\n    return {score}\n")
        code, _, err = run(*words)
        assert code == 0, err
    assert sorted(rows(folder)[0]["score"] for folder in folders(tmp_path / "runs")) == [0.25, 0.75]
