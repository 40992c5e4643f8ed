"""Weights and tokenizers that are damaged, hostile or missing: one line names them and says what to do."""

from __future__ import annotations

import json
import os
import pickle
import shutil

import pytest
import torch
from support import LAZY, folders, one_line
from transformers import LlamaForCausalLM

from lazybench.config import ModelConfig
from lazybench.errors import LazyBenchError
from lazybench.model import environment
from lazybench.model.loading import load_model, load_tokenizer, weights_format


@pytest.fixture
def copy(tiny_model, tmp_path):
    """The tiny model's folder, to be damaged."""
    return shutil.copytree(tiny_model, tmp_path / "model")


def change(path, **values):
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


@pytest.mark.parametrize("size", [0, 4, 8, 1000, -1])
def test_safetensors_cut_short_are_named(refused, copy, size):
    path = copy / "model.safetensors"
    path.write_bytes(path.read_bytes()[:size])
    said = refused(copy)
    assert f"{path}: SafetensorError" in said
    assert "a folder must hold whole config.json, tokenizer and .safetensors files" in said


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json"])
def test_broken_json_is_named_with_its_line(refused, copy, name):
    path = copy / name
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    number = whole[: len(whole) // 2].count(b"\n") + 1
    assert f"{path}:{number}: not JSON: " in refused(copy)
    path.write_bytes(b"[1]")
    assert f"{path}: must hold a JSON object, not a list" in refused(copy)
    path.write_bytes(b"\xff" * 20)
    assert f"{path}: 'utf-8' codec can't decode" in refused(copy)


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"model_type": "nonesuch"}, "`nonesuch`"),
        ({"model_type": "t5"}, "AutoModelForCausalLM"),
        ({"hidden_size": "big"}, "Field 'hidden_size' expected int, got str"),
        ({"num_attention_heads": 0}, "ZeroDivisionError"),
        ({"hidden_size": 64}, "other sizes than its configuration says"),
        ({"num_hidden_layers": 6}, "lack 18 of the model's weights, such as model.layers.4.input_layernorm.weight"),
        ({"model_type": "gpt2"}, "of the model's weights, such as transformer."),
        ({"rope_parameters": {"rope_type": "nope"}}, "'nope'"),
        ({"quantization_config": {"quant_method": "hqq"}}, "(install it, or choose a model and settings that do"),
    ],
)
def test_a_configuration_that_does_not_fit_the_weights(refused, copy, values, says):
    change(copy / "config.json", **values)
    assert says in refused(copy)


@pytest.mark.parametrize(
    ("missing", "says"),
    [
        (["config.json"], "the folder has no config.json ("),
        (["model.safetensors"], "the folder has no weights (.safetensors) ("),
        (["tokenizer.json"], "the folder has no tokenizer (tokenizer.json) ("),
        (["tokenizer.json", "tokenizer_config.json"], "the folder has no tokenizer (tokenizer.json) ("),
        (["config.json", "tokenizer.json"], "the folder has no config.json and no tokenizer (tokenizer.json) ("),
    ],
)
def test_missing_files(refused, copy, missing, says):
    for name in missing:
        (copy / name).unlink()
    said = refused(copy)
    assert says in said
    assert "a folder must hold whole config.json, tokenizer and .safetensors files" in said


@pytest.mark.parametrize("names", [[], ["README.md", "notes.txt"]])
def test_a_folder_without_a_model_says_what_it_lacks(refused, tmp_path, names):
    (tmp_path / "folder").mkdir()
    for name in names:
        (tmp_path / "folder" / name).write_text("text\n")
    said = refused(tmp_path / "folder")
    assert "has no config.json, no weights (.safetensors) and no tokenizer (tokenizer.json)" in said


@pytest.mark.parametrize("inside", ["weights.gguf", "checkpoint-3/config.json", "snapshots/0123/config.json"])
def test_a_folder_around_a_model_says_where_it_is(refused, tmp_path, inside):
    path = tmp_path / "folder" / inside
    path.parent.mkdir(parents=True)
    path.write_bytes(b"")
    model = path if path.suffix == ".gguf" else path.parent
    assert f"(a model is in {model}: give model.path={model})" in refused(tmp_path / "folder")


def test_a_file_of_weights_is_no_model(refused, copy):
    assert "is a file: give the folder of a model, or a .gguf file" in refused(copy / "model.safetensors")


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({}, "float32"),
        ({"dtype": "bfloat16"}, "bfloat16"),
        ({"dtype": None}, "dtype not stated"),
        ({"quantization_config": {"quant_method": "gptq", "bits": 4}}, "gptq, 4-bit"),
        ({"quantization_config": {"quant_method": "bitsandbytes", "load_in_8bit": True}}, "bitsandbytes, 8-bit"),
        ({"quantization_config": {"quant_method": "fp8"}}, "fp8"),
    ],
)
def test_the_format_of_a_checkpoint_is_what_its_config_states(copy, values, says):
    change(copy / "config.json", **values)
    assert weights_format(ModelConfig(name="x", path=str(copy), limit=100, dtype="float16")) == says


