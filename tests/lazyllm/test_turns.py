"""A generation continues with its cache: second turns, chunks, custom steps, copies, and what is refused of it."""

import copy
import pickle

import families
import naive_importance
import pytest
import torch
from checks import (
    PAD,
    STAGES,
    assert_refused,
    assert_same_stats,
    assert_traced,
    cut_answers,
    pad_left,
    random_ids,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from marks import slow, slow_but
from transformers import DynamicCache

import lazyllm
from lazyllm import reference

ASKED = {"do_sample": False, "eos_token_id": None, "pad_token_id": PAD, "return_dict_in_generate": True}


@pytest.fixture(scope="module")
def model(exact):
    return exact


def conversation(model, turns, new_tokens, ranking=None, stages=STAGES, **generation):
    """Greedy answers to one turn after the other; the tokens of all answers, and the stats."""
    ids, more, actual = torch.zeros(1, 0, dtype=torch.int64), {}, []
    with lazyllm.enable(model, stages, ranking=ranking, record_positions=True) as lazy:
        for turn in turns:
            ids = torch.cat([ids, torch.tensor([turn])], dim=1)
            more |= {"attention_mask": torch.ones_like(ids)}
            output = model.generate(ids, max_new_tokens=new_tokens, **more, **ASKED, **generation)
            actual += output.sequences[0, ids.shape[1] :].tolist()
            ids, more = output.sequences, {"past_key_values": output.past_key_values}
        assert output.past_key_values.stats is lazy.stats  # of one generation
    return actual, lazy.stats


def check(model, turns, new_tokens, stages=STAGES, chunk=None, every=1):
    ranking = lazyllm.AttentionRanking(every=every)
    actual, stats = conversation(model, turns, new_tokens, ranking, stages, prefill_chunk_size=chunk)
    assert_traced(stats, actual, reference.run(model, turns[0], stages, new_tokens, turns[1:], chunk, every=every))
    return stats


def step(model, cache, token=5):
    """A custom decoding step."""
    with torch.no_grad():
        return model(torch.tensor([[token]]), past_key_values=cache, logits_to_keep=1)


@pytest.mark.parametrize("chunk", [None, 7])
@pytest.mark.parametrize("family", slow_but(("llama",), ("llama", "mistral", "qwen2", "qwen3")))
def test_turns_are_the_references(family, chunk):
    model = families.build(family, dtype=torch.float64)
    stats = check(model, [random_ids(33), random_ids(9), random_ids(1), random_ids(4)], 5, chunk=chunk)
    if chunk is None:
        revived = set(stats.computed[5][4].tolist()) - set(stats.computed[0][4].tolist()) - set(range(33, 47))
        assert revived, "nothing that the first question pruned was revived for the second"


@given(
    st.lists(st.integers(1, 14), min_size=1, max_size=3),
    st.lists(st.floats(0.05, 0.95), min_size=2, max_size=2),
    st.integers(1, 4),
    st.one_of(st.none(), st.integers(1, 9)),
    st.integers(1, 3),
    st.integers(0, 2**16),
)
@settings(max_examples=15, derandomize=True, deadline=None)
def test_any_conversation(lengths, keeps, new_tokens, chunk, every, seed):
    model = families.build("llama", seed=seed % 3, dtype=torch.float64)
    turns = [random_ids(length, seed + index) for index, length in enumerate(lengths)]
    check(model, turns, new_tokens, [(1, keeps[0]), (3, keeps[1])], chunk, every)


@pytest.mark.parametrize("family", slow_but(("llama", "gemma3", "gpt2"), families.FAMILIES))
def test_nothing_pruned_is_the_unmodified_model(family):
    """In every family, in chunks or not, and over windows that the conversation outgrows."""
    changes = {"sliding_window": 16} if family == "gemma3" else {}
    model = families.build(family, dtype=torch.float64, **changes)
    turns, ids, expected = [random_ids(20), random_ids(7)], torch.zeros(1, 0, dtype=torch.int64), []
    for turn in turns:
        ids = torch.cat([ids, torch.tensor([turn])], dim=1)
        output = families.generate(model, ids, 5).sequences
        expected += output[0, ids.shape[1] :].tolist()
        ids = output
    for chunk in (None, 6):
        actual, stats = conversation(model, turns, 5, stages=[], prefill_chunk_size=chunk)
        assert actual == expected
        assert stats.num_computed.sum(dim=0).tolist() == [36] * len(
            stats.num_computed[0]
        )  # each token once, but for the last


@pytest.mark.parametrize("parts", [naive_importance.ALL, *map(slow, naive_importance.ALONE.values())], ids=str)
def test_every_part_of_the_importance_works_over_turns(model, parts):
    importance, turns = lazyllm.AttentionRanking(**parts), [random_ids(30), random_ids(8), random_ids(1), random_ids(3)]
    actual, stats = conversation(model, turns, 4, importance)
    assert_traced(stats, actual, naive_importance.run(model, turns[0], STAGES, importance, 4, turns[1:]))


def test_a_static_selection_prunes_no_later_turn(model):
    _, stats = conversation(model, [random_ids(30), random_ids(8)], 4, lazyllm.StaticRanking(), [(2, 0.5)])
    frozen = stats.positions[0][4].tolist()
    assert len(frozen) == 15
    assert stats.positions[-1][4].tolist() == frozen + list(range(30, 45))


@pytest.mark.parametrize("ends", [False, True])
def test_a_batch_of_conversations(model, ends):
    """Sequences may end at different times, and from their ends on all is padding, also in copies of the cache."""
    prompts, seconds = [random_ids(9), random_ids(21), random_ids(14)], [random_ids(5), random_ids(1), random_ids(8)]
    end = conversation(model, prompts[:1], 8)[0][3] if ends else None
    options = {**ASKED, "max_new_tokens": 8, "eos_token_id": end}
    expected, stats = [], []
    with lazyllm.enable(model, STAGES, record_positions=True) as lazy:
        for prompt, second in zip(prompts, seconds, strict=True):
            first = model.generate(torch.tensor([prompt]), **options)
            answer = first.sequences[0, len(prompt) :].tolist()
            ids = torch.tensor([prompt + [token for token in answer if token != end] + second])
            output = model.generate(ids, past_key_values=first.past_key_values, **options).sequences
            expected.append((answer, output[0, ids.shape[1] :].tolist()))
            stats.append(lazy.stats)
        ids, mask = pad_left(prompts)
        first = model.generate(ids, attention_mask=mask, **options)
        begun = cut_answers(first.sequences, ids.shape[1], end)
        width = first.sequences.shape[1] - ids.shape[1]
        lengths = [len(row) - (row[-1] == end) for row in begun]
        of_answers = (torch.arange(width) < torch.tensor(lengths)[:, None]).long()
        ids, more = pad_left(seconds)
        mask, ids = torch.cat([mask, of_answers, more], dim=1), torch.cat([first.sequences, ids], dim=1)
        caches = [first.past_key_values, copy.deepcopy(first.past_key_values)]
        for cache in (*caches, copy.deepcopy(caches[1])):
            output = model.generate(ids, attention_mask=mask, past_key_values=cache, **options).sequences
            assert list(zip(begun, cut_answers(output, ids.shape[1], end), strict=True)) == expected
            for actual, expected_stats in zip(cache.sequences, stats, strict=True):
                assert_same_stats(actual, expected_stats)


@pytest.mark.parametrize("chunk", [1, 10, 11])  # the last of 11 is a single token
def test_all_chunks_are_the_prompt(model, chunk):
    with lazyllm.enable(model, STAGES, record_positions=True) as lazy:
        families.generate(model, families.prompt(45), 4, prefill_chunk_size=chunk)
    stats, layers = lazy.stats, len(model.model.layers)
    cached = sum(int((step[layer] < 45).sum()) for step in stats.computed for layer in range(layers))
    assert stats.prompt_length == 45
    assert stats.prompt_computed == pytest.approx(cached / 45 / layers)


# Custom passes, and caches that several generations continue.


def test_a_users_empty_cache_becomes_the_generations(model, ids):
    """The user's object is filled, as by the unmodified model."""

    def passes(cache, start):
        with torch.no_grad():
            return model(ids[:, start : start + 10], past_key_values=cache, logits_to_keep=1).logits

    with lazyllm.enable(model, STAGES) as lazy:
        cache = DynamicCache()
        actual = [passes(cache, start) for start in range(0, 40, 10)]
        rows = lazy.stats.num_computed
        assert (cache.get_seq_length(), rows[:, 0].tolist()) == (40, [10] * 4)
        with torch.no_grad():
            begun = model(ids[:, :10], logits_to_keep=1)
        expected = [begun.logits, *(passes(begun.past_key_values, start) for start in (10, 20, 30))]
        assert torch.equal(torch.cat(actual), torch.cat(expected))
        assert torch.equal(lazy.stats.num_computed, rows)
        refused = DynamicCache()
        assert_refused(
            "mask is of", lambda: model(ids, past_key_values=refused, attention_mask=ids[:, :9], logits_to_keep=1)
        )
        assert torch.equal(passes(refused, 0), begun.logits)  # a pass that was refused has not taken it
    assert_refused("belongs to a generation", lambda: model.generate(ids, past_key_values=cache, max_new_tokens=2))


def test_a_copy_continues_by_itself(model, ids):
    """Transformers' own way to use a prefix again: the cache of the prefix is copied for each text that begins so."""
    questions = [torch.cat([ids, families.prompt(length)], dim=1) for length in (7, 1, 12)]

    def prefix():
        with torch.no_grad():
            return model(ids, past_key_values=DynamicCache(), logits_to_keep=1).past_key_values

    def answer(question, cache):
        output = families.generate(model, question, 6, past_key_values=cache)
        return output.sequences.tolist(), output.past_key_values.stats

    with lazyllm.enable(model, STAGES, record_positions=True):
        expected = [answer(question, prefix()) for question in questions]
        begun = prefix()
        for question, (tokens, stats) in [*zip(questions, expected, strict=True)] * 2:
            actual = answer(question, copy.deepcopy(begun))
            assert actual[0] == tokens
            assert_same_stats(actual[1], stats)
        assert begun.stats.steps == 1


def test_inference_mode_may_end_between_steps(model, ids):
    with lazyllm.enable(model, STAGES):
        expected = families.generate(model, ids, 3).logits
        with torch.inference_mode():
            output = model(ids, logits_to_keep=1)
            inside = copy.deepcopy(output.past_key_values)
        for logits in expected:
            assert torch.equal(output.logits[:, 0].float(), logits)
            token = int(logits.argmax())
            output, inside = step(model, output.past_key_values, token), step(model, inside, token).past_key_values


# What is refused.


def test_a_cache_ends_with_its_with_and_is_no_other_models(model, ids):
    other = families.build("llama", seed=1)
    with lazyllm.enable(model, STAGES), lazyllm.enable(other, STAGES):
        cache = families.generate(model, ids, 3).past_key_values
        assert_refused("another model", lambda: step(other, cache))
        step(model, cache)
        for call in (lambda: copy.copy(cache), lambda: pickle.dumps(cache), lambda: cache.offload(0)):
            assert_refused("pickled", call)
        copied, tokens = copy.deepcopy(cache), torch.cat([ids, ids[:, :5]], dim=1)
    for ended in (cache, copied):
        for owner in (model, other):
            assert_refused("belongs to a generation", lambda owner=owner, ended=ended: step(owner, ended))
        with lazyllm.enable(model, STAGES):
            assert_refused("earlier `with`", lambda ended=ended: step(model, ended))
            assert_refused("earlier `with`", lambda ended=ended: model.generate(tokens, past_key_values=ended))


def test_one_cache_takes_one_pass_at_a_time_and_none_that_broke_off(model, ids):
    with lazyllm.enable(model, STAGES):
        cache = families.generate(model, ids, 2).past_key_values

        def within(*_):
            assert_refused("still running", lambda: step(model, cache))
            assert_refused("still running", lambda: copy.deepcopy(cache))
            raise ZeroDivisionError

        hook = model.model.layers[2].register_forward_pre_hook(within)
        with pytest.raises(ZeroDivisionError):
            step(model, cache)
        hook.remove()
        assert_refused("cache failed", lambda: step(model, cache))
        assert_refused("cache failed", lambda: step(model, copy.deepcopy(cache)))


def ones(width):
    return torch.ones(1, width, dtype=torch.int64)


def test_what_does_not_follow_on_the_tokens_so_far_is_refused(model, ids):
    with lazyllm.enable(model, STAGES), torch.no_grad():
        for message, given in (
            (r"mask is of shape \(1, 50\)", {"attention_mask": ones(50)}),
            ("position_ids are not 0 to 39", {"position_ids": torch.arange(10, 50)[None]}),
            ("position_ids are not 0 to 39", {"position_ids": torch.arange(20).repeat(2)[None]}),
        ):
            assert_refused(message, lambda given=given: model(ids, logits_to_keep=1, **given))
        model(ids, logits_to_keep=1, attention_mask=ones(40), position_ids=torch.arange(40)[None])
        begun = families.generate(model, ids, 4)
        more, hiding = {"past_key_values": begun.past_key_values, "max_new_tokens": 2}, ones(44)
        hiding[0, :10] = 0
        for message, call in (
            ("hides tokens that an ear", lambda: model.generate(begun.sequences, attention_mask=hiding, **more)),
            ("give all tokens so far", lambda: model.generate(ids[:, :5], **more)),
            ("give all tokens so far", lambda: model.generate(ids[:, :5], attention_mask=ones(5), **more)),
            ("give all tokens so far", lambda: model.generate(begun.sequences[:, :-1], **more)),
        ):
            assert_refused(message, call)
