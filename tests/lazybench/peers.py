"""Helpers of tests that compare methods with a naive computation: a small model, and the prompts it was given."""

from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from lazybench.config import ModelConfig
from lazybench.data.facts import DatasetFacts
from lazybench.data.record import Record
from lazybench.methods import Method, Output, base
from lazybench.model.decoding import Decoder
from lazybench.model.prompts import Prompt, PromptBuilder

VOCABULARY = 50


def build(seed: int, attention: str = "sdpa", **changes: Any) -> LlamaForCausalLM:
    """A random Llama of four layers with two query heads a key head, the same for the same seed; it never stops."""
    torch.manual_seed(seed)
    shape = {
        "vocab_size": VOCABULARY,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "initializer_range": 0.3,
        "eos_token_id": None,
        "attn_implementation": attention,
    }
    return LlamaForCausalLM(LlamaConfig(**{**shape, **changes})).eval()


@dataclass
class Watched(Decoder):
    """A decoder that records the ids it was given."""

    given: list[torch.Tensor] = field(default_factory=list)

    def __call__(self, ids: torch.Tensor) -> list[int]:
        self.given.append(ids)
        return super().__call__(ids)


def prompt_of(ids: torch.Tensor, tokenizer: Any = None, record_id: str = "1") -> Prompt:
    """A prompt of these tokens, int64 (1, tokens), whose text is left out."""
    record = Record(id=record_id, dataset="one", context="", input="", answers=("a",), all_classes=None, length=0)
    facts = DatasetFacts("one", prompt="{context}", max_new_tokens=6, metric="qa_f1", chat=False)
    config = ModelConfig(name="tiny", path="tiny", limit=100, chat=None)
    return Prompt(ids, record, PromptBuilder(tokenizer, config, facts), text="")


def random_ids(seed: int, length: int) -> torch.Tensor:
    """Token ids, int64 (1, length)."""
    return torch.randint(0, VOCABULARY, (1, length), generator=torch.Generator().manual_seed(seed))


def answer(method: Method, seed: int, length: int) -> tuple[Output, list[torch.Tensor], torch.Tensor]:
    """Answer a random prompt; return the output, the prompts that the model was given, and the prompt's tokens."""
    model, ids = build(seed), random_ids(seed, length)
    method.prepare(model)
    watched = Watched(model, max_new_tokens=3, tracing=True)
    return base.answer(method, prompt_of(ids), watched, 0), watched.given, ids


@torch.no_grad()
def pooled(scores: torch.Tensor, size: int) -> torch.Tensor:
    """The mean of each score and its neighbours, zeros beyond the ends."""
    half = size // 2
    padded = [0.0] * half + scores.tolist() + [0.0] * half
    return torch.tensor([sum(padded[start : start + size]) / size for start in range(len(scores))])
