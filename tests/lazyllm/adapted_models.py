"""PEFT's adapters: the adapted model is pruned as its definition says, in place, wrapped or merged, or refused."""

from __future__ import annotations

import batching
import families
import peft
import pytest
import torch
from refusals import refuse
from test_exactness import check_by_replay, enabled

import lazyllm
from lazyllm import reference
from lazyllm.hf.support import ADAPTERS

STAGES = [(0, 0.7), (2, 0.4)]
SCHEDULE = lazyllm.PruningSchedule(STAGES)
LINEAR = ["q_proj", "v_proj", "o_proj", "down_proj"]

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


def config(kind: str, **settings: object) -> peft.PeftConfig:
    made = {"target_modules": ["q_proj", "v_proj"], "task_type": "CAUSAL_LM", **SETTINGS.get(kind, {}), **settings}
    made = {name: value for name, value in made.items() if value is not None}
    return peft.PEFT_TYPE_TO_CONFIG_MAPPING[kind.upper()](**made)


def lora(**settings: object) -> peft.LoraConfig:
    return config("lora", **{"r": 4, "target_modules": LINEAR, **settings})


def trained(model: torch.nn.Module) -> torch.nn.Module:
    """The model with its adapters as training might leave them, and not as they begin, without effect."""
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter += 0.1 * torch.randn(parameter.shape, generator=generator)
    return model.eval()


def adapted(adapter: peft.PeftConfig, dtype: torch.dtype = torch.float64) -> peft.PeftModel:
    return trained(peft.get_peft_model(families.build("llama", dtype=dtype), adapter)).to(dtype)


@pytest.mark.parametrize("kind", sorted(ADAPTERS))
def test_pruning_an_adapted_model_equals_a_masked_pass_of_it(kind, ids):
    plain = families.generate(families.build("llama", dtype=torch.float64), ids, 1)
    model = adapted(config(kind)).get_base_model()
    before = families.generate(model, ids, 4)
    assert not torch.allclose(before.logits[0], plain.logits[0], atol=1e-3), "the adapter does nothing"
    after, _ = enabled(model, [(1, 1.0)], ids, 4)
    assert torch.allclose(torch.stack(after.logits), torch.stack(before.logits), atol=1e-5)
    stats = check_by_replay(model, STAGES, ids, 4)
    assert stats.rows[1:, 3:].max() > 1, "nothing was revived"


@pytest.mark.parametrize("settings", [{}, {"use_dora": True}], ids=["lora", "dora"])
def test_in_place_wrapped_and_merged_are_the_same_and_the_reference(settings, ids):
    wrapper = adapted(lora(**settings))
    expected = reference.run(wrapper.get_base_model(), ids[0].tolist(), STAGES, 6)
    in_place = families.build("llama", dtype=torch.float64)
    in_place.add_adapter(lora(**settings))
    trained(in_place).double()

    def check(given, generating):
        with lazyllm.enable(given, SCHEDULE, record_positions=True) as lazy:
            output = families.generate(generating, ids, 6)
        assert output.sequences[0, ids.shape[1] :].tolist() == expected.tokens
        assert [[p.tolist() for p in step] for step in lazy.stats.positions] == expected.active
        return output

    generate = wrapper.generate
    check(wrapper, wrapper)
    assert wrapper.generate == generate
    check(wrapper, wrapper.get_base_model())
    check(wrapper.base_model.model, wrapper)
    check(in_place, in_place)
    with lazyllm.enable(wrapper, SCHEDULE), torch.no_grad():
        found = wrapper(ids, logits_to_keep=1).logits
        assert torch.equal(found, wrapper.get_base_model()(ids, logits_to_keep=1).logits)
    merged = wrapper.merge_and_unload()
    check(merged, merged)


def test_a_batch_is_what_each_is_alone(ids):
    wrapper = adapted(lora(target_modules=[*LINEAR, "embed_tokens", "lm_head"]))
    texts = [families.prompt(length, seed=length)[0].tolist() for length in (31, 12, 20)]
    padded, mask = batching.padded(texts)
    with lazyllm.enable(wrapper, SCHEDULE):
        settings = {"max_new_tokens": 6, "eos_token_id": None}
        expected = batching.alone(wrapper.get_base_model(), texts, **settings)
        output = wrapper.generate(input_ids=padded, attention_mask=mask, do_sample=False, **settings)
    assert batching.answers(output, padded.shape[1], None) == expected


