"""PEFT's adapters and quantised weights: the altered model is pruned as its definition says, or refused.

Run by `test_altered_weights.py` where the packages that this needs are.
"""

import families
import peft
import pytest
import torch
from checks import (
    assert_close,
    assert_refused,
    cut_answers,
    generate_alone,
    generate_recorded,
    pad_left,
    random_ids,
)
from test_exactness import check_by_reference, check_by_replay, check_kept
from torchao import quantization as torchao
from transformers import AutoModelForCausalLM, BitsAndBytesConfig, QuantoConfig, TorchAoConfig

import lazyllm

STAGES = [(0, 0.7), (2, 0.4)]

LINEAR = ["q_proj", "v_proj", "o_proj", "down_proj"]
SETTINGS = {
    "lora": {"r": 4, "target_modules": LINEAR},
    "lily": {"target_modules": LINEAR},
    "trainable_tokens": {"token_indices": list(range(3, 40)), "target_modules": ["embed_tokens"]},
}


def config(kind, **settings):
    made = {"task_type": "CAUSAL_LM", **SETTINGS.get(kind, {}), **settings}
    return peft.PEFT_TYPE_TO_CONFIG_MAPPING[kind.upper()](**made)


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


def check_batch(model):
    texts = [random_ids(length) for length in (31, 12, 20)]
    ids, mask = pad_left(texts)
    options = {"max_new_tokens": 5, "eos_token_id": None}
    with lazyllm.enable(model, STAGES):
        expected = generate_alone(model, texts, **options)
        output = model.generate(input_ids=ids, attention_mask=mask, do_sample=False, **options)
    assert cut_answers(output, ids.shape[1]) == expected


@pytest.mark.parametrize("kind", ["lora", "trainable_tokens"])
def test_pruning_an_adapted_model_equals_a_masked_pass_of_it(kind, ids):
    plain = families.generate(families.build("llama", dtype=torch.float64), ids, 1)
    model = adapted(config(kind)).get_base_model()
    adapters = families.generate(model, ids, 1)
    assert not torch.allclose(adapters.logits[0], plain.logits[0], atol=1e-3), "the adapter does nothing"
    check_kept(model, ids, 4, [(1, 1.0)])
    _, stats, _ = check_by_replay(model, STAGES, ids, 4)
    assert stats.num_computed[1:, 3:].max() > 1, "nothing was revived"


@pytest.mark.parametrize("settings", [{}, {"use_dora": True}], ids=["lora", "dora"])
def test_in_place_wrapped_and_merged_are_the_same_and_the_reference(settings, ids):
    wrapper = adapted(config("lora", **settings))
    base = wrapper.get_base_model()
    in_place = families.build("llama", dtype=torch.float64)
    peft.inject_adapter_in_model(config("lora", **settings), in_place)  # as `add_adapter`, with any version of PEFT
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
    wrapper = adapted(config(kind, num_virtual_tokens=5)).float()
    expected = families.generate(wrapper, ids, 3).sequences
    for given in (wrapper, wrapper.get_base_model()):
        with lazyllm.enable(given, STAGES):
            assert_refused("puts virtual tokens", lambda: families.generate(wrapper, ids, 3))
            assert_refused("puts virtual tokens", lambda: lazyllm.log_likelihoods(wrapper, ids, [[5, 6]]))
    assert_refused("puts virtual tokens", lambda: lazyllm.log_likelihoods(wrapper, ids, [[5, 6]]))
    assert torch.equal(families.generate(wrapper, ids, 3).sequences, expected)


def test_adapters_that_look_beyond_a_token_are_refused(ids):
    for adapter, says in (
        (config("lily"), "PEFT's lily"),
        (config("lora", alora_invocation_tokens=[5, 6]), "PEFT's ALora"),
    ):
        model = peft.get_peft_model(families.build("llama"), adapter)
        assert_refused(says, lambda model=model: lazyllm.enable(model, STAGES).start())
    model = families.build("llama")
    session = lazyllm.enable(model, STAGES)
    peft.inject_adapter_in_model(config("lily"), model)
    assert_refused("PEFT's lily", session.start)


# Each token's numbers are its own: of these, weights alone are quantised, or activations token by token.
SCHEMES = {
    "bitsandbytes int8": lambda: BitsAndBytesConfig(load_in_8bit=True, llm_int8_threshold=0.0),
    "bitsandbytes nf4": lambda: BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4"),
    "quanto int8": lambda: QuantoConfig("int8"),
    "torchao int8": lambda: TorchAoConfig(torchao.Int8WeightOnlyConfig()),
    "torchao int8 activations, int4": lambda: TorchAoConfig(torchao.Int8DynamicActivationIntxWeightConfig(torch.int4)),
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
    check_batch(model)
    before = families.generate(model, ids, 5)
    after, _ = generate_recorded(model, [(1, 1.0)], ids, 5)
    assert torch.equal(after.sequences, before.sequences)
    assert_close(after.logits, before.logits, 1e-4)
    _, stats, _ = check_by_replay(model, STAGES, ids, 5)
    assert stats.num_computed[1:, 3:].max() > 1, "nothing was revived"


def test_an_adapter_on_quantised_weights(load):
    model, ids = load(SCHEMES["bitsandbytes nf4"]()), families.prompt(24)
    plain = families.generate(model, ids, 1)
    wrapper = peft.get_peft_model(model, peft.LoraConfig(r=4, target_modules="all-linear", init_lora_weights=False))
    wrapper.eval()
    assert not torch.allclose(families.generate(wrapper, ids, 1).logits[0], plain.logits[0], atol=1e-2)
    check_by_reference(wrapper.get_base_model(), wrapper, STAGES, ids, 5)
