"""XGen's tokenizer: its ids are tiktoken's, it is saved and loaded like any other, and names a wrong vocabulary."""

from __future__ import annotations

import http.server
import json
import random
import shutil
import threading
from functools import cache
from pathlib import Path

import pytest
import torch
import transformers
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from paper_tokenizers import END, MARKS, SPECIAL, gpt2_folder, xgen_decode, xgen_encode, xgen_encoding
from support import byte_tokenizer, save_tiny_model
from transformers import AutoTokenizer, GPT2Tokenizer, LlamaForCausalLM, PreTrainedTokenizerFast

from lazybench.config import ModelConfig
from lazybench.data import hub
from lazybench.errors import LazyBenchError
from lazybench.model import xgen_tokenizer
from lazybench.model.loading import load_tokenizer, named_tokenizer, tokenizer_fingerprint

VECTORS = Path(__file__).parents[2].parent / "shared" / "xgen" / "vectors.jsonl"
BUILD = "lazybench.model.xgen_tokenizer.build"


@cache
def tokenizer() -> PreTrainedTokenizerFast:
    return xgen_tokenizer.build(str(gpt2_folder()))


def assert_same(text: str) -> None:
    """Ids and text are tiktoken's, the text of any part of the ids as well."""
    ids = tokenizer()(text).input_ids
    assert ids == xgen_encode(text)
    assert tokenizer().decode(ids) == text
    half = ids[len(ids) // 3 :]  # may begin within a character
    assert tokenizer().decode(half) == xgen_encoding().decode(half)
    assert tokenizer().decode(ids, skip_special_tokens=True) == xgen_decode(ids)


@pytest.mark.skipif(not VECTORS.exists(), reason="the published vectors are not beside this checkout")
def test_the_published_vectors():
    vectors = [json.loads(line) for line in VECTORS.read_text("utf-8").splitlines()]
    assert len(vectors) == 48
    for vector in vectors:
        assert tokenizer()(vector["text"]).input_ids == vector["ids"]
        assert xgen_encode(vector["text"]) == vector["ids"]


def test_where_each_kind_of_token_is():
    ids = tokenizer().get_vocab()
    assert len(tokenizer()) == len(ids) == 51200
    assert sorted(ids.values()) == list(range(51200))
    assert {token: ids[token] for token in SPECIAL} == SPECIAL
    named = ("<fim_prefix>", "<reponame>", "<dummy_0>", "<sep>", "<eom>", "<mask_881>", "<mask_1>")
    assert [ids[token] for token in named] == [50295, 50312, 50313, 50317, 50318, 50319, 51199]
    for first, sign, longest in ((50257, " ", 31), (50287, "\t", 9)):
        for length in range(longest, 1, -1):
            assert tokenizer()(sign * length).input_ids == [first + longest - length]
    assert set(tokenizer().all_special_ids) == set(SPECIAL.values())


def test_nothing_is_put_around_a_text():
    assert tokenizer()("").input_ids == []
    assert tokenizer()("a").input_ids == tokenizer().encode("a", add_special_tokens=False) == [64]
    assert tokenizer().bos_token is None
    assert (tokenizer().eos_token, tokenizer().pad_token) == (END, END)
    assert tokenizer().eos_token_id == tokenizer().pad_token_id == 50256
    assert tokenizer().decode(tokenizer()(" a , b . I 'm").input_ids) == " a , b . I 'm"


_RUNS = [*" \t\n-=_*#.a0", "\r\n", " \t", "ÃÂ", "\u00a0", "東"]
_CODE = ["def f(x):\n", "    return", "'s", "'ll", " I'm", "1234", "x = {'a': 1}", "<sep", "<mask_88", "🙂\u200d"]
_PIECES = st.one_of(
    st.text(max_size=12),
    st.text(alphabet=" \t\n\r\u00a0\u2028\u3000", max_size=12),
    st.builds(str.__mul__, st.sampled_from(_RUNS), st.integers(1, 80)),
    st.sampled_from(_CODE),
    st.sampled_from(list(SPECIAL)),
)


@settings(max_examples=600, deadline=None)
@given(st.lists(_PIECES, max_size=30).map("".join))
def test_any_text_is_tiktokens(text):
    assert_same(text)


@pytest.mark.parametrize("seed", range(4))
def test_long_texts_are_tiktokens(seed):
    draw, signs = random.Random(seed), [chr(number) for number in (*range(32, 127), *range(0xA0, 0xD800))]
    tokens = [xgen_encoding().decode([number]) for number in draw.sample(range(50256), 4000)]
    assert_same("".join(draw.choices(tokens, k=6000)))
    assert_same("".join(draw.choices(signs, k=8000)))
    words = ["\n", "    ", "\t\t", "for", " in", " range", "(", ")", ":", "x", "  ", "#", " " * 40, "<sep>", "\r\n"]
    assert_same("".join(draw.choices(words, k=6000)))


@pytest.mark.parametrize("sign", [" ", "\t", "\n", "a", "-", "=", "0", "\u00a0", "東", "ÃÂ", "!?", " \u00a0"])
def test_runs_of_any_length_are_tiktokens(sign):
    for length in (*range(1, 140), 1000, 5000):
        assert tokenizer()(sign * length).input_ids == xgen_encode(sign * length)


@pytest.mark.slow
def test_every_character_is_split_as_tiktoken_splits_it():
    # The other planes hold nothing, or are for private use.
    numbers = [*range(0xD800), *range(0xE000, 0x34000), *range(0xE0000, 0xE0200), 0xF0000, 0x10FFFF]
    # Next to letters, digits, spaces and marks: its kind decides what it stays with.
    texts = [f"a{sign}a {sign}1{sign} {sign}{sign} !{sign}\n" for sign in map(chr, numbers)]
    different = []
    for start in range(0, len(texts), 2048):
        block = texts[start : start + 2048]
        if tokenizer()("".join(block)).input_ids != xgen_encode("".join(block)):
            different += [text for text in block if tokenizer()(text).input_ids != xgen_encode(text)] or block
    assert different == []


def test_saved_and_loaded_it_is_the_same_without_code_of_its_own(tmp_path):
    save_tiny_model(tmp_path, tokenizer())
    assert not list(tmp_path.glob("*.py"))
    assert "auto_map" not in (tmp_path / "tokenizer_config.json").read_text()
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    assert loaded.backend_tokenizer.to_str() == tokenizer().backend_tokenizer.to_str()
    for name in (
        *("eos_token_id", "pad_token_id", "bos_token", "unk_token", "all_special_ids", "model_input_names"),
        *("clean_up_tokenization_spaces", "padding_side", "model_max_length", "vocab_size", "is_fast"),
    ):
        assert getattr(loaded, name) == getattr(tokenizer(), name), name
    assert len(loaded) == 51200
    text = "def f(x):\n\treturn  x , y <sep>\n\n\n        東京 🙂<|endoftext|>"
    assert loaded(text).input_ids == xgen_encode(text)
    assert loaded.decode(loaded(text).input_ids) == text
    assert tokenizer_fingerprint(loaded) == tokenizer_fingerprint(tokenizer())


def test_generate_takes_what_it_gives(tmp_path):
    model = LlamaForCausalLM.from_pretrained(save_tiny_model(tmp_path, tokenizer(), layers=1))
    batch = tokenizer()(["Hello", "What is it?"], return_tensors="pt", padding=True, padding_side="left")
    assert batch.keys() == {"input_ids", "attention_mask"}
    assert batch.attention_mask.tolist() == [[0, 0, 0, 1], [1, 1, 1, 1]]
    output = model.generate(**batch, max_new_tokens=3, do_sample=False)
    assert output.shape == (2, 7)
    assert output.dtype == torch.int64
    assert all(isinstance(text, str) for text in tokenizer().batch_decode(output, skip_special_tokens=True))


@pytest.mark.slow
def test_a_saved_tokenizer_of_gpt2_has_its_vocabulary(tmp_path):
    ids = json.loads((gpt2_folder() / "encoder.json").read_text("utf-8"))
    GPT2Tokenizer(vocab=ids, merges=[]).save_pretrained(tmp_path)
    assert not (tmp_path / "vocab.json").exists()
    loaded = xgen_tokenizer.build(str(tmp_path))
    assert tokenizer_fingerprint(loaded) == tokenizer_fingerprint(tokenizer())
    (tmp_path / "tokenizer.json").write_text("[]")
    with pytest.raises(LazyBenchError, match=r"tokenizer\.json cannot be read"):
        xgen_tokenizer.build(str(tmp_path))


@pytest.fixture
def vocabulary(tmp_path):
    """Write GPT-2's vocabulary, or something else, as a folder's `vocab.json`; returns the folder."""

    def write(content: bytes | None = None) -> Path:
        (tmp_path / "vocabulary").mkdir(exist_ok=True)
        whole = (gpt2_folder() / "encoder.json").read_bytes()
        (tmp_path / "vocabulary" / "vocab.json").write_bytes(whole if content is None else content)
        return tmp_path / "vocabulary"

    return write


@pytest.mark.slow
def test_the_hubs_name_of_the_file_and_openais(vocabulary):
    loaded = xgen_tokenizer.build(str(vocabulary()))
    assert tokenizer_fingerprint(loaded) == tokenizer_fingerprint(tokenizer())


def test_the_hubs_cache_is_enough_offline(tmp_path, monkeypatch):
    place = tmp_path / "models--openai-community--gpt2"
    (place / "snapshots" / ("0" * 40)).mkdir(parents=True)
    (place / "refs").mkdir()
    (place / "refs" / "main").write_text("0" * 40)
    shutil.copyfile(gpt2_folder() / "encoder.json", place / "snapshots" / ("0" * 40) / "vocab.json")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(xgen_tokenizer, "unreachable", lambda: "HF_HUB_OFFLINE=1 is set")
    monkeypatch.setattr("socket.socket.connect", lambda *words: pytest.fail("a connection"))
    assert len(xgen_tokenizer.build()) == 51200
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "empty"))
    with pytest.raises(LazyBenchError) as error:
        xgen_tokenizer.build()
    assert str(error.value) == (
        "model.tokenizer.vocabulary=openai-community/gpt2: HF_HUB_OFFLINE=1 is set, and the local cache lacks it (give "
        "the hub's openai-community/gpt2, or a folder that holds its vocab.json, which OpenAI calls encoder.json)"
    )


