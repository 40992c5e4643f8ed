"""`lazybench map`: a page of what became of a prompt's tokens."""

from __future__ import annotations

import json
import re
from html import unescape

import pytest
import yaml
from support import one_line

BROKEN = """
from dataclasses import dataclass

from lazybench.methods import OnEngine, Output


@dataclass
class Broken(OnEngine):
    schedule: str = "1:0.5"
    mute: bool = False

    def generate(self, prompt, decode, seed):
        if self.mute:
            return Output(decode(prompt.ids), prompt_computed=1.0)
        raise ArithmeticError("it broke")
"""


@pytest.fixture
def page(tmp_path):
    return tmp_path / "pages" / "map.html"


@pytest.fixture
def call(lazybench, six_layers, page):
    """Call `lazybench map` on the tiny model; returns (exit code, what it printed, stderr)."""

    def call(*words):
        settings = {
            "model.path": six_layers,
            "model.name": "tiny",
            "model.chat": "null",
            "model.limit": 300,
            "data.limit": 2,
            "data.tokens": 512,
            "new_tokens": 6,
            "output": page,
            "task": "2wikimqa",
        }
        given = {word.partition("=")[0] for word in words} | ({"task"} if "text=" in " ".join(words) else set())
        return lazybench("map", *(f"{key}={value}" for key, value in settings.items() if key not in given), *words)

    return call


@pytest.fixture
def broken(tmp_path):
    """The words that choose a method that breaks."""
    (tmp_path / "method").mkdir()
    (tmp_path / "broken.py").write_text(BROKEN)
    method = {"_target_": "broken.Broken", "name": "broken", "schedule": "1:0.5", "mute": False}
    (tmp_path / "method" / "broken.yaml").write_text(yaml.safe_dump(method))
    return ("--config-dir", str(tmp_path), "method=broken")


def read(page):
    """The titles of the methods on a page, and its data."""
    text = page.read_text("ascii")
    data = json.loads(re.search(r'<script type="application/json" id=data>(.*?)</script>', text)[1])
    return [unescape(title) for title in re.findall("<h2>(.*?)</h2>", text)], data


def test_methods_stand_side_by_side(call, page):
    code, out, err = call("method=lazyllm,lazyllm+,static_pruning")
    assert code == 0, err
    titles, data = read(page)
    assert titles == ["LazyLLM 23%:0.6,50%:0.6", "LazyLLM+ 23%:0.6,50%:0.6", "static pruning layer=4 keep=0.5"]
    assert f"saved in {page}" in out
    tokens = len(data["prompt"])
    assert 290 <= tokens <= 310
    assert f"<dd>{tokens} tokens</dd>" in page.read_text()
    for of, fractions in zip(data["maps"], ([1, 0.6, 0.36], [1, 0.6, 0.36], [1, 0.5]), strict=True):
        reached = [sum(depth >= stage for depth in of["depths"]) / tokens for stage in range(len(fractions))]
        assert reached == pytest.approx(fractions, abs=0.01)
        assert of["totals"] == [tokens + step for step in range(6)]
        assert len(of["answer"]) == 6
    revived = [sum(len(found) for step in of["revived"] for found in step) for of in data["maps"]]
    assert revived[0] > 0 == revived[2]


def test_settings_stand_side_by_side(call, page):
    code, _, err = call("method=lazyllm", "method.schedule=[1:0.5],[1:0.5,3:0.25]")
    assert code == 0, err
    titles, data = read(page)
    assert titles == ["LazyLLM 1:0.5", "LazyLLM 1:0.5,3:0.25"]
    assert [max(of["depths"]) for of in data["maps"]] == [1, 2]


def test_a_record_goes_by_its_number_or_its_id(call, page):
    texts = []
    for words in ((), ("record=0",), ("record=1",)):
        code, out, err = call(*words)
        assert code == 0, err
        texts.append("".join(read(page)[1]["prompt"]))
    assert texts[0] == texts[1] != texts[2]
    code, again, err = call(f"record={re.search('record 2wikimqa ([0-9a-f]{32})', out)[1]}")
    assert code == 0, err
    assert "".join(read(page)[1]["prompt"]) == texts[2]
    assert again == out


