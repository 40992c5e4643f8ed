"""Weights and tokenizers: their identity and format, and broken files, refused in one line."""

import json
import os
import re
import shutil
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
import transformers
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from marks import slow_but
from support import LAZY, byte_tokenizer, method_settings, one_line

from lazybench.config import CONF, ModelConfig
from lazybench.errors import LazyBenchError
from lazybench.methods import build_method
from lazybench.model.generation_config import greedy
from lazybench.model.loading import (
    load_model,
    load_skeleton,
    load_tokenizer,
    locate,
    tokenizer_fingerprint,
    weights_format,
)

CONFIGS = {path.stem: yaml.safe_load(path.read_text()) for path in sorted((CONF / "model").glob("*.yaml"))}
OUTLINES = {name: config for name, config in CONFIGS.items() if "path" in config and "outline" in config}
SIZES = {"llama2_7b": (6_738_415_616, 4096), "xgen_7b": (6_895_702_016, 8192)}  # weights and positions


def config(path: object, **changes) -> ModelConfig:
    return ModelConfig(**{"name": "x", "path": str(path), "limit": 100, **changes})


@pytest.fixture
def copy(tiny_model, tmp_path):
    """The tiny model's folder, to be damaged."""
    return shutil.copytree(tiny_model, tmp_path / "model")


def change(path: Path, **values: object) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def refusal(load, model_config: ModelConfig) -> str:
    """Return the line with which a load is refused."""
    with pytest.raises(LazyBenchError) as caught:
        load(model_config)
    message = str(caught.value)
    assert "\n" not in message
    assert f"model.path={model_config.path}" in message
    return message


@settings(max_examples=9, deadline=None)
@given(position=st.floats(0, 0.98))
@pytest.mark.parametrize(("name", "share"), [("weights.bin", 0.01), ("tokenizer.json", 1e-7)])
def test_a_changed_file_gives_another_identity(tmp_path_factory, name, share, position):
    """A hundredth of a file of weights is changed, as by the merge of an adapter; or one byte of a tokenizer."""
    folder, content = tmp_path_factory.mktemp("model"), bytearray(9 << 20)
    identities = set()
    for part in (b"", b"\1" * max(1, int(share * len(content)))):
        start = int(position * len(content))
        content[start : start + len(part)] = part
        (folder / name).write_bytes(content)
        identities.add(locate(config(folder)).identity(config(folder)))
    assert len(identities) == 2


@pytest.mark.parametrize("name", ["config.json", "generation_config.json", "model.safetensors"])
@pytest.mark.parametrize("share", [0, 0.9])
def test_a_file_cut_short_is_refused(copy, name, share):
    content = (copy / name).read_bytes()
    (copy / name).write_bytes(content[: int(share * len(content))])
    assert "a folder that save_pretrained wrote" in refusal(load_model, config(copy))


@pytest.mark.parametrize("missing", ["config.json", "model.safetensors", "tokenizer.json"])
def test_a_missing_file_is_refused_before_anything_is_written(run, copy, tmp_path, missing):
    (copy / missing).unlink()
    message = one_line(*run(*LAZY, f"model.path={copy}")[::2])
    assert re.search(f"model.path={copy}.*a folder that save_pretrained wrote", message)
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"model_type": "nonesuch"}, "`nonesuch`"),
        ({"num_hidden_layers": 6}, "lack 18 of the model's weights, such as model.layers.4.input_layernorm.weight"),
        ({"model_type": "gpt2"}, "of the model's weights, such as transformer."),
        ({"auto_map": {"AutoConfig": "code.Config"}, "model_type": "mine"}, "needs model.trust_remote_code=true"),
    ],
)
def test_a_configuration_that_does_not_fit_the_weights(copy, monkeypatch, values, message):
    monkeypatch.setattr("builtins.input", lambda *words: pytest.fail("a question"))
    change(copy / "config.json", **values)
    assert message in refusal(load_model, config(copy))


