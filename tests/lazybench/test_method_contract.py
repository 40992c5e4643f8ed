"""The contract of a method: ranges of its settings, a prompt of one token, and what is refused."""

import json

import pytest
import torch
from omegaconf import OmegaConf
from peers import prompt_of
from support import byte_tokenizer, folders, rows, save_tiny_model
from transformers import AutoModelForCausalLM

from lazybench.config import CONF
from lazybench.errors import LazyBenchError
from lazybench.methods import build_method
from lazybench.methods.base import answer
from lazybench.model.decoding import Decoder

CARELESS = """
from dataclasses import dataclass

from lazybench.methods import Method, Output


@dataclass
class Careless(Method):
    way: str = "none"

    def generate(self, prompt, decode, seed):
        if self.way == "never":
            return Output([5, 6], prompt_computed=1.0)
        if self.way == "shape":
            return Output(decode(prompt.ids[0]), prompt_computed=1.0)
        if self.way == "in_place":
            prompt.ids[0, 1:5] = 7
        tokens = decode(prompt.ids)
        if self.way == "twice":
            tokens = decode(prompt.ids)
        if self.way == "other":
            tokens = tokens[:-1]
        amounts = {"zero": 0, "undefined": float("nan")}
        return Output(tokens, prompt_computed=(amounts | {"twice_computed": 1.5}).get(self.way, 0.5))
"""
FILES = {path.stem: path for path in (CONF / "method").glob("*.yaml")}


def method(name, **settings):
    return build_method(OmegaConf.to_container(OmegaConf.load(FILES[name])) | settings)


@pytest.fixture
def careless(run, tmp_path):
    (tmp_path / "careless.py").write_text(CARELESS)
    (tmp_path / "method").mkdir()
    (tmp_path / "method" / "careless.yaml").write_text("_target_: careless.Careless\nname: careless\nway: none\n")
    return lambda way, *words: run("--config-dir", str(tmp_path), "method=careless", f"method.way={way}", *words)


@pytest.mark.parametrize(
    ("way", "message"),
    [
        ("never", "did not call decode"),
        ("twice", "decode was called twice in one answer"),
        ("shape", "decode was given a tensor of torch.int64 and shape"),
        ("in_place", "changed prompt.ids in place"),
        ("other", "returned other tokens than decode did"),
        ("zero", "prompt_computed=0: it is a number above 0, 1 for the whole prompt"),
        ("undefined", "prompt_computed=nan:"),
    ],
)
def test_a_broken_contract_is_one_line_and_no_row(careless, tmp_path, way, message):
    code, _, err = careless(way, "timing.paired=false", "data.limit=1", "timing.warmup=0")
    assert code == 2
    assert message in err.splitlines()[-1]  # below the bar
    for folder in folders(tmp_path / "runs"):
        assert not (folder / "predictions.jsonl").exists() or not rows(folder)


@pytest.mark.parametrize(("way", "computed"), [("none", 0.5), ("twice_computed", 1.5)])
def test_a_method_that_keeps_it_runs(careless, tmp_path, way, computed):
    code, out, err = careless(way, "trace=true", "timing.warmup=0")
    assert code == 0, err
    assert f"{computed:.2%}".removesuffix("%") in out
    (folder,) = folders(tmp_path / "runs")
    assert [row["prompt_computed"] for row in rows(folder)] == [computed, computed]
    assert json.loads((folder / "scores.json").read_text())["datasets"]["2wikimqa"]["records"] == 2


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return AutoModelForCausalLM.from_pretrained(save_tiny_model(tmp_path_factory.mktemp("m"), byte_tokenizer())).eval()


@pytest.mark.parametrize("name", FILES)
def test_a_prompt_of_one_token_is_answered(model, name):
    made = method(name)
    if name.startswith("prompt_compression"):
        pytest.skip("without a text there is nothing to compress")
    made.prepare(model)
    prompt = prompt_of(torch.tensor([[9]]), byte_tokenizer())
    output = answer(made, prompt, Decoder(model, max_new_tokens=6), seed=0)
    assert output.tokens[0] == Decoder(model, max_new_tokens=1)(prompt.ids)[0]
    assert len(output.tokens) == 6


WRONG = {
    "keep": (0, 1.01, float("nan"), "half", True),
    "layer": (-1, 1.5, "x", "0%", "100%"),
    "protect": ("all", True),
    "ratio": (1, -0.1, "half"),
    "pooling": (0, 4, "x", 3.0),
    "scorer": ("", 3),
    "window_tokens": (0, "many"),
    "faithful_whitespace": ("yes",),
    "kernel": ("mean", 3),
    "unit": ("word",),
    "scope": ("text",),
    "windows": ("short",),
    "schedule": ("nonsense", "1:0", "2:0.5,1:0.5", "101%:0.5", ["1:0.5", 3]),
    "ranking": ("best", {"poolin": 3}, {"queries": 0}),
} | {count: (0, 1.5, "x") for count in ("repeats", "window")}


@pytest.mark.parametrize("name", FILES)
def test_settings_out_of_range_are_refused(name):
    given = OmegaConf.load(FILES[name]).keys() - {"_target_", "name"}
    assert given <= WRONG.keys()
    for setting in given | {"repeats"}:
        for value in WRONG[setting]:
            with pytest.raises((LazyBenchError), match=rf"method\.{setting}"):
                method(name, **{setting: value})


@pytest.mark.parametrize(
    ("schedule", "text"),
    [
        ("1:0.60, 2:0.5", "1:0.6,2:0.5"),
        (["23%:0.60", "50%:0.6"], "23%:0.60,50%:0.6"),
        (["1:1", "50%:0.5"], "1:1,50%:0.5"),
    ],
)
def test_a_schedule_is_one_text_however_it_is_written(schedule, text):
    made = method("lazyllm", schedule=schedule)
    assert made.schedule == text
