"""Random token drop: what stays, how much, and that a seed settles it."""

from __future__ import annotations

import math
from types import SimpleNamespace

import torch
from hypothesis import given
from hypothesis import strategies as st

from lazybench.data.record import Record
from lazybench.methods.random_drop import RandomDrop
from lazybench.model.prompts import Prompt

SPECIAL = [0, 1, 2]


def prompt_of(ids: list[int], record_id: str = "a") -> Prompt:
    record = Record(record_id, "2wikimqa", "", "", (), None, 0)
    builder = SimpleNamespace(tokenizer=SimpleNamespace(all_special_ids=SPECIAL))
    return Prompt(torch.tensor([ids]), record, builder, text="")


def drop(ids: list[int], keep: float, seed: int = 0, record_id: str = "a") -> tuple[list[int], float]:
    """The ids the model gets to see, and `prompt_computed`."""
    seen: list[torch.Tensor] = []
    method = RandomDrop("random_drop", keep=keep)
    output = method.generate(prompt_of(ids, record_id), lambda given: seen.append(given) or [7], seed)
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