def test_it_is_fetched_from_the_hub(tmp_path, monkeypatch):
    whole, asked = (gpt2_folder() / "encoder.json").read_bytes(), []

    class Hub(http.server.BaseHTTPRequestHandler):
        def do_HEAD(self):
            asked.append(self.path)
            self.send_response(200)
            self.send_header("Content-Length", str(len(whole)))
            self.send_header("ETag", '"1"')
            self.send_header("X-Repo-Commit", "0" * 40)
            self.end_headers()

        def do_GET(self):
            self.do_HEAD()
            self.wfile.write(whole)

        def log_message(self, *words):
            pass

    hub.unreachable.cache_clear()
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hub) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        template = url + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", url)
        monkeypatch.setattr("huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
        try:
            assert len(xgen_tokenizer.build()) == 51200
        finally:
            server.shutdown()
            hub.unreachable.cache_clear()
    assert asked[-1] == "/openai-community/gpt2/resolve/main/vocab.json"


def changed(change) -> bytes:
    ids = json.loads((gpt2_folder() / "encoder.json").read_text("utf-8"))
    change(ids)
    return json.dumps(ids).encode()


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "cannot be read"),
        (b'{"a": 1', "cannot be read"),
        (b"\xff\xfe", "cannot be read"),
        (b"[1, 2]", "is not GPT-2's vocabulary, or not all of it"),
        (b'{"a": 0}', "is not GPT-2's vocabulary, or not all of it"),
        (lambda: changed(lambda ids: ids.pop("the")), "is not GPT-2's vocabulary, or not all of it"),
        (lambda: changed(lambda ids: ids.update(the=ids["The"], The=ids["the"])), "is not GPT-2's vocabulary"),
    ],
)
def test_another_vocabulary_is_refused(vocabulary, content, says):
    folder = vocabulary(content() if callable(content) else content)
    said = refusal({"_target_": BUILD, "vocabulary": str(folder)})
    assert said.startswith(f"model.tokenizer.vocabulary={folder}: {folder / 'vocab.json'} {says}")
    assert said.endswith("a folder that holds its vocab.json, which OpenAI calls encoder.json)")


