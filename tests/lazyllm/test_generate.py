"""Ways to generate: which work under LazyLLM, and which are refused, with what to do instead, and leave no trace."""

import copy
import pickle

import families
import pytest
import torch
import transformers
from checks import STAGES, assert_close, assert_refused
from transformers import CompileConfig, DynamicCache, GenerationConfig

import lazyllm

IDS = families.prompt(40)


@pytest.fixture
def model():
    return families.build("llama", attention="eager")  # which transformers itself would give attentions of


def asking(**kwargs):
    return lambda model: kwargs


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
    "compilation": asking(compile_config=CompileConfig()),
    "processor": asking(logits_processor=[lambda ids, scores: scores.flip(-1)]),
    "criterion": asking(stopping_criteria=[lambda ids, scores, **_: torch.tensor([ids.shape[1] == 42])]),
    "penalties": asking(repetition_penalty=1.3, no_repeat_ngram_size=2, min_new_tokens=3, bad_words_ids=[[5]]),
    "sampling": asking(do_sample=True, temperature=0.8, top_k=20, top_p=0.9, min_p=0.01, typical_p=0.9),
    "several answers": asking(do_sample=True, num_return_sequences=3),
    "embeddings": lambda model: {"inputs": None, **embedded(model)},
    "an empty cache": lambda model: {"past_key_values": DynamicCache(config=model.config)},
    "positions": asking(position_ids=torch.arange(40)[None]),
    "chunks": asking(prefill_chunk_size=7),
    "a custom loop": asking(custom_generate=looped),
    "no prompt": asking(inputs=None),
}


@pytest.mark.parametrize("name", WORKS)
def test_works(model, name):
    """What is chosen and scored is the unmodified model's where nothing is pruned."""

    def generate():
        options = {"inputs": IDS, "return_dict_in_generate": True, "output_scores": True, "output_logits": True}
        torch.manual_seed(0)
        return model.generate(**{"max_new_tokens": 4, **options, **WORKS[name](model)})

    before = generate()
    with lazyllm.enable(model, [(1, 1.0)]):
        actual = generate()
    with lazyllm.enable(model, STAGES):
        generate()
    if isinstance(before, torch.Tensor):
        assert torch.equal(actual, before)
        return
    assert torch.equal(actual.sequences, before.sequences)
    assert_close(actual.scores, before.scores, 1e-4)
    assert_close(actual.logits, before.logits, 1e-4)


def test_embeddings_and_a_custom_loop_are_pruned_alike(model):
    with lazyllm.enable(model, STAGES), torch.no_grad():
        expected = families.generate(model, IDS, 4).sequences
        assert torch.equal(looped(model, IDS), expected)
        options = {"max_new_tokens": 4, "do_sample": False, "eos_token_id": None}
        assert torch.equal(model.generate(**embedded(model), **options), expected[:, 40:])


def filled():
    cache = DynamicCache()
    cache.update(torch.zeros(1, 2, 10, 12), torch.zeros(1, 2, 10, 12), 0)
    return cache


def offloaded():
    cache = DynamicCache()
    cache.offloading = True  # its constructor makes a stream, which PyTorch's builds for CUDA do only with a GPU
    return cache


def generating(**options):
    """Return a call of `generate` with these arguments."""
    return lambda model: model.generate(IDS, max_new_tokens=4, **options)


def scoring(model):
    return lambda ids, scores: scores + model(ids).logits[:, -1]


