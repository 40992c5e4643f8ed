"""The paper's two models from prompt to prediction, on tiny models with the tokenizers of XGen and of Llama 2's kind.

What LongBench's official code does with a record is written out again here, over other tokenizer libraries.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml
from marks import slow_but
from paper_tokenizers import llama2_core, llama2_tokenizer, xgen_decode, xgen_encode, xgen_tokenizer
from support import save_tiny_model
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from lazybench.config import ModelConfig
from lazybench.data import longbench, sample
from lazybench.data.dataset_configs import datasets_of, load_dataset_configs
from lazybench.data.record import Record
from lazybench.model.decoding import question_of, to_text
from lazybench.model.loading import load_tokenizer
from lazybench.model.prompts import PromptBuilder

CONF = Path(__file__).parents[2] / "conf" / "model"
REAL = Path(__file__).parents[2].parent / "shared" / "longbench" / "data"
CONFIGS = load_dataset_configs()
UNWRAPPED = ["trec", "triviaqa", "samsum", "lsht", "lcc", "repobench-p"]
LIMIT = 301  # odd: each half has 150 ids


@dataclass(frozen=True)
class Official:
    """One of the paper's models as LongBench's code has it."""

    config: str  # name of the config here
    eos: int  # id that ends an answer
    encode: Callable[[str], list[int]]  # with the tokens that the tokenizer puts in front
    decode: Callable[[list[int]], str]  # without special tokens
    wrap: Callable[[str], str]  # in the chat template
    save: Callable[[Path], PreTrainedTokenizerFast]  # returns the tokenizer; Llama's is saved in the folder, too

    def ids(self, record: Record, limit: int) -> list[int]:
        """LongBench's get_pred up to the model's input."""
        prompt = CONFIGS[record.dataset].prompt.format(context=record.context, input=record.input)
        tokenized_prompt = self.encode(prompt)
        if len(tokenized_prompt) > limit:
            half = int(limit / 2)
            prompt = self.decode(tokenized_prompt[:half]) + self.decode(tokenized_prompt[-half:])
        if record.dataset not in UNWRAPPED:
            prompt = self.wrap(prompt)
        return self.encode(prompt)


def _xgen_wrap(prompt: str) -> str:
    header = (
        "A chat between a curious human and an artificial intelligence assistant. "
        "The assistant gives helpful, detailed, and polite answers to the human's questions.\n\n"
    )
    return header + f" ### Human: {prompt}\n###"


XGEN = Official("xgen_7b", 50256, xgen_encode, xgen_decode, wrap=_xgen_wrap, save=lambda folder: xgen_tokenizer())
LLAMA = Official(
    "llama2_7b",
    eos=2,
    encode=lambda text: llama2_core().encode(text).ids,
    decode=lambda ids: llama2_core().decode(ids, skip_special_tokens=True),
    wrap=lambda prompt: f"[INST]{prompt}[/INST]",
    save=lambda folder: llama2_tokenizer(folder, "LlamaTokenizer"),
)
MODELS = {"xgen": XGEN, "llama2": LLAMA}


@pytest.fixture(scope="module", params=MODELS)
def official(request):
    return MODELS[request.param]


@pytest.fixture(scope="module")
def folder(official, tmp_path_factory):
    """A random Llama saved with the model's tokenizer."""
    folder = tmp_path_factory.mktemp(official.config)
    save_tiny_model(folder, official.save(folder))
    official.save(folder)  # once more: the line above has put transformers' own name of the tokenizer's class there
    return folder


@pytest.fixture(scope="module")
def builder(official, folder):
    """Prompts of a dataset, cut to a limit; None takes the config's."""
    conf = yaml.safe_load((CONF / f"{official.config}.yaml").read_text()) | {"path": str(folder), "dtype": "float32"}
    tokenizer = load_tokenizer(ModelConfig(**conf))

    def builder_of(dataset: str, limit: int | None) -> PromptBuilder:
        settings = ModelConfig(**conf | ({} if limit is None else {"limit": limit}))
        return PromptBuilder(tokenizer, settings, CONFIGS[dataset])

    return builder_of


def records_of(dataset):
    """One record of LongBench, the shortest, if LongBench is at hand; else a generated one."""
    if REAL.exists():
        return sorted(longbench.load(dataset, REAL, None), key=lambda record: len(record.context))[:1]
    return sample.load(dataset, 1, seed=1, tokens=800)


@pytest.mark.parametrize("dataset", slow_but(("hotpotqa", "samsum", "lcc"), datasets_of("all", CONFIGS)))
@pytest.mark.parametrize("limit", [LIMIT, pytest.param(None, marks=pytest.mark.slow)])
def test_ids_are_the_official_pipelines(official, builder, dataset, limit):
    prompts = builder(dataset, limit)
    for record in records_of(dataset) if limit else sample.load(dataset, 1, seed=1, tokens=800):
        ids = prompts.build(record).ids[0].tolist()
        assert prompts.model.limit == (limit or (7500 if official is XGEN else 3500))
        assert ids == official.ids(record, prompts.model.limit)
        if limit is not None:
            # Tokens may merge where the halves meet, and the wrapper comes on top.
            assert limit - 10 < len(ids) < limit + 70
        if official is XGEN:
            assert not {50256, *range(50295, 51200)} & set(ids)
        else:
            assert ids[0] == 1
            assert ids.count(1) == 1


TEXTS = {
    "code": "\tif (x) {\n\t\t\treturn  [y for y in z]\n        }\n\n\n" * 40,
    "characters of several bytes": "naïve café — 東京 🙂 \u00a0" * 60,
    "special tokens": "usage: <filename> <sep> <|endoftext|> <mask_1> " * 40,
    "white space": (" " * 45 + "\n" + "\t" * 13) * 40,
}


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("dataset", ["lcc", "hotpotqa"])
def test_ids_of_odd_texts_are_the_official_pipelines(official, builder, text, dataset):
    record = Record("r", dataset, "What?", TEXTS[text], ("a",), None, 3)
    for limit in (*range(294, 298), 5000):
        assert builder(dataset, limit).build(record).ids[0].tolist() == official.ids(record, limit)


def test_stops_and_post_processing(official, builder, folder):
    model = LlamaForCausalLM.from_pretrained(folder)
    model.generation_config.eos_token_id = None
    (record,) = sample.load("samsum", 1, seed=1, tokens=800)
    prompt = builder("samsum", LIMIT).build(record)
    stops = question_of(model, prompt).stops
    assert (stops.stop_ids, stops.min_new_tokens) == ([official.eos, official.encode("\n")[-1]], 1)
    other = question_of(model, builder("hotpotqa", LIMIT).build(record)).stops
    assert (other.stop_ids, other.min_new_tokens) == ([official.eos], 0)
    answer = official.encode("Assistant: Ada\n")
    # post_process, which changes only XGen's.
    expected = " Ada" if official is XGEN else official.decode(answer)
    assert to_text([*answer, official.eos], prompt) == expected
