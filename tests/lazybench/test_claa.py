"""CLAA: what goes on, by the eager model's attention in several layers."""

from __future__ import annotations

import statistics

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from peers import answer, build, pooled

from lazybench.methods.claa import CLAA
from lazybench.methods.fastkv import FastKV

LAYER = 2
GROUP = 2  # query heads of a key head


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
def test_it_keeps_the_window_and_what_any_layer_attends_to(seed, length, keep, layers):
    method = CLAA("claa", layer=LAYER, keep=keep, window=4, pooling=3, layers=layers)
    output, (given_ids,), ids = answer(method, seed, length)
    assert torch.equal(given_ids, ids)
    with torch.no_grad():
        attentions = build(seed, "eager")(ids, output_attentions=True).attentions
    window, count = min(4, length - 1), max(1, -int(-keep * length // 1))
    importance = torch.full((length - window,), -torch.inf)
    for index in range(max(0, LAYER - layers + 1), LAYER + 1):
        by_head = [pooled(head, 3) for head in attentions[index][0][:, -window:, : length - window].sum(1)]
        for first in range(0, len(by_head), GROUP):
            importance = torch.maximum(importance, normalised(sum(by_head[first : first + GROUP])))
    recent = list(range(length - window, length))[-count:]
    kept = sorted(importance.argsort(descending=True, stable=True)[: count - len(recent)].tolist()) + recent
    for step, positions in enumerate(output.stats.positions):
        generated = list(range(length, length + step))
        assert [layer.tolist() for layer in positions[LAYER + 1 :]] == [kept + generated]


def test_it_ranks_otherwise_than_fastkv():
    """Else the layers before would have no say."""
    found = []
    for method in (
        FastKV("f", layer=LAYER, keep=0.3),
        CLAA("c", layer=LAYER, keep=0.3),
        CLAA("c", layer=LAYER, layers=1),
    ):
        output, *_ = answer(method, 8, 40)
        found.append(output.stats.positions[0][LAYER + 1].tolist())
    assert found[0] != found[1] != found[2]


def test_a_layer_that_the_model_lacks_is_refused(run):
    code, _, err = run("method=claa")
    assert code == 2
    assert "method.layer: the schedule prunes after layer 15, but the model has 4 layers" in err
