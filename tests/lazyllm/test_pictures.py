"""Models of text and pictures: a text is as in any model, and a picture is refused in one line."""

import families
import pytest
import torch
import transformers
from checks import assert_close, assert_refused, pad_left
from marks import slow
from test_exactness import check_by_replay, check_kept

import lazyllm

# Tokens of a picture, and of where it begins and ends.
_IMAGE, _START, _END = 90, 92, 93
_TOKENS = {"image_token_id": _IMAGE, "video_token_id": 91, "vision_start_token_id": _START, "vision_end_token_id": _END}
_ROPE = {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 2, 2]}}
_EYES = {"depth": 2, "num_heads": 2, "patch_size": 4, "temporal_patch_size": 2, "spatial_merge_size": 2}
_DEEP = {"out_hidden_size": 48, "intermediate_size": 64, "num_position_embeddings": 64}
_SIGLIP = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
_PICTURE = {**_SIGLIP, "image_size": 8, "patch_size": 2}
_KINDS = {"query_pre_attn_scalar": 12, "sliding_window": 16, "layer_types": ["sliding_attention", "full_attention"] * 2}
# kind: (its class, its vision settings, its text settings, its own)
KINDS = {
    "qwen2_vl": ("Qwen2VL", {**_EYES, "embed_dim": 32, "hidden_size": 48, "mlp_ratio": 2}, _ROPE, _TOKENS),
    # It adds to the outputs of its first two layers at the picture's tokens.
    "qwen3_vl": ("Qwen3VL", {**_EYES, **_DEEP, "hidden_size": 32, "deepstack_visual_indexes": [0, 1]}, _ROPE, _TOKENS),
    "gemma3": ("Gemma3", _PICTURE, _KINDS, {"mm_tokens_per_image": 4, "image_token_id": _IMAGE}),
}


def build(kind):
    """A random model that sees, the same every time."""
    name, eyes, changes, own = KINDS[kind]
    text = {**families.SHAPE, "head_dim": 12, **changes}
    text["num_hidden_layers"] = len(text.get("layer_types", range(5)))
    config = getattr(transformers, f"{name}Config")(
        text_config=text, vision_config={**eyes, "initializer_range": 0.3}, tie_word_embeddings=False, **own
    )
    torch.manual_seed(0)
    return getattr(transformers, f"{name}ForConditionalGeneration")._from_config(config, dtype=torch.float64).eval()


def words(length):
    return families.prompt(length).clamp(max=80)


def with_picture(kind):
    """The inputs of `generate` that a processor returns for a text with a picture."""
    text, picture = words(21)[0].tolist(), [_IMAGE] * (4 if kind == "gemma3" else 6)
    ids = torch.tensor([[*text[:9], _START, *picture, _END, *text[9:]]])
    shape, types = ((1, 3, 8, 8), "token_type_ids") if kind == "gemma3" else ((24, 3 * 2 * 4 * 4), "mm_token_type_ids")
    pixels = torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    grid = {} if kind == "gemma3" else {"image_grid_thw": torch.tensor([[1, 4, 6]])}
    return {"ids": ids, types: (ids == _IMAGE).int(), "pixel_values": pixels, **grid}


@pytest.mark.parametrize("kind", ["qwen2_vl", slow("qwen3_vl"), "gemma3"])
def test_a_text_is_right_and_a_picture_refused(kind):
    model, ids, stages = build(kind), words(30), [(1, 0.6)]
    picture = with_picture(kind)
    seen = families.generate(model, new_tokens=2, **picture).logits[0]
    assert not torch.allclose(seen, families.generate(model, picture["ids"], 2).logits[0], atol=0.1), "it sees nothing"
    check_kept(model, ids, 6, [(1, 1.0)])
    texts = [words(length)[0].tolist() for length in (30, 19, 1)]
    padded, mask = pad_left(texts)
    with lazyllm.enable(model, stages):
        assert_refused(
            "no images|deepstack|tokens of an image", lambda: families.generate(model, new_tokens=2, **picture)
        )
        together = families.generate(model, padded, 6, mask)
        for row, text in enumerate(texts):
            alone = families.generate(model, torch.tensor([text]), 6)
            assert_close([step[row, None] for step in together.logits], alone.logits)
    check_by_replay(model, stages, ids, 6)
