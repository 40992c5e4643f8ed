"""PEFT's adapters and quantised weights: the altered model is pruned as its definition says, or refused.

Run by `test_altered_weights.py` where the packages that this needs are.
"""

from types import SimpleNamespace

import families
import peft
import pytest
import torch
from checks import (
    Replay,
    assert_close,
    assert_refused,
    cut_answers,
    generate_alone,
    generate_recorded,
    pad_left,
    random_ids,
)
from optimum.quanto.library.extensions import get_extension
from test_exactness import check_by_reference, check_by_replay, check_kept
from torchao import quantization as torchao
from transformers import AutoModelForCausalLM, BitsAndBytesConfig, QuantoConfig, TorchAoConfig

import lazyllm
from lazyllm.hf.model_support import ADAPTERS

STAGES = [(0, 0.7), (2, 0.4)]

# The numbers that lie in each byte: Quanto would compile C++ for this, which takes a minute.
get_extension("quanto_cpp")._lib = SimpleNamespace(
    unpack=lambda packed, bits: torch.cat([packed >> shift & (1 << bits) - 1 for shift in range(0, 8, bits)])
)

# What an adapter's config needs besides the modules it is for.
SETTINGS = {
    "adalora": {"total_step": 10},
    "adaption_prompt": {"adapter_len": 4, "adapter_layers": 3, "target_modules": None},
    "boft": {"boft_block_size": 4},
    "c3a": {"block_size": 4},
    "fourierft": {"n_frequency": 20},
    "gralora": {"r": 4, "gralora_k": 2},
    "ia3": {"target_modules": ["k_proj", "v_proj", "down_proj"], "feedforward_modules": ["down_proj"]},
    "ln_tuning": {"target_modules": ["input_layernorm"]},
    "miss": {"r": 4},
    "oft": {"oft_block_size": 4},
    "road": {"group_size": 4},
    "shira": {"r": 4},
    "trainable_tokens": {"token_indices": list(range(3, 40)), "target_modules": ["embed_tokens"]},
    "vblora": {"vector_length": 4, "num_vectors": 10},
    "waveft": {"n_frequency": 20},
}
LINEAR = ["q_proj", "v_proj", "o_proj", "down_proj"]


def config(kind, **settings):
    made = {"target_modules": ["q_proj", "v_proj"], "task_type": "CAUSAL_LM", **SETTINGS.get(kind, {}), **settings}
    made = {name: value for name, value in made.items() if value is not None}
    return peft.PEFT_TYPE_TO_CONFIG_MAPPING[kind.upper()](**made)


def lora(**settings):
    return config("lora", **{"r": 4, "target_modules": LINEAR, **settings})


def trained(model):
    """The model with its adapters as training might leave them, and not as they begin, without effect."""
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter += 0.1 * torch.randn(parameter.shape, generator=generator)
    return model.eval()


def adapted(adapter):
    return trained(peft.get_peft_model(families.build("llama", dtype=torch.float64), adapter)).double()


def check_batch(model, generating):
    texts = [random_ids(length) for length in (31, 12, 20)]
    ids, mask = pad_left(texts)
    options = {"max_new_tokens": 5, "eos_token_id": None}
    with lazyllm.enable(generating, STAGES):
        expected = generate_alone(model, texts, **options)
        output = generating.generate(input_ids=ids, attention_mask=mask, do_sample=False, **options)
    assert cut_answers(output, ids.shape[1]) == expected


@pytest.mark.parametrize("kind", sorted(ADAPTERS))
def test_pruning_an_adapted_model_equals_a_masked_pass_of_it(kind, ids):
    plain = families.generate(families.build("llama", dtype=torch.float64), ids, 1)
    model = adapted(config(kind)).get_base_model()
    adapters = families.generate(model, ids, 1)
    assert not torch.allclose(adapters.logits[0], plain.logits[0], atol=1e-3), "the adapter does nothing"
    check_kept(model, ids, 4, [(1, 1.0)])
    _, stats, _ = check_by_replay(model, STAGES, ids, 4)
    assert stats.rows[1:, 3:].max() > 1, "nothing was revived"


