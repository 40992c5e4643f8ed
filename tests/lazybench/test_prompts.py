"""Prompts and stops against LongBench's official steps, written out again here, and what a method may shorten."""

from dataclasses import replace
from datetime import datetime

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from paper_tokenizers import llama2_core
from support import byte_tokenizer, save_tiny_model
from tokenizers.processors import TemplateProcessing
from transformers import PreTrainedTokenizerFast

from lazybench.config import ModelConfig
from lazybench.data import sample
from lazybench.data.dataset_configs import DatasetConfig, load_dataset_configs
from lazybench.data.record import Record
from lazybench.model.decoding import Decoder, question_of
from lazybench.model.prompts import Prompt, PromptBuilder, context_spans

CONFIGS = load_dataset_configs()
LLAMA_2 = "[INST]{prompt}[/INST]"


def config(**changes) -> ModelConfig:
    return ModelConfig(**{"name": "m", "path": "p", "limit": 500, "chat": LLAMA_2, **changes})


def test_exactly_one_bos_from_tokenizer_or_template():
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = "{{ bos_token }}{% for m in messages %}U: {{ m['content'] }}{% endfor %} A:"
    record = Record("r", "hotpotqa", "Who?", "It was Ada.", ("Ada",), None, 3)
    for chat in ("template", LLAMA_2, None):
        ids = PromptBuilder(tokenizer, config(chat=chat), CONFIGS["hotpotqa"]).build(record).ids[0].tolist()
        assert ids[0] == tokenizer.bos_token_id
        assert ids.count(tokenizer.bos_token_id) == 1


@pytest.mark.parametrize("limit", [300, 9999])
def test_a_prompt_has_its_text_and_the_index_of_its_cut(tokenizer, limit):
    record = Record("r", "hotpotqa", "Who?", "It was Ada. " * 50, ("Ada",), None, 3)
    prompt = PromptBuilder(tokenizer, config(limit=limit), CONFIGS["hotpotqa"]).build(record)
    assert tokenizer.decode(prompt.ids[0], skip_special_tokens=True) == LLAMA_2.replace("{prompt}", prompt.text)
    assert torch.equal(prompt.with_text(prompt.text).ids, prompt.ids)
    changed = PromptBuilder(tokenizer, config(limit=limit), CONFIGS["hotpotqa"]).build(replace(record, context="Ada."))
    assert torch.equal(prompt.with_context("Ada.").ids, changed.ids)
    filled = CONFIGS["hotpotqa"].prompt.format(context=record.context, input=record.input)
    if limit == 9999:
        assert (prompt.text, prompt.cut) == (filled, None)
    else:
        assert filled.startswith(prompt.text[: prompt.cut])
        assert filled.endswith(prompt.text[prompt.cut :])
        assert 0 < prompt.cut < len(prompt.text) < len(filled)


def test_samsum_stops_at_a_newline_but_not_before_one_token(model, tokenizer):
    newline = tokenizer.encode("\n", add_special_tokens=False)[-1]
    record = sample.load("samsum", limit=1, seed=0, tokens=512)[0]
    prompt = PromptBuilder(tokenizer, config(), CONFIGS["samsum"]).build(record)
    question = question_of(model, prompt)
    assert question.stops.stop_ids == [tokenizer.eos_token_id, newline]
    assert question.stops.max_new_tokens == 128

    def always_newline(module, args, output):
        output.logits[:] = 0
        output.logits[..., newline] = 9
        output.logits[..., 40] = 5
        return output

    hook = model.register_forward_hook(always_newline)
    try:
        assert Decoder(model, [question])([prompt.ids]) == [[40, newline]]
        other = question_of(model, PromptBuilder(tokenizer, config(), CONFIGS["trec"]).build(record))
        assert Decoder(model, [other])([prompt.ids]) == [[newline] * 64]
    finally:
        hook.remove()


def llama_like_tokenizer() -> PreTrainedTokenizerFast:
    """One that drops a space at the beginning of what it decodes."""
    return PreTrainedTokenizerFast(tokenizer_object=llama2_core(), bos_token="<s>", eos_token="</s>", unk_token="<unk>")


TOKENIZERS = {"bytes": byte_tokenizer, "llama": llama_like_tokenizer}


