"""A generation goes on: second turns, and prompts in chunks."""

from __future__ import annotations

import families
import naive_importance
import pytest
import torch
from batching import PAD, answers, padded, same
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refuse

import lazyllm
from lazyllm import reference

STAGES = [(1, 0.6), (3, 0.5)]


def text(length, seed):
    return families.prompt(length, seed=seed)[0].tolist()


def conversation(model, turns, new_tokens, selection=None, stages=STAGES, **generation):
    """Greedy answers to one turn after the other; the tokens of all answers, and the stats."""
    ids, cache, found = torch.zeros(1, 0, dtype=torch.int64), None, []
    asked = {"max_new_tokens": new_tokens, "do_sample": False, "eos_token_id": None, "return_dict_in_generate": True}
    with lazyllm.enable(model, stages, selection=selection, record_positions=True) as lazy:
        for turn in turns:
            ids = torch.cat([ids, torch.tensor([turn])], dim=1)
            going_on = {} if cache is None else {"past_key_values": cache}
            output = model.generate(ids, attention_mask=torch.ones_like(ids), **going_on, **asked, **generation)
            found += output.sequences[0, ids.shape[1] :].tolist()
            ids, cache = output.sequences, output.past_key_values
        assert cache.stats is lazy.stats  # of one generation
    return found, lazy.stats


def check(model, turns, new_tokens, stages=STAGES, chunk=None):
    found, stats = conversation(model, turns, new_tokens, stages=stages, prefill_chunk_size=chunk)
    expected = reference.run(model, turns[0], stages, new_tokens, turns[1:], chunk)
    assert found == expected.tokens
    assert [[layer.tolist() for layer in step] for step in stats.computed] == expected.rows
    assert [[layer.tolist() for layer in step] for step in stats.positions] == expected.active
    return stats


@pytest.mark.parametrize("chunk", [None, 7])
@pytest.mark.parametrize("family", ["llama", "mistral", "qwen2", "qwen3"])
def test_turns_are_the_references(family, chunk):
    model = families.build(family, dtype=torch.float64)
    check(model, [text(33, 1), text(9, 2), text(1, 3), text(4, 4)], 5, chunk=chunk)


@given(
    st.lists(st.integers(1, 14), min_size=1, max_size=3),
    st.lists(st.floats(0.05, 0.95), min_size=2, max_size=2),
    st.integers(1, 4),
    st.one_of(st.none(), st.integers(1, 9)),
    st.integers(0, 2**16),
)
@settings(max_examples=15, derandomize=True, deadline=None)
def test_any_conversation(lengths, keeps, new_tokens, chunk, seed):
    model = families.build("llama", seed=seed % 3, dtype=torch.float64)
    turns = [text(length, seed + place) for place, length in enumerate(lengths)]
    check(model, turns, new_tokens, [(1, keeps[0]), (3, keeps[1])], chunk)


def test_what_the_first_question_pruned_comes_back_for_the_second():
    stats = check(families.build("llama", dtype=torch.float64), [text(40, 1), text(12, 2)], 3)
    first, second = stats.computed[0][4], stats.computed[3][4]
    back = set(second.tolist()) - set(range(42, 55))
    assert back
    assert not back & set(first.tolist())


@pytest.mark.parametrize("family", families.FAMILIES)
@pytest.mark.parametrize("chunk", [None, 6])
def test_nothing_pruned_is_the_unmodified_model(family, chunk):
    """In every family, and over windows that the conversation outgrows."""
    changes = {"sliding_window": 16} if family == "gemma3" else {}
    model = families.build(family, dtype=torch.float64, **changes)
    turns = [text(20, 1), text(7, 2)]
    ids, expected = torch.zeros(1, 0, dtype=torch.int64), []
    for turn in turns:
        ids = torch.cat([ids, torch.tensor([turn])], dim=1)
        whole = families.generate(model, ids, 5).sequences
        expected += whole[0, ids.shape[1] :].tolist()
        ids = whole
    found, stats = conversation(model, turns, 5, stages=[], prefill_chunk_size=chunk)
    assert found == expected
    assert stats.rows.sum(dim=0).tolist() == [36] * len(stats.rows[0])  # each token once, but for the last


@pytest.mark.parametrize("parts", [*naive_importance.ALONE.values(), naive_importance.ALL], ids=str)
def test_every_part_of_the_importance_goes_on(parts):
    model, importance = families.build("llama", dtype=torch.float64), lazyllm.Importance(**parts)
    turns = [text(30, 1), text(8, 2), text(1, 3), text(3, 4)]
    found, stats = conversation(model, turns, 4, importance)
    expected = naive_importance.run(model, turns[0], STAGES, importance, 4, turns[1:])
    assert found == expected.tokens
    assert [[layer.tolist() for layer in step] for step in stats.computed] == expected.rows
    assert [[layer.tolist() for layer in step] for step in stats.positions] == expected.active


@pytest.mark.parametrize(
    "selection",
    [
        lazyllm.Importance(queries=4),
        lazyllm.Importance(queries=3, pooling=3, heads="max", layers=2, value_norm=True, first=2, last=2),
        lazyllm.StaticSelection(),
    ],
    ids=["queries", "all", "static"],
)
def test_other_rankings_go_on(selection):
    """A turn of one new token beside the last answer's is a step like any other, and each token is computed once."""
    model = families.build("llama", dtype=torch.float64)
    stages = [(2, 0.5)] if isinstance(selection, lazyllm.StaticSelection) else STAGES
    turns = [text(30, 1), text(8, 2), text(5, 3)]
    _, stats = conversation(model, turns, 4, selection, stages)
    for layer in range(5):
        computed = torch.cat([step[layer] for step in stats.computed]).tolist()
        assert len(computed) == len(set(computed))
    protected = getattr(selection, "queries", 1)
    for step, active in enumerate(stats.positions):
        total = int(active[0][-1]) + 1
        for layer in range(5):
            assert set(range(total - min(protected, len(active[layer])), total)) <= set(active[layer].tolist()), step