@pytest.mark.parametrize("settings", [{}, {"use_dora": True}], ids=["lora", "dora"])
def test_in_place_wrapped_and_merged_are_the_same_and_the_reference(settings, ids):
    wrapper = adapted(lora(**settings))
    base = wrapper.get_base_model()
    in_place = families.build("llama", dtype=torch.float64)
    in_place.add_adapter(lora(**settings))
    trained(in_place).double()
    generate = wrapper.generate
    for model, generating in ((base, wrapper), (base, base), (in_place, in_place)):
        output = check_by_reference(model, generating, STAGES, ids, 6)
    assert wrapper.generate == generate
    with lazyllm.enable(wrapper, STAGES), torch.no_grad():
        assert torch.equal(wrapper(ids, logits_to_keep=1).logits, base(ids, logits_to_keep=1).logits)
        assert torch.equal(families.generate(base, ids, 6).sequences, output.sequences)
        merged = wrapper.merge_and_unload()
        assert_close(families.generate(merged, ids, 6).logits, output.logits, 1e-5)
    check_by_reference(merged, merged, STAGES, ids, 6)


@pytest.mark.parametrize("kind", ["prompt_tuning", "p_tuning", "prefix_tuning"])
def test_prompt_learning_is_refused(kind, ids):
    wrapper = adapted(config(kind, target_modules=None, num_virtual_tokens=5)).float()
    expected = families.generate(wrapper, ids, 3).sequences
    for given in (wrapper, wrapper.get_base_model()):
        with lazyllm.enable(given, STAGES):
            assert_refused("puts virtual tokens", lambda: families.generate(wrapper, ids, 3))
            assert_refused("puts virtual tokens", lambda: lazyllm.log_likelihoods(wrapper, ids, [[5, 6]]))
    assert_refused("puts virtual tokens", lambda: lazyllm.log_likelihoods(wrapper, ids, [[5, 6]]))
    assert torch.equal(families.generate(wrapper, ids, 3).sequences, expected)
    if kind == "prompt_tuning":  # which may be given as embeddings
        model = wrapper.get_base_model()
        with torch.no_grad(), lazyllm.enable(wrapper, "1:1.0"):
            embedded = torch.cat([wrapper.get_prompt(1), model.get_input_embeddings()(ids)], dim=1)
            actual = model.generate(inputs_embeds=embedded, max_new_tokens=3, do_sample=False, eos_token_id=None)
        assert torch.equal(actual, expected[:, ids.shape[1] :])


def test_adapters_that_look_beyond_a_token_are_refused(ids):
    for adapter, says in ((config("lily"), "PEFT's lily"), (lora(alora_invocation_tokens=[5, 6]), "PEFT's ALora")):
        model = peft.get_peft_model(families.build("llama"), adapter)
        assert_refused(says, lambda model=model: lazyllm.enable(model, STAGES).start())
    model = families.build("llama")
    session = lazyllm.enable(model, STAGES)
    model.add_adapter(config("lily"))
    assert_refused("PEFT's lily", session.start)


def test_an_adapter_for_each_prompt_of_a_batch_is_refused(ids):
    wrapper = adapted(lora(target_modules=[*LINEAR, "embed_tokens", "lm_head"]))
    check_batch(wrapper.get_base_model(), wrapper)
    wrapper = adapted(lora())
    wrapper.add_adapter("other", lora())
    with lazyllm.enable(wrapper, STAGES):
        expected = families.generate(wrapper, ids, 3).sequences
        assert torch.equal(families.generate(wrapper, ids, 3, adapter_names=["default"]).sequences, expected)
        options = {"adapter_names": ["default", "other"]}
        with pytest.raises(ValueError, match="adapter_names"):  # PEFT's own
            families.generate(wrapper, ids.repeat(2, 1), 3, **options)


