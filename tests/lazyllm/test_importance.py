"""Every part of `lazyllm.Importance`: what goes on is what the formula says, and nothing else changes."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields

import families
import naive_importance as naive
import pytest
import replay
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.models.deepseek_v3 import modeling_deepseek_v3
from watch import Watch

import lazyllm

LAYERS = 6
SCHEDULES = {
    "one": [(2, 0.4)],
    "two": [(1, 0.6), (3, 0.4)],
    "three": [(0, 0.6), (2, 0.7), (4, 0.6)],
}
COMBINED = {
    "snapkv": {"queries": 3, "pooling": 5},
    "streaming": {"first": 2, "last": 3},
    "largest": {"heads": "max", "layers": 3, "value_norm": True},
    "deep": {"queries": 2, "layers": 6, "first": 1},
    "all": naive.ALL,
}
PARTS = {**naive.ALONE, **COMBINED}


@pytest.fixture(scope="module")
def model():
    return families.build("llama", dtype=torch.float64, num_hidden_layers=LAYERS)


@pytest.fixture(scope="module")
def ids():
    return families.prompt(24, seed=6)


@pytest.fixture(scope="module", params=PARTS)
def parts(request):
    return PARTS[request.param]


def enabled(model, stages, ids, new_tokens, **parts):
    importance = lazyllm.Importance(**parts)
    with lazyllm.enable(model, lazyllm.PruningSchedule(stages), selection=importance, record_positions=True) as lazy:
        output = families.generate(model, ids, new_tokens)
    return output, lazy.stats


def lists(positions):
    return [[members.tolist() for members in step] for step in positions]


def check_by_naive(model, stages, ids, new_tokens, parts):
    output, stats = enabled(model, stages, ids, new_tokens, **parts)
    expected = naive.run(model, ids[0].tolist(), stages, lazyllm.Importance(**parts), new_tokens)
    assert lists(stats.positions) == expected.active
    assert lists(stats.computed) == expected.rows
    assert output.sequences[0, ids.shape[1] :].tolist() == expected.tokens
    return stats


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_what_goes_on_is_what_the_formula_says(model, ids, parts, schedule):
    stages = SCHEDULES[schedule]
    stats = check_by_naive(model, stages, ids, 6, parts)
    assert stats.rows[1:, stages[0][0] + 1 :].max() > 1, "nothing was revived, so revival was not tested"


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("part", naive.ALONE)
def test_each_part_alone_changes_what_goes_on(model, ids, part, schedule):
    _, eq1 = enabled(model, SCHEDULES[schedule], ids, 6)
    _, other = enabled(model, SCHEDULES[schedule], ids, 6, **naive.ALONE[part])
    assert lists(eq1.positions) != lists(other.positions)


def test_many_revived_at_once(model):
    # So many that most of the keys that attention gets are masked for most of the rows.
    parts = {"queries": 2, "layers": 2, "value_norm": True, "heads": "max"}
    stats = check_by_naive(model, [(0, 0.5), (2, 0.5), (4, 0.5)], families.prompt(112), 5, parts)
    idle = torch.tensor(
        [
            len(set().union(*(c[3].tolist() for c in stats.computed[: step + 1]))) - len(stats.positions[step][3])
            for step in range(5)
        ]
    )
    assert (stats.rows[:, 3] * idle > 8 * stats.active[:, 3]).any(), "never so many"


@st.composite
def schedules(draw):
    layers = draw(st.lists(st.integers(0, LAYERS - 2), min_size=1, max_size=3, unique=True).map(sorted))
    return [(layer, draw(st.sampled_from([0.05, 0.3, 0.5, 0.7, 0.9, 1.0]))) for layer in layers]


any_parts = st.fixed_dictionaries(
    {},
    optional={
        "queries": st.integers(1, 9),
        "half_life": st.sampled_from([None, 0.5, 2, 100.0]),
        "pooling": st.sampled_from([1, 3, 5, 9, 31]),
        "heads": st.sampled_from(["mean", "max"]),
        "layers": st.integers(1, LAYERS + 1),
        "value_norm": st.booleans(),
        "first": st.integers(0, 9),
        "last": st.integers(1, 9),
        "bonus": st.sampled_from([1, 1.1, 2.0, 50.0]),
        "cap": st.sampled_from([None, 0, 1, 2, 5]),
    },
)


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 1000), length=st.integers(1, 18), stages=schedules(), parts=any_parts)
def test_agrees_with_the_formula_whatever_the_parts(model, seed, length, stages, parts):
    check_by_naive(model, stages, families.prompt(length, seed), 4, parts)


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 1000), length=st.integers(1, 40), stages=schedules(), parts=any_parts)
def test_invariants(model, seed, length, stages, parts):
    _, stats = enabled(model, stages, families.prompt(length, seed), 5, **parts)
    importance, keep_after = lazyllm.Importance(**parts), dict(stages)
    first = set(range(min(importance.first, length)))
    once = [set() for _ in range(LAYERS)]
    for step, (active, computed) in enumerate(zip(stats.positions, stats.computed, strict=True)):
        newest = length - 1 + step
        last = set(range(max(0, newest + 1 - max(importance.last, importance.queries)), newest + 1))
        expected, roomy = newest + 1, True
        for layer in range(LAYERS):
            members, rows = active[layer].tolist(), set(computed[layer].tolist())
            assert members == sorted(set(members))
            # Where too few are computed and no more may come back, places stay empty.
            assert len(members) == expected if importance.cap is None else len(members) <= expected
            if importance.cap is not None and step:
                assert len(rows - {newest}) <= importance.cap or layer <= stages[0][0]
            assert newest in members
            assert newest in rows
            assert rows <= set(members)
            assert not rows & once[layer], "a token was computed twice in one layer"
            once[layer] |= rows
            assert set(members) <= once[layer], "an active token has no keys and values"
            if layer:
                assert set(members) <= set(active[layer - 1].tolist()), "active sets are not nested"
            roomy = roomy and len(first | last) <= len(members)
            if importance.cap is None:  # else a protected token that once had no room comes back under the cap, too
                if roomy:
                    assert first | last <= set(members)
                else:  # where not all of the protected ones have room, the newest do
                    assert set(sorted(first | last)[-len(members) :]) == set(members)
            expected = max(1, math.ceil(keep_after.get(layer, 1) * len(members) - 1e-9))


@pytest.mark.parametrize("family", ["llama", "gpt2", "gemma2", "mistral"])
def test_keeping_everything_equals_the_unmodified_model(family):
    model, ids = families.build(family), families.prompt(30)
    before = families.generate(model, ids, 6)
    for parts in PARTS.values():
        after, stats = enabled(model, [(0, 1.0), (2, 1.0)], ids, 6, **parts)
        assert torch.equal(before.sequences, after.sequences)
        assert stats.prompt_computed == 1.0


def test_without_parts_it_is_eq1(model, ids):
    schedule = lazyllm.PruningSchedule(SCHEDULES["three"])
    with lazyllm.enable(model, schedule, record_positions=True) as lazy:
        published = families.generate(model, ids, 6)
    output, stats = enabled(model, SCHEDULES["three"], ids, 6)
    assert lists(stats.positions) == lists(lazy.stats.positions)
    assert torch.equal(output.sequences, published.sequences)
    assert all(torch.equal(one, other) for one, other in zip(output.logits, published.logits, strict=True))


def test_parts_given_as_in_eq1_are_eq1(model):
    parts = {"queries": 1, "pooling": 1, "heads": "mean", "layers": 1, "value_norm": False, "first": 0, "last": 1}
    parts |= {"bonus": 1, "cap": None}
    assert lazyllm.Importance(**parts) == lazyllm.Importance()
    assert lazyllm.Importance(**parts).is_eq1
    assert not any(lazyllm.Importance(**changed).is_eq1 for changed in PARTS.values())


@pytest.mark.parametrize("family", ["gpt2", "gemma2", "mistral"])
def test_other_families_rank_by_their_own_attention(family):
    model, ids = families.build(family, dtype=torch.float64), families.prompt(30)
    stages = [(0, 0.7), (3, 0.4)]
    model.set_attn_implementation("eager")
    for parts in PARTS.values():
        output, stats = enabled(model, stages, ids, 4, **parts)
        cache = []
        hook = model.register_forward_hook(lambda _, args, out, cache=cache: cache.append(out.past_key_values))
        oracle = replay.Replay(model, output.sequences[:, :-1], stats.positions, stats.computed)
        hook.remove()
        for step, logits in enumerate(output.logits):
            expected = oracle.logits[29 + step].float()
            torch.testing.assert_close(logits[0], expected, rtol=replay.TOLERANCE, atol=replay.TOLERANCE)
        # The pass shows each query over the tokens of its own step: that is prefilling's ranking, for any window.
        importance = lazyllm.Importance(**parts)
        for (layer, keep), before in zip(stages, (-1, 0), strict=True):
            active = stats.positions[0][layer].tolist()
            span = range(max(before + 1, layer - importance.layers + 1), layer + 1)
            norms = [cache[0].layers[index].values[0].norm(dim=-1) for index in range(layer + 1)]
            by_token = naive.weigh(
                lambda index, head, query, token, seen=oracle.probabilities: float(seen[index][head, query, token]),
                {index: active[-importance.queries :] for index in span},
                4,
                active,
                importance,
                lambda index, head, token, norms=norms: float(norms[index][head * len(norms[index]) // 4, token]),
            )
            survivors = naive.survivors(by_token, keep, 29, 30, importance)
            assert stats.positions[0][layer + 1].tolist() == survivors


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision(dtype):
    model, ids = families.build("llama", dtype=dtype), families.prompt(24)
    for parts in PARTS.values():
        output, stats = enabled(model, [(0, 0.6), (2, 0.5)], ids, 4, **parts)
        assert output.sequences.shape == (1, 28)
        assert all(logits.isfinite().all() for logits in output.logits)
        assert stats.active.tolist() == [[n, *[(m := math.ceil(0.6 * n))] * 2, *[math.ceil(0.5 * m)] * 2]
                                         for n in range(24, 28)]  # fmt: skip


def test_one_generation_leaves_nothing_to_the_next(model, parts):
    stages = SCHEDULES["two"]
    prompts = [families.prompt(20, seed=3), families.prompt(13, seed=4)]
    with lazyllm.enable(
        model, lazyllm.PruningSchedule(stages), selection=lazyllm.Importance(**parts), record_positions=True
    ) as lazy:
        families.generate(model, prompts[0], 4)
        families.generate(model, prompts[1], 4)
    _, alone = enabled(model, stages, prompts[1], 4, **parts)
    assert lists(lazy.stats.positions) == lists(alone.positions)


def test_first_is_of_the_prompt_not_of_what_is_generated(model):
    # A prompt shorter than `first`: all of it is protected, and of the new tokens no more than otherwise.
    check_by_naive(model, [(1, 0.7)], families.prompt(6), 8, {"first": 60})


def test_a_window_without_room_is_cut_to_its_newest(model):
    # Later steps have queries that are older than every active token.
    check_by_naive(model, [(1, 0.3), (3, 0.7)], families.prompt(10), 6, {"queries": 8})


def test_layers_that_see_a_window_have_no_say():
    kinds = {"layer_types": ["sliding_attention", "full_attention"] * 2 + ["full_attention"], "sliding_window": 16}
    model, ids = families.build("gemma2", **kinds), families.prompt(30)
    _, stats = enabled(model, [(1, 0.6)], ids, 2, queries=2)
    assert stats.active.tolist() == [[30, 30, 18, 18, 18], [31, 31, 19, 19, 19]]
    with pytest.raises(lazyllm.LazyLLMError, match="layer 0 sees only a window"):
        enabled(model, [(1, 0.6)], ids, 2, queries=2, layers=2)


@pytest.mark.parametrize("parts", [{}, {"queries": 4, "value_norm": True}], ids=str)
def test_autocast_does_not_round_the_importance(parts, monkeypatch):
    model, seen = families.build("llama"), []
    rank = lazyllm.Importance.survivors

    def survivors(self, layer, count):
        seen.append(self.importance)
        return rank(self, layer, count)

    monkeypatch.setattr(lazyllm.Importance, "survivors", survivors)
    with torch.autocast("cpu", torch.bfloat16):
        enabled(model, [(1, 0.5)], families.prompt(300), 1, **parts)
    (importance,) = seen
    assert importance.dtype == torch.float32
    assert not torch.equal(importance, importance.bfloat16().float())


def test_the_norm_is_of_the_values_that_attention_gets(monkeypatch):
    """DeepSeek's cache holds a latent state and rotary keys, from which keys and values are made at every step."""
    model = transformers.DeepseekV3ForCausalLM(
        transformers.DeepseekV3Config(
            **{**families.SHAPE, "num_key_value_heads": 4},
            q_lora_rank=16, kv_lora_rank=16, qk_rope_head_dim=8, qk_nope_head_dim=8, v_head_dim=12,
            first_k_dense_replace=5, n_routed_experts=4, n_group=1, topk_group=1, num_experts_per_tok=2,
        )
    ).eval()  # fmt: skip
    ids, seen = families.prompt(40), []
    _, stats = enabled(model, [(1, 0.5)], ids, 1, value_norm=True)
    eager = modeling_deepseek_v3.eager_attention_forward

    def recording(module, query, key, value, *args, scaling, **kwargs):
        seen.append((query, key, value, scaling))
        return eager(module, query, key, value, *args, scaling=scaling, **kwargs)

    monkeypatch.setattr(modeling_deepseek_v3, "eager_attention_forward", recording)
    model.set_attn_implementation("eager")
    with torch.no_grad():
        model(ids)
    query, key, value, scaling = seen[1]
    attention = (query[0, :, -1:] @ key[0].transpose(-1, -2) * scaling).softmax(dim=-1)[:, 0]
    importance = (attention * value[0].norm(dim=-1)).mean(dim=0)
    importance[-1] = float("inf")
    assert stats.positions[0][2].tolist() == sorted(importance.topk(20).indices.tolist())


