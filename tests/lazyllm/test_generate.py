"""Ways to generate: which work under LazyLLM, and which are refused, with what to do instead, and leave no trace."""

import copy

import families
import pytest
import tokenizers
import torch
import transformers
from checks import STAGES, close, refuse
from transformers import (
    CompileConfig,
    DynamicCache,
    GenerationConfig,
    PreTrainedTokenizerFast,
    StaticCache,
    WatermarkingConfig,
)

import lazyllm

IDS = families.prompt(40)
LETTERS = "".join(chr(place) for place in range(0x4E00, 0x4E00 + families.VOCABULARY - 7)) + "abcdef"


@pytest.fixture
def model():
    return families.build("llama", attention="eager")  # which transformers itself would give attentions of


def tokenizer():
    """A token for each letter, and the last one for `ef`."""
    letters = {letter: token for token, letter in enumerate([*LETTERS, "ef"])}
    made = tokenizers.Tokenizer(tokenizers.models.BPE(letters, [("e", "f")]))
    made.decoder = tokenizers.decoders.Fuse()
    special = {"pad_token": LETTERS[0], "bos_token": LETTERS[1], "eos_token": LETTERS[2]}
    return PreTrainedTokenizerFast(tokenizer_object=made, **special)


def asking(**kwargs):
    return lambda model: kwargs


def healed(model):
    """A prompt that ends with `e`, which may as well become `ef`."""
    ids = torch.cat([IDS[:, :-1].clamp(max=90), torch.tensor([[LETTERS.index("e")]])], dim=1)
    return {"inputs": ids, "token_healing": True, "tokenizer": tokenizer()}


def looped(model, input_ids, **kwargs):
    cache = None
    for _ in range(4):
        output = model(input_ids if cache is None else input_ids[:, -1:], past_key_values=cache, logits_to_keep=1)
        cache = output.past_key_values
        input_ids = torch.cat([input_ids, output.logits[:, -1].argmax(-1, keepdim=True)], dim=1)
    return input_ids


def embedded(model):
    return {"inputs_embeds": model.get_input_embeddings()(IDS), "attention_mask": torch.ones_like(IDS)}


WORKS = {
    "time": asking(max_time=100.0),
    "stop strings": lambda model: {"max_new_tokens": 8, "stop_strings": [LETTERS[66]], "tokenizer": tokenizer()},
    "token healing": healed,
    "compilation": asking(compile_config=CompileConfig()),
    "processor": asking(logits_processor=[lambda ids, scores: scores.flip(-1)]),
    "criterion": asking(stopping_criteria=[lambda ids, scores, **_: torch.tensor([ids.shape[1] == 42])]),
    "prefixes": asking(prefix_allowed_tokens_fn=lambda batch, ids: [5, 6, 7]),
    "penalties": asking(repetition_penalty=1.3, no_repeat_ngram_size=2, min_new_tokens=3, bad_words_ids=[[5]]),
    "bias": asking(sequence_bias={(5,): 3.0}, suppress_tokens=[9], forced_eos_token_id=2),
    "watermark": asking(watermarking_config=WatermarkingConfig()),
    "sampling": asking(do_sample=True, temperature=0.8, top_k=20, top_p=0.9, min_p=0.01, typical_p=0.9),
    "several answers": asking(do_sample=True, num_return_sequences=3),
    "embeddings": lambda model: {"inputs": None, **embedded(model)},
    "embeddings beside ids": embedded,
    "an empty cache": lambda model: {"past_key_values": DynamicCache(config=model.config)},
    "a dynamic cache": asking(cache_implementation="dynamic"),
    "a hybrid cache": asking(cache_implementation="hybrid"),
    "positions": asking(position_ids=torch.arange(40)[None]),
    "chunks": asking(prefill_chunk_size=7),
    "guidance": asking(guidance_scale=1.5, negative_prompt_ids=IDS[:, :20]),
    "a loop of one's own": asking(custom_generate=looped),
    "no prompt": asking(inputs=None),
}


