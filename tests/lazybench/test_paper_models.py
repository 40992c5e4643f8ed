"""The paper's two models from prompt to prediction, on tiny models with the tokenizers of XGen and of Llama 2's kind.

What LongBench's official code does with a record is written out again here, over other tokenizer libraries.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
import yaml
from paper_tokenizers import gpt2_folder, llama2_core, llama2_tokenizer, xgen_decode, xgen_encode
from support import folders, rows, save_tiny_model
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from lazybench.config import ModelConfig
from lazybench.data import sample
from lazybench.data.facts import datasets_of, load_facts
from lazybench.data.record import Record
from lazybench.model import xgen_tokenizer
from lazybench.model.loading import load_tokenizer
from lazybench.model.prompts import PromptBuilder

CONF = Path(__file__).parents[2] / "conf" / "model"
FACTS = load_facts()
UNWRAPPED = ["trec", "triviaqa", "samsum", "lsht", "lcc", "repobench-p"]
LIMIT = 301  # odd: each half has 150 ids


@dataclass(frozen=True)
class Official:
    """One of the paper's models as LongBench's code has it.

    Attributes:
        config: name of its config here.
        eos: id that ends an answer.
        encode: ids of a text, with whatever the tokenizer puts in front.
        decode: text of ids, without special tokens.
        wrap: its chat wrapper.
        post_process: what becomes of an answer's text.
        save: saves the tokenizer in a folder and returns it.
    """

    config: str
    eos: int
    encode: Callable[[str], list[int]]
    decode: Callable[[list[int]], str]
    wrap: Callable[[str], str]
    post_process: Callable[[str], str]
    save: Callable[[Path], PreTrainedTokenizerFast]

    def ids(self, record: Record, limit: int) -> list[int]:
        """LongBench's get_pred up to the model's input."""
        prompt = FACTS[record.dataset].prompt.format(context=record.context, input=record.input)
        tokenized_prompt = self.encode(prompt)
        if len(tokenized_prompt) > limit:
            half = int(limit / 2)
            prompt = self.decode(tokenized_prompt[:half]) + self.decode(tokenized_prompt[-half:])
        if record.dataset not in UNWRAPPED:
            prompt = self.wrap(prompt)
        return self.encode(prompt)

    def tokens(self, model: LlamaForCausalLM, ids: list[int], dataset: str) -> list[int]:
        """The new tokens of LongBench's get_pred."""
        ends: list[int] | int = self.eos
        least = None
        if dataset == "samsum":
            ends, least = [self.eos, self.encode("\n")[-1]], len(ids) + 1
        prompt = torch.tensor([ids])
        output = model.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            max_new_tokens=FACTS[dataset].max_new_tokens,
            min_length=least,
            num_beams=1,
            do_sample=False,
            eos_token_id=ends,
            pad_token_id=self.eos,
        )
        return output[0, len(ids) :].tolist()

    def prediction(self, tokens: list[int]) -> str:
        """The text that is scored."""
        return self.post_process(self.decode(tokens))


def _save_xgen(folder: Path) -> PreTrainedTokenizerFast:
    tokenizer = xgen_tokenizer.build(str(gpt2_folder()))
    tokenizer.save_pretrained(folder)
    return tokenizer


def _xgen_wrap(prompt: str) -> str:
    header = (
        "A chat between a curious human and an artificial intelligence assistant. "
        "The assistant gives helpful, detailed, and polite answers to the human's questions.\n\n"
    )
    return header + f" ### Human: {prompt}\n###"


