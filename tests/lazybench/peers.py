"""Helpers of tests that compare methods with a naive computation: a small model, and the prompts it was given."""

from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from lazybench.config import ModelConfig
from lazybench.data.dataset_configs import DatasetConfig
from lazybench.data.record import Record
from lazybench.methods import Method, Output, base
from lazybench.model.decoding import Decoder, Question, Stops
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


class Watched(Decoder):
    """A decoder that records the ids it was given."""

    def __call__(self, prompts: list[torch.Tensor]) -> list[list[int]]:
        self.given = prompts
        return super().__call__(prompts)


def ask(model: Any, prompt: Prompt, *stops: Any, **settings: Any) -> Decoder:
    """A decoder of one prompt, whose answer ends by `Stops(*stops)`."""
    return Decoder(model, [Question(prompt, Stops(*stops))], **settings)


def generate(model: Any, ids: torch.Tensor, *stops: Any) -> list[int]:
    """The unmodified model's answer to token ids, int64 (1, tokens)."""
    return ask(model, prompt_of(ids), *stops)([ids])[0]


def prompt_of(ids: torch.Tensor, tokenizer: Any = None, record_id: str = "1") -> Prompt:
    """A prompt of these tokens, int64 (1, tokens), whose text is left out."""
    record = Record(id=record_id, dataset="one", context="", input="", answers=("a",), all_classes=None, length=0)
    dataset_config = DatasetConfig("one", prompt="{context}", max_new_tokens=6, metric="qa_f1", chat=False)
    config = ModelConfig(name="tiny", path="tiny", limit=100, chat=None)
    return Prompt(ids, record, PromptBuilder(tokenizer, config, dataset_config), text="")


def random_ids(seed: int, length: int) -> torch.Tensor:
    """Token ids, int64 (1, length)."""
    return torch.randint(0, VOCABULARY, (1, length), generator=torch.Generator().manual_seed(seed))


def answer(method: Method, seed: int, length: int) -> tuple[Output, list[torch.Tensor], torch.Tensor]:
    """Answer a random prompt; return the output, the prompts that the model was given, and the prompt's tokens."""
    model, ids = build(seed), random_ids(seed, length)
    method.prepare(model)
    watched = Watched(model, [Question(prompt_of(ids), Stops(3))], tracing=True)
    (output,) = base.answer(method, watched)
    return output, watched.given, ids


@torch.no_grad()
def pooled(scores: torch.Tensor, size: int) -> torch.Tensor:
    """The mean of each score and its neighbours, zeros beyond the ends."""
    half = size // 2
    padded = [0.0] * half + scores.tolist() + [0.0] * half
    return torch.tensor([sum(padded[start : start + size]) / size for start in range(len(scores))])
