"""SnapKV: what each head keeps, by the eager model's attention, and what the model answers from that."""

from statistics import fmean

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from peers import VOCABULARY, build, generated, prompt_of, random_ids
from transformers import DynamicCache, MistralConfig, MistralForCausalLM

import lazyllm
from lazybench.errors import LazyBenchError
from lazybench.methods.snapkv import SnapKV
from lazybench.model.decoding import Decoder

GROUP = 2  # query heads of a key head


def kept_by(attention, window, pooling, kernel, count):
    """Positions that each key head keeps, from attention (heads, queries, tokens), number by number."""
    heads, _, tokens = attention.shape
    window = min(window, tokens - 1)
    scores = []
    for head in range(heads):
        sums = [float(attention[head, -window:, token].sum()) for token in range(tokens - window)]
        near = [sums[max(0, at - pooling // 2) : at + pooling // 2 + 1] for at in range(len(sums))]
        scores.append([max(of) if kernel == "max" else sum(of) / pooling for of in near])
    recent, found = list(range(tokens - window, tokens))[-count:], []
    for first in range(0, heads, GROUP):
        mean = [fmean(of) for of in zip(*scores[first : first + GROUP], strict=True)]
        best = sorted(range(len(mean)), key=lambda at: -mean[at])[: count - len(recent)]
        found.append(sorted(best) + recent)
    return found


@torch.no_grad()
def naive(seed, ids, new_tokens, count, **settings):
    """The eager model on the whole prompt, then token by token over what the heads kept, at the prompt's positions."""
    model, tokens = build(seed, "eager"), ids.shape[1]
    output = model(ids, output_attentions=True, use_cache=True)
    cache, kept = DynamicCache(), []
    for index, layer in enumerate(output.past_key_values.layers):
        of_layer = kept_by(output.attentions[index][0], count=count, **settings)
        keys, values = (
            torch.stack([of[0, head, places] for head, places in enumerate(of_layer)])[None]
            for of in (layer.keys, layer.values)
        )
        cache.update(keys, values, index)
        kept.append(of_layer)
    logits = [output.logits[:, -1]]
    for step in range(new_tokens - 1):
        token = logits[-1].argmax(dim=-1, keepdim=True)
        logits.append(model(token, past_key_values=cache, position_ids=torch.tensor([[tokens + step]])).logits[:, -1])
    return torch.cat(logits), cache, kept


@settings(max_examples=20, deadline=None)
@given(
    seed=st.integers(0, 1000),
    length=st.integers(2, 40),
    keep=st.sampled_from([0.1, 0.5, 0.9]),
    kernel=st.sampled_from(["max", "average"]),
)
def test_each_head_keeps_what_the_window_attends_to(seed, length, keep, kernel):
    method = SnapKV("snapkv", keep=keep, window=4, pooling=3, kernel=kernel)
    output, watched, ids = generated(method, seed, length, new_tokens=4)
    count = max(1, -int(-keep * length // 1))
    logits, cache, _ = naive(seed, ids, 4, count, window=4, pooling=3, kernel=kernel)
    assert torch.equal(watched.given[0], ids)
    assert output.prompt_computed == 1
    assert output.tokens == logits.argmax(dim=-1).tolist()
    torch.testing.assert_close(watched.logits, logits, rtol=1e-4, atol=1e-4)
    for index, layer in enumerate(watched.places[0]["cache"].layers):
        assert layer.keys.shape == (1, 2, count + 3, 8)
        torch.testing.assert_close(layer.keys, cache.layers[index].keys, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(layer.values, cache.layers[index].values, rtol=1e-4, atol=1e-4)


def test_heads_keep_other_tokens_and_decoding_notices():
    """Else the test above would not see which."""
    method = SnapKV("snapkv", keep=0.3, window=4, pooling=3)
    output, watched, ids = generated(method, 3, 40, new_tokens=4)
    *_, kept = naive(3, ids, 1, 12, window=4, pooling=3, kernel="max")
    assert all(one != other for one, other in kept)
    unmodified = Decoder(build(3), max_new_tokens=4, tracing=True)
    tokens = unmodified(ids)
    assert torch.equal(watched.logits[0], unmodified.logits[0])
    assert output.tokens[0] == tokens[0]
    assert (watched.logits[1] - unmodified.logits[1]).abs().max() > 0.01


def test_the_model_is_as_before():
    model, ids = build(2), random_ids(2, 30)
    before = Decoder(model, max_new_tokens=5)(ids)
    method = SnapKV("snapkv", keep=0.2, window=4)
    method.prepare(model)
    method.generate(prompt_of(ids), Decoder(model, max_new_tokens=5), 0)
    assert model.config._attn_implementation == "sdpa"
    assert Decoder(model, max_new_tokens=5)(ids) == before


def test_layers_that_see_a_window_are_refused():
    shape = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = MistralConfig(vocab_size=VOCABULARY, num_key_value_heads=2, sliding_window=8, **shape)
    with pytest.raises(LazyBenchError, match="layers that see only a window of the prompt"):
        SnapKV("snapkv").check(MistralForCausalLM(config))


def test_other_attention_than_sdpa_is_refused():
    with pytest.raises(LazyBenchError, match=r"set model\.attention=sdpa"):
        SnapKV("snapkv").prepare(build(0, "eager"))


def test_it_does_not_run_inside_lazyllm():
    model = build(0)
    with lazyllm.enable(model, "1:0.5"), pytest.raises(lazyllm.LazyLLMError, match="already enabled"):
        SnapKV("snapkv").prepare(model)
