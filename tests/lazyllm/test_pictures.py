"""Models of text and pictures: text alone is as in any model, and a picture is right or refused in one line."""

from concurrent.futures import ThreadPoolExecutor

import families
import pytest
import torch
import transformers
from checks import STAGES, TOLERANCE, Replay, assert_close, assert_refused, pad_left
from marks import slow_but

import lazyllm

QWENS = ["qwen2_vl", "qwen2_5_vl", "qwen3_vl"]
# Tokens of a picture, and of where it begins and ends.
_IMAGE, _VIDEO, _START, _END = 90, 91, 92, 93
_TOKENS = {"image_token_id": _IMAGE, "video_token_id": _VIDEO, "vision_start_token_id": _START}
_TOKENS |= {"vision_end_token_id": _END}
_ROPE = {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 2, 2]}}
_EYES = {"depth": 2, "num_heads": 2, "patch_size": 4, "temporal_patch_size": 2, "spatial_merge_size": 2}
_OUT = {"hidden_size": 32, "out_hidden_size": 48, "intermediate_size": 64}
_SIGLIP = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
_PICTURE = {**_SIGLIP, "image_size": 8, "patch_size": 2}
_DEEP = {"num_position_embeddings": 64, "deepstack_visual_indexes": [0, 1]}
_KINDS = {"query_pre_attn_scalar": 12, "sliding_window": 16, "layer_types": ["sliding_attention", "full_attention"] * 2}
# kind: (its class, its vision settings, its text settings, its own)
KINDS = {
    "qwen2_vl": ("Qwen2VL", {**_EYES, "embed_dim": 32, "hidden_size": 48, "mlp_ratio": 2}, _ROPE, _TOKENS),
    "qwen2_5_vl": ("Qwen2_5_VL", {**_EYES, **_OUT, "fullatt_block_indexes": [1]}, _ROPE, _TOKENS),
    # It adds to the outputs of its first two layers at the picture's tokens.
    "qwen3_vl": ("Qwen3VL", {**_EYES, **_OUT, **_DEEP}, _ROPE, _TOKENS),
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


def words(length, seed=0):
    return families.prompt(length, seed).clamp(max=80)


def plain(length=20):
    return {"input_ids": words(length), "attention_mask": torch.ones(1, length, dtype=torch.int64)}


def with_picture(before=9, after=12, size=(4, 6)):
    """What a Qwen's processor makes of text with a picture of so many patches in it: inputs of `generate`."""
    patches, text = size[0] * size[1], words(before + after, seed=before + 1)[0].tolist()
    ids = torch.tensor([text[:before] + [_START] + [_IMAGE] * (patches // 4) + [_END] + text[before:]])
    pixels = torch.randn(
        patches, 3 * 2 * 4 * 4, generator=torch.Generator().manual_seed(before + 1), dtype=torch.float64
    )
    given = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "mm_token_type_ids": (ids == _IMAGE).int()}
    return {**given, "pixel_values": pixels, "image_grid_thw": torch.tensor([[1, *size]])}


def gemma_picture():
    """What Gemma 3's processor makes of text with a picture in it."""
    text = words(33)[0].tolist()
    ids = torch.tensor([text[:9] + [_IMAGE] * 4 + text[9:]])
    pixels = torch.randn(1, 3, 8, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    given = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "token_type_ids": (ids == _IMAGE).int()}
    return {**given, "pixel_values": pixels}


@pytest.fixture(scope="module", params=slow_but(("qwen2_vl", "qwen3_vl"), QWENS))
def qwen(request):
    return build(request.param)


@pytest.fixture(scope="module")
def gemma():
    return build("gemma3")


def generate(model, given, new_tokens=6, **more):
    given = {**given, **more}
    return families.generate(model, given.pop("input_ids"), new_tokens, given.pop("attention_mask"), **given)


def second_turn(model, first, new_tokens=3):
    """A second turn, of text, after an output."""
    ids = torch.cat([first.sequences, words(5)], dim=1)
    return families.generate(model, ids, new_tokens, past_key_values=first.past_key_values).logits


def check_kept(model, given):
    before = generate(model, given)
    for schedule in ("", "1:1.0"):
        with lazyllm.enable(model, schedule) as lazy:
            after = generate(model, given)
        assert torch.equal(after.sequences, before.sequences)
        assert_close(after.logits, before.logits, 1e-5)
        assert lazy.stats.prompt_computed == 1.0
    return before


def check_pruned(model, given, stages):
    """A pruned generation is one masked pass of the unmodified model over the recorded active sets."""
    with lazyllm.enable(model, stages, record_positions=True) as lazy:
        output = generate(model, given)
    own = model.config._attn_implementation
    model.set_attn_implementation("eager")
    sequence, length = output.sequences[:, :-1], given["input_ids"].shape[1]
    more = {name: value for name, value in given.items() if name not in ("input_ids", "attention_mask")}
    if (kinds := more.get("mm_token_type_ids")) is not None:
        more["mm_token_type_ids"] = torch.nn.functional.pad(kinds, (0, sequence.shape[1] - length))
    oracle = Replay(model, sequence, lazy.stats, **more)
    model.set_attn_implementation(own)
    for step, logits in enumerate(output.logits):
        newest = length - 1 + step
        assert_close([logits[0]], [oracle.logits[newest].float()], TOLERANCE)
        for layer, keep in stages:
            active, survivors = lazy.stats.positions[step][layer], lazy.stats.positions[step][layer + 1]
            assert torch.equal(survivors, oracle.survivors(layer, newest, active, keep))
    assert lazy.stats.num_computed[1:, 2:].max() > 1, "nothing was revived"
    return lazy.stats


def test_a_picture_is_right(qwen):
    given = with_picture()
    before = check_kept(qwen, given)
    # The picture matters, and so do its positions: a text of the same tokens is another.
    text = {"input_ids": given["input_ids"], "attention_mask": given["attention_mask"]}
    assert (generate(qwen, text).logits[0] - before.logits[0]).abs().max() > 0.1
    stats = check_pruned(qwen, given, STAGES)
    picture = set(given["mm_token_type_ids"][0].nonzero()[:, 0].tolist())
    revived = {token for step in stats.computed[1:] for token in step[2].tolist()}
    assert picture & revived, "no token of the picture was revived"
    check_pruned(qwen, plain(30), STAGES)  # text alone after a picture
    # Before transformers 5.23, chunks lose the picture in the unmodified model, too.
    chunked = generate(qwen, given, prefill_chunk_size=14)
    with lazyllm.enable(qwen, ""):
        assert_close(generate(qwen, given, prefill_chunk_size=14).logits, chunked.logits, 1e-5)


def test_a_batch_of_pictures_is_what_each_is_alone(qwen):
    one, other = with_picture(), with_picture(before=5, after=7, size=(4, 4))
    ids, mask = pad_left([given["input_ids"][0].tolist() for given in (one, other)])
    together = {"input_ids": ids, "attention_mask": mask, "mm_token_type_ids": (ids == _IMAGE).int()}
    together |= {name: torch.cat([one[name], other[name]]) for name in ("pixel_values", "image_grid_thw")}
    with lazyllm.enable(qwen, STAGES):
        actual = generate(qwen, together)
        for row, given in enumerate((one, other)):
            assert_close([step[row, None] for step in actual.logits], generate(qwen, given).logits, 1e-6)


def test_a_conversation_keeps_the_positions_of_its_own_pictures(qwen):
    """Also if other pictures are processed meanwhile."""
    picture = with_picture()
    turns = second_turn(qwen, generate(qwen, picture))
    with lazyllm.enable(qwen, ""):
        assert_close(second_turn(qwen, generate(qwen, picture)), turns, 1e-5)
    with lazyllm.enable(qwen, STAGES):
        expected = second_turn(qwen, generate(qwen, picture))
        expected_plain = second_turn(qwen, generate(qwen, plain()))
        scores = lazyllm.log_likelihoods(qwen, words(20), [[5, 6, 7]])[0].tokens
        one, other = generate(qwen, picture), generate(qwen, plain())
        assert_close(second_turn(qwen, other), expected_plain)
        assert_close(second_turn(qwen, one), expected)
        generate(qwen, picture)
        assert_close([lazyllm.log_likelihoods(qwen, words(20), [[5, 6, 7]])[0].tokens], [scores], 1e-5)


@pytest.mark.slow
def test_conversations_with_pictures_in_threads(switching):
    model = build("qwen2_vl")

    def talk(given):
        return torch.stack(second_turn(model, generate(model, given, 2), 2))

    with lazyllm.enable(model, STAGES), ThreadPoolExecutor(3) as pool:
        options = [with_picture(), plain(), with_picture()] * 4
        assert_close(list(pool.map(talk, options)), [talk(given) for given in options[:3]] * 4, 1e-5)


@pytest.mark.parametrize("kinds", [True, False])
def test_text_in_a_model_that_makes_its_decoders_masks(gemma, kinds):
    """One text and a batch, with token types as its processor gives, and without."""
    texts = [words(length, seed=length)[0].tolist() for length in (30, 19, 1)]
    ids, mask = pad_left(texts)
    types = {"token_type_ids": torch.zeros_like(ids)} if kinds else {}
    given = plain(30) | {name: value[:1] for name, value in types.items()}
    check_kept(gemma, given)
    check_pruned(gemma, given, [(1, 0.5)])
    with lazyllm.enable(gemma, "1:0.5"):
        actual = families.generate(gemma, ids, 6, mask, **types)
        for row, text in enumerate(texts):
            by_itself = families.generate(gemma, torch.tensor([text]), 6)
            assert_close([step[row, None] for step in actual.logits], by_itself.logits)


def test_a_picture_whose_tokens_see_each_other_is_refused(gemma):
    given = gemma_picture()
    with lazyllm.enable(gemma, "1:0.5"):
        assert_refused("see each other", lambda: generate(gemma, given))
        assert_refused("see each other", lambda: gemma(**given, logits_to_keep=1))
    del given["token_type_ids"]  # without which the unmodified model is plainly causal
    check_kept(gemma, given)