@pytest.mark.parametrize("name", WORKS)
def test_works(model, name):
    """What is chosen and scored is the unmodified model's where nothing is pruned."""

    def generate():
        asked = {"inputs": IDS, "return_dict_in_generate": True, "output_scores": True, "output_logits": True}
        torch.manual_seed(0)
        return model.generate(**{"max_new_tokens": 4, **asked, **WORKS[name](model)})

    before = generate()
    with lazyllm.enable(model, [(1, 1.0)]):
        found = generate()
    with lazyllm.enable(model, STAGES):
        generate()
    if isinstance(before, torch.Tensor):
        assert torch.equal(found, before)
        return
    assert torch.equal(found.sequences, before.sequences)
    close(found.scores, before.scores, 1e-4)
    close(found.logits, before.logits, 1e-4)


def test_embeddings_and_a_loop_of_ones_own_are_pruned_alike(model):
    with lazyllm.enable(model, STAGES), torch.no_grad():
        expected = families.generate(model, IDS, 4).sequences
        assert torch.equal(looped(model, IDS), expected)
        asked = {"max_new_tokens": 4, "do_sample": False, "eos_token_id": None}
        assert torch.equal(model.generate(**embedded(model), **asked), expected[:, 40:])


def filled(model):
    cache = DynamicCache()
    with torch.no_grad():
        model(IDS[:, :10], past_key_values=cache)
    return cache


def cache(make):
    """A cache that is made before the `with`."""
    return lambda model: {"past_key_values": make(model)}


def configured(**settings):
    return asking(generation_config=GenerationConfig(max_new_tokens=4, **settings))


BEAMS = "leave it unset, and for several answers use do_sample=True with num_return_sequences"
ASSISTED = r"assisted decoding \({}\) is not supported: .* leave it unset"
CACHE = "cache_implementation='{}' is not supported: LazyLLM keeps a cache of its own, so leave it unset"
OUTSIDE = "a {} from outside is not supported: .* leave out past_key_values, or give an empty DynamicCache"
EVERY_LAYER = "output_{}: .* leave them out"
REFUSED = {
    "beams": (BEAMS, asking(num_beams=3, num_return_sequences=3)),
    "beams by config": (BEAMS, configured(num_beams=2)),
    "sampled beams": (BEAMS, asking(num_beams=2, do_sample=True)),
    "group beams": (BEAMS, asking(num_beams=4, num_beam_groups=2, diversity_penalty=0.5)),
    "constraints": (BEAMS, asking(force_words_ids=[[5]])),
    "assistant": (ASSISTED.format("assistant_model"), lambda model: {"assistant_model": model}),
    "early exit": (ASSISTED.format("assistant_early_exit"), asking(assistant_early_exit=2)),
    "prompt lookup": (ASSISTED.format("prompt_lookup_num_tokens"), asking(prompt_lookup_num_tokens=3)),
    "prompt lookup by config": (ASSISTED.format("prompt_lookup_num_tokens"), configured(prompt_lookup_num_tokens=3)),
    "heads for several tokens": (ASSISTED.format("use_mtp"), asking(use_mtp=True)),
    **{
        f"{name} cache": (CACHE.format(name), asking(cache_implementation=name))
        for name in ("static", "sliding_window", "offloaded", "offloaded_static", "quantized", "paged")
    },
    "static cache given": (OUTSIDE.format("StaticCache"), cache(lambda model: StaticCache(model.config, 64))),
    "own cache given": (OUTSIDE.format("OwnCache"), cache(lambda model: type("OwnCache", (DynamicCache,), {})())),
    "offloaded cache given": (OUTSIDE.format("DynamicCache"), cache(lambda model: DynamicCache(offloading=True))),
    "filled cache given": (OUTSIDE.format("DynamicCache"), cache(filled)),
    "no cache": ("LazyLLM needs use_cache=True", asking(use_cache=False)),
    **{
        what: (EVERY_LAYER.format(what), asking(**{f"output_{what}": True}, return_dict_in_generate=True))
        for what in ("attentions", "hidden_states")
    },
    "right padding": ("at their left", asking(attention_mask=torch.tensor([[1] * 35 + [0] * 5]))),
}