def test_adapters_may_come_change_and_go_in_between(ids):
    model = families.build("llama", dtype=torch.float64)

    def pruned():
        with lazyllm.enable(model, SCHEDULE):
            return torch.stack(families.generate(model, ids, 3).logits)

    bare = pruned()
    session = lazyllm.enable(model, SCHEDULE)
    model.add_adapter(lora(), "one")
    trained(model).double()
    with session:
        one = torch.stack(families.generate(model, ids, 3).logits)
        model.disable_adapters()
        assert torch.equal(torch.stack(families.generate(model, ids, 3).logits), bare)
        model.enable_adapters()
        model.add_adapter(lora(r=2), "two")
        trained(model).double()
        model.set_adapter("two")
        two = torch.stack(families.generate(model, ids, 3).logits)
    assert torch.equal(pruned(), two)
    model.set_adapter("one")
    assert not torch.allclose(one, bare, atol=1e-3)
    assert not torch.allclose(two, one, atol=1e-3)
    wrapper = adapted(lora())
    with lazyllm.enable(wrapper, SCHEDULE):
        before = torch.stack(families.generate(wrapper, ids, 3).logits)
        merged = wrapper.merge_and_unload()
        after = torch.stack(families.generate(merged, ids, 3).logits)
    assert torch.allclose(after, before, atol=1e-6)


@pytest.mark.parametrize("kind", ["prompt_tuning", "p_tuning", "prefix_tuning"])
def test_prompt_learning_is_refused(kind, ids):
    wrapper = adapted(config(kind, target_modules=None, num_virtual_tokens=5), torch.float32)
    expected = families.generate(wrapper, ids, 3).sequences
    for given in (wrapper, wrapper.get_base_model()):
        with lazyllm.enable(given, SCHEDULE):
            refuse("puts virtual tokens", lambda: families.generate(wrapper, ids, 3))
            refuse("puts virtual tokens", lambda: lazyllm.log_likelihood(wrapper, ids, [5, 6]))
    refuse("puts virtual tokens", lambda: lazyllm.log_likelihood(wrapper, ids, [5, 6]))
    assert torch.equal(families.generate(wrapper, ids, 3).sequences, expected)


def test_tuned_prompts_may_be_given_as_embeddings(ids):
    wrapper = adapted(config("prompt_tuning", target_modules=None, num_virtual_tokens=5), torch.float32)
    model = wrapper.get_base_model()
    expected = families.generate(wrapper, ids, 6)
    with torch.no_grad():
        embedded = torch.cat([wrapper.get_prompt(1), model.get_input_embeddings()(ids)], dim=1)
    with lazyllm.enable(wrapper, "1:1.0"):
        found = model.generate(inputs_embeds=embedded, max_new_tokens=6, do_sample=False, eos_token_id=None)
    assert torch.equal(found[0], expected.sequences[0, ids.shape[1] :])


def test_adapters_that_look_beyond_a_token_are_refused(ids):
    def enable(model):
        with lazyllm.enable(model, SCHEDULE):
            pass

    lily = peft.get_peft_model(families.build("llama"), config("lily"))
    refuse("PEFT's lily", lambda: enable(lily))
    counting = peft.get_peft_model(families.build("llama"), lora(alora_invocation_tokens=[5, 6]))
    refuse("PEFT's ALora", lambda: enable(counting))
    model = families.build("llama")
    session = lazyllm.enable(model, SCHEDULE)
    model.add_adapter(config("lily"))
    refuse("PEFT's lily", session.__enter__)


def test_an_adapter_for_each_prompt_of_a_batch_is_refused(ids):
    wrapper = adapted(lora(), torch.float32)
    wrapper.add_adapter("other", lora())
    with lazyllm.enable(wrapper, SCHEDULE):
        expected = families.generate(wrapper, ids, 3).sequences
        assert torch.equal(families.generate(wrapper, ids, 3, adapter_names=["default"]).sequences, expected)
        two = ids.repeat(2, 1)
        refuse(
            "generate the prompts of each apart",
            lambda: families.generate(wrapper, two, 3, adapter_names=["default", "other"]),
        )
        assert torch.equal(families.generate(wrapper, ids, 3).sequences, expected)
