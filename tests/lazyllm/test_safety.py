"""The model is given back as it was; what cannot be done right is refused in one line; nothing is N by N."""

from __future__ import annotations

import copy
import gc
import threading
import weakref

import families
import pytest
import torch
import transformers
from refusals import refuse
from transformers import DynamicCache
from watch import Watch

import lazyllm

STAGES = lazyllm.PruningSchedule([(1, 0.6), (3, 0.5)])


def snapshot(model):
    hooks = [
        (len(m._forward_hooks), len(m._forward_pre_hooks), len(m._forward_hooks_always_called)) for m in model.modules()
    ]
    weights = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    return copy.deepcopy(vars(model.config)), hooks, [sorted(vars(m)) for m in model.modules()], weights


def same(before, after):
    weights = all(torch.equal(before[3][name], after[3][name]) for name in before[3])
    return before[:3] == after[:3] and before[3].keys() == after[3].keys() and weights


def test_the_model_is_given_back_as_it_was(model, ids):
    before, output = snapshot(model), families.generate(model, ids, 6)
    with lazyllm.enable(model, STAGES):
        families.generate(model, ids, 6)
    assert same(before, snapshot(model))
    after = families.generate(model, ids, 6)
    assert torch.equal(output.sequences, after.sequences)
    assert all(torch.equal(a, b) for a, b in zip(output.logits, after.logits, strict=True))


def test_the_model_is_given_back_after_an_error(model, ids):
    before = snapshot(model)
    with pytest.raises(KeyboardInterrupt), lazyllm.enable(model, STAGES):  # noqa: PT012
        families.generate(model, ids, 2)
        raise KeyboardInterrupt
    assert same(before, snapshot(model))


def test_the_model_is_given_back_after_an_error_inside_a_layer(model, ids):
    before = snapshot(model)
    layer = model.model.layers[2].mlp
    with pytest.raises(RuntimeError, match="broken"), lazyllm.enable(model, STAGES):  # noqa: PT012
        hook = layer.register_forward_hook(lambda *_: (_ for _ in ()).throw(RuntimeError("broken")))
        try:
            model.generate(ids, max_new_tokens=3)
        finally:
            hook.remove()
    assert same(before, snapshot(model))
    families.generate(model, ids, 3)
    with lazyllm.enable(model, STAGES):
        families.generate(model, ids, 3)


