"""Weights and tokenizers that are damaged, hostile or not to be had: one line names them and says what to do."""

from __future__ import annotations

import http.server
import json
import os
import pickle
import random
import shutil
import socket
import subprocess
import sys
import threading
import time
from contextlib import contextmanager

import gguf
import numpy
import pytest
import torch
import yaml
from support import LAZY, folders, one_line, rows
from transformers import LlamaForCausalLM

from lazybench.config import CONF, ModelConfig
from lazybench.data import hub
from lazybench.errors import LazyBenchError
from lazybench.model import environment
from lazybench.model.loading import load_model, load_tokenizer, weights_format

GATED = "meta-llama/Llama-2-7b-chat-hf"
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


@pytest.fixture
def copy(tiny_model, tmp_path):
    """The tiny model's folder, to be damaged."""
    return shutil.copytree(tiny_model, tmp_path / "model")


@pytest.fixture
def refused(run, tmp_path):
    """Run on the weights at a path; what the command says, which left nothing behind."""

    def call(path, *words):
        code, _, err = run(*LAZY, f"model.path={path}", *words)
        assert not (tmp_path / "runs").exists()
        said = one_line(code, err)
        assert f"model.path={path}" in said
        return said

    return call


def change(path, **values):
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


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


def test_random_weights_have_no_format():
    assert (
        weights_format(ModelConfig(name="x", path="some/model", limit=100, shape={"model_type": "llama"})) == "random"
    )


def test_a_run_says_what_its_weights_and_its_results_are(run, tmp_path):
    assert run(*LAZY)[0] == 0
    about = json.loads((folders(tmp_path / "runs")[0] / "environment.json").read_text())
    assert about["weights_format"] == "float32"
    assert about["results_version"] == environment.RESULTS_VERSION


def test_the_embedded_weights_are_4_bit():
    settings = yaml.safe_load((CONF / "model" / "smollm2_135m.yaml").read_text())
    assert weights_format(ModelConfig(**settings)) == "GGUF Q4_1, 4-bit, dequantised"


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


@contextmanager
def hub_that(answers):
    """A hub at a URL of its own: it answers with a status and headers, or (None) never."""
    if answers is None:
        with socket.socket() as silent:
            silent.bind(("127.0.0.1", 0))
            silent.listen(64)
            yield f"http://127.0.0.1:{silent.getsockname()[1]}"
        return
    status, headers = answers

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_HEAD(self):
            self.send_response(status)
            for name, value in {"Content-Length": "0", **headers}.items():
                self.send_header(name, value)
            self.end_headers()

        do_GET = do_HEAD

        def log_message(self, *words):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def on_the_hub(tmp_path, begin="", **environment):
    """What is said of a model of the hub, in a process of its own: its library reads its settings when imported."""
    code = (
        f"{begin}\nimport sys\nfrom lazybench.config import ModelConfig\nfrom lazybench.errors import LazyBenchError\n"
        "from lazybench.model.loading import load_tokenizer\n"
        f"try: load_tokenizer(ModelConfig(name='x', path={GATED!r}, limit=100))\n"
        "except LazyBenchError as error: sys.exit(f'{error}')"
    )
    settings = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "HUGGING"))}
    settings |= {"HF_HOME": str(tmp_path / "home"), "PYTHONPATH": ":".join(sys.path), **environment}
    start = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True, text=True, env=settings, cwd=tmp_path, stdin=subprocess.DEVNULL, timeout=120,
    )  # fmt: skip
    said, seconds = done.stderr.strip(), time.monotonic() - start
    assert done.returncode == 1, said
    assert len(said.splitlines()) == 1, said
    assert f"model.path={GATED} cannot be loaded" in said
    return said, seconds


@pytest.mark.slow
def test_a_gated_model_without_a_token(tmp_path):
    gate = {"X-Error-Code": "GatedRepo", "X-Error-Message": "Access to this model is restricted."}
    with hub_that((401, gate)) as url:
        said, _ = on_the_hub(tmp_path, HF_ENDPOINT=url)
    assert "gated repo" in said
    assert "log in with `hf auth login` if the model is gated, or give a local folder or .gguf file" in said


@pytest.mark.slow
def test_offline_means_no_connection_at_all(tmp_path):
    begin = (
        "import os, socket\n"
        "def refuse(*words): os.write(2, b'a connection\\nwas made\\n'); os._exit(3)\n"
        "socket.socket.connect = socket.socket.connect_ex = socket.create_connection = socket.getaddrinfo = refuse"
    )
    said, _ = on_the_hub(tmp_path, begin, HF_HUB_OFFLINE="1")
    assert "HF_HUB_OFFLINE=1 is set, and the local cache lacks it" in said


@pytest.mark.slow
@pytest.mark.parametrize("answers", [None, (503, {})], ids=["silent", "broken"])
def test_a_hub_that_cannot_be_asked_does_not_hold_up_a_run(tmp_path, answers):
    with hub_that(answers) as url:
        said, seconds = on_the_hub(tmp_path, HF_ENDPOINT=url)
    assert f"{url} " in said
    assert "and the local cache lacks it (connect to the hub, or give a local folder or .gguf file)" in said
    assert seconds < 40  # starting Python included


@pytest.fixture
def endpoint(monkeypatch):
    """Set the hub's URL, as if nothing had been asked of any hub before."""

    def set_url(url):
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", url)
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
        monkeypatch.setattr(hub, "_TIMEOUT", 0.2)
        hub.unreachable.cache_clear()

    yield set_url
    hub.unreachable.cache_clear()


@pytest.mark.parametrize(
    ("answers", "says"), [(None, "cannot be reached"), ((503, {}), "answers with 503"), ((401, {}), None)]
)
def test_whether_the_hub_can_be_asked_is_found_out_with_one_request(endpoint, answers, says):
    with hub_that(answers) as url:
        endpoint(url)
        why = hub.unreachable()
        assert why is None if says is None else says in why
    assert hub.unreachable() == why  # not asked again


def test_a_refused_connection_is_found_out_at_once(endpoint, refused, monkeypatch):
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{nobody.getsockname()[1]}"
    endpoint(url)
    start = time.monotonic()
    assert f"{url} cannot be reached (ConnectError)" in refused("none/such-model")
    assert time.monotonic() - start < 10


@pytest.mark.parametrize("offline", [False, True])
def test_a_cached_model_is_used_without_the_hub(endpoint, run, tiny_model, tmp_path, monkeypatch, offline):
    commit = "0123456789abcdef0123456789abcdef01234567"
    repository = tmp_path / "hub/models--some--tiny"
    shutil.copytree(tiny_model, repository / "snapshots" / commit)
    (repository / "refs").mkdir()
    (repository / "refs/main").write_text(commit)
    with hub_that(None) as url:
        endpoint(url)
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", offline)
        if offline:
            monkeypatch.setattr(socket.socket, "connect", connected)
        code, _, err = run(*LAZY, "model.path=some/tiny", "data.limit=1")
    assert code == 0, err
    (folder,) = folders(tmp_path / "runs")
    assert f"some/tiny@{commit}" in (folder / "config.yaml").read_text()


def connected(*words):
    raise AssertionError("a connection")
