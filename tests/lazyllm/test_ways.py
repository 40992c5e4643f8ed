"""Ways to generate: which work under LazyLLM, and which are refused, with what to do instead, and leave no trace."""

from __future__ import annotations

import copy

import families
import pytest
import tokenizers
import torch
from refusals import refuse
from transformers import (
    CompileConfig,
    DynamicCache,
    EncoderDecoderCache,
    GenerationConfig,
    LogitsProcessorList,
    PreTrainedTokenizerFast,
    StaticCache,
    WatermarkingConfig,
)

import lazyllm

STAGES = [(1, 0.6), (3, 0.5)]
IDS = families.prompt(40)


def state(model):
    """All that a call of `generate` could change, but for what transformers itself remembers."""
    parts = [{name for name in vars(part) if name != "_previous_max_cache_length"} for part in model.modules()]
    return copy.deepcopy(vars(model.config)), model.generation_config.to_dict(), parts, model.training


def filled(model):
    cache = DynamicCache()
    with torch.no_grad():
        model(IDS[:, :10], past_key_values=cache)
    return cache


def asking(**kwargs):
    return lambda model: {"max_new_tokens": 4, "do_sample": False, **kwargs}


def given(make):
    """An argument that is made before the `with`."""
    return lambda model: {"max_new_tokens": 4, "past_key_values": make(model)}


def configured(**settings):
    return lambda model: {"generation_config": GenerationConfig(max_new_tokens=4, **settings)}


BEAMS = "leave it unset, and for several answers use do_sample=True with num_return_sequences"
ASSISTED = r"assisted decoding \({}\) is not supported: .* leave it unset"
CACHE = "cache_implementation='{}' is not supported: LazyLLM keeps a cache of its own, so leave it unset"
OUTSIDE = "a {} from outside is not supported: .* leave out past_key_values, or give an empty DynamicCache"

REFUSED = {
    "beams": (BEAMS, asking(num_beams=3)),
    "beams by config": (BEAMS, configured(num_beams=2)),
    "sampled beams": (BEAMS, asking(num_beams=2, do_sample=True)),
    "several answers of beams": (BEAMS, asking(num_beams=3, num_return_sequences=3)),
    "group beams": (BEAMS, asking(num_beams=4, num_beam_groups=2, diversity_penalty=0.5)),
    "constrained beams": (BEAMS, asking(num_beams=2, force_words_ids=[[5]])),
    "constraints": (BEAMS, asking(force_words_ids=[[5]])),
    "assistant": (ASSISTED.format("assistant_model"), lambda model: {"assistant_model": model}),
    "other assistant": (
        ASSISTED.format("assistant_model"),
        lambda model: {"assistant_model": families.build("qwen2"), "tokenizer": 0, "assistant_tokenizer": 0},
    ),
    "early exit": (ASSISTED.format("assistant_early_exit"), asking(assistant_early_exit=2)),
    "prompt lookup": (ASSISTED.format("prompt_lookup_num_tokens"), asking(prompt_lookup_num_tokens=3)),
    "prompt lookup by config": (
        ASSISTED.format("prompt_lookup_num_tokens"),
        configured(prompt_lookup_num_tokens=3),
    ),
    "heads for several tokens": (ASSISTED.format("use_mtp"), asking(use_mtp=True)),
    "compiled static cache": (
        CACHE.format("static"),
        asking(cache_implementation="static", compile_config=CompileConfig()),
    ),
    **{
        f"{name} cache": (CACHE.format(name), asking(cache_implementation=name))
        for name in ("static", "sliding_window", "offloaded", "offloaded_static", "quantized", "paged")
    },
    "static cache given": (
        OUTSIDE.format("StaticCache"),
        given(lambda model: StaticCache(config=model.config, max_cache_len=64)),
    ),
    "own cache given": (OUTSIDE.format("OwnCache"), given(lambda model: type("OwnCache", (DynamicCache,), {})())),
    "offloaded cache given": (OUTSIDE.format("DynamicCache"), given(lambda model: DynamicCache(offloading=True))),
    "filled cache given": (OUTSIDE.format("DynamicCache"), given(filled)),
    "two caches given": (
        OUTSIDE.format("EncoderDecoderCache"),
        given(lambda model: EncoderDecoderCache(DynamicCache(), DynamicCache())),
    ),
    "no cache": ("LazyLLM needs use_cache=True", asking(use_cache=False)),
    "attentions": (
        "output_attentions: .* leave them out",
        asking(output_attentions=True, return_dict_in_generate=True),
    ),
    "hidden states": (
        "output_hidden_states: .* leave them out",
        asking(output_hidden_states=True, return_dict_in_generate=True),
    ),
    "right padding": ("at their left", asking(attention_mask=torch.tensor([[1] * 35 + [0] * 5]))),
}


@pytest.fixture
def model():
    return families.build("llama", attention="eager")  # which transformers itself would give attentions of


@pytest.mark.parametrize("name", REFUSED)
def test_refused(model, name):
    says, make = REFUSED[name]
    kwargs, before = make(model), state(model)
    plain = families.generate(model, IDS, 4).sequences
    with lazyllm.enable(model, STAGES):
        within = state(model)
        expected = families.generate(model, IDS, 4).sequences
        refuse(says, lambda: model.generate(IDS, **kwargs))
        assert state(model) == within
        assert torch.equal(families.generate(model, IDS, 4).sequences, expected)
    assert state(model) == before
    assert torch.equal(families.generate(model, IDS, 4).sequences, plain)


