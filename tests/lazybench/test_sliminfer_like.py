"""SlimInfer-like pruning: which blocks go on at each stage, by the eager model's attention."""

from __future__ import annotations

import math

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from peers import answer, build

from lazybench.methods.sliminfer_like import SlimInferLike

BLOCK, WINDOW = 4, 3


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
