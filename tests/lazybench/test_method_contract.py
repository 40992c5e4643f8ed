"""A method of one's own that breaks its contract ends the run with one line, and scores nothing."""

from __future__ import annotations

import json

import pytest
import torch
from support import byte_tokenizer, folders, one_line, rows, save_tiny_model
from transformers import AutoModelForCausalLM

from lazybench.config import ModelConfig
from lazybench.data.facts import DatasetFacts
from lazybench.data.record import Record
from lazybench.methods.base import answer
from lazybench.methods.baseline import Baseline
from lazybench.methods.claa import CLAA
from lazybench.methods.fastkv import FastKV
from lazybench.methods.gemfilter import GemFilter
from lazybench.methods.lazyllm import LazyLLM
from lazybench.methods.random_drop import RandomDrop
from lazybench.methods.sliminfer_like import SlimInferLike
from lazybench.methods.snapkv import SnapKV
from lazybench.methods.specprefill import SpecPrefill
from lazybench.methods.static_pruning import StaticPruning
from lazybench.model.decoding import Decoder
from lazybench.model.prompts import Prompt, PromptBuilder

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
        if self.way == "tokens":
            return tokens
        endless, undefined = float("inf"), float("nan")
        amounts = {"negative": -3, "zero": 0, "endless": endless, "undefined": undefined, "text": "all", "flag": True}
        return Output(tokens, prompt_computed=(amounts | {"twice_computed": 1.5}).get(self.way, 0.5))
"""


@pytest.fixture
def careless(run, tmp_path):
    (tmp_path / "careless.py").write_text(CARELESS)
    (tmp_path / "method").mkdir()
    (tmp_path / "method" / "careless.yaml").write_text("_target_: careless.Careless\nname: careless\nway: none\n")
    return lambda way, *words: run("--config-dir", str(tmp_path), "method=careless", f"method.way={way}", *words)


@pytest.mark.parametrize(
    ("way", "says"),
    [
        ("never", "did not call decode"),
        ("twice", "decode was called twice in one answer"),
        ("shape", "decode was given a tensor of torch.int64 and shape"),
        ("in_place", "changed prompt.ids in place"),
        ("other", "returned other tokens than decode did"),
        ("tokens", "returned a list: return lazybench.methods.Output"),
        ("negative", "prompt_computed=-3: it is a number above 0, 1 for the whole prompt"),
        ("zero", "prompt_computed=0:"),
        ("endless", "prompt_computed=inf:"),
        ("undefined", "prompt_computed=nan:"),
        ("text", "prompt_computed='all':"),
        ("flag", "prompt_computed=True:"),
    ],
)
def test_a_broken_contract_is_one_line_and_no_row(careless, tmp_path, way, says):
    code, _, err = careless(way)
    assert says in one_line(code, err)
    for folder in folders(tmp_path / "runs"):
        assert not (folder / "predictions.jsonl").exists() or not rows(folder)


@pytest.mark.parametrize(("way", "computed"), [("none", 0.5), ("twice_computed", 1.5)])
def test_a_method_that_keeps_it_runs(careless, tmp_path, way, computed):
    code, out, err = careless(way, "trace=true")
    assert code == 0, err
    assert f"{computed:.2%}".removesuffix("%") in out
    (folder,) = folders(tmp_path / "runs")
    assert [row["prompt_computed"] for row in rows(folder)] == [computed, computed]
    assert json.loads((folder / "scores.json").read_text())["datasets"]["2wikimqa"]["records"] == 2


@pytest.mark.parametrize(
    "method",
    [
        Baseline("baseline"),
        RandomDrop("random_drop", keep=0.5),
        StaticPruning("static_pruning", layer=1, keep=0.5),
        LazyLLM("lazyllm", schedule="1:0.5"),
        LazyLLM("lazyllm+", schedule="1:0.5", importance={"queries": 4, "pooling": 3, "first": 2}),
        GemFilter("gemfilter", layer=1, keep=0.5),
        FastKV("fastkv", layer=1, keep=0.5),
        SpecPrefill("specprefill", keep=0.5),
        CLAA("claa", layer=1, keep=0.5),
        SnapKV("snapkv", keep=0.5),
        SlimInferLike("sliminfer_like", schedule="1:0.5"),
    ],
    ids=lambda method: method.name,
)
def test_a_prompt_of_one_token_is_answered(tmp_path, method):
    tokenizer = byte_tokenizer()
    model = AutoModelForCausalLM.from_pretrained(save_tiny_model(tmp_path, tokenizer)).eval()
    record = Record(id="1", dataset="one", context="", input="", answers=("a",), all_classes=None, length=0)
    facts = DatasetFacts("one", prompt="{context}", max_new_tokens=6, metric="qa_f1", chat=False)
    config = ModelConfig(name="tiny", path=str(tmp_path), limit=100, chat=None)
    prompt = Prompt(torch.tensor([[9]]), record, PromptBuilder(tokenizer, config, facts), text="")
    method.prepare(model)
    output = answer(method, prompt, Decoder(model, max_new_tokens=6), seed=0)
    assert output.tokens[0] == Decoder(model, max_new_tokens=1)(prompt.ids)[0]
    assert len(output.tokens) == 6
