"""GGUF files: whole ones run and say what they hold, damaged ones are refused in one line."""

from __future__ import annotations

import random

import gguf
import numpy
import pytest
import yaml
from support import LAZY, folders, rows
from transformers import LlamaForCausalLM

from lazybench.config import CONF, ModelConfig
from lazybench.errors import LazyBenchError
from lazybench.model.loading import load_model, load_tokenizer, weights_format

_TENSORS = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
}


@pytest.fixture(scope="module")
def tiny_gguf(tiny_model, tokenizer, tmp_path_factory):
    """The tiny model as one GGUF file; its bytes, and where its metadata and its tensors begin to end."""
    path = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
    model = LlamaForCausalLM.from_pretrained(tiny_model)
    config, vocabulary = model.config, tokenizer.get_vocab()
    tokens = [*sorted(vocabulary, key=vocabulary.get), "ab", "cd"]
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(tokens)
    writer.add_token_types([gguf.TokenType.CONTROL] * 2 + [gguf.TokenType.NORMAL] * (len(tokens) - 2))
    writer.add_token_merges(["a b", "c d"])
    writer.add_bos_token_id(tokenizer.bos_token_id)
    writer.add_eos_token_id(tokenizer.eos_token_id)
    model.resize_token_embeddings(len(tokens))
    weights = model.state_dict()
    names = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"} | {
        f"blk.{layer}.{short}": f"model.layers.{layer}.{long}"
        for layer in range(config.num_hidden_layers)
        for short, long in _TENSORS.items()
    }
    for short, long in names.items():
        writer.add_tensor(f"{short}.weight", weights[f"{long}.weight"].numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path.read_bytes()


def test_a_whole_gguf_file_runs(run, tmp_path, tiny_gguf):
    (tmp_path / "tiny.gguf").write_bytes(tiny_gguf)
    code, _, err = run(*LAZY, f"model.path={tmp_path / 'tiny.gguf'}", "data.limit=1")
    assert code == 0, err
    assert rows(folders(tmp_path / "runs")[0])[0]["score"] is not None


@pytest.mark.parametrize(
    "share",
    [0, 2, 4, 12, 23, 24, 40, 300, 2000, 0.05, 0.5, 0.999],
    ids=lambda share: f"{share} of the file" if isinstance(share, float) else f"{share} bytes",
)
def test_a_gguf_file_cut_short_is_refused(refused, tmp_path, tiny_gguf, share):
    path = tmp_path / "cut.gguf"
    path.write_bytes(tiny_gguf[: int(share * len(tiny_gguf)) if isinstance(share, float) else share])
    said = refused(path)
    assert f"a file of {path.stat().st_size:,} bytes; get it again if it is damaged or cut short" in said


def test_a_gguf_file_of_garbage_is_refused(refused, tmp_path):
    path = tmp_path / "garbage.gguf"
    for begin in (b"", b"GGUF", b"GGUF\3\0\0\0"):
        path.write_bytes(begin + random.Random(0).randbytes(4000))
        assert "cannot be loaded" in refused(path)


def test_damage_anywhere_in_a_gguf_files_header_is_one_line_or_harmless(tmp_path, tiny_gguf):
    path, draw = tmp_path / "damaged.gguf", random.Random(0)
    config = ModelConfig(name="x", path=str(path), limit=100)
    said = []
    for _ in range(40):
        damaged = bytearray(tiny_gguf)
        for _ in range(3):
            damaged[draw.randrange(8000)] = draw.randrange(256)
        path.write_bytes(damaged)
        said += [message(load, config) for load in (load_tokenizer, load_model)]
        assert "\n" not in message(weights_format, config)
    assert all("\n" not in line for line in said)
    assert sum(map(bool, said)) > len(said) / 2


def message(load, config):
    """What a load says that is refused; empty for one that is not."""
    try:
        load(config)
    except LazyBenchError as error:
        return str(error)
    return ""


@pytest.mark.parametrize(
    ("sizes", "says"),
    [
        ({"F32": 96, "Q8_0": 64, "Q4_1": 128}, "GGUF Q4_1, 4-bit, dequantised"),
        ({"F32": 32, "Q8_0": 128, "Q4_1": 96}, "GGUF Q8_0, 8-bit, dequantised"),
        ({"F32": 32, "BF16": 64}, "GGUF BF16"),
        ({"F32": 32}, "GGUF F32"),
    ],
)
def test_the_format_of_a_gguf_file_is_that_of_most_weights(tmp_path, sizes, says):
    path = tmp_path / "mixed.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_token_list(["a", "bc"])
    for name, size in sizes.items():
        kind = gguf.GGMLQuantizationType[name]
        writer.add_tensor(name, gguf.quants.quantize(numpy.ones((1, size), "float32"), kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    assert weights_format(ModelConfig(name="x", path=str(path), limit=100)) == says


def test_the_embedded_weights_are_4_bit():
    settings = yaml.safe_load((CONF / "model" / "smollm2_135m.yaml").read_text())
    assert weights_format(ModelConfig(**settings)) == "GGUF Q4_1, 4-bit, dequantised"