def test_random_weights_have_no_format():
    assert (
        weights_format(ModelConfig(name="x", path="some/model", limit=100, shape={"model_type": "llama"})) == "random"
    )


def test_a_run_says_what_its_weights_and_its_results_are(run, tmp_path):
    assert run(*LAZY)[0] == 0
    about = json.loads((folders(tmp_path / "runs")[0] / "environment.json").read_text())
    assert about["weights_format"] == "float32"
    assert about["results_version"] == environment.RESULTS_VERSION


def test_missing_shards(refused, copy):
    (copy / "model.safetensors").rename(copy / "model-00001-of-00002.safetensors")
    shards = {"lm_head.weight": "model-00002-of-00002.safetensors"}
    (copy / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": shards}))
    assert "model-00002-of-00002.safetensors" in refused(copy)


def test_attention_that_an_architecture_lacks(refused, tiny_model, monkeypatch):
    monkeypatch.setattr(LlamaForCausalLM, "_supports_sdpa", False)
    said = refused(tiny_model)
    assert "it does not run on the attention that model.attention names (set another, or take another model)" in said


def test_a_tokenizer_without_a_chat_template(refused, copy):
    (copy / "chat_template.jinja").write_text("")
    config = ModelConfig(name="x", path=str(copy), limit=100, chat="template")
    with pytest.raises(LazyBenchError, match=r"model\.chat=template.*has no chat template: set model.chat to a text"):
        load_tokenizer(config)


def test_a_chat_template_that_fails_is_one_line(run, copy):
    (copy / "chat_template.jinja").write_text("{% if %}\n")
    code, _, err = run(*LAZY, f"model.path={copy}", "model.chat=template")
    assert f"the chat template of {copy} failed" in one_line(code, err)


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("CUDA out of memory"), MemoryError()])
def test_weights_that_do_not_fit_into_memory(refused, tiny_model, monkeypatch, error):
    def fail(*args, **kwargs):
        raise error

    monkeypatch.setattr(LlamaForCausalLM, "from_pretrained", fail)
    assert "does not fit into the memory of cpu as torch.float32: set a narrower model.dtype" in refused(tiny_model)


def test_an_interrupt_while_loading_is_no_damage(copy, monkeypatch):
    def interrupt(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr(LlamaForCausalLM, "from_pretrained", interrupt)
    with pytest.raises(KeyboardInterrupt):
        load_model(ModelConfig(name="x", path=str(copy), limit=100))


class Hostile:
    """Makes a file when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("kind", ["zip", "plain"])
def test_a_hostile_pickle_is_refused_and_does_nothing(refused, copy, tmp_path, kind):
    (copy / "model.safetensors").unlink()
    bait, path = tmp_path / "bait", copy / "pytorch_model.bin"
    if kind == "zip":
        torch.save({"lm_head.weight": Hostile(bait)}, path)
    else:
        path.write_bytes(pickle.dumps(Hostile(bait), protocol=2))
    assert "pickled weights are damaged or hold more than tensors (convert them to .safetensors)" in refused(copy)
    assert not bait.exists()
    pickle.loads(pickle.dumps(Hostile(bait)))
    assert bait.exists()  # so it would have


def test_safetensors_are_taken_before_a_pickle_beside_them(copy, tmp_path):
    (copy / "pytorch_model.bin").write_bytes(pickle.dumps(Hostile(tmp_path / "bait")))
    load_model(ModelConfig(name="x", path=str(copy), limit=100))
    assert not (tmp_path / "bait").exists()


def test_plain_tensors_in_a_pickle_are_read(copy, tiny_model):
    weights = LlamaForCausalLM.from_pretrained(tiny_model).state_dict()
    (copy / "model.safetensors").unlink()
    torch.save(weights, copy / "pytorch_model.bin")
    loaded = load_model(ModelConfig(name="x", path=str(copy), limit=100)).state_dict()
    assert all(torch.equal(loaded[name], weight) for name, weight in weights.items())


@pytest.mark.parametrize("part", ["config.json", "tokenizer_config.json"])
def test_remote_code_is_refused_and_nobody_is_asked(refused, copy, tmp_path, monkeypatch, part):
    bait = tmp_path / "bait"
    (copy / "code.py").write_text(f"import os\nos.mkdir({str(bait)!r})\n")
    if part == "config.json":
        places = {"AutoConfig": "code.Config", "AutoModelForCausalLM": "code.Model"}
        change(copy / part, model_type="mine", auto_map=places)
    else:
        change(copy / part, tokenizer_class="Mine", auto_map={"AutoTokenizer": ["code.Mine", None]})

    def ask(*words):
        raise AssertionError("a question")

    monkeypatch.setattr("builtins.input", ask)
    said = refused(copy)
    assert "it comes with Python code of its own (set model.trust_remote_code=true if you trust that code)" in said
    assert not bait.exists()
