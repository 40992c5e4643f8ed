"""The small methods against naive computations, most of them on the eager model's own attention."""

import math
import statistics
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from peers import answer, build, pooled
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

from lazybench.data.record import Record
from lazybench.methods.claa import CLAA
from lazybench.methods.fastkv import FastKV
from lazybench.methods.gemfilter import GemFilter
from lazybench.methods.random_drop import RandomDrop
from lazybench.methods.sliminfer_like import SlimInferLike
from lazybench.model.prompts import Prompt

LAYER = 1
CLAA_LAYER = 2
BLOCK, WINDOW = 4, 3
SPECIAL = [0, 1, 2]


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 1000), length=st.integers(2, 40), keep=st.sampled_from([0.1, 0.5, 0.9]))
def test_gemfilter_keeps_the_highest_pooled_raw_scores(seed, length, keep):
    method = GemFilter("gemfilter", layer=LAYER, keep=keep)
    output, (given_ids,), ids = answer(method, seed, length)
    model = build(seed, "eager")
    with torch.no_grad():
        hidden = model(ids, output_hidden_states=True).hidden_states[LAYER]
        layer = model.model.layers[LAYER]
        normed = layer.input_layernorm(hidden)
        shape = (1, length, -1, 8)
        query = layer.self_attn.q_proj(normed).view(shape).transpose(1, 2)
        key = layer.self_attn.k_proj(normed).view(shape).transpose(1, 2)
        query, key = apply_rotary_pos_emb(query, key, *model.model.rotary_emb(hidden, torch.arange(length)[None]))
        raw = sum(key[0, head // 2] @ query[0, head, -1] for head in range(4))
    count = max(1, -int(-keep * length // 1))
    kept = pooled(raw, 5).argsort(descending=True)[:count].sort().values
    assert torch.equal(given_ids, ids[:, kept])
    assert output.prompt_computed == pytest.approx(2 / 4 + count / length)  # both passes


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 1000), length=st.integers(2, 40), keep=st.sampled_from([0.1, 0.5, 0.9]))
def test_fastkv_keeps_the_window_and_what_it_attends_to(seed, length, keep):
    method = FastKV("fastkv", layer=LAYER, keep=keep, window=4, pooling=3)
    output, (given_ids,), ids = answer(method, seed, length)
    assert torch.equal(given_ids, ids)
    with torch.no_grad():
        attention = build(seed, "eager")(ids, output_attentions=True).attentions[LAYER][0]
    window, count = min(4, length - 1), max(1, -int(-keep * length // 1))
    seen = attention[:, -window:, : length - window].sum(1)
    importance = sum(pooled(head, 3) for head in seen)
    recent = list(range(length - window, length))[-count:]
    kept = sorted(importance.argsort(descending=True)[: count - len(recent)].tolist()) + recent
    for step, positions in enumerate(output.stats.positions):
        generated = list(range(length, length + step))
        assert [layer.tolist() for layer in positions[LAYER + 1 :]] == [kept + generated] * 2


def normalised(scores: torch.Tensor) -> torch.Tensor:
    """Scores less their mean, divided by their standard deviation; zeros where all are the same."""
    values = scores.tolist()
    mean, deviation = statistics.fmean(values), statistics.pstdev(values)
    return torch.tensor([(value - mean) / (deviation + 1e-8) for value in values])


@settings(max_examples=20, deadline=None)
@given(
    seed=st.integers(0, 1000),
    length=st.integers(3, 40),
    keep=st.sampled_from([0.1, 0.5, 0.9]),
    layers=st.sampled_from([1, 2, 3, 9]),
)
def test_claa_keeps_the_window_and_what_any_layer_attends_to(seed, length, keep, layers):
    method = CLAA("claa", layer=CLAA_LAYER, keep=keep, window=4, pooling=3, layers=layers)
    output, (given_ids,), ids = answer(method, seed, length)
    assert torch.equal(given_ids, ids)
    with torch.no_grad():
        attentions = build(seed, "eager")(ids, output_attentions=True).attentions
    window, count = min(4, length - 1), max(1, -int(-keep * length // 1))
    importance = torch.full((length - window,), -torch.inf)
    for index in range(max(0, CLAA_LAYER - layers + 1), CLAA_LAYER + 1):
        by_head = [pooled(head, 3) for head in attentions[index][0][:, -window:, : length - window].sum(1)]
        for first in range(0, len(by_head), 2):
            importance = torch.maximum(importance, normalised(sum(by_head[first : first + 2])))
    recent = list(range(length - window, length))[-count:]
    kept = sorted(importance.argsort(descending=True, stable=True)[: count - len(recent)].tolist()) + recent
    for step, positions in enumerate(output.stats.positions):
        generated = list(range(length, length + step))
        assert [layer.tolist() for layer in positions[CLAA_LAYER + 1 :]] == [kept + generated]


def test_claa_ranks_otherwise_than_fastkv():
    """Else the layers before would have no say."""
    found = []
    for method in (
        FastKV("f", layer=CLAA_LAYER, keep=0.3),
        CLAA("c", layer=CLAA_LAYER, keep=0.3),
        CLAA("c", layer=CLAA_LAYER, layers=1),
    ):
        output, *_ = answer(method, 8, 40)
        found.append(output.stats.positions[0][CLAA_LAYER + 1].tolist())
    assert found[0] != found[1] != found[2]


def test_a_layer_that_the_model_lacks_is_refused(run):
    code, _, err = run("method=claa", "method.layer=15")
    assert code == 2
    assert "method.layer: the schedule prunes after layer 15, but the model has 4 layers" in err


def best_blocks(importance: dict[int, float], active: list[int], count: int) -> list[int]:
    """The positions of the first block, the newest token's, and as many of the best others as there is room for."""
    blocks = sorted({position // BLOCK for position in active})
    members = {block: [position for position in active if position // BLOCK == block] for block in blocks}
    mean = {block: sum(importance[position] for position in of) / len(of) for block, of in members.items()}
    chosen = {max(blocks)} | ({0} & set(blocks))
    room = count - sum(len(members[block]) for block in chosen)
    for block in sorted(set(blocks) - chosen, key=lambda block: (-mean[block], block)):
        room -= len(members[block])
        if room < 0:
            break
        chosen.add(block)
    return [position for position in active if position // BLOCK in chosen]


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 1000), length=st.integers(2, 60), keep=st.sampled_from([0.1, 0.5, 0.9]))
def test_the_best_blocks_go_on_and_nothing_comes_back(seed, length, keep):
    method = SlimInferLike("s", schedule=f"0:{keep},2:0.5", block=BLOCK, window=WINDOW)
    output, _, ids = answer(method, seed, length)
    with torch.no_grad():
        attention = build(seed, "eager")(ids, output_attentions=True).attentions[0][0]
    importance = dict(enumerate(attention[:, -WINDOW:].mean(dim=(0, 1)).tolist()))
    first = best_blocks(importance, list(range(length)), math.ceil(keep * length))
    for step, positions in enumerate(output.stats.positions):
        generated = list(range(length, length + step))
        assert positions[0].tolist() == list(range(length)) + generated
        assert positions[1].tolist() == positions[2].tolist() == first + generated
        last = positions[3].tolist()
        assert set(last) <= set(first + generated)
        assert last[len(last) - len(generated) :] == generated
        # Of what the first stage let go on, whole blocks.
        assert [place for place in first if place // BLOCK in {place // BLOCK for place in last}] == [
            place for place in last if place < length
        ]


def test_the_second_stage_ranks_among_what_is_left():
    """A model of the first stage's survivors alone, at their positions, attends as the pruned one does."""
    method = SlimInferLike("s", schedule="0:0.6,2:0.5", block=BLOCK, window=WINDOW)
    output, _, ids = answer(method, 3, 60)
    first, last = (output.stats.positions[0][layer].tolist() for layer in (1, 3))
    model = build(3, "eager")
    hidden = {}
    model.model.layers[0].register_forward_hook(lambda _, args, out: hidden.update(out=out))
    with torch.no_grad():
        model(ids)
    kept = torch.tensor(first)
    model.model.layers[0].forward = lambda *args, **kwargs: hidden["out"][:, kept]
    with torch.no_grad():
        attention = model(ids[:, kept], position_ids=kept[None], output_attentions=True).attentions[-2][0]
    importance = dict(zip(first, attention[:, -WINDOW:].mean(dim=(0, 1)).tolist(), strict=True))
    assert last == best_blocks(importance, first, math.ceil(0.5 * len(first)))


def plain_prompt(ids: list[int], record_id: str = "a") -> Prompt:
    record = Record(record_id, "2wikimqa", "", "", (), None, 0)
    builder = SimpleNamespace(tokenizer=SimpleNamespace(all_special_ids=SPECIAL))
    return Prompt(torch.tensor([ids]), record, builder, text="")


def drop(ids: list[int], keep: float, seed: int = 0, record_id: str = "a") -> tuple[list[int], float]:
    """The ids the model gets to see, and `prompt_computed`."""
    seen: list[torch.Tensor] = []
    method = RandomDrop("random_drop", keep=keep)
    output = method.generate(plain_prompt(ids, record_id), lambda given: seen.append(given) or [7], seed)
    assert output.tokens == [7]
    assert seen[0].dtype == torch.int64
    return seen[0][0].tolist(), output.prompt_computed


ids_lists = st.lists(st.integers(0, 9), min_size=1, max_size=80)
keeps = st.floats(0.001, 1)


@given(ids_lists, keeps, st.integers(0, 4))
def test_count_order_and_protected_tokens(ids, keep, seed):
    kept, computed = drop(ids, keep, seed)
    protected = sum(token in SPECIAL for token in ids[:-1]) + 1
    assert len(kept) == max(protected, math.ceil(keep * len(ids) - 1e-9))
    assert computed == len(kept) / len(ids)
    assert kept[-1] == ids[-1]
    assert [token for token in kept[:-1] if token in SPECIAL] == [token for token in ids[:-1] if token in SPECIAL]
    rest = iter(ids)
    assert all(token in rest for token in kept)  # a subsequence


def test_other_seeds_and_records_draw_otherwise():
    ids = list(range(3, 203))
    draws = [drop(ids, 0.5, seed, record)[0] for seed in range(5) for record in ("a", "b")]
    assert len({tuple(draw) for draw in draws}) == 10


def test_draws_stay_the_same_everywhere():
    assert drop(list(range(3, 23)), 0.3) == ([8, 9, 12, 18, 20, 22], 0.3)  # as first drawn, with Python 3.11


def test_every_droppable_token_falls_equally_often():
    ids = list(range(3, 23))
    times = [0] * 19
    for record in range(1000):
        for token in set(ids) - set(drop(ids, 0.5, record_id=str(record))[0]):
            times[token - 3] += 1
    assert sum(times) == 10_000
    assert max(abs(count - 10_000 / 19) for count in times) < 80  # five standard deviations
