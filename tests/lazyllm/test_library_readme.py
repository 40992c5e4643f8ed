"""The library's README: its examples run as written."""

import re
from pathlib import Path

import families
import pytest
from tokenizers import Tokenizer, decoders
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from transformers import PreTrainedTokenizerFast

import lazyllm

README = Path(lazyllm.__file__).with_name("README.md").read_text("utf-8")
EXAMPLES = re.findall(r"^```python\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def given():
    """What the examples are about: a model deep enough for every schedule, and a tokenizer of one token a byte."""
    alphabet = {sign: index for index, sign in enumerate(sorted(ByteLevel.alphabet()))}
    core = Tokenizer(BPE(vocab=alphabet, merges=[]))
    core.pre_tokenizer, core.decoder = ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core)
    tokenizer.chat_template = "{{ tools }}{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
    messages, tools = [{"role": "user", "content": "What is the name of the tower?"}], [{"name": "maps"}]
    chat = tokenizer.apply_chat_template(messages, tools=tools, return_tensors="pt", return_dict=True)
    shape = {"vocab_size": 256, "num_hidden_layers": 22, "max_position_embeddings": 1024}
    ids, model = families.prompt(510), families.build("llama", **shape)  # more tokens than an example's min_tokens
    given = {"model": model, "ids": ids, "inputs": {"input_ids": ids}, "choices": [[5], [6, 7]], "tokenizer": tokenizer}
    given |= {"messages": messages, "tools": tools, "chat": chat}
    # In a module of its own: a dataclass looks for the one that it is defined in.
    return {**given, "lazyllm": lazyllm, "__name__": __name__}


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda text: text.splitlines()[0])
def test_an_example_runs(example, given):
    scope = dict(given)
    exec(example, scope)
    assert "output" not in scope or scope["output"].shape[1] > 40
    assert "page" not in scope or scope["page"].count("<article") == 1


def test_every_public_name_is_there():
    unnamed = {"Session", "Stage", "LazyLLMError"}
    assert [name for name in lazyllm.__all__ if name not in README and name not in unnamed] == []
    assert all(hasattr(lazyllm, name) for name in lazyllm.__all__)