def test_models_in_other_threads_do_not_meet(ids):
    schedules = [lazyllm.PruningSchedule([(1, keep)]) for keep in (0.3, 0.8)]
    found = {}

    def work(index):
        own = families.build("llama", seed=index)
        with lazyllm.enable(own, schedules[index]) as lazy:
            for _ in range(4):
                families.generate(own, ids, 6)
        found[index] = lazy.stats.active[0].tolist()

    threads = [threading.Thread(target=work, args=(index,)) for index in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {0: [40, 40, 12, 12, 12], 1: [40, 40, 32, 32, 32]}


def generating(model, **kwargs):
    def call():
        with lazyllm.enable(model, STAGES):
            model.generate(**{"max_new_tokens": 4, "do_sample": False, **kwargs})

    return call


def test_caches_from_outside_are_refused(model, ids):
    filled = DynamicCache()
    with torch.no_grad():
        model(ids[:, :10], past_key_values=filled)
    refuse("DynamicCache from outside", generating(model, input_ids=ids, past_key_values=filled))
    with lazyllm.enable(model, STAGES):
        earlier = families.generate(model, ids, 2).past_key_values
    refuse("earlier generation", generating(model, input_ids=ids, past_key_values=earlier))


def test_logits_of_other_tokens_are_refused(model, ids):
    def loss():
        with lazyllm.enable(model, STAGES):
            model(ids, labels=ids)

    refuse("newest token's alone", loss)


def test_unsupported_use_says_why(model, ids):
    refuse("has 5 layers", lambda: lazyllm.enable(model, lazyllm.PruningSchedule([(4, 0.5)])))
    refuse("a schedule is pairs", lambda: lazyllm.enable(model, 0.5))
    refuse("a schedule is pairs", lambda: lazyllm.enable(model, None))
    refuse("is not layer:keep", lambda: lazyllm.enable(model, "half"))
    refuse("a stage is a pair", lambda: lazyllm.enable(model, [1, 0.5]))
    refuse("a stage is a pair", lambda: lazyllm.enable(model, {1: 0.5}))
    refuse("one stage", lambda: lazyllm.enable(model, STAGES, selection=lazyllm.StaticSelection()))
    refuse("not a Hugging Face model", lambda: lazyllm.enable(torch.nn.Linear(2, 2), STAGES))
    refuse("nothing has been generated", lambda: lazyllm.enable(model, STAGES).stats)
    with lazyllm.enable(model, STAGES):
        refuse("already enabled", lambda: lazyllm.enable(model, STAGES))
        families.generate(model, ids, 2)


def tiny(name, **kwargs):
    config = getattr(transformers, name)(**{**families.SHAPE, **kwargs})
    torch.manual_seed(0)
    return transformers.AutoModelForCausalLM.from_config(config).eval()


def without_sdpa(model):
    model.model._supports_sdpa = False
    return model


@pytest.mark.parametrize(
    ("says", "make"),
    [
        ("linear_attention layers, which carry a state", lambda: tiny("Qwen3NextConfig")),
        ("linear_attention layers, which carry a state", lambda: tiny("MambaConfig")),
        ("share keys and values", lambda: tiny("Gemma4TextConfig", head_dim=12, num_kv_shared_layers=2,
                                               layer_types=["full_attention"] * 5,
                                               hidden_size_per_layer_input=0)),
        ("attention interface", lambda: tiny("FalconConfig")),
        ("not plain softmax", lambda: without_sdpa(families.build("llama"))),
        ("encoder-decoder", lambda: transformers.BartForConditionalGeneration(transformers.BartConfig(
            vocab_size=97, d_model=16, encoder_layers=1, decoder_layers=2, encoder_attention_heads=2,
            decoder_attention_heads=2, encoder_ffn_dim=16, decoder_ffn_dim=16))),
        ("bidirectional", lambda: tiny("LlamaConfig", is_causal=False)),
        ("flex_attention", lambda: families.build("llama", attention="flex_attention")),
        ("attn_implementation='eager'", lambda: families.build("gpt_oss", attention="flex_attention")),
    ],
)  # fmt: skip
def test_unsupported_models_say_why(says, make):
    refuse(says, lambda: lazyllm.enable(make(), STAGES))


def test_a_model_that_passes_its_decoder_by_is_refused(ids):
    model = families.build("llama")
    model.forward = families.build("llama").forward
    refuse("did not run its LlamaModel", generating(model, input_ids=ids))


def test_a_mask_beyond_causality_is_refused(ids):
    model = tiny("DogeConfig")
    refuse("mask", generating(model, input_ids=ids))
    gemma = families.build("gemma3", sliding_window=256)
    gemma.config.use_bidirectional_attention = True
    refuse("not plainly causal", generating(gemma, input_ids=ids))


def test_a_stage_cannot_rank_what_its_window_hides(ids):
    kinds = ["full_attention", "sliding_attention"] * 2 + ["full_attention"]
    model = families.build("gemma3", sliding_window=16, layer_types=kinds)
    refuse("after a layer with full attention, such as 2", generating(model, input_ids=ids))
    last = [*["sliding_attention"] * 4, "full_attention"]  # after which no stage can come
    model = families.build("gemma3", sliding_window=16, layer_types=last)
    refuse("must fit into 16 tokens", generating(model, input_ids=ids))


def test_a_ranking_by_many_layers_is_told_which_ranking_works(ids):
    kinds = ["sliding_attention", "full_attention"] * 2 + ["full_attention"]
    model = families.build("gemma3", sliding_window=16, layer_types=kinds)
    for ranking in (lazyllm.StaticSelection(), lazyllm.Importance(layers=2)):
        with lazyllm.enable(model, "1:0.5", selection=ranking):
            refuse("such as 3, and rank by that layer alone", lambda: families.generate(model, ids, 2))
    with lazyllm.enable(model, "3:0.5"):
        families.generate(model, ids, 2)


def test_a_model_of_windows_alone_says_what_fits_into_them(ids):
    model = families.build("mistral", sliding_window=16)
    refuse("must fit into 16 tokens", generating(model, input_ids=ids))
    with lazyllm.enable(model, STAGES):
        families.generate(model, ids[:, :12], 4)


@pytest.mark.parametrize("family", ["llama", pytest.param("gemma2", marks=pytest.mark.slow)])
def test_nothing_is_prompt_by_prompt_in_size(family):
    length = 6000
    model = families.build(family, max_position_embeddings=8192, sliding_window=8192, hidden_size=16, head_dim=4)
    ids = families.prompt(length)
    with Watch() as watch, lazyllm.enable(model, STAGES) as lazy:
        families.generate(model, ids, 3)
    assert lazy.stats.rows[1].max() > 100, "nothing was revived"
    assert watch.largest < length * length


def test_rotary_tables_that_change_midway_are_refused():
    rope = {"rope_type": "longrope", "rope_theta": 10000.0, "short_factor": [1.0] * 6, "long_factor": [4.0] * 6}
    model = families.build(
        "phi3", original_max_position_embeddings=32, rope_parameters={**rope, "original_max_position_embeddings": 32}
    )
    refuse("crosses 32 positions", generating(model, input_ids=families.prompt(28), max_new_tokens=10))
    for length, new in ((20, 10), (40, 10)):  # on either side
        before = families.generate(model, families.prompt(length), new)
        with lazyllm.enable(model, lazyllm.PruningSchedule([(1, 1.0)])):
            after = families.generate(model, families.prompt(length), new)
        assert torch.equal(before.sequences, after.sequences)


def test_two_threads_on_one_model_never_mix(model, ids):
    with lazyllm.enable(model, STAGES):
        expected = families.generate(model, ids, 6).sequences
        wrong = []

        def work():
            for _ in range(8):
                try:
                    if not torch.equal(families.generate(model, ids, 6).sequences, expected):
                        wrong.append("other tokens")
                except lazyllm.LazyLLMError:
                    pass  # one of them is told so

        threads = [threading.Thread(target=work) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not wrong


def test_a_mask_that_hides_tokens_in_a_later_step_is_refused(model, ids):
    def call():
        with lazyllm.enable(model, lazyllm.PruningSchedule([(1, 1.0)])), torch.no_grad():
            cache = model(ids, attention_mask=torch.ones_like(ids), logits_to_keep=1).past_key_values
            mask = torch.tensor([[0] * 20 + [1] * 21])
            model(ids[:, :1], attention_mask=mask, past_key_values=cache)

    refuse("hides tokens that an earlier pass has computed", call)


@pytest.mark.parametrize("what", ["output_hidden_states", "output_attentions"])
def test_outputs_of_every_token_are_refused(model, ids, what):
    eager = families.build("llama", attention="eager")
    refuse("of every token", generating(eager, input_ids=ids, return_dict_in_generate=True, **{what: True}))


def test_stats_do_not_keep_the_cache_alive(model, ids):
    with lazyllm.enable(model, STAGES) as lazy:
        cache = weakref.ref(families.generate(model, ids, 4).past_key_values)
    stats = lazy.stats
    gc.collect()
    assert cache() is None
    assert stats.rows.shape == (4, 5)
    assert 0 < stats.prompt_computed <= 1


def test_an_interrupted_forward_leaves_nothing_behind(model, ids):
    def interrupt(*_):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), lazyllm.enable(model, STAGES) as lazy:  # noqa: PT012
        hook = model.model.layers[2].mlp.register_forward_hook(interrupt)
        try:
            families.generate(model, ids, 3)
        finally:
            hook.remove()
    assert lazy.stats.rows.shape == (0, 5)
    refuse("no step", lambda: lazy.stats.prompt_computed)
    with lazyllm.enable(model, STAGES):
        families.generate(model, ids, 3)