def state(model):
    """All that a call of `generate` could change, but for what transformers itself remembers."""
    parts = [{name for name in vars(part) if name != "_previous_max_cache_length"} for part in model.modules()]
    return copy.deepcopy(vars(model.config)), model.generation_config.to_dict(), parts, model.training


@pytest.mark.parametrize("name", REFUSED)
def test_refused(model, name):
    says, make = REFUSED[name]
    kwargs, before = {"max_new_tokens": 4, **make(model)}, state(model)
    with lazyllm.enable(model, STAGES):
        within = state(model)
        expected = families.generate(model, IDS, 4).sequences
        refuse(says, lambda: model.generate(IDS, **kwargs))
        assert state(model) == within
        assert torch.equal(families.generate(model, IDS, 4).sequences, expected)
    assert state(model) == before


def scoring(model):
    return lambda ids, scores: scores + model(ids).logits[:, -1]


BATCH, EVERY, NEWEST = "call generate with a batch", "logits of every token", "of more than the newest"
# What is refused of passes, and of other calls; with `newest_only` where it is named first.
PASSES = {
    "batching": (BATCH, lambda model: model.generate_batch([[5, 6]])),
    "batching within": (BATCH, lambda model: model.continuous_batching_context_manager().__enter__()),
    "loss": ("ask lazyllm.log_likelihoods", lambda model: model(IDS, labels=IDS)),
    "newest, loss": ("a loss was asked for", lambda model: model(IDS, labels=IDS)),
    "every logit": (EVERY, lambda model: model(IDS, None, None)),
    "every logit by 0": (EVERY, lambda model: model(input_ids=IDS, logits_to_keep=0)),
    "every logit of embeddings": (EVERY, lambda model: model(**embedded(model))),
    "every logit, compiled": (EVERY, lambda model: torch.compile(model, backend="eager")(IDS)),
    "a processor's": (EVERY, lambda model: families.generate(model, IDS, 2, logits_processor=[scoring(model)])),
    **{
        f"logits {wanted}": (NEWEST, lambda model, wanted=wanted: model(IDS, logits_to_keep=wanted))
        for wanted in (2, -5, None, slice(-1, None), torch.tensor([0, 39]))
    },
    "no cache": ("use_cache=True", lambda model: model(IDS, use_cache=False, logits_to_keep=1)),
    "no input": ("without input_ids", lambda model: model(logits_to_keep=1)),
    "decoder": ("the decoder was called by itself", lambda model: model.model(IDS)),
    "own mask": ("per query", lambda model: model(IDS, attention_mask=torch.ones(1, 1, 40, 40), logits_to_keep=1)),
    **{
        f"newest, {what}": (what, lambda model, what=what: model.model(IDS, **{what: True}))
        for what in ("output_hidden_states", "output_attentions")
    },
    "assisting": (
        "no token back",
        lambda model: families.generate(families.build("llama"), IDS, 8, assistant_model=model),
    ),
}


@pytest.mark.parametrize("name", PASSES)
def test_refused_beside_generate(model, name):
    says, call = PASSES[name]
    with lazyllm.enable(model, STAGES, newest_only=name.startswith("newest")), torch.no_grad():
        expected = families.generate(model, IDS, 4).sequences
        refuse(says, lambda: call(model))
        assert torch.equal(families.generate(model, IDS, 4).sequences, expected)


def test_attention_is_not_switched_within(model):
    with lazyllm.enable(model, STAGES):
        model.set_attn_implementation("sdpa")
        refuse("set it before the `with`", lambda: families.generate(model, IDS, 2))


