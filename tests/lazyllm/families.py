"""Tiny random models of families of each kind; `architectures` has all types."""

import json
from pathlib import Path

import pytest
import torch
import transformers
from transformers import AutoModelForCausalLM, PreTrainedModel

VOCABULARY = 97

SHAPE = {
    "vocab_size": VOCABULARY,
    "hidden_size": 48,
    "intermediate_size": 64,
    "num_hidden_layers": 5,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "initializer_range": 0.3,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}

# family: (config class, what differs from the common shape)
FAMILIES: dict[str, tuple[str, dict]] = {
    "llama": ("LlamaConfig", {}),
    "mistral": ("MistralConfig", {"sliding_window": None}),
    "qwen2": ("Qwen2Config", {}),
    "qwen3": ("Qwen3Config", {"head_dim": 12}),
    "phi3": ("Phi3Config", {}),
    "gemma2": ("Gemma2Config", {"head_dim": 12, "query_pre_attn_scalar": 12}),
    "gemma3": ("Gemma3TextConfig", {"head_dim": 12, "query_pre_attn_scalar": 12, "sliding_window": 256}),
    "mixtral": ("MixtralConfig", {"num_local_experts": 4, "num_experts_per_tok": 2}),
    # A sink beside the scores of each head. Its own config alternates windows and full attention.
    "gpt_oss": (
        "GptOssConfig",
        {
            "head_dim": 12,
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "sliding_window": 256,
            # With larger weights the unmodified model's own float32 is further off its float64 than tests allow.
            "initializer_range": 0.2,
            "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
        },
    ),
    # Learned positions instead of rotary ones.
    "gpt2": ("GPT2Config", {"n_positions": 512, "n_embd": 48, "n_layer": 5, "n_head": 4, "n_inner": 64}),
}

# One of each kind: plain, with capped scores, windows, sinks, and learned positions.
QUICK = ("llama", "gemma2", "gemma3", "gpt_oss", "gpt2")


def config(family: str, **changes: object) -> transformers.PreTrainedConfig:
    name, differences = FAMILIES[family]
    base = SHAPE
    if family == "gpt2":
        base = {key: SHAPE[key] for key in ("vocab_size", "bos_token_id", "eos_token_id", "pad_token_id")}
    return getattr(transformers, name)(**{**base, **differences, **changes})


def build(
    family: str,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
    attention: str | None = None,
    **changes: object,
) -> PreTrainedModel:
    """A random model of the family, the same for the same seed; weights large enough for peaked attention."""
    if family == "gemma2" and attention is None:
        attention = "eager"  # the one implementation here that caps scores as the model was trained
    torch.manual_seed(seed)
    model = transformers.AutoModelForCausalLM.from_config(
        config(family, **changes), dtype=dtype, attn_implementation=attention
    )
    if family in ("mixtral", "gpt_oss") and dtype == torch.float64:
        model.set_experts_implementation("eager")  # grouped matrix products know no float64
    return model.eval()


def prompt(length: int, seed: int = 0) -> torch.Tensor:
    """Token ids, int64 (1, length), without special tokens."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(3, VOCABULARY, (1, length), generator=generator)


def generate(
    model: PreTrainedModel, ids: torch.Tensor, new_tokens: int, mask: torch.Tensor | None = None, **kwargs: object
) -> object:
    """Greedy generation that never stops early; returns tokens and each step's logits."""
    return model.generate(
        ids,
        attention_mask=torch.ones_like(ids) if mask is None else mask,
        max_new_tokens=new_tokens,
        do_sample=False,
        eos_token_id=None,
        return_dict_in_generate=True,
        output_logits=True,
        **kwargs,
    )


def known_answer(case: int) -> tuple[PreTrainedModel, dict]:
    """A model of shared/reference in float64, and what a right LazyLLM yields on it; skips where they are not there."""
    folder = Path(__file__).parents[3] / "shared" / "reference" / f"case{case}"
    if not folder.exists():
        pytest.skip(f"no known answers at {folder}")
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64)
    return model, json.loads((folder / "expected.json").read_text())
