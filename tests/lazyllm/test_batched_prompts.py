"""Each sequence of a batch is what it would be alone."""

import families
import naive_importance
import pytest
import torch
from checks import (
    PAD,
    STAGES,
    assert_close,
    assert_refused,
    assert_same_stats,
    cut_answers,
    generate_alone,
    pad_left,
    random_ids,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from marks import slow_but

import lazyllm


class EverySecond(lazyllm.Ranking):
    """Eq. 1 in every second decoding step; it reads the keys in the others, too."""

    every = 2

    def observe(self, attention):
        self.importance = self.by_position(attention.layer, attention.probabilities().mean(dim=(1, 2, 3))[0])


RANKINGS = {
    "eq1": {},
    "static": {"schedule": "2:0.4", "ranking": lazyllm.StaticRanking()},
    **{part: {"ranking": lazyllm.AttentionRanking(**parts)} for part, parts in naive_importance.ALONE.items()},
    "all": {"ranking": lazyllm.AttentionRanking(**naive_importance.ALL)},
    "own": {"ranking": EverySecond()},
    "no revival": {"ranking": lazyllm.AttentionRanking(revive=False)},
}
LENGTHS = (7, 30, 19, 1)


def texts(*lengths, seed=3):
    return [random_ids(length, seed + length) for length in lengths]


@pytest.fixture(scope="module")
def model(exact):
    return exact


def enabled(model, schedule=STAGES, **options):
    return lazyllm.enable(model, schedule, record_positions=True, record_importance=True, **options)


def each_alone(model, prompts, options, **generation):
    """Return the answer and the stats of each prompt by itself."""
    with enabled(model, **options) as lazy:
        return [(generate_alone(model, [prompt], **generation)[0], lazy.stats) for prompt in prompts]


def check(model, prompts, options, **generation):
    generation = {"max_new_tokens": 6, "eos_token_id": None} | generation
    expected = each_alone(model, prompts, options, **generation)
    ids, mask = pad_left(prompts)
    with enabled(model, **options) as lazy:
        output = model.generate(ids, attention_mask=mask, do_sample=False, pad_token_id=PAD, **generation)
        if len(prompts) > 1:
            assert_refused(r"sequences were generated: lazy.sequences\[i\]", lambda: lazy.stats)
    actual = cut_answers(output, ids.shape[1], generation["eos_token_id"])
    assert actual == [answer for answer, _ in expected]
    for stats, (_, expected_stats) in zip(lazy.sequences, expected, strict=True):
        assert_same_stats(stats, expected_stats)
    return actual


@pytest.mark.parametrize("family", slow_but(families.QUICK, families.FAMILIES))
def test_every_family(family):
    check(families.build(family, dtype=torch.float64), texts(*LENGTHS), {})


def passes(model, pad):
    """Logits of a prompt after padding, of single tokens and of a second turn, without position_ids; and the cache."""
    columns, cache, logits = 0, None, []
    for tokens in ([PAD] * pad + random_ids(24, 3), [5], [9], random_ids(8), [7]):
        columns += len(tokens)
        mask = (torch.arange(columns) >= pad).long()[None]
        output = model(torch.tensor([tokens]), attention_mask=mask, past_key_values=cache, logits_to_keep=1)
        cache = output.past_key_values
        logits.append(output.logits)
    return logits, cache


@pytest.mark.parametrize("family", slow_but(("gemma3", "gpt2"), families.QUICK))
def test_padding_of_one_sequence_counts_in_no_later_pass(family):
    model = families.build(family, dtype=torch.float64)
    with enabled(model), torch.no_grad():
        expected, cache = passes(model, 0)
        actual, padded_cache = passes(model, 6)
    assert_close(actual, expected)
    assert_same_stats(padded_cache.stats, cache.stats)


@pytest.mark.parametrize("ranking", slow_but(("static", "bonus", "all", "own", "no revival"), RANKINGS))
def test_every_ranking(model, ranking):
    check(model, texts(*LENGTHS), RANKINGS[ranking])


@given(
    st.lists(st.integers(1, 24), min_size=1, max_size=5),
    st.lists(st.floats(0.05, 1), min_size=2, max_size=2),
    st.sampled_from(list(RANKINGS)),
    st.integers(0, 2**16),
)
@settings(max_examples=15, derandomize=True, deadline=None)
def test_any_batch(lengths, keeps, ranking, seed):
    model = families.build("llama", seed=seed % 3, dtype=torch.float64)
    options = {"schedule": [(1, keeps[0]), (3, keeps[1])]} | RANKINGS[ranking]
    check(model, texts(*lengths, seed=seed), options)


@pytest.mark.parametrize("ranking", slow_but(("all",), ("eq1", "static", "all")))
def test_a_short_prompt_has_no_token_in_the_first_chunk(model, ranking):
    check(model, texts(60, 8), RANKINGS[ranking], prefill_chunk_size=16)


@pytest.mark.parametrize("ranking", slow_but(("all",), ("eq1", "static", "all")))
def test_sequences_end_at_their_own_time(model, ranking):
    """Padding after its end is not computed: its stats are those of the shorter generation."""
    prompts = texts(*LENGTHS)
    ((free, _),) = each_alone(model, prompts[1:2], RANKINGS[ranking], max_new_tokens=12, eos_token_id=None)
    actual = check(model, prompts, RANKINGS[ranking], max_new_tokens=12, eos_token_id=free[5])
    assert len(actual[1]) <= 6
    assert max(map(len, actual)) == 12


def test_nothing_pruned_is_the_unmodified_model(model):
    ids, mask = pad_left(texts(*LENGTHS))
    expected = families.generate(model, ids, 8, mask)
    with lazyllm.enable(model, ""):
        actual = families.generate(model, ids, 8, mask)
    assert torch.equal(actual.sequences, expected.sequences)
    assert_close(actual.logits, expected.logits)  # transformers counts the padding in no position, either


def test_padding_between_turns_does_not_count_in_a_window():
    """As if each sequence were alone; the unmodified model counts what is hidden between the tokens of a window."""
    model = families.build("gemma3", dtype=torch.float64, sliding_window=12)
    parts = [pad_left(texts(*lengths)) for lengths in ((9, 20), (1, 6), (8, 8))]
    ids, mask = (torch.cat(tensors, dim=1) for tensors in zip(*parts, strict=True))
    positions = (mask.cumsum(dim=1) - 1).clamp(min=0)
    with lazyllm.enable(model, ""), torch.no_grad():
        cache = model(ids[:, :20], attention_mask=mask[:, :20], logits_to_keep=1).past_key_values
        turn = {"attention_mask": mask, "position_ids": positions[:, 20:], "past_key_values": cache}
        actual = model(ids[:, 20:], **turn, logits_to_keep=1).logits
    with torch.no_grad():
        expected = [model(row[real.bool()][None]).logits[:, -1:] for row, real in zip(ids, mask, strict=True)]
    assert_close(actual[:, None], expected)


def test_a_mask_may_be_left_out_unless_a_sequence_has_ended(model):
    """The tokens after its end have not been computed, and without a mask a later turn shows them."""
    ids = torch.tensor([random_ids(20, 1), random_ids(20, 2)])
    free = families.generate(model, ids, 6).sequences
    options = {"do_sample": False, "return_dict_in_generate": True, "pad_token_id": PAD}

    def talk(end):
        first = model.generate(ids, max_new_tokens=6, eos_token_id=end, **options)
        longer = torch.cat([first.sequences, ids[:, :3]], dim=1)
        more = {"attention_mask": torch.ones_like(longer), "past_key_values": first.past_key_values}
        return model.generate(longer, max_new_tokens=4, eos_token_id=None, **more, **options).sequences

    expected = talk(None)
    with lazyllm.enable(model, ""):
        assert torch.equal(talk(None), expected)
        assert_refused("after a sequence had ended: hide them", lambda: talk(int(free[1, 22])))


def test_batches_that_cannot_be_right_are_refused(model):
    ids, mask = pad_left(texts(9, 14))

    def call(**changed):
        def run():
            with lazyllm.enable(model, STAGES), torch.no_grad():
                cache = model(ids, attention_mask=mask, logits_to_keep=1).past_key_values
                model(**{"input_ids": ids[:, :1], "past_key_values": cache, "logits_to_keep": 1} | changed)

        return run

    longer = torch.cat([mask, torch.ones(2, 1, dtype=torch.int64)], dim=1)
    hiding = longer.index_fill(1, torch.tensor([9]), 0)
    assert_refused(r"all tokens so far \(2, 15\)", call(attention_mask=mask))
    assert_refused("hides tokens that an earlier pass has computed", call(attention_mask=hiding))
    assert_refused("shows tokens that it hid in an earlier pass", call(attention_mask=torch.ones_like(longer)))
    assert_refused("1 sequences came with the cache of 2", call(input_ids=ids[:1, :1], attention_mask=longer[:1]))
    assert_refused(
        "those that continue each sequence", call(attention_mask=longer, position_ids=torch.tensor([[14], [14]]))
    )
    assert_refused("lack of one, shows tokens that it hid", call())
    call(attention_mask=longer, position_ids=torch.tensor([[9], [14]]))()


def test_rotary_tables_that_change_with_length():
    rope = {"rope_type": "longrope", "rope_theta": 10000.0, "original_max_position_embeddings": 32}
    rope |= {"short_factor": [1.0] * 6, "long_factor": [4.0] * 6}
    model = families.build("phi3", rope_parameters=rope, dtype=torch.float64, original_max_position_embeddings=32)
    ids, mask = pad_left(texts(9, 40))
    with lazyllm.enable(model, STAGES, min_tokens=30):
        assert_refused("change at 32 positions", lambda: families.generate(model, ids, 2, mask))
        # Computed again from the beginning, as Phi-3 does, the prompt would be too long for `min_tokens`, and pruned.
        assert_refused("change at 32 positions", lambda: families.generate(model, families.prompt(28), 10))
    check(model, texts(34, 40), {})
    ids, mask = pad_left(texts(40, 80))
    expected = families.generate(model, ids, 2, mask).sequences
    with lazyllm.enable(model, ""):  # the first chunk has only padding of the shorter prompt
        assert torch.equal(families.generate(model, ids, 2, mask, prefill_chunk_size=40).sequences, expected)