def test_a_hostile_pickle_is_refused_and_does_nothing(copy, tmp_path):
    class Hostile:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "bait"),)

    (copy / "model.safetensors").unlink()
    torch.save({"lm_head.weight": Hostile()}, copy / "pytorch_model.bin")
    refusal(load_model, config(copy))
    assert not (tmp_path / "bait").exists()


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({}, "float32"),
        ({"dtype": "bfloat16"}, "bfloat16"),
        ({"quantization_config": {"quant_method": "gptq", "bits": 4}}, "gptq, 4-bit"),
        ({"quantization_config": {"quant_method": "bitsandbytes", "load_in_8bit": True}}, "bitsandbytes, 8-bit"),
        ({"quantization_config": {"quant_method": "fp8"}}, "fp8"),
    ],
)
def test_the_format_of_a_checkpoint_is_what_its_config_states(copy, values, message):
    change(copy / "config.json", **values)
    assert weights_format(config(copy, dtype="float16")) == message


@pytest.mark.parametrize(
    ("kind", "message"),
    [("MOSTLY_Q4_K_M", "GGUF Q4_K_M, 4-bit, dequantised"), ("MOSTLY_BF16", "GGUF BF16"), (None, "GGUF")],
)
def test_the_format_of_a_gguf_file_is_what_its_header_states(tmp_path, kind, message):
    writer = gguf.GGUFWriter(tmp_path / "x.gguf", "llama")
    if kind is not None:
        writer.add_file_type(gguf.LlamaFileType[kind])
    writer.add_token_list(["a", "bc"])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    assert weights_format(config(tmp_path / "x.gguf")) == message
    assert "cannot be loaded" in refusal(load_tokenizer, config(tmp_path / "x.gguf"))


