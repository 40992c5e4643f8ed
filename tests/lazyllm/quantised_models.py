"""Quantised weights: the quantised model is pruned as its definition says, whatever its own rounding is."""

from __future__ import annotations

import batching
import families
import peft
import pytest
import replay
import torch
from refusals import refuse
from test_exactness import check_by_replay, enabled
from torchao import quantization as torchao
from transformers import AutoModelForCausalLM, BitsAndBytesConfig, QuantoConfig, TorchAoConfig

import lazyllm
from lazyllm import reference

STAGES = [(0, 0.7), (2, 0.4)]

# Each token's numbers are its own: of these, weights alone are quantised, or activations token by token.
SCHEMES = {
    "bitsandbytes int8": lambda: BitsAndBytesConfig(load_in_8bit=True, llm_int8_threshold=0.0),
    "bitsandbytes nf4": lambda: BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4"),
    "bitsandbytes nf4 twice": lambda: BitsAndBytesConfig(
        load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True
    ),
    "bitsandbytes fp4": lambda: BitsAndBytesConfig(load_in_4bit=True),
    "quanto int8": lambda: QuantoConfig(weights="int8"),
    "quanto int4": lambda: QuantoConfig(weights="int4"),
    "quanto float8": lambda: QuantoConfig(weights="float8"),
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


def logits(output) -> torch.Tensor:
    return torch.stack(output.logits)


def check_by_reference(model, generating, ids):
    output, stats = enabled(generating, STAGES, ids, 5)
    expected = reference.run(model, ids[0].tolist(), STAGES, 5)
    assert output.sequences[0, ids.shape[1] :].tolist() == expected.tokens
    assert [[p.tolist() for p in step] for step in stats.positions] == expected.active
    assert [[p.tolist() for p in step] for step in stats.computed] == expected.rows
    assert stats.rows[1:, 3:].max() > 1, "nothing was revived"


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_quantised_model_is_pruned_as_defined(load, scheme):
    model, ids = load(SCHEMES[scheme]()), families.prompt(24)
    before = families.generate(model, ids, 5)
    after, _ = enabled(model, [(1, 1.0)], ids, 5)
    assert torch.equal(after.sequences, before.sequences)
    assert torch.allclose(logits(after), logits(before), atol=1e-4)
    check_by_reference(model, model, ids)
    check_by_replay(model, STAGES, ids, 5)


@pytest.mark.parametrize("scheme", ROUNDING)
def test_a_quantised_model_stays_within_its_own_rounding(load, scheme):
    model, ids = load(ROUNDING[scheme]()), families.prompt(40)
    plain = families.generate(model, ids, 1).logits[0]
    kept, _ = enabled(model, [(1, 1.0)], ids, 1)
    pruned, stats = enabled(model, STAGES, ids, 4)
    model.set_attn_implementation("eager")
    oracle = replay.Replay(model, pruned.sequences[:, :-1], stats.positions, stats.computed).logits[ids.shape[1] - 1 :]
    # The unmodified model differs as much from itself: with another kernel, or with its prompt in two chunks.
    rounding = 0.5
    assert torch.allclose(kept.logits[0], plain, atol=rounding)
    assert torch.allclose(torch.cat(pruned.logits), oracle, atol=rounding)
    assert not torch.allclose(pruned.logits[0], plain, atol=4 * rounding)


@pytest.mark.parametrize("scheme", ["bitsandbytes nf4", "quanto int8", "torchao int8"])
def test_a_batch_is_what_each_is_alone(load, scheme):
    model = load(SCHEMES[scheme]())
    texts = [families.prompt(length, seed=length)[0].tolist() for length in (31, 12, 20)]
    ids, mask = batching.padded(texts)
    settings = {"max_new_tokens": 5, "eos_token_id": None}
    with lazyllm.enable(model, lazyllm.PruningSchedule(STAGES)):
        expected = batching.alone(model, texts, **settings)
        output = model.generate(ids, attention_mask=mask, do_sample=False, **settings)
    assert batching.answers(output, ids.shape[1], None) == expected


def test_an_adapter_on_quantised_weights(load):
    model, ids = load(SCHEMES["bitsandbytes nf4"]()), families.prompt(24)
    plain = families.generate(model, ids, 1)
    wrapper = peft.get_peft_model(model, peft.LoraConfig(r=4, target_modules="all-linear", init_lora_weights=False))
    wrapper.eval()
    assert not torch.allclose(families.generate(wrapper, ids, 1).logits[0], plain.logits[0], atol=1e-2)
    check_by_reference(wrapper.get_base_model(), wrapper, ids)


def test_one_scale_for_all_tokens_is_refused(load):
    model = load(TorchAoConfig(torchao.Int8DynamicActivationInt8WeightConfig(granularity=torchao.PerTensor())))
    refuse("one scale for all tokens", lazyllm.enable(model, "1:0.6").__enter__)