@pytest.mark.parametrize(
    ("says", "call"),
    [
        ("call generate with a batch", lambda model: model.generate_batch([[5, 6]])),
        ("call generate with a batch", lambda model: model.init_continuous_batching()),
        ("call generate with a batch", lambda model: model.continuous_batching_context_manager().__enter__()),
        ("ask lazyllm.log_likelihood", lambda model: model(IDS, labels=IDS)),
        ("ask lazyllm.log_likelihood", lambda model: model.train()(IDS, labels=IDS)),
        ("ask lazyllm.log_likelihood", lambda model: model(IDS, logits_to_keep=2)),
        ("pass logits_to_keep=1", lambda model: model(IDS)),
        ("pass logits_to_keep=1", lambda model: torch.compile(model, backend="eager")(IDS)),
        ("use_cache=True", lambda model: model(IDS, use_cache=False, logits_to_keep=1)),
    ],
)
def test_refused_beside_generate(model, says, call):
    with lazyllm.enable(model, STAGES):
        expected = families.generate(model, IDS, 4).sequences
        refuse(says, lambda: call(model))
        model.eval()
        assert torch.equal(families.generate(model, IDS, 4).sequences, expected)


def test_a_models_own_settings_are_seen(model):
    model.generation_config.cache_implementation = "static"
    model.generation_config.num_beams = 2
    with lazyllm.enable(model, STAGES):
        refuse(BEAMS, lambda: model.generate(IDS, generation_config=GenerationConfig(max_new_tokens=2)))
        refuse(CACHE.format("static"), lambda: model.generate(IDS, num_beams=1, max_new_tokens=2))
        model.generate(IDS, num_beams=1, cache_implementation=None, max_new_tokens=2)


def test_it_assists_no_other_model(model):
    with lazyllm.enable(model, STAGES):
        refuse(
            "takes no token back",
            lambda: families.generate(families.build("llama"), IDS, 8, assistant_model=model),
        )
        families.generate(model, IDS, 2)


def test_attention_is_not_switched_within(model):
    with lazyllm.enable(model, STAGES):
        model.set_attn_implementation("sdpa")
        refuse("set it before the `with`", lambda: families.generate(model, IDS, 2))


def test_a_recipe_from_a_folder_makes_passes_of_its_own(model, tmp_path):
    """Its masks are read, as those of a function that is given."""
    recipe = tmp_path / "custom_generate" / "generate.py"
    recipe.parent.mkdir()
    recipe.write_text(
        "import torch\n"
        "def generate(model, inputs, **kwargs):\n"
        "    begun = model(inputs, attention_mask=torch.ones_like(inputs), logits_to_keep=1)\n"
        "    mask = torch.ones(1, inputs.shape[1] + 1, dtype=torch.int64)\n"
        "    mask[0, 5] = 0\n"
        "    model(inputs[:, :1], attention_mask=mask, past_key_values=begun.past_key_values)\n"
    )
    asked = {"custom_generate": str(tmp_path), "trust_remote_code": True}
    with lazyllm.enable(model, STAGES):
        refuse("hides tokens that an earlier pass has computed", lambda: model.generate(IDS, **asked))


LETTERS = "".join(chr(place) for place in range(0x4E00, 0x4E00 + families.VOCABULARY - 7)) + "abcdef"


def tokenizer():
    """A token for each letter, and the last one for `ef`."""
    letters = {letter: token for token, letter in enumerate([*LETTERS, "ef"])}
    made = tokenizers.Tokenizer(tokenizers.models.BPE(letters, [("e", "f")]))
    made.decoder = tokenizers.decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=made, pad_token=LETTERS[0], bos_token=LETTERS[1], eos_token=LETTERS[2]
    )


def healed(model):
    """A prompt that ends with `e`, which may as well become `ef`."""
    ids = torch.cat([IDS[:, :-1].clamp(max=90), torch.tensor([[LETTERS.index("e")]])], dim=1)
    return {"inputs": ids, "max_new_tokens": 4, "token_healing": True, "tokenizer": tokenizer()}


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
    "processor": asking(logits_processor=LogitsProcessorList([lambda ids, scores: scores.flip(-1)])),
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
    "guidance": asking(guidance_scale=1.5),
    "a loop of one's own": lambda model: {"custom_generate": looped},
    "no prompt": lambda model: {"inputs": None, "max_new_tokens": 4},
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
    for part in ("scores", "logits"):
        torch.testing.assert_close(torch.cat(found[part]), torch.cat(before[part]), rtol=1e-4, atol=1e-4)


def test_a_model_that_is_compiled_meanwhile_runs_as_it_is():
    model = families.build("llama")
    with lazyllm.enable(model, STAGES), torch.no_grad():
        expected = families.generate(model, IDS, 4)
        compiled = torch.compile(model, backend="eager")
        assert torch.equal(compiled(IDS, logits_to_keep=1).logits[0], expected.logits[0])
        model.compile(backend="eager")
        assert torch.equal(families.generate(model, IDS, 4).sequences, expected.sequences)