def test_a_models_own_settings_are_seen(model):
    model.generation_config.cache_implementation = "static"
    model.generation_config.num_beams = 2
    model.config.output_attentions = True
    with lazyllm.enable(model, STAGES):
        refuse(BEAMS, lambda: model.generate(IDS, generation_config=GenerationConfig(max_new_tokens=2)))
        refuse(CACHE.format("static"), lambda: model.generate(IDS, num_beams=1, max_new_tokens=2))
        plain = {"num_beams": 1, "cache_implementation": None, "max_new_tokens": 2}
        refuse("output_attentions", lambda: model.generate(IDS, **plain))
        model.config.output_attentions = False
        model.generate(IDS, **plain)
    mixtral = families.build("mixtral", output_router_logits=True)
    with lazyllm.enable(mixtral, STAGES):
        refuse("output_router_logits", lambda: families.generate(mixtral, IDS, 2))


def test_training_says_what_to_call():
    model = families.build("llama", attention_dropout=0.1)
    with lazyllm.enable(model.train(), STAGES):
        refuse(r"model\.eval", lambda: model.generate(IDS, max_new_tokens=2))
    model = families.build("llama")
    model.gradient_checkpointing_enable()
    with lazyllm.enable(model, STAGES):
        families.generate(model, IDS, 2)
        refuse("gradient checkpointing is on", lambda: model.train().generate(IDS, max_new_tokens=2))


def test_a_compiled_model():
    model = families.build("llama")
    with lazyllm.enable(model, STAGES), torch.no_grad():
        expected = families.generate(model, IDS, 4)
        compiled = torch.compile(model, backend="eager")
        assert torch.equal(compiled(IDS, logits_to_keep=1).logits[0], expected.logits[0])
        model.compile(backend="eager")  # one that is compiled meanwhile runs as it is
        assert torch.equal(families.generate(model, IDS, 4).sequences, expected.sequences)
    for given in (compiled, model):
        refuse("is compiled", lambda given=given: lazyllm.enable(given, STAGES))


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_the_newest_tokens_outputs_can_be_asked_for(family):
    model = families.build(family)
    decoder = getattr(model, "model", None) or model.transformer
    with torch.no_grad():
        with lazyllm.enable(model, STAGES):
            logits = model(IDS, logits_to_keep=1).logits
            cache = model(IDS, logits_to_keep=1).past_key_values
            assert model(torch.tensor([[5]]), past_key_values=cache).logits.shape == logits.shape
        with lazyllm.enable(model, STAGES, newest_only=True):
            assert torch.equal(model(IDS).logits, logits)
            hidden = decoder(IDS)[0]
        refuse("no language-modelling head", lambda: lazyllm.enable(decoder, STAGES))
        with lazyllm.enable(decoder, STAGES, newest_only=True):
            assert torch.equal(decoder(IDS).last_hidden_state, hidden)
    assert logits.shape == (1, 1, families.VOCABULARY)
    close([model.lm_head(hidden)], [logits])


@pytest.mark.parametrize("kind", ["SequenceClassification", "QuestionAnswering", "TokenClassification"])
def test_heads_that_read_other_tokens_are_refused(kind):
    model = getattr(transformers, f"LlamaFor{kind}")(families.config("llama"))
    for newest_only in (False, True):
        refuse("other outputs", lambda newest=newest_only: lazyllm.enable(model, STAGES, newest_only=newest))


def test_stopping_is_not_deferred(model, monkeypatch):
    """On Apple's GPUs transformers runs one pass more than it needs, where it can be undone."""
    deferred = getattr(transformers.generation.utils, "DeferredStopCheck", None)
    if deferred is None:
        pytest.skip("this transformers defers nothing")

    def anywhere(device, cache, cache_is_returned, is_assistant):
        return cache.is_croppable or not cache_is_returned

    monkeypatch.setattr(deferred, "is_supported", staticmethod(anywhere))
    ids = torch.cat([IDS, IDS.flip(1)])
    with lazyllm.enable(model, STAGES) as lazy:
        output = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=5, do_sample=False)
        assert [stats.steps for stats in lazy.sequences] == [output.shape[1] - 40] * 2