def test_nothing_is_prompt_by_prompt_in_size():
    length = 3000
    model = families.build("llama", max_position_embeddings=4096, hidden_size=16, head_dim=4)
    with Watch() as watch:
        enabled(model, [(1, 0.6), (3, 0.5)], families.prompt(length), 3, **{**PARTS["all"], "queries": 8, "pooling": 7})
    assert watch.largest < length * length


@pytest.mark.parametrize(
    ("part", "wrong"),
    [(part, wrong) for part in ("queries", "pooling", "layers", "last") for wrong in (0, -1, 1.0, True, "2", None)]
    + [("first", wrong) for wrong in (-1, 0.0, False, "2", None)]
    + [("pooling", 2), ("pooling", 8)]
    + [("heads", wrong) for wrong in ("sum", "", "Max", None, 1)]
    + [("value_norm", wrong) for wrong in (0, 1, "true", None)]
    + [("bonus", wrong) for wrong in (0.5, 0, -1, True, "2", None, float("inf"), float("nan"))]
    + [("half_life", wrong) for wrong in (0, -1.0, True, "2", float("inf"), float("nan"))]
    + [("cap", wrong) for wrong in (-1, 1.0, True, "2")],
)
def test_a_part_out_of_range_is_named(part, wrong):
    with pytest.raises(lazyllm.LazyLLMError, match=rf"{part}={wrong!r}") as error:
        lazyllm.Importance(**{part: wrong})
    assert "\n" not in str(error.value)


