"""XGen's tokenizer: its ids are tiktoken's, it is saved and loaded like any other, and a config names it."""

import json
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from paper_tokenizers import END, SPECIAL, gpt2_folder, xgen_decode, xgen_encode, xgen_encoding
from paper_tokenizers import xgen_tokenizer as tokenizer
from support import byte_tokenizer, save_tiny_model

from lazybench.config import CONF, ModelConfig
from lazybench.errors import LazyBenchError
from lazybench.model.loading import load_tokenizer
from lazybench.run.resources import Resources

VECTORS = Path(__file__).parents[2].parent / "shared" / "xgen" / "vectors.jsonl"
BUILD = "lazybench.model.xgen_tokenizer.build"


def named(tokenizer: dict) -> ModelConfig:
    return ModelConfig(name="x", path="some/model", limit=100, tokenizer=tokenizer)


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
    for first, sign, longest in ((50257, " ", 31), (50287, "\t", 9)):
        for length in range(longest, 1, -1):
            assert tokenizer()(sign * length).input_ids == [first + longest - length]
    assert set(tokenizer().all_special_ids) == set(SPECIAL.values())
    assert tokenizer()("").input_ids == []  # nothing is put around a text
    assert (tokenizer().bos_token, tokenizer().eos_token, tokenizer().pad_token) == (None, END, END)


_RUNS = [*" \t\n-=_*#.a0", "\r\n", " \t", "ÃÂ", "\u00a0", "東"]
_CODE = ["def f(x):\n", "    return", "'s", "'ll", " I'm", "1234", "x = {'a': 1}", "<sep", "<mask_88", "🙂\u200d"]
_PIECES = st.one_of(
    st.text(max_size=12),
    st.text(alphabet=" \t\n\r\u00a0\u2028\u3000", max_size=12),
    st.builds(str.__mul__, st.sampled_from(_RUNS), st.integers(1, 140)),
    st.sampled_from(_CODE),
    st.sampled_from(list(SPECIAL)),
)


@settings(max_examples=200, deadline=None)
@given(st.lists(_PIECES, max_size=30).map("".join))
def test_any_text_is_tiktokens(text):
    """Its ids, and the text of any part of them."""
    ids = tokenizer()(text).input_ids
    assert ids == xgen_encode(text)
    assert tokenizer().decode(ids) == text
    half = ids[len(ids) // 3 :]  # may begin within a character
    assert tokenizer().decode(half) == xgen_encoding().decode(half)
    assert tokenizer().decode(ids, skip_special_tokens=True) == xgen_decode(ids)


@pytest.mark.parametrize("content", [None, b"", b"[1, 2]", b'{"a": 0}', "two tokens in each other's place"])
def test_another_vocabulary_is_refused(tmp_path, content):
    if isinstance(content, str):
        ids = json.loads((gpt2_folder() / "encoder.json").read_text("utf-8"))
        content = json.dumps(ids | {"the": ids["The"], "The": ids["the"]}).encode()
    if content is not None:
        (tmp_path / "vocab.json").write_bytes(content)
    with pytest.raises(LazyBenchError) as error:
        load_tokenizer(named({"_target_": BUILD, "vocabulary": str(tmp_path)}))
    assert str(error.value).startswith(f"model.tokenizer.vocabulary={tmp_path}")
    assert "\n" not in str(error.value)


def test_the_config_names_it_unless_the_folder_has_one_of_its_own(tmp_path):
    conf = yaml.safe_load((CONF / "model" / "xgen_7b.yaml").read_text())
    conf["tokenizer"]["vocabulary"] = str(gpt2_folder())
    assert len(load_tokenizer(ModelConfig(**conf))) == 51200
    save_tiny_model(tmp_path, byte_tokenizer())
    assert len(load_tokenizer(ModelConfig(**conf | {"path": str(tmp_path)}))) == 258
    for path in tmp_path.glob("*token*"):
        path.unlink()
    bare = ModelConfig(**conf | {"path": str(tmp_path)})
    assert len(load_tokenizer(bare)) == 51200
    assert "+" in Resources().weights(bare)  # the vocabulary's content counts