def test_eager_attention_is_for_models_that_have_no_other(tiny_model):
    with pytest.raises(LazyBenchError, match="use sdpa"):
        load_skeleton(config(tiny_model, attention="eager"))


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """An empty cache of Hugging Face's."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache/lazybench"


@pytest.fixture
def write_gguf(tmp_path, cache):
    """Write a Llama of one layer with quantised weights and a byte tokenizer, as a `.gguf` file."""
    ids = byte_tokenizer().get_vocab()
    vocabulary = [*sorted(ids, key=ids.get), "ab"]
    shapes = {"attn_q": (64, 64), "attn_k": (32, 64), "attn_v": (32, 64), "attn_output": (64, 64)}
    shapes |= {"ffn_gate": (96, 64), "ffn_up": (96, 64), "ffn_down": (64, 96), "attn_norm": (64,), "ffn_norm": (64,)}
    shapes = {f"blk.0.{name}": shape for name, shape in shapes.items()}
    shapes |= {"token_embd": (len(vocabulary), 64), "output_norm": (64,)}

    def write(missing: str = "") -> Path:
        writer = gguf.GGUFWriter(tmp_path / "tiny.gguf", "llama")
        writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q8_0)
        writer.add_context_length(256)
        writer.add_block_count(1)
        writer.add_embedding_length(64)
        writer.add_feed_forward_length(96)
        writer.add_head_count(4)
        writer.add_head_count_kv(2)
        writer.add_layer_norm_rms_eps(1e-5)
        writer.add_vocab_size(len(vocabulary))
        writer.add_tokenizer_model("gpt2")
        writer.add_token_list(vocabulary)
        writer.add_token_merges(["a b"])
        writer.add_bos_token_id(0)
        writer.add_eos_token_id(1)
        random = np.random.default_rng(0)
        for name, shape in shapes.items():
            if name == missing:
                continue
            values = random.standard_normal(shape, np.float32)
            kind = gguf.GGMLQuantizationType.F32 if values.ndim == 1 else gguf.GGMLQuantizationType.Q8_0
            writer.add_tensor(f"{name}.weight", gguf.quants.quantize(values, kind), raw_dtype=kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return tmp_path / "tiny.gguf"

    return write


def test_gguf_weights_are_loaded_dequantised(write_gguf, monkeypatch):
    given = {}
    monkeypatch.setattr(transformers.AutoModelForCausalLM, "from_pretrained", lambda *_, **kwargs: given.update(kwargs))
    with pytest.raises(TypeError):  # what the stand-in returns is no model
        load_model(config(write_gguf()))
    if hasattr(transformers, "GgufConfig"):
        assert given["quantization_config"].dequantize is True
    else:
        assert "quantization_config" not in given


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_copy_of_a_gguf_file_is_equal_to_it(write_gguf, cache, capsys, dtype):
    path = write_gguf()
    given, files = config(path, dtype=dtype, device="cpu"), {"gguf_file": path.name}
    expected = transformers.AutoModelForCausalLM.from_pretrained(path.parent, dtype=dtype, **files)
    tokenizer = transformers.AutoTokenizer.from_pretrained(path.parent, **files)
    assert tokenizer_fingerprint(load_tokenizer(given)) == tokenizer_fingerprint(tokenizer)
    for _ in range(2):
        model = load_model(given)
        weights, expected_weights = model.state_dict(), expected.state_dict()
        assert weights.keys() == expected_weights.keys()
        assert all(weights[name].dtype == value.dtype for name, value in expected_weights.items())
        assert all(torch.equal(weights[name], value) for name, value in expected_weights.items())
        assert model.generation_config.to_dict() == greedy(expected.generation_config).to_dict()
    assert capsys.readouterr().out.count("copied tiny.gguf as safetensors, 0.0 GB") == 1
    assert len(list(cache.iterdir())) == 1
    (path.parent / "generation_config.json").write_text('{"repetition_penalty": 1.5}')
    assert load_model(given).generation_config.repetition_penalty == 1.5


def test_processes_may_copy_a_gguf_file_at_once(write_gguf, cache):
    path = write_gguf()
    with ProcessPoolExecutor(2, get_context("fork")) as pool:
        first, second = pool.map(_first_weight, [path, path])
    assert first == second == _first_weight(path)
    assert len(list(cache.iterdir())) == 1


def _first_weight(path: Path) -> list[float]:
    return next(load_model(config(path, device="cpu")).parameters()).flatten().tolist()


def test_a_gguf_file_that_lacks_weights_is_not_copied(write_gguf, cache):
    path = write_gguf(missing="blk.0.ffn_up")
    assert "lack 1 of the model's weights, such as model.layers.0.mlp.up_proj" in refusal(load_model, config(path))
    assert not cache.exists()


def test_a_gguf_file_is_loaded_without_a_copy(write_gguf, cache, monkeypatch, capsys):
    """It is large, or the cache cannot be written. A process looks again once the file has another time."""
    path = write_gguf()
    monkeypatch.setattr("lazybench.model.loading._MOST_BYTES", 0)
    weight = _first_weight(path)
    assert not cache.exists()
    monkeypatch.setenv("LAZYBENCH_COPY_LARGE", "1")
    cache.parent.write_text("")
    os.utime(path, (0, 0))
    assert _first_weight(path) == weight
    assert f"{cache}" in capsys.readouterr().out
    cache.parent.unlink()
    os.utime(path, (1, 1))
    assert _first_weight(path) == weight
    assert len(list(cache.iterdir())) == 1


@pytest.mark.parametrize("name", slow_but(SIZES, OUTLINES))
def test_a_models_size_is_known_without_the_hub_and_it_can_be_pruned(name, offline):
    model = load_skeleton(ModelConfig(**OUTLINES[name]))
    size = sum(weight.numel() for weight in model.parameters()), model.config.get_text_config().max_position_embeddings
    assert SIZES.get(name, size) == size
    build_method(method_settings("static_pruning" if name == "qwen3_5_9b" else "lazyllm")).check(model)


def test_a_cached_model_is_used_without_the_hub(offline, ran, run, tiny_model, tmp_path):
    commit = "0123456789abcdef0123456789abcdef01234567"
    repository = tmp_path / "hub/models--some--tiny"
    shutil.copytree(tiny_model, repository / "snapshots" / commit)
    (repository / "refs").mkdir()
    (repository / "refs/main").write_text(commit)
    folder = ran(*LAZY, "model.path=some/tiny", "data.limit=1", "timing.per_dataset=0")
    assert f"some/tiny@{commit}" in (folder / "config.yaml").read_text()
    code, _, err = run(*LAZY, "model.path=some/other")
    assert "HF_HUB_OFFLINE=1 is set, and the local cache lacks it (connect to the hub" in one_line(code, err)