def refusal(chosen: dict) -> str:
    """The line that says why no tokenizer comes of `model.tokenizer`."""
    with pytest.raises(LazyBenchError) as error:
        named_tokenizer(chosen)
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.mark.parametrize("path", ["/no/such/folder", "./gpt2", "gpt2", "", None, 3])
def test_a_vocabulary_that_is_nowhere(path):
    said = refusal({"_target_": BUILD, "vocabulary": path})
    assert said.startswith(f"model.tokenizer.vocabulary={path}: ")
    assert "give the hub's openai-community/gpt2, or a folder that holds its vocab.json" in said


def test_a_folder_without_the_file(tmp_path):
    said = refusal({"_target_": BUILD, "vocabulary": str(tmp_path)})
    assert f"vocabulary={tmp_path}: the folder holds none of vocab.json, encoder.json, tokenizer.json" in said


@pytest.mark.parametrize(
    ("chosen", "says"),
    [
        ({"vocabulary": "x"}, "model.tokenizer has no _target_: name a function such as " + BUILD),
        ({"_target_": "builtins.dict"}, "model.tokenizer._target_=builtins.dict does not make a tokenizer"),
        ({"_target_": "no.such.function"}, "model.tokenizer._target_: No module named 'no'"),
        ({"_target_": BUILD, "vocabluary": "x"}, "did you mean 'model.tokenizer.vocabulary'?"),
        ({"_target_": "transformers.AutoTokenizer.from_pretrained"}, "nothing is set for model.tokenizer.pretrained_"),
    ],
)
def test_settings_that_make_no_tokenizer(chosen, says):
    assert says in refusal(chosen)