OUTSIDE = "a DynamicCache from outside is not supported: leave out past_key_values and cache_implementation"
ASSISTED = "assisted generation is not supported"
NEWEST = "only the newest token's logits"
# What is refused of `generate`, of passes and of other calls.
REFUSED = {
    "beams": ("beam search is not supported", generating(num_beams=3, num_return_sequences=3)),
    "assistant": (ASSISTED, lambda model: model.generate(IDS, assistant_model=model)),
    "assisting": ("has no crop", lambda model: families.build("llama").generate(IDS, assistant_model=model)),
    "guidance": (NEWEST, generating(guidance_scale=1.5, negative_prompt_ids=IDS[:, :20])),
    "early exit": (ASSISTED, generating(generation_config=GenerationConfig(assistant_early_exit=2, do_sample=True))),
    "schedule in a config": ("to generate itself", generating(generation_config=GenerationConfig(schedule="2:0.5"))),
    "protect in a config": ("to generate itself", generating(generation_config=GenerationConfig(protect=[True] * 40))),
    "static cache": ("cache_implementation='static' is not", generating(cache_implementation="static")),
    "copy": ("not copied or pickled while", copy.deepcopy),
    "pickle": ("not copied or pickled while", pickle.dumps),
    "offloaded cache given": (OUTSIDE, generating(past_key_values=offloaded())),
    "filled cache given": (OUTSIDE, generating(past_key_values=filled())),
    "generate without cache": ("LazyLLM needs use_cache=True", generating(use_cache=False)),
    "hidden states": ("output_hidden_states: .* leave them out", generating(output_hidden_states=True)),
    "right padding": ("at their left", generating(attention_mask=torch.tensor([[1] * 35 + [0] * 5]))),
    "padded chunk": ("all padding", generating(prefill_chunk_size=9, attention_mask=torch.arange(40)[None] // 20)),
    "continuous batching": ("call generate with a batch", lambda model: model.generate_batch([[5, 6]])),
    "a processor's pass": (NEWEST, lambda model: model.generate(IDS, logits_processor=[scoring(model)])),
    "loss": ("leave out labels", lambda model: model(IDS, labels=IDS)),
    "attentions": ("output_attentions", lambda model: model(IDS, output_attentions=True, logits_to_keep=1)),
    "every logit": (NEWEST, lambda model: model(IDS, None, None)),
    "chosen logits": (NEWEST, lambda model: model(IDS, logits_to_keep=torch.tensor([0, 39]))),
    "no cache": ("use_cache=True", lambda model: model(IDS, use_cache=False, logits_to_keep=1)),
    "no input": ("needs input_ids", lambda model: model(logits_to_keep=1)),
    "decoder": ("the decoder was called by itself", lambda model: model.model(IDS)),
    "a matrix as mask": (
        r"shape \(1, 1, 40, 40\)",
        lambda model: model(IDS, attention_mask=torch.ones(1, 1, 40, 40), logits_to_keep=1),
    ),
}


def state(model):
    """All that a call of `generate` could change."""
    parts = [set(vars(part)) for part in model.modules()]
    return copy.deepcopy(vars(model.config)), model.generation_config.to_dict(), parts, model.training


@pytest.mark.parametrize("name", REFUSED)
def test_refused(model, name):
    (message, call), before = REFUSED[name], state(model)
    with lazyllm.enable(model, STAGES), torch.no_grad():
        within = state(model)
        expected = families.generate(model, IDS, 4).sequences
        assert_refused(message, lambda: call(model))
        assert state(model) == within
        assert torch.equal(families.generate(model, IDS, 4).sequences, expected)
    assert state(model) == before


def test_a_models_own_settings_are_seen(model):
    model.generation_config.cache_implementation = "static"
    model.config.output_attentions = True
    model.generation_config.assistant_early_exit = 2
    with lazyllm.enable(model, STAGES):
        assert_refused(ASSISTED, lambda: model.generate(IDS, max_new_tokens=2))
        model.generation_config.assistant_early_exit = None
        assert_refused("cache_implementation='static'", lambda: model.generate(IDS, max_new_tokens=2))
        plain = {"cache_implementation": None, "max_new_tokens": 2}
        assert_refused("output_attentions", lambda: model.generate(IDS, **plain))
        model.config.output_attentions = False
        model.generate(IDS, **plain)
    mixtral = families.build("mixtral", output_router_logits=True)
    with lazyllm.enable(mixtral, STAGES):
        assert_refused("output_router_logits", lambda: families.generate(mixtral, IDS, 2))


def test_training_says_what_to_call():
    model = families.build("llama", attention_dropout=0.1)
    with lazyllm.enable(model.train(), STAGES):
        assert_refused(r"model\.eval", lambda: model.generate(IDS, max_new_tokens=2))
    model = families.build("llama")
    model.gradient_checkpointing_enable()
    with lazyllm.enable(model, STAGES):
        families.generate(model, IDS, 2)
        begun = model.train()(IDS, logits_to_keep=1)  # with gradients, so that layers get no cache
        step = {"past_key_values": begun.past_key_values, "logits_to_keep": 1}
        assert_refused("own cached keys", lambda: model(IDS[:, :1], **step))


def test_a_compiled_model():
    model = families.build("llama")
    with lazyllm.enable(model, STAGES), torch.no_grad():
        expected = families.generate(model, IDS, 4)
        compiled = torch.compile(model, backend="eager")
        assert torch.equal(compiled(IDS, logits_to_keep=1).logits[0], expected.logits[0])
        model.compile(backend="eager")  # one that is compiled meanwhile runs as it is
        assert torch.equal(families.generate(model, IDS, 4).sequences, expected.sequences)
    for given in (compiled, model):
        assert_refused("compiled", lambda given=given: lazyllm.enable(given, STAGES))


@pytest.mark.parametrize("kind", ["SequenceClassification", "QuestionAnswering", "TokenClassification"])
def test_models_without_a_language_modelling_head_are_refused(kind):
    model = getattr(transformers, f"LlamaFor{kind}")(families.config("llama"))
    for given in (model, model.base_model):
        assert_refused("no language-modelling head", lambda given=given: lazyllm.enable(given, STAGES))


def test_stopping_is_not_deferred(model, monkeypatch):
    """On Apple's GPUs transformers otherwise runs one more pass, which fails if all sequences of a batch have ended."""
    deferred = transformers.generation.utils.DeferredStopCheck

    def anywhere(device, cache, cache_is_returned, is_assistant):
        return cache.is_croppable or not cache_is_returned

    monkeypatch.setattr(deferred, "is_supported", staticmethod(anywhere))
    ids = torch.cat([IDS, IDS.flip(1)])
    with lazyllm.enable(model, STAGES) as lazy:
        output = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=5, do_sample=False)
    assert [stats.steps for stats in lazy.sequences] == [output.shape[1] - 40] * 2