def test_a_prompt_of_ones_own(call, page, tmp_path):
    prompt = 'Which is it: "</script>", naïve or 😀?\n' * 3
    (tmp_path / "mine.txt").write_text(prompt, "utf-8")
    code, _, err = call(
        f"text={tmp_path / 'mine.txt'}", "method=fastkv", "method.layer=2", "model.chat='Q: {prompt} A:'"
    )
    assert code == 0, err
    titles, data = read(page)
    assert titles == ["FastKV layer=2 keep=0.2"]
    assert "".join(data["prompt"]) == f"<s>Q: {prompt} A:"
    assert "<dd>mine.txt</dd>" in page.read_text()
    assert str(tmp_path) not in page.read_text()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["method=baseline"], "method baseline does not run on LazyLLM's engine"),
        (["method=lazyllm,random_drop"], "method random_drop does not run on LazyLLM's engine"),
        (["method=gemfilter"], "choose one that does, such as lazyllm"),
        (["method=lazyllm,lazzyllm"], "did you mean 'lazyllm'"),
        (["method=lazyllm,static_pruning", "method.layer=2"], "method lazyllm has no setting 'layer'"),
        (["method.schedule=[5:0.5]"], "the model has 6 layers"),
        (["method.schedule=1:0.5,3:0.5"], "may be one schedule of 2 stages"),
        (["method.schedule=[1:1.0]"], "nothing was pruned"),
        (["task=2wikimqa,lcc"], "task= has several values"),
        (["record=0,1"], "record= has several values"),
        (["record=7"], "record=7: task=2wikimqa has 2 records here"),
        (["record="], "give a number from 0 to 1"),
        (["+experiment=figure6"], "there is no setting 'timing'"),
        (["record=no_such_id"], "give a number from 0 to 1, or the _id of one"),
        (["task=null"], "give task=multidoc_qa, or a prompt in a file"),
        (["task=multidocqa"], "did you mean 'multidoc_qa'"),
        (["text=/no/such/file"], "text=/no/such/file cannot be read"),
        (["text=/dev/null"], "is empty"),
        (["text=/dev/null", "task=code"], "leave out task="),
        (["text=/dev/null", "record=1"], "leave out record="),
        (["new_tokens=0"], "new_tokens=0 is out of range"),
        (["new_tokens=4000"], "4096 positions"),
        (["output="], "output= is empty"),
        (["output=/"], "output=/ is a folder"),
        (["output=/dev/null/map.html"], "cannot be written"),
        (["--config-name", "config"], "leave out --config-name"),
        (["--config-n=config"], "leave out --config-name"),
        (["lengths=[5]"], "there is no setting 'lengths'"),
    ],
)
def test_what_cannot_be_shown_is_said_in_one_line(call, page, words, says):
    code, _, err = call(*words)
    assert says in one_line(code, err)
    assert not page.parent.exists()


def test_a_prompt_that_is_too_long_is_not_cut(call, page, tmp_path):
    (tmp_path / "long.txt").write_text("word " * 100)
    said = one_line(*call(f"text={tmp_path / 'long.txt'}")[::2])
    assert "long.txt has 501 tokens: set model.limit, now 300" in said
    assert not page.exists()


def test_the_file_with_the_prompt_stays(call, tmp_path):
    mine = tmp_path / "mine.txt"
    mine.write_text("Who?")
    assert "is the file of text=, too" in one_line(*call(f"text={mine}", f"output={mine}")[::2])
    assert mine.read_text() == "Who?"


def test_a_method_that_breaks_leaves_the_page_that_was_there(call, page, broken):
    page.parent.mkdir()
    page.write_text("an earlier page")
    code, _, err = call(*broken)
    assert code == 2
    assert "in generate" in err
    assert err.splitlines()[-1] == "lazybench: method broken: generate raised ArithmeticError: it broke"
    assert "did not record where each token is computed" in one_line(*call(*broken, "method.mute=true")[::2])
    assert [path.name for path in page.parent.iterdir()] == ["map.html"]
    assert page.read_text() == "an earlier page"


def test_the_settings_can_be_shown(call, page):
    code, out, err = call("--cfg", "job", "method=static_pruning")
    assert code == 0, err
    assert yaml.safe_load(out)["method"]["name"] == "static_pruning"
    code, out, _ = call("--help")
    assert code == 0
    assert "lazybench map" in out
    assert not page.exists()
