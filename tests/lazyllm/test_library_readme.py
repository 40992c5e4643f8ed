"""The library's README: its examples run as written."""

from __future__ import annotations

import re
from pathlib import Path

import families
import pytest
import torch
from own_tokenizers import by_bytes

import lazyllm

README = Path(lazyllm.__file__).with_name("README.md").read_text("utf-8")
EXAMPLES = re.findall(r"^```python\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def readers_model():
    """Deep enough for every schedule of the README."""
    return families.build("llama", num_hidden_layers=22)


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda text: text.splitlines()[0])
def test_an_example_runs(example, readers_model, ids, capsys):
    # In a module of its own: a dataclass looks for the one that it is defined in.
    given = {"lazyllm": lazyllm, "model": readers_model, "inputs": {"input_ids": ids}, "__name__": __name__}
    given |= {"ids": ids, "choices": [[5], [6, 7]], "tokenizer": by_bytes()}
    exec(example, given)
    if "best" in given:
        assert given["best"] in (0, 1)
    if "output" in given:
        assert given["output"].shape[1] > ids.shape[1]
    if "page" in given:
        assert given["page"].count("<article") == 1
    if "print(lazy.schedule)" in example:
        assert "after layer 4 keep 0.6" in capsys.readouterr().out


def test_the_ranking_of_ones_own_is_by_the_loudest_head(ids):
    (example,) = (text for text in EXAMPLES if "class LoudestHead" in text)
    model = families.build("llama")
    given = {"model": model, "inputs": {"input_ids": ids}, "__name__": __name__}
    exec(example, given)
    with lazyllm.enable(model, [(1, 0.5)], selection=given["LoudestHead"](recent=4), record_positions=True) as lazy:
        families.generate(model, ids, 3)
    model.set_attn_implementation("eager")
    with torch.no_grad():
        loudness = model(ids, output_attentions=True).attentions[1][0, :, -1].amax(dim=0)
    loudness[-4:] = 2
    expected = loudness.topk(20).indices.sort().values
    assert torch.equal(lazy.stats.positions[0][2], expected)
    assert len([line for line in example.splitlines() if line.strip()]) <= 20


def test_every_public_name_is_there():
    unnamed = {"Session", "Stage", "LazyLLMError"}
    assert [name for name in lazyllm.__all__ if name not in README and name not in unnamed] == []
    assert all(hasattr(lazyllm, name) for name in lazyllm.__all__)
