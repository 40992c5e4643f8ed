"""Every part of `lazyllm.AttentionRanking`, with attention sinks and without: the kept tokens are the formula's."""

import families
import naive_importance as naive
import pytest
import torch
from checks import STAGES, assert_close, assert_refused, assert_traced, generate_recorded, to_lists
from hypothesis import given, settings
from hypothesis import strategies as st
from marks import slow_but
from test_exactness import schedules

import lazyllm
from lazyllm import reference

LAYERS = 6
THREE = [(0, 0.6), (2, 0.7), (4, 0.6)]
PARTS = {
    **naive.ALONE,
    "snapkv": {"queries": 3, "pooling": 5},
    "deep": {"queries": 2, "layers": 6, "first": 1},
    "all": naive.ALL,
}


def with_sinks(dtype=torch.float64, sink=1.0, **changes):
    """A model with attention sinks, each head's logit of attending to no token, that take much of the attention."""
    model = families.build("gpt_oss", dtype=dtype, layer_types=["full_attention"] * 5, **changes)
    for layer in model.model.layers:
        layer.self_attn.sinks.data.copy_(torch.tensor([1.5, -1.0, 0.5, 3.0]) * sink)
    return model


@pytest.fixture(scope="module")
def model():
    return families.build("llama", dtype=torch.float64, num_hidden_layers=LAYERS)


@pytest.fixture(scope="module")
def sinking():
    return with_sinks()


@pytest.fixture(scope="module")
def ids():
    return families.prompt(24, seed=6)


def ranked(model, stages, ids, new_tokens, **parts):
    return generate_recorded(model, stages, ids, new_tokens, ranking=lazyllm.AttentionRanking(**parts))


def check_by_naive(model, stages, ids, new_tokens, parts):
    output, stats = ranked(model, stages, ids, new_tokens, **parts)
    expected = naive.run(model, ids[0].tolist(), stages, lazyllm.AttentionRanking(**parts), new_tokens)
    assert_traced(stats, output.sequences[0, ids.shape[1] :].tolist(), expected)
    return stats


@pytest.mark.parametrize("part", slow_but(("snapkv", "deep", "all", "bonus"), PARTS))
def test_kept_tokens_are_the_formulas(model, sinking, ids, part):
    stats = check_by_naive(model, THREE, ids, 6, PARTS[part])
    assert stats.num_computed[1:, 1:].max() > 1, "nothing was revived, so revival was not tested"
    _, eq1 = ranked(model, THREE, ids, 6)
    assert to_lists(eq1.positions) != to_lists(stats.positions)
    check_by_naive(sinking, [(1, 0.6), (3, 0.4)], ids, 5, PARTS[part])


@pytest.mark.slow
def test_most_keys_may_be_masked_for_most_of_many_revived_queries(model):
    parts = {"queries": 2, "layers": 2}
    check_by_naive(model, [(0, 0.5), (2, 0.5), (4, 0.5)], families.prompt(112), 6, parts)


any_parts = st.fixed_dictionaries(
    {},
    optional={
        "queries": st.integers(1, 9),
        "half_life": st.sampled_from([None, 0.5, 2, 100.0]),
        "pooling": st.sampled_from([1, 3, 5, 9, 31]),
        "layers": st.integers(1, LAYERS + 1),
        "first": st.integers(0, 9),
        "bonus": st.sampled_from([1, 1.1, 2.0, 50.0]),
    },
)


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 1000), length=st.integers(1, 18), stages=schedules(LAYERS), parts=any_parts)
def test_agrees_with_the_formula_whatever_the_parts(model, seed, length, stages, parts):
    check_by_naive(model, stages, families.prompt(length, seed), 4, parts)


def test_layers_that_see_a_window_do_not_rank():
    kinds = {"layer_types": ["sliding_attention", "full_attention"] * 2 + ["full_attention"], "sliding_window": 16}
    model, ids = families.build("gemma2", **kinds), families.prompt(30)
    _, stats = ranked(model, [(1, 0.6)], ids, 2, queries=2)
    assert stats.active.tolist() == [[30, 30, 18, 18, 18], [31, 31, 19, 19, 19]]
    _, both = ranked(model, [(1, 0.6)], ids, 2, queries=2, layers=2)
    assert to_lists(both.positions) == to_lists(stats.positions)


@pytest.mark.parametrize("parts", [{}, {"queries": 4}], ids=str)
def test_autocast_does_not_round_the_importance(parts):
    importances = []

    class Recording(lazyllm.AttentionRanking):
        def survivors(self, layer, count):
            importances.append(self.importance)
            return super().survivors(layer, count)

    with torch.autocast("cpu", torch.bfloat16):
        generate_recorded(families.build("llama"), [(1, 0.5)], families.prompt(300), 1, ranking=Recording(**parts))
    (importance,) = importances
    assert importance.dtype == torch.float32
    assert not torch.equal(importance, importance.bfloat16().float())


@pytest.mark.parametrize(
    ("part", "wrong"),
    [(part, wrong) for part in ("queries", "layers", "every") for wrong in (0, 1.0, True)]
    + [("first", -1), ("pooling", 2), ("revive", "true")]
    + [("bonus", wrong) for wrong in (0.5, True, "2", float("nan"))]
    + [("half_life", wrong) for wrong in (0, True, "2", float("inf"))],
)
def test_a_part_out_of_range_is_named(model, part, wrong):
    assert_refused(rf"{part}={wrong!r}", lambda: lazyllm.AttentionRanking(**{part: wrong}))
    later = lazyllm.AttentionRanking()
    setattr(later, part, wrong)
    assert_refused(rf"{part}={wrong!r}", lambda: lazyllm.enable(model, THREE, ranking=later))


# Attention sinks.


def test_importance_is_the_unmodified_models_attention_and_less_than_one(sinking, ids):
    attentions = sinking(ids, output_attentions=True).attentions
    output, stats = generate_recorded(sinking, STAGES, ids, 6)
    assert_traced(stats, output.sequences[0, 24:].tolist(), reference.run(sinking, ids[0].tolist(), STAGES, 6))
    _, stats = generate_recorded(sinking, "", ids, 1, record_importance=True)
    rows = [attention[0, :, -1].mean(dim=0) for attention in attentions]
    assert_close(stats.importance, rows, 1e-9)
    assert all(row.sum() < 0.99 for row in rows)
    importance = (rows[0] + rows[1]) / 2
    importance[-1] = 2
    _, stats = generate_recorded(sinking, "1:0.5", ids, 2, ranking=lazyllm.StaticRanking())
    assert stats.positions[0][2].tolist() == sorted(importance.topk(12).indices.tolist())


@pytest.mark.parametrize("sink", [-50.0, 50.0])
def test_extreme_sinks_are_exact(ids, sink):
    model = with_sinks(torch.float32, sink=sink)
    before = families.generate(model, ids, 4)
    after, _ = generate_recorded(model, "", ids, 4)
    assert_close(after.logits, before.logits, 1e-5)


def test_sinks_that_are_not_the_modules_are_refused(ids):
    model = with_sinks()
    model.model.layers[2].self_attn.sinks = torch.nn.Parameter(torch.zeros(8, dtype=torch.float64))
    with lazyllm.enable(model, "1:0.5"):
        assert_refused("one logit per query head", lambda: families.generate(model, ids, 1))
