"""A checkpoint's generation config: settings that change answers count and are reported, others are ignored."""

import json
import re
import shutil
from functools import cache

import pytest
import torch
from marks import slow
from peers import ask
from support import LAZY, rows
from transformers import LlamaForCausalLM

from lazybench.config import ModelConfig
from lazybench.methods import build_method
from lazybench.methods.base import answer
from lazybench.model.loading import load_model
from lazybench.model.prompts import Prompt

METHODS = {
    "baseline": {"_target_": "lazybench.methods.baseline.Baseline", "name": "baseline"},
    "lazyllm": {"_target_": "lazybench.methods.lazyllm.LazyLLM", "name": "lazyllm", "schedule": "1:0.5"},
}
# Settings of a checkpoint that change no answer here, and those that do.
IGNORED = [
    {"do_sample": True, "temperature": 0.1, "top_k": 3, "num_return_sequences": 2},
    {"num_beams": 4, "num_return_sequences": 4, "early_stopping": True, "length_penalty": 2.0},
    {"num_beam_groups": 2, "num_beams": 2, "diversity_penalty": 0.5, "constraints": [1], "force_words_ids": [[5]]},
    {"max_length": 5, "max_new_tokens": 2, "max_time": 1e-9, "min_new_tokens": 99},
    {"token_healing": True, "penalty_alpha": 0.6, "dola_layers": "low", "is_assistant": True},
    {"use_cache": False},
    {"cache_implementation": "static", "max_cache_len": 4096},
    {"schedule": "2:0.1", "protect": [[0, 60]]},
]
COUNTED = [
    {"repetition_penalty": 1.3},
    {"no_repeat_ngram_size": 2},
    {"guidance_scale": 1.5},
    {"suppress_tokens": [153]},
    {"sequence_bias": [[[153], -99.0]]},
    {"forced_eos_token_id": 8},
    {"watermarking_config": {"greenlist_ratio": 0.25, "bias": 2.0}},
]
IDS = torch.randint(3, 200, (1, 60), generator=torch.Generator().manual_seed(1))
QUICK = ("data.limit=1", "timing.per_dataset=0")


@pytest.fixture
def copy(tiny_model, tmp_path):
    """Copy the tiny model and change its generation config; returns the folder."""

    def call(name="changed", **values):
        folder = shutil.copytree(tiny_model, tmp_path / name)
        path = folder / "generation_config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | values))
        return folder

    return call


@cache
def answered(folder, method):
    """Answer by the model in a folder; return the tokens."""
    model = load_model(ModelConfig(name="x", path=str(folder), limit=100, device="cpu"))
    method = build_method(dict(METHODS[method]))
    method.prepare(model)
    (output,) = answer(method, ask(model, Prompt(IDS, None, None, ""), 8, [2]))
    return output.tokens


@pytest.mark.parametrize("values", [*IGNORED[:2], *map(slow, IGNORED[2:])], ids=str)
def test_decoding_is_greedy_of_one_sequence_with_a_cache_of_its_own(copy, tiny_model, values):
    folder = copy(**values)
    assert [answered(folder, method) for method in METHODS] == [answered(tiny_model, method) for method in METHODS]


@pytest.mark.parametrize("values", [COUNTED[0], *map(slow, COUNTED[1:])], ids=str)
def test_settings_that_change_answers_act_as_in_transformers(copy, tiny_model, values):
    unmodified = LlamaForCausalLM.from_pretrained(copy(**values))
    expected = unmodified.generate(IDS, max_new_tokens=8, do_sample=False, eos_token_id=2)[0, IDS.shape[1] :].tolist()
    assert answered(unmodified.name_or_path, "baseline") == expected != answered(tiny_model, "baseline")
    assert answered(unmodified.name_or_path, "lazyllm") != answered(tiny_model, "lazyllm")


def test_an_answer_ends_at_the_checkpoints_stop_string(ran, copy, tokenizer):
    words = {token for sign in "abcdefgh" for token in tokenizer(sign, add_special_tokens=False).input_ids}
    others = [token for token in range(len(tokenizer)) if token not in words]

    def answer(name: str, **stop: list[str]) -> str:
        folder = copy(name, suppress_tokens=others, **stop)
        (row,) = rows(ran(*LAZY, *QUICK, f"model.path={folder}", "trace=true", output=name))
        assert row.get("error") is None
        return row["prediction"]

    complete = answer("complete")
    stop = complete[2:4]
    assert answer("stopped", stop_strings=["no letters", stop]) == complete.partition(stop)[0] + stop != complete


def test_runs_and_headings_have_the_settings_that_change_answers(ran, lazybench, undrawn, copy, tmp_path):
    settings = {"repetition_penalty": 1.3, "prefill_chunk_size": 64, "temperature": 0.1, "no_repeat_ngram_size": 0}
    counted = {"repetition_penalty": 1.3, "prefill_chunk_size": 64}
    for name, folder, expected in (("plain", copy("a"), {}), ("changed", copy("b", **settings), counted)):
        written = ran("method=baseline", *QUICK, f"model.path={folder}", f"model.name={name}") / "environment.json"
        assert json.loads(written.read_text())["generation_config"] == expected
    code, out, err = lazybench("report", f"runs={tmp_path / 'runs'}", f"output={tmp_path / 'report'}")
    assert code == 0, err
    assert re.search(r"changed on .*, generation config repetition_penalty=1\.3, prefill_chunk_size=64\n", out)
    assert out.count("generation config") == 1