def xgen(**changes) -> ModelConfig:
    conf = Path(__file__).parents[2] / "conf" / "model" / "xgen_7b.yaml"
    settings = yaml.safe_load(conf.read_text())
    settings["tokenizer"]["vocabulary"] = str(gpt2_folder())
    return ModelConfig(**settings | changes)


def test_the_checkpoints_config_names_it(monkeypatch, capsys):
    monkeypatch.setattr(transformers.AutoTokenizer, "from_pretrained", lambda *words: pytest.fail("the hub's"))
    loaded = load_tokenizer(xgen())
    assert tokenizer_fingerprint(loaded) == tokenizer_fingerprint(tokenizer())
    assert "code" not in capsys.readouterr().out


def test_a_folder_with_a_tokenizer_of_its_own_keeps_it(tmp_path):
    save_tiny_model(tmp_path, byte_tokenizer())
    assert len(load_tokenizer(xgen(path=str(tmp_path)))) == 258
    for path in tmp_path.glob("*token*"):
        path.unlink()
    assert len(load_tokenizer(xgen(path=str(tmp_path)))) == 51200


def test_what_tells_tokenizers_apart():
    same, other = byte_tokenizer(), byte_tokenizer(pad_token="<pad>")
    same(["a", "bcd"], padding=False, truncation=True, max_length=2)  # leaves a trace in the object
    assert tokenizer_fingerprint(same) == tokenizer_fingerprint(byte_tokenizer())
    assert tokenizer_fingerprint(same) != tokenizer_fingerprint(other)
    assert len(tokenizer_fingerprint(tokenizer())) == 16
    assert len(MARKS) == 905