def test_a_subclass_that_never_revives_is_held_to_it(model):
    class Final(lazyllm.Importance):
        revives = False

    assert lazyllm.Importance().revives
    assert not lazyllm.Importance(cap=0).revives
    assert not Final().revives


def test_a_number_is_the_same_bonus_however_it_is_written():
    assert str(lazyllm.Importance(bonus=2)) == str(lazyllm.Importance(bonus=2.0)) == "bonus:2.0"


def test_it_says_what_differs_from_eq1():
    assert str(lazyllm.Importance()) == "eq1"
    assert str(lazyllm.Importance(queries=8, value_norm=True)) == "queries:8,value_norm:true"
    assert str(lazyllm.Importance(heads="max", first=4)) == "heads:max,first:4"
    assert lazyllm.Importance(pooling=7).changed == {"pooling": 7}


@dataclass
class Aged(lazyllm.Importance):
    """A part more: so many tokens right after the protected first ones are worth nothing."""

    skip: int = field(default=0, metadata={"search": (0, 8)})

    def survivors(self, layer, count):
        self.importance[self.first : self.first + self.skip].clamp_(max=0)
        return super().survivors(layer, count)


def test_plus_is_the_recommended_ranking(model, ids):
    ranking = lazyllm.plus()
    assert ranking == lazyllm.Importance(queries=32, half_life=8.0, pooling=15, layers=2, first=4, bonus=1.5)
    with lazyllm.enable(model, [(1, 0.95)], selection=ranking):
        families.generate(model, ids, 2)


def test_a_subclass_adds_a_part(model, ids):
    assert Aged(skip=8, queries=4).changed == {"_target_": f"{__name__}.Aged", "queries": 4, "skip": 8}
    assert str(Aged(skip=8)) == "Aged,skip:8"
    assert not Aged().is_eq1
    assert {part.name: part.metadata["search"] for part in fields(Aged)}.keys() == {*naive.ALONE, "skip"}
    found = []
    for selection in (lazyllm.Importance(), Aged(), Aged(skip=8)):
        with lazyllm.enable(model, SCHEDULES["two"], selection=selection, record_positions=True) as lazy:
            families.generate(model, ids, 3)
        found.append(lists(lazy.stats.positions))
    assert found[0] == found[1] != found[2]