# Each token's numbers are its own: of these, weights alone are quantised, or activations token by token.
FP4 = {"load_in_4bit": True}
NF4 = {**FP4, "bnb_4bit_quant_type": "nf4"}
SCHEMES = {
    "bitsandbytes int8": lambda: BitsAndBytesConfig(load_in_8bit=True, llm_int8_threshold=0.0),
    "bitsandbytes nf4": lambda: BitsAndBytesConfig(**NF4),
    "bitsandbytes nf4 twice": lambda: BitsAndBytesConfig(**NF4, bnb_4bit_use_double_quant=True),
    "bitsandbytes fp4": lambda: BitsAndBytesConfig(**FP4),
    **{f"quanto {weights}": lambda weights=weights: QuantoConfig(weights) for weights in ("int8", "int4", "float8")},
    "torchao int8": lambda: TorchAoConfig(torchao.Int8WeightOnlyConfig()),
    "torchao int4": lambda: TorchAoConfig(torchao.IntxWeightOnlyConfig(torch.int4)),
    "torchao float8": lambda: TorchAoConfig(torchao.Float8WeightOnlyConfig()),
    "torchao int8 activations, int4": lambda: TorchAoConfig(torchao.Int8DynamicActivationIntxWeightConfig(torch.int4)),
}
# A difference in the last bit is enough to round an activation the other way, or to make a column an outlier.
ROUNDING = {
    "bitsandbytes int8 with outliers": lambda: BitsAndBytesConfig(load_in_8bit=True),
    "torchao int8 activations, int8": lambda: TorchAoConfig(torchao.Int8DynamicActivationInt8WeightConfig()),
}


@pytest.fixture(scope="module")
def load(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    families.build("llama", hidden_size=64, intermediate_size=128).save_pretrained(folder)
    return lambda scheme: AutoModelForCausalLM.from_pretrained(folder, quantization_config=scheme, dtype=torch.float32)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_quantised_model_is_pruned_as_defined(load, scheme):
    model, ids = load(SCHEMES[scheme]()), families.prompt(24)
    check_by_reference(model, model, STAGES, ids, 5)
    if scheme in ("bitsandbytes nf4", "quanto int8", "torchao int8"):
        check_batch(model, model)
    before = families.generate(model, ids, 5)
    after, _ = generate_recorded(model, [(1, 1.0)], ids, 5)
    assert torch.equal(after.sequences, before.sequences)
    assert_close(after.logits, before.logits, 1e-4)
    _, stats, _ = check_by_replay(model, STAGES, ids, 5)
    assert stats.rows[1:, 3:].max() > 1, "nothing was revived"


@pytest.mark.parametrize("scheme", ROUNDING)
def test_a_quantised_model_stays_within_its_own_rounding(load, ids, scheme):
    model = load(ROUNDING[scheme]())
    plain = families.generate(model, ids, 1).logits[0]
    kept, _ = generate_recorded(model, [(1, 1.0)], ids, 1)
    pruned, stats = generate_recorded(model, STAGES, ids, 4)
    model.set_attn_implementation("eager")
    oracle = Replay(model, pruned.sequences[:, :-1], stats).logits[ids.shape[1] - 1 :]
    # The unmodified model differs as much from itself: with another kernel, or with its prompt in two chunks.
    rounding = 0.5
    assert torch.allclose(kept.logits[0], plain, atol=rounding)
    assert torch.allclose(torch.cat(pruned.logits), oracle, atol=rounding)
    assert not torch.allclose(pruned.logits[0], plain, atol=4 * rounding)


def test_an_adapter_on_quantised_weights(load):
    model, ids = load(SCHEMES["bitsandbytes nf4"]()), families.prompt(24)
    plain = families.generate(model, ids, 1)
    wrapper = peft.get_peft_model(model, peft.LoraConfig(r=4, target_modules="all-linear", init_lora_weights=False))
    wrapper.eval()
    assert not torch.allclose(families.generate(wrapper, ids, 1).logits[0], plain.logits[0], atol=1e-2)
    check_by_reference(wrapper.get_base_model(), wrapper, STAGES, ids, 5)


def test_one_scale_for_all_tokens_is_refused(load):
    model = load(TorchAoConfig(torchao.Int8DynamicActivationInt8WeightConfig(granularity=torchao.PerTensor())))
    assert_refused("one scale for all tokens", lazyllm.enable(model, "1:0.6").start)
