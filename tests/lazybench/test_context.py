"""What of a context a method may shorten: never the question, an instruction, or what a completion continues."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from paper_tokenizers import llama2_core
from support import byte_tokenizer
from tokenizers import normalizers
from transformers import PreTrainedTokenizerFast

from lazybench.config import ModelConfig
from lazybench.data import longbench, sample
from lazybench.data.facts import DatasetFacts, datasets_of, load_facts
from lazybench.data.record import Record
from lazybench.errors import LazyBenchError
from lazybench.methods.prompt_compression import PromptCompression
from lazybench.model.prompts import Prompt, PromptBuilder, before_continued, shortenable

FACTS = load_facts()
REAL = Path(__file__).parents[2].parent / "shared" / "longbench" / "data"


def lower_case_tokenizer() -> PreTrainedTokenizerFast:
    """One that does not give text back as it was."""
    tokenizer = byte_tokenizer()
    tokenizer.backend_tokenizer.normalizer = normalizers.Lowercase()
    return tokenizer


def llama_like_tokenizer() -> PreTrainedTokenizerFast:
    """One that drops a space at the beginning of what it decodes."""
    return PreTrainedTokenizerFast(tokenizer_object=llama2_core(), bos_token="<s>", eos_token="</s>", unk_token="<unk>")


TOKENIZERS = {"bytes": byte_tokenizer, "lower case": lower_case_tokenizer, "llama": llama_like_tokenizer}


def build(tokenizer, prompt: str, record: Record, limit: int, continues: str | None = None) -> Prompt:
    facts = DatasetFacts("mine", prompt, max_new_tokens=8, metric="qa_f1", chat=False, continues=continues)
    return PromptBuilder(tokenizer, ModelConfig(name="m", path="p", limit=limit, chat=None), facts).build(record)


def about(context: str, question: str = "") -> Record:
    return Record("r", "mine", question, context, ("a",), None, 1)


@pytest.mark.parametrize(
    "template", ["PP{{{context} SsS", "{input}{context}Ss", "Pp{context}\nS{context}{input}", "P{input}"]
)
@pytest.mark.parametrize("kind", TOKENIZERS)
@settings(max_examples=40, deadline=None)
@given(context=st.text("cé中😀", max_size=60), question=st.text("qQ \n", max_size=30), limit=st.integers(2, 120))
def test_exactly_the_context_wherever_the_cut_falls(kind, template, context, question, limit):
    tokenizer = TOKENIZERS[kind]()
    prompt = build(tokenizer, template, about(context, question), limit)
    inside = [place for start, end in shortenable(prompt) for place in range(start, end)]
    # What is left of a character that was cut in two is the context's, or nobody's.
    assert {prompt.text[place] for place in inside} <= {*context, "\ufffd"}
    assert not {sign for place, sign in enumerate(prompt.text) if place not in inside} & {*context}


@settings(max_examples=40, deadline=None)
@given(context=st.text("ab. \n", max_size=60), limit=st.integers(2, 100))
def test_white_space_at_the_contexts_ends_is_its_own(context, limit):
    for tokenizer in (byte_tokenizer(), llama_like_tokenizer()):
        prompt = build(tokenizer, "XY{context}ZZ", about(context), limit)
        places = shortenable(prompt)
        assert len(places) <= 1
        for start, end in places:
            assert set(prompt.text[:start]) <= {*"XY"}
            assert set(prompt.text[end:]) <= {*"ZZ"}


@pytest.mark.parametrize("limit", [8, 2000])
def test_a_prompt_without_context_has_nothing_to_shorten(limit):
    assert shortenable(build(byte_tokenizer(), "Only {input}", about("a context", "who?" * 9), limit)) == []
    assert shortenable(build(byte_tokenizer(), "Only {context}", about(""), limit)) == []


TILL = "app/till.py\nclass Till:\n    pass.\n"
OTHERS = "app/shop.py\nimport os\nclass Shop:\n    pass\n" + TILL
FILE = "from app import shop\nimport app.till\n\ndef pay(shop):\n"


@pytest.mark.parametrize(
    ("context", "question", "whole"),
    [
        (OTHERS + FILE, "", "\n" + FILE),  # LongBench's own records: no path above the last file
        (f"{OTHERS}app/pay.py\n{FILE}", "", f"\napp/pay.py\n{FILE}"),
        (OTHERS, FILE, ""),  # the file to complete is the question
        (f"{OTHERS}def pay(shop):\n", "", f"\n{TILL}def pay(shop):\n"),
        (OTHERS.replace("\n", "\r\n") + FILE, "", "\n" + FILE),
        ("Shop.java\nclass Shop {}\npackage app;\nimport java.util;\n", "", "\npackage app;\nimport java.util;\n"),
        ("class Shop:\n    pass\n", "", "class Shop:\n    pass\n"),
        ("", "", ""),
    ],
)  # fmt: skip
def test_the_last_file_is_what_is_continued(context, question, whole):
    record = about(context, question)
    end = before_continued(record, FACTS["repobench-p"])
    assert context[end:] == whole
    assert before_continued(record, FACTS["lcc"]) == 0
    assert before_continued(record, FACTS["hotpotqa"]) == len(context)


def test_a_dataset_of_ones_own_says_what_is_continued():
    facts = {"prompt": "{context}", "max_new_tokens": 8, "metric": "code_sim"}
    assert load_facts({"mine": facts})["mine"].continues is None
    assert load_facts({"mine": {**facts, "continues": "last_file"}})["mine"].continues == "last_file"
    with pytest.raises(LazyBenchError, match="continues 'contxt' is unknown: did you mean 'context'"):
        load_facts({"mine": {**facts, "continues": "contxt"}})


def records_of(dataset: str, count: int | None = None) -> list[Record]:
    """The shortest `count` records of the dataset, or all of them."""
    records = longbench.load(dataset, REAL, None) if REAL.exists() else sample.load(dataset, 4, seed=0, tokens=4096)
    return sorted(records, key=lambda record: len(record.context))[:count]


def test_real_completions_continue_the_end_of_the_context():
    for record in records_of("repobench-p"):
        before, behind = record.context[: (end := before_continued(record, FACTS["repobench-p"]))], record.context[end:]
        assert behind.startswith(("\nimport ", "\nfrom ", "\npackage ")) or not REAL.exists()
        assert 0 < len(before) < len(record.context)
        assert [word for word in ("import ", "package ") if word in behind]


class Words:
    """Scores without a model: rare letters tell more."""

    device = torch.device("cpu")
    name_or_path = "words"
    config = SimpleNamespace(get_text_config=lambda: SimpleNamespace())

    def __init__(self, vocabulary: int) -> None:
        self.logits = torch.linspace(0, 4, vocabulary)
        self.passes = 0

    def __call__(self, ids, **kwargs):
        self.passes += 1
        return SimpleNamespace(logits=self.logits.expand(1, ids.shape[1], -1), past_key_values=None)


def compressed(prompt: Prompt, **changes):
    """What the method gives a model to read, the method, its output and the passes it took to score."""
    tokenizer, read = prompt.builder.tokenizer, []

    class Decode:
        model = Words(len(tokenizer))

        def __call__(self, ids):
            read.append(ids[0].tolist())
            return [5]

    method, decode = PromptCompression("prompt_compression", **changes), Decode()
    output = method.generate(prompt, decode, 0)
    return read[0], method, output, decode.model.passes


def is_subsequence(part: str, whole: str) -> bool:
    rest = iter(whole)
    return all(sign in rest for sign in part)


@pytest.mark.parametrize("count", [1, pytest.param(None, marks=pytest.mark.slow)])
@pytest.mark.parametrize("dataset", datasets_of("all", FACTS))
def test_real_records_keep_all_but_their_context(dataset, count):
    tokenizer, facts = byte_tokenizer(), FACTS[dataset]
    builder = PromptBuilder(tokenizer, ModelConfig(name="m", path="p", limit=4000, chat="[INST]{prompt}[/INST]"), facts)
    wrapper = ("[INST]", "[/INST]") if facts.chat else ("", "")
    for record in records_of(dataset, count):
        prompt = builder.build(record)
        head, tail = (part.format(input=record.input) for part in facts.prompt.split("{context}"))
        continued = record.context[before_continued(record, facts) :]
        for scope in ("prompt", "record"):
            ids, method, output, passes = compressed(prompt, scope=scope)
            text = tokenizer.decode(ids, skip_special_tokens=True)
            assert text.startswith(wrapper[0] + head)
            # A question may itself be longer than the half of the prompt that truncation keeps.
            assert text.endswith((continued + tail)[-1900:] + wrapper[1])
            assert 0 < output.prompt_computed <= 1
            assert output.prompt_computed == min(1, len(ids) / prompt.ids.shape[1])
            assert ids.count(tokenizer.bos_token_id) == 1
            assert method.name == ("prompt_compression" if scope == "prompt" else "prompt_compression_record")
            if scope == "prompt":
                assert compressed(prompt)[0] == ids  # the default, and the same once more
            if dataset == "lcc":
                assert ids == prompt.ids[0].tolist()
                assert passes == 0
            elif scope == "prompt":
                assert is_subsequence(text, wrapper[0] + prompt.text + wrapper[1])  # nothing of what was cut out
                assert passes > 0
                assert output.prompt_computed < 1 or dataset == "repobench-p"  # a piece of code may be one sentence


@pytest.mark.skipif(not REAL.exists(), reason="generated code has no sentences to leave out")
def test_the_other_files_of_a_completion_are_compressed():
    config = ModelConfig(name="m", path="p", limit=99999, chat=None)
    (record,) = records_of("repobench-p", 1)
    prompt = PromptBuilder(byte_tokenizer(), config, FACTS["repobench-p"]).build(record)
    both = [compressed(prompt, scope=scope)[0] for scope in ("prompt", "record")]
    assert both[0] == both[1]  # nothing was cut out
    assert len(both[0]) < 0.9 * prompt.ids.shape[1]