def build(tokenizer, prompt: str, record: Record, limit: int) -> Prompt:
    dataset = DatasetConfig("mine", prompt, max_new_tokens=8, metric="qa_f1", chat=False)
    return PromptBuilder(tokenizer, ModelConfig(name="m", path="p", limit=limit, chat=None), dataset).build(record)


def record_of(context: str, question: str = "") -> Record:
    return Record("r", "mine", question, context, ("a",), None, 1)


@pytest.mark.parametrize(
    "template", ["PP{{{context} SsS", "{input}{context}Ss", "Pp{context}\nS{context}{input}", "P{input}"]
)
@pytest.mark.parametrize("kind", TOKENIZERS)
@settings(max_examples=15, deadline=None)
@given(context=st.text("cé中😀", max_size=60), question=st.text("qQ \n", max_size=30), limit=st.integers(2, 120))
def test_exactly_the_context_wherever_the_cut_falls(kind, template, context, question, limit):
    tokenizer = TOKENIZERS[kind]()
    prompt = build(tokenizer, template, record_of(context, question), limit)
    inside = [index for start, end in context_spans(prompt) for index in range(start, end)]
    # What is left of a character that was cut in two is the context's, or nobody's.
    assert {prompt.text[index] for index in inside} <= {*context, "\ufffd"}
    assert not {sign for index, sign in enumerate(prompt.text) if index not in inside} & {*context}


def test_the_chat_template_gets_the_models_arguments():
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = "{{ messages[0].content }}{% if enable_thinking is false %}<think></think>{% endif %}"
    record = sample.load("qasper", limit=1, seed=0, tokens=256)[0]
    for template, end in (({}, ""), ({"enable_thinking": False}, "<think></think>")):
        builder = PromptBuilder(tokenizer, config(chat="template", template=template), CONFIGS["qasper"])
        assert builder.wrapped(record, "x") == f"x{end}"


def test_a_run_warns_once_of_prompts_that_end_in_a_thought_or_with_an_eos(run, tmp_path):
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = "{{ messages[0].content }}<think>{% if enable_thinking is false %}</think>{% endif %}"
    words = (
        f"model.path={save_tiny_model(tmp_path / 'thinking', tokenizer)}",
        "model.chat=template",
        "task=multidoc_qa",
    )
    special = [(token, tokenizer.convert_tokens_to_ids(token)) for token in ("<s>", "</s>")]
    core = tokenizer.backend_tokenizer
    core.post_processor = TemplateProcessing(single="<s> $A </s>", special_tokens=special)
    ending = save_tiny_model(tmp_path / "ending", tokenizer)
    for more, warned in (
        ((), ["thought"]),
        (("+model.template.enable_thinking=false",), []),
        ((f"model.path={ending}",), ["thought", "</s>"]),
        ((f"model.path={ending}", "model.chat=null"), ["</s>"]),
        (("task=code",), []),  # which has no chat wrapper
    ):
        code, out, err = run(*words, *more, command="plan")
        assert code == 0, err
        lines = [line for line in out.splitlines() if line.startswith("warning: prompts end")]
        assert len(lines) == len(warned)
        assert all(word in line for word, line in zip(warned, lines, strict=True))


@pytest.mark.parametrize("form", ["%d %b %Y", "%A, %B %d, %Y", "%Y-%m-%d"])
def test_a_chat_template_that_writes_todays_date_gives_the_same_prompt_every_day(form):
    tokenizer = byte_tokenizer()
    plain = " \n {% for m in messages %}On DATE: {{ m['content'] }}{% endfor %}"
    record = sample.load("qasper", limit=1, seed=0, tokens=256)[0]
    builder = PromptBuilder(tokenizer, config(limit=5000, chat="template"), CONFIGS["qasper"])
    texts = []
    for date in (f"{{% if strftime_now is defined %}}{{{{ strftime_now('{form}') }}}}{{% endif %}}", "DATE"):
        tokenizer.chat_template = plain.replace("DATE", date)
        texts.append(builder.wrapped(record, "x"))
    assert texts == [f" \nOn {datetime(2024, 7, 26).strftime(form)}: x", " \nOn DATE: x"]
