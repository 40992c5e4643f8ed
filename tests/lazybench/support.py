"""What several tests of the harness share."""

import json
import re
from collections.abc import Sequence
from html import unescape
from pathlib import Path
from typing import Any

import torch
from omegaconf import OmegaConf
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from tokenizers.processors import TemplateProcessing
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from lazybench.config import CONF
from lazybench.data import dataset_configs

LAZY = ("method=lazyllm", "method.schedule=[1:0.6]")
FINISHED = (*LAZY, "task=multidoc_qa", "trace=true", "timing.warmup=0")


def folders(root: Path) -> list[Path]:
    """The run folders below `root`."""
    return sorted(path.parent for path in root.glob("*/*/*/*/config.yaml"))


def rows(folder: Path) -> list[dict[str, Any]]:
    """The rows of a run."""
    return [json.loads(line) for line in (folder / "predictions.jsonl").read_text().splitlines()]


def one_line(code: int, err: str) -> str:
    """The message of a command that bad input ended: one line, and exit code 2."""
    lines = [line for line in err.splitlines() if line.strip()]
    assert code == 2, err
    assert len(lines) == 1, err
    assert "Traceback" not in err
    return lines[0]


def byte_tokenizer(**special: str) -> PreTrainedTokenizerFast:
    """One token a byte, with a BOS that the tokenizer itself puts in front, as Llama 2's does."""
    names = {"bos_token": "<s>", "eos_token": "</s>", **special}
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: index for index, token in enumerate([*names.values(), *alphabet])}
    core = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    core.post_processor = TemplateProcessing(single="<s> $A", special_tokens=[("<s>", vocabulary["<s>"])])
    return PreTrainedTokenizerFast(tokenizer_object=core, **names)


def save_tiny_model(folder: Path, tokenizer: PreTrainedTokenizerFast, layers: int = 4) -> Path:
    """A random Llama and its tokenizer, saved in `folder`."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=4096,
        initializer_range=0.3,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def shortened_longbench() -> dict[str, Any]:
    """LongBench's configs with answers of an eighth of their tokens, six at least."""
    table = json.loads(json.dumps(dataset_configs._longbench()))
    for dataset in table["datasets"].values():
        dataset["max_new_tokens"] = max(6, dataset["max_new_tokens"] // 8)
    return table


def small_run(model: Path, output: object, words: Sequence[str]) -> list[str]:
    """The settings of a small run on a model, but for those that `words` set."""
    settings = {
        "model.path": model,
        "model.name": "tiny",
        "model.chat": "null",
        "model.limit": 900,
        "data.tokens": 512,
        "data.limit": 2,
        "timing.warmup": 1,
        "task": "2wikimqa",
        "output": output,
    }
    if not any(word.startswith("method=") for word in words):
        settings |= {"method": "lazyllm", "method.schedule": "[1:0.6]"}
    given = {word.partition("=")[0] for word in words}
    return [f"{key}={value}" for key, value in settings.items() if key not in given]


def method_settings(name: str, **changes: Any) -> dict[str, Any]:
    """The settings of a method's config, with changes."""
    return OmegaConf.to_container(OmegaConf.load(CONF / "method" / f"{name}.yaml")) | changes


METHOD_NAMES = sorted(path.stem for path in (CONF / "method").glob("*.yaml"))

# A method of a user's own.
LAST_TOKENS = """
from dataclasses import dataclass, field

from lazybench.methods import Method, Output


@dataclass
class LastTokens(Method):
    tokens: int = 500
    derived: str | None = field(init=False, default=None)

    def generate(self, prompts, decode, seeds):
        ids = prompts[0].ids[:, -self.tokens :]
        (tokens,) = decode([ids])
        return [Output(tokens, prompt_computed=ids.shape[1] / prompts[0].ids.shape[1])]
"""

STUBBORN = """
import os
import signal
from dataclasses import dataclass

from lazybench.errors import LazyBenchError
from lazybench.methods import Method, Output


@dataclass
class Stubborn(Method):
    mood: str = "good"

    def check(self, model):
        1 / (self.mood != "unchecked")

    def prepare(self, model):
        if self.mood == "bad":
            raise LazyBenchError("the mood is bad")
        if self.mood == "stopped":
            raise KeyboardInterrupt
        if self.mood == "dead":
            os.kill(os.getpid(), signal.SIGKILL)

    def generate(self, prompts, decode, seeds):
        1 / (self.mood != "faulty")
        (tokens,) = decode([prompts[0].ids])
        return [Output(tokens, prompt_computed=1.0)]
"""


def stubborn_method(folder: Path) -> tuple[str, ...]:
    """Write a method whose jobs end as its `mood` says; returns the words that choose it."""
    (folder / "stubborn.py").write_text(STUBBORN)
    (folder / "method").mkdir()
    (folder / "method" / "stubborn.yaml").write_text("_target_: stubborn.Stubborn\nname: stubborn\nmood: good\n")
    return ("--config-dir", str(folder), "method=stubborn")


def page_data(text: str) -> tuple[list[str], dict[str, Any]]:
    """The headings of a token map's page, and the data that its script reads."""
    data = re.search("<script[^>]* id=data>(.*?)</script>", text)[1]
    return [unescape(title) for title in re.findall("<h2>(.*?)</h2>", text)], json.loads(data)
