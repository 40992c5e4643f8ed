"""Prompts, stops and post-processing against LongBench's official steps, written out again here."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support import byte_tokenizer
from transformers import AutoModelForCausalLM

from lazybench.config import ModelConfig
from lazybench.data import longbench, sample
from lazybench.data.facts import datasets_of, load_facts
from lazybench.data.record import Record
from lazybench.model.decoding import Decoder, decoder_for, read
from lazybench.model.prompts import PromptBuilder

FACTS = load_facts()
ENGLISH = datasets_of("all", FACTS)
UNWRAPPED = {"trec", "triviaqa", "samsum", "lcc", "repobench-p"}
REAL = Path(__file__).parents[2].parent / "shared" / "longbench" / "data"
LLAMA_2 = "[INST]{prompt}[/INST]"


def config(**changes) -> ModelConfig:
    return ModelConfig(**{"name": "m", "path": "p", "limit": 500, "chat": LLAMA_2, **changes})


def official_ids(tokenizer, record, limit):
    """LongBench's get_pred up to the model's input, for Llama 2."""
    facts = FACTS[record.dataset]
    prompt = facts.prompt.format(input=record.input, context=record.context)
    tokenized_prompt = tokenizer(prompt, truncation=False, return_tensors="pt").input_ids[0]
    if len(tokenized_prompt) > limit:
        half = int(limit / 2)
        prompt = tokenizer.decode(tokenized_prompt[:half], skip_special_tokens=True) + tokenizer.decode(
            tokenized_prompt[-half:], skip_special_tokens=True
        )
    if record.dataset not in ["trec", "triviaqa", "samsum", "lsht", "lcc", "repobench-p"]:
        prompt = f"[INST]{prompt}[/INST]"
    return tokenizer(prompt, truncation=False).input_ids


def records_of(dataset):
    if REAL.exists():
        return longbench.load(dataset, REAL, limit=2)
    return sample.load(dataset, limit=2, seed=0, tokens=2048)


@pytest.mark.parametrize("dataset", ENGLISH)
@pytest.mark.parametrize("limit", [501, 200_000])
def test_ids_are_the_official_pipelines(tokenizer, dataset, limit):
    for record in records_of(dataset):
        prompt = PromptBuilder(tokenizer, config(limit=limit), FACTS[dataset]).build(record)
        assert prompt.ids[0].tolist() == official_ids(tokenizer, record, limit)
        assert prompt.ids.dtype == torch.int64


def test_exactly_one_bos_whoever_puts_it_there():
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = "{{ bos_token }}{% for m in messages %}U: {{ m['content'] }}{% endfor %} A:"
    record = Record("r", "hotpotqa", "Who?", "It was Ada.", ("Ada",), None, 3)
    for chat in ("template", LLAMA_2, None):
        ids = PromptBuilder(tokenizer, config(chat=chat), FACTS["hotpotqa"]).build(record).ids[0].tolist()
        assert ids[0] == tokenizer.bos_token_id
        assert ids.count(tokenizer.bos_token_id) == 1


def test_braces_in_a_record_are_text(tokenizer):
    record = Record("r", "lcc", "", "def f(): return {x} {input}", ("a",), None, 3)
    prompt = PromptBuilder(tokenizer, config(), FACTS["lcc"]).build(record)
    text = tokenizer.decode(prompt.ids[0], skip_special_tokens=True)
    assert text == "Please complete the code given below. \ndef f(): return {x} {input}Next line of code:\n"


def test_another_context_changes_only_the_context(tokenizer):
    builder = PromptBuilder(tokenizer, config(), FACTS["hotpotqa"])
    record = Record("r", "hotpotqa", "Who?", "It was Ada.", ("Ada",), None, 3)
    changed = builder.build(record).with_context("Ada.")
    expected = builder.build(Record("r", "hotpotqa", "Who?", "Ada.", ("Ada",), None, 3))
    assert torch.equal(changed.ids, expected.ids)


@pytest.mark.parametrize("limit", [300, 9999])
def test_a_prompt_knows_its_own_text_and_where_it_was_cut(tokenizer, limit):
    record = Record("r", "hotpotqa", "Who?", "It was Ada. " * 50, ("Ada",), None, 3)
    prompt = PromptBuilder(tokenizer, config(limit=limit), FACTS["hotpotqa"]).build(record)
    assert tokenizer.decode(prompt.ids[0], skip_special_tokens=True) == LLAMA_2.replace("{prompt}", prompt.text)
    assert torch.equal(prompt.with_text(prompt.text).ids, prompt.ids)
    filled = FACTS["hotpotqa"].prompt.format(context=record.context, input=record.input)
    if limit == 9999:
        assert (prompt.text, prompt.cut) == (filled, None)
    else:
        assert filled.startswith(prompt.text[: prompt.cut])
        assert filled.endswith(prompt.text[prompt.cut :])
        assert 0 < prompt.cut < len(prompt.text) < len(filled)


@settings(max_examples=50, deadline=None)
@given(context=st.text(max_size=400), limit=st.integers(10, 300))
def test_truncation_keeps_both_ends_and_the_limit(context, limit):
    tokenizer = byte_tokenizer()
    record = Record("r", "triviaqa", "Q?", context, ("a",), None, 3)
    ids = PromptBuilder(tokenizer, config(limit=limit), FACTS["triviaqa"]).build(record).ids[0].tolist()
    assert ids == official_ids(tokenizer, record, limit)


@pytest.fixture(scope="module")
def model(tiny_model):
    return AutoModelForCausalLM.from_pretrained(tiny_model).eval()


def test_samsum_stops_at_a_newline_but_not_before_one_token(model, tokenizer):
    newline = tokenizer.encode("\n", add_special_tokens=False)[-1]
    record = sample.load("samsum", limit=1, seed=0, tokens=512)[0]
    prompt = PromptBuilder(tokenizer, config(), FACTS["samsum"]).build(record)
    decode = decoder_for(model, prompt)
    assert decode.stop_ids == [tokenizer.eos_token_id, newline]
    assert decode.max_new_tokens == 128

    def always_newline(module, args, output):
        output.logits[:] = 0
        output.logits[..., newline] = 9
        output.logits[..., 40] = 5
        return output

    hook = model.register_forward_hook(always_newline)
    try:
        assert decode(prompt.ids) == [40, newline]
        other = decoder_for(model, PromptBuilder(tokenizer, config(), FACTS["trec"]).build(record))
        assert other(prompt.ids) == [newline] * 64
    finally:
        hook.remove()


def test_the_clock_sees_every_token_and_not_the_prompt(model):
    decode = Decoder(model, max_new_tokens=7)
    decode.clock.start()
    tokens = decode(torch.randint(5, 200, (1, 50)))
    assert len(tokens) == len(decode.clock.times) == 7
    assert decode.clock.times == sorted(decode.clock.times)
    assert decode.clock.times[0] > 0


def test_decoding_is_the_models_own_greedy_search(model):
    ids = torch.randint(5, 200, (1, 80), generator=torch.Generator().manual_seed(1))
    expected = model.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=9, do_sample=False, eos_token_id=None, pad_token_id=0
    )
    assert Decoder(model, max_new_tokens=9)(ids) == expected[0, 80:].tolist()


def test_xgens_speaker_is_removed_as_the_official_code_does(tokenizer):
    record = Record("r", "hotpotqa", "Who?", "It was Ada.", ("Ada",), None, 3)
    tokens = tokenizer("  Assistant: Ada\n", add_special_tokens=False).input_ids
    for model, text in ((config(remove=["Assistant:"]), " Ada"), (config(), "  Assistant: Ada\n")):
        prompt = PromptBuilder(tokenizer, model, FACTS["hotpotqa"]).build(record)
        assert read(tokens, prompt) == text


def test_the_7b_models_are_set_up_as_longbench_does():
    import yaml

    conf = Path(__file__).parents[2] / "conf" / "model"
    llama, xgen = (
        ModelConfig(**yaml.safe_load((conf / f"{name}.yaml").read_text())) for name in ("llama2_7b", "xgen_7b")
    )
    assert (llama.limit, xgen.limit) == (3500, 7500)
    assert llama.chat == LLAMA_2
    header = (
        "A chat between a curious human and an artificial intelligence assistant. "
        "The assistant gives helpful, detailed, and polite answers to the human's questions.\n\n"
    )
    assert xgen.chat == header + " ### Human: {prompt}\n###"
    assert xgen.remove == ["Assistant:"]
    assert not xgen.trust_remote_code
    assert not llama.trust_remote_code
    assert llama.dtype == xgen.dtype == "bfloat16"
