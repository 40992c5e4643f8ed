"""Tiny random models that see, and prompts with pictures."""

from __future__ import annotations

import torch
import transformers
from transformers import PreTrainedModel

TEXT = {
    "vocab_size": 97,
    "hidden_size": 48,
    "intermediate_size": 64,
    "num_hidden_layers": 5,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 12,
    "max_position_embeddings": 512,
    "initializer_range": 0.3,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
# Tokens of a picture, and of where it begins and ends.
_IMAGE, _VIDEO, _START, _END = 90, 91, 92, 93
_ROPE = {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 2, 2]}}
_TOKENS = {
    "image_token_id": _IMAGE,
    "video_token_id": _VIDEO,
    "vision_start_token_id": _START,
    "vision_end_token_id": _END,
}
_EYES = {"depth": 2, "num_heads": 2, "patch_size": 4, "temporal_patch_size": 2, "spatial_merge_size": 2}
_OUT = {"hidden_size": 32, "out_hidden_size": 48, "intermediate_size": 64}
_SIGLIP = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
_PICTURE = {"image_size": 8, "patch_size": 2}

# kind: (its class, its vision settings, its text settings, its own)
KINDS: dict[str, tuple[str, dict, dict, dict]] = {
    "qwen2_vl": ("Qwen2VL", {**_EYES, "embed_dim": 32, "hidden_size": 48, "mlp_ratio": 2}, _ROPE, _TOKENS),
    "qwen2_5_vl": ("Qwen2_5_VL", {**_EYES, **_OUT, "fullatt_block_indexes": [1]}, _ROPE, _TOKENS),
    # It adds to the outputs of its first two layers at the picture's tokens.
    "qwen3_vl": (
        "Qwen3VL",
        {**_EYES, **_OUT, "num_position_embeddings": 64, "deepstack_visual_indexes": [0, 1]},
        _ROPE,
        _TOKENS,
    ),
    "gemma3": (
        "Gemma3",
        {**_SIGLIP, **_PICTURE},
        {"query_pre_attn_scalar": 12, "sliding_window": 16, "layer_types": ["sliding_attention", "full_attention"] * 2},
        {"mm_tokens_per_image": 4, "image_token_id": _IMAGE},
    ),
    "llava": (
        "Llava",
        {"model_type": "clip_vision_model", **_SIGLIP, **_PICTURE},
        {"model_type": "llama"},
        {"image_token_id": _IMAGE, "vision_feature_layer": -1},
    ),
    "paligemma": ("PaliGemma", {**_SIGLIP, **_PICTURE}, {"model_type": "gemma"}, {"image_token_id": _IMAGE}),
}


def build(kind: str, dtype: torch.dtype = torch.float64, **text: object) -> PreTrainedModel:
    """A random model of the kind, the same every time."""
    name, eyes, changes, own = KINDS[kind]
    text = {**TEXT, **changes, **text}
    if "layer_types" in text:
        text["num_hidden_layers"] = len(text["layer_types"])
    config = getattr(transformers, f"{name}Config")(
        text_config=text, vision_config={**eyes, "initializer_range": 0.3}, tie_word_embeddings=False, **own
    )
    torch.manual_seed(0)
    return getattr(transformers, f"{name}ForConditionalGeneration")._from_config(config, dtype=dtype).eval()


def seen(
    before: int = 9, after: int = 12, size: tuple[int, int] = (4, 6), dtype: torch.dtype = torch.float64
) -> dict[str, torch.Tensor]:
    """What a Qwen's processor makes of text with a picture of so many patches in it: inputs of `generate`."""
    patches, generator = size[0] * size[1], torch.Generator().manual_seed(before)
    words = torch.randint(3, 90, (before + after,), generator=generator).tolist()
    ids = torch.tensor([words[:before] + [_START] + [_IMAGE] * (patches // 4) + [_END] + words[before:]])
    return {
        "input_ids": ids,
        "attention_mask": torch.ones_like(ids),
        "mm_token_type_ids": (ids == _IMAGE).int(),
        "pixel_values": torch.randn(patches, 3 * 2 * 4 * 4, generator=generator, dtype=dtype),
        "image_grid_thw": torch.tensor([[1, *size]]),
    }


def looked_at(tokens: int = 4, dtype: torch.dtype = torch.float64) -> dict[str, torch.Tensor]:
    """What Gemma 3's processor makes of text with a picture in it, of so many tokens."""
    generator = torch.Generator().manual_seed(0)
    words = torch.randint(3, 90, (33,), generator=generator).tolist()
    ids = torch.tensor([words[:9] + [_IMAGE] * tokens + words[9:]])
    return {
        "input_ids": ids,
        "attention_mask": torch.ones_like(ids),
        "token_type_ids": (ids == _IMAGE).int(),
        "pixel_values": torch.randn(1, 3, 8, 8, generator=generator, dtype=dtype),
    }