def test_a_static_selection_prunes_no_later_turn():
    model = families.build("llama", dtype=torch.float64)
    _, stats = conversation(model, [text(30, 1), text(8, 2)], 4, lazyllm.StaticSelection(), [(2, 0.5)])
    frozen = stats.positions[0][4].tolist()
    assert len(frozen) == 15
    assert stats.positions[-1][4].tolist() == frozen + list(range(30, 45))


@pytest.mark.parametrize("ends", [False, True])
def test_a_batch_of_conversations(ends):
    """Sequences that end at different times, and go on together: what came after their ends stays padding."""
    model = families.build("llama", dtype=torch.float64)
    prompts, seconds = [text(9, 1), text(21, 2), text(14, 3)], [text(5, 4), text(1, 5), text(8, 6)]
    end = None
    if ends:
        free, _ = conversation(model, prompts[:1], 8)
        end = free[3]
    asked = {"max_new_tokens": 8, "do_sample": False, "eos_token_id": end, "return_dict_in_generate": True}
    asked["pad_token_id"] = PAD
    expected, stats = [], []
    for prompt, second in zip(prompts, seconds, strict=True):
        with lazyllm.enable(model, STAGES, record_positions=True) as lazy:
            first = model.generate(torch.tensor([prompt]), **asked)
            ids = torch.cat([first.sequences, torch.tensor([second])], dim=1)
            whole = model.generate(ids, past_key_values=first.past_key_values, **asked).sequences
        expected.append((first.sequences[0, len(prompt) :].tolist(), whole[0, ids.shape[1] :].tolist()))
        stats.append(lazy.stats)
    ids, mask = padded(prompts)
    with lazyllm.enable(model, STAGES, record_positions=True) as lazy:
        first = model.generate(ids, attention_mask=mask, **asked)
        begun = answers(first.sequences, ids.shape[1], end)
        width = first.sequences.shape[1] - ids.shape[1]
        of_answers = torch.tensor([[1] * len(row) + [0] * (width - len(row)) for row in begun])
        ids, more = padded(seconds)
        mask = torch.cat([mask, of_answers, more], dim=1)
        ids = torch.cat([first.sequences, ids], dim=1)
        whole = model.generate(ids, attention_mask=mask, past_key_values=first.past_key_values, **asked).sequences
    assert list(zip(begun, answers(whole, ids.shape[1], end), strict=True)) == expected
    for found, wanted in zip(lazy.sequences, stats, strict=True):
        same(found, wanted)


def test_chunks_of_a_batch():
    model = families.build("llama", dtype=torch.float64)
    ids = torch.tensor([text(24, 1), text(24, 2)])
    asked = {"max_new_tokens": 4, "do_sample": False, "eos_token_id": None, "prefill_chunk_size": 10}
    with lazyllm.enable(model, STAGES) as lazy:
        expected, stats = [], []
        for row in ids:
            expected.append(model.generate(row[None], **asked)[0].tolist())
            stats.append(lazy.stats)
        assert model.generate(ids, **asked).tolist() == expected
        for found, wanted in zip(lazy.sequences, stats, strict=True):
            same(found, wanted)


def test_a_prompt_may_begin_in_a_later_chunk():
    model = families.build("llama", dtype=torch.float64)
    ids, mask = padded([text(3, 1), text(24, 2)])
    asked = {"max_new_tokens": 4, "do_sample": False, "eos_token_id": None}
    with lazyllm.enable(model, STAGES) as lazy:
        expected, stats = [], []
        for prompt, chunk in ((text(3, 1), None), (text(24, 2), 10)):
            expected.append(model.generate(torch.tensor([prompt]), prefill_chunk_size=chunk, **asked)[0, -4:].tolist())
            stats.append(lazy.stats)
        found = model.generate(ids, attention_mask=mask, prefill_chunk_size=10, **asked)
        assert found[:, -4:].tolist() == expected
        for one, wanted in zip(lazy.sequences, stats, strict=True):
            same(one, wanted)
        refuse(
            "hides all tokens of sequence 0",
            lambda: model.generate(ids, attention_mask=mask * torch.tensor([[0], [1]]), prefill_chunk_size=10, **asked),
        )


def test_a_chunk_of_padding_alone_is_refused():
    model, ids, mask = families.build("llama"), families.prompt(24), torch.ones(1, 24, dtype=torch.int64)
    mask[:, :12] = 0
    with lazyllm.enable(model, STAGES):
        refuse("a chunk holds padding alone", lambda: families.generate(model, ids, 2, mask, prefill_chunk_size=12))


def test_what_a_mask_hides_stays_hidden_in_chunks():
    """A history sent anew, with nothing behind an answer that ended early."""
    model = families.build("llama", dtype=torch.float64)
    ids, mask = padded([text(14, 1), text(20, 2)])
    mask[0, 12:15] = 0
    expected = families.generate(model, ids, 4, mask).logits
    with lazyllm.enable(model, ""):
        for chunk in (None, 6, 7, 19):
            found = families.generate(model, ids, 4, mask, prefill_chunk_size=chunk).logits
            torch.testing.assert_close(torch.stack(found), torch.stack(expected), rtol=0, atol=1e-9)