XGEN = Official(
    "xgen_7b",
    eos=50256,
    encode=xgen_encode,
    decode=xgen_decode,
    wrap=_xgen_wrap,
    post_process=lambda text: text.strip().replace("Assistant:", ""),
    save=_save_xgen,
)
LLAMA = Official(
    "llama2_7b",
    eos=2,
    encode=lambda text: llama2_core().encode(text).ids,
    decode=lambda ids: llama2_core().decode(ids, skip_special_tokens=True),
    wrap=lambda prompt: f"[INST]{prompt}[/INST]",
    post_process=lambda text: text,
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

    def of(dataset: str, limit: int | None) -> PromptBuilder:
        settings = ModelConfig(**conf | ({} if limit is None else {"limit": limit}))
        return PromptBuilder(tokenizer, settings, FACTS[dataset])

    return of


@pytest.mark.parametrize("dataset", datasets_of("all", FACTS))
@pytest.mark.parametrize("limit", [LIMIT, None])
def test_ids_are_the_official_pipelines(official, builder, dataset, limit):
    prompts = builder(dataset, limit)
    for record in sample.load(dataset, 1, seed=1, tokens=800):
        ids = prompts.build(record).ids[0].tolist()
        assert ids == official.ids(record, prompts.model.limit)
        if limit is not None:
            # Tokens join anew where the halves meet, and the wrapper comes on top.
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


@pytest.fixture
def command(lazybench, official, folder, tmp_path):
    """Call a command on the tiny model under the name of the real one."""

    def call(name: str, *words: str, path: Path = folder) -> str:
        chosen = [f"model={official.config}", f"model.path={path}", f"model.name={official.config}"]
        settings = ["model.dtype=float32", "timing.warmup=0", f"output={tmp_path / 'runs'}"]
        code, out, err = lazybench(name, *chosen, *settings, *words)
        assert code == 0, err
        assert "Python" not in out + err  # nothing runs code that comes with a model
        return out

    return call


SMALL = (f"model.limit={LIMIT}", "data.limit=2", "data.tokens=512")


@pytest.mark.slow
def test_from_the_prompt_to_the_rows(command, official, folder, tmp_path):
    command("run", "method=baseline", "task=fewshot", *SMALL)
    command("run", "method=lazyllm", "method.schedule=[1:0.1]", "task=hotpotqa", *SMALL)
    model = LlamaForCausalLM.from_pretrained(folder).eval()
    front = len(official.encode(""))
    for place in folders(tmp_path / "runs"):
        for row in rows(place):
            records = sample.load(row["dataset"], 2, 0, 512, lambda text: len(official.encode(text)) - front)
            ids = official.ids(next(record for record in records if record.id == row["_id"]), LIMIT)
            tokens = official.tokens(model, ids, row["dataset"])
            assert row["prompt_tokens"] == len(ids)
            assert row["baseline_prediction"] == official.prediction(tokens)
            assert row["baseline_new_tokens"] == len(tokens)
            assert (row["prompt_computed"] < 1) == (place.parts[-2] == "lazyllm")
            if place.parts[-2] == "baseline":
                assert row["prediction"] == row["baseline_prediction"]


@dataclass(frozen=True)
class Script:
    """A model whose next token depends on the last one alone.

    Attributes:
        likes: for a token, those that may follow, the likeliest first; None is any other token.
    """

    likes: dict[int | None, list[int]]

    def save(self, folder: Path, vocabulary: int, eos: int) -> None:
        """Save it as a Llama whose layers add nothing to the embeddings."""
        shape = LlamaConfig(
            vocab_size=vocabulary,
            hidden_size=16,
            intermediate_size=16,
            num_hidden_layers=4,
            num_attention_heads=2,
            max_position_embeddings=4096,
            bos_token_id=None,
            eos_token_id=eos,
        )
        model = LlamaForCausalLM(shape)
        with torch.no_grad():
            for layer in model.model.layers:
                layer.self_attn.o_proj.weight.zero_()
                layer.mlp.down_proj.weight.zero_()
            embeddings, head = model.model.embed_tokens.weight, model.lm_head.weight
            head.zero_()
            embeddings.zero_()
            embeddings[:, 0] = 1
            for place, (token, followers) in enumerate(self.likes.items()):
                if token is not None:
                    embeddings[token] = torch.eye(16)[place]
                for rank, follower in enumerate(followers):
                    head[follower, place] = 2.0 - rank
        model.save_pretrained(folder)


@pytest.mark.slow
def test_stops_and_post_processing(command, official, tmp_path):
    """Every answer is `Assistant: Ada` and a newline, or for Llama 2 three letters and a newline, then the end."""
    dialogue = "A: Hi\nB: Hello\nSummary~"
    newline = official.encode("\n")[-1]
    if official is XGEN:
        first, second, third = xgen_encode("Assistant: Ada")
    else:
        first, second, third = map(llama2_core().token_to_id, "abc")
    last = official.encode(dialogue)[-1]
    # Last words of a prompt are followed by the first of an answer; those of a dialogue rather by a newline.
    likes = {None: [first], last: [newline, first], first: [second], second: [third], third: [newline]}
    model = tmp_path / "model"
    tokenizer = official.save(model)
    Script(likes | {newline: [official.eos]}).save(model, len(tokenizer), official.eos)
    for dataset, text in (("samsum", dialogue), ("hotpotqa", "Who?")):
        record = {"input": text, "context": "It was Ada. " * 80, "answers": ["Ada"], "length": 240, "_id": "r"}
        record |= {"dataset": dataset, "language": "en", "all_classes": None}
        (tmp_path / f"{dataset}.jsonl").write_text(json.dumps(record) + "\n")
    words = ("data=longbench", f"data.root={tmp_path}", "data.limit=null", f"model.limit={LIMIT}")
    command("run", "-m", "method=lazyllm", "method.schedule=[1:0.6]", "task=samsum,hotpotqa", *words, path=model)
    found = {row["dataset"]: row for place in folders(tmp_path / "runs") for row in rows(place)}
    assert len(found) == 2
    text = " Ada" if official is XGEN else official.decode([first, second, third, newline])
    for dataset, row in found.items():
        assert row["prediction"] == row["baseline_prediction"] == text
        # A dialogue's summary ends at the newline, but does not begin with it; another answer goes on to the end.
        assert row["new_tokens"] == row["baseline_new_tokens"] == (4 if dataset == "samsum" else 5)
