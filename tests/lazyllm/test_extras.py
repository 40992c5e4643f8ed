"""What is built on generations: log-likelihoods of given texts, and `lazyllm.select`."""

import architectures
import families
import pytest
import torch
from checks import STAGES, assert_close, assert_refused, assert_same_stats, generate_recorded, random_ids
from marks import slow, slow_but

import lazyllm
from lazyllm import reference

ANSWERS = [[5], [7, 80, 3, 44, 9], [7, 81], [20, 20, 20, 20]]


@pytest.mark.parametrize("length", [1, 33])
@pytest.mark.parametrize("family", ["llama", slow("qwen3")])
def test_likelihoods_are_the_references(family, length):
    model, prompt = families.build(family, dtype=torch.float64), random_ids(length, 1)
    chosen = reference.run(model, prompt, STAGES, 5).tokens
    continuations = [*ANSWERS, chosen, [*chosen[:-1], 3 if chosen[-1] != 3 else 4]]
    with lazyllm.enable(model, STAGES):
        actual = lazyllm.log_likelihoods(model, prompt, continuations)
        assert torch.equal(lazyllm.log_likelihoods(model, prompt, [continuations[1]])[0].tokens, actual[1].tokens)
    for likelihood, answer in zip(actual, continuations, strict=True):
        logits = torch.stack(reference.run(model, prompt, STAGES, len(answer), answer=answer).logits)
        expected = logits.log_softmax(-1).gather(1, torch.tensor(answer)[:, None])[:, 0]
        assert_close([likelihood.tokens], [expected])
        assert likelihood.total == pytest.approx(float(expected.sum()), abs=1e-4)
        assert likelihood.greedy == (logits.argmax(-1).tolist() == answer)
    assert [likelihood.greedy for likelihood in actual[-2:]] == [True, False]


@pytest.mark.parametrize("family", slow_but(("llama", "gpt2"), families.FAMILIES))
def test_likelihoods_are_the_unmodified_models_where_nothing_is_pruned(family):
    model, prompt = families.build(family, dtype=torch.float64), random_ids(20, 1)
    plain = lazyllm.log_likelihoods(model, prompt, ANSWERS)
    with lazyllm.enable(model, [(1, 1.0)]):
        kept = lazyllm.log_likelihoods(model, prompt, ANSWERS)
    for one, other, answer in zip(plain, kept, ANSWERS, strict=True):
        with torch.no_grad():
            logits = model(torch.tensor([prompt + answer])).logits[0, len(prompt) - 1 : -1]
        assert_close([one.tokens], [logits.log_softmax(-1).gather(1, torch.tensor(answer)[:, None])[:, 0]], 1e-5)
        assert_close([other.tokens], [one.tokens], 1e-5)
        assert other.greedy == one.greedy


@pytest.mark.parametrize("case", ["bamba", "minimax", "roberta"])
def test_likelihoods_are_those_of_one_pass_however_the_model_counts_positions(case):
    """Bamba and MiniMax count each pass from 0 unless they are given positions, and RoBERTa never does."""
    model, ids, answer = architectures.build(case), architectures.prompt(), torch.tensor(ANSWERS[1])
    with torch.no_grad():
        logits = model(torch.cat([ids, answer[None]], dim=1)).logits[0, architectures.PROMPT - 1 : -1]
    expected = logits.log_softmax(-1).gather(1, answer[:, None])[:, 0]
    assert_close([lazyllm.log_likelihoods(model, ids, [answer])[0].tokens], [expected], 1e-3)
    if case == "bamba":
        with lazyllm.enable(model, "", ranking=lazyllm.AttentionRanking(revive=False)):
            assert_close([lazyllm.log_likelihoods(model, ids, [answer])[0].tokens], [expected], 1e-3)


def test_one_prompt_serves_several_continuations(model, ids):
    with lazyllm.enable(model, STAGES, record_positions=True) as lazy:
        lazyllm.log_likelihoods(model, ids, [ANSWERS[-1]])
        expected = lazy.stats
        calls = []
        hook = model.model.layers[0].register_forward_hook(lambda *_: calls.append(1))
        actual = lazyllm.log_likelihoods(model, ids, ANSWERS)
        hook.remove()
        assert_same_stats(lazy.stats, expected)
        with torch.inference_mode():
            within = lazyllm.log_likelihoods(model, ids, ANSWERS)
    assert len(calls) == 1 + sum(len(answer) - 1 for answer in ANSWERS)
    for one, other in zip(actual, within, strict=True):
        assert not one.tokens.requires_grad
        assert not one.tokens.is_inference()
        assert torch.equal(one.tokens, other.tokens)


# lazyllm.select


@pytest.mark.parametrize("length", [1, 40])
@pytest.mark.parametrize("family", slow_but(("llama", "gpt2"), families.FAMILIES))
def test_select_keeps_what_a_generation_keeps(family, length):
    model, ids = families.build(family), families.prompt(length)
    for ranking in (None, lazyllm.AttentionRanking(queries=4, pooling=3), lazyllm.StaticRanking()):
        stages = [(3, 0.4)] if ranking and ranking.single_stage else STAGES
        _, stats = generate_recorded(model, stages, ids, 1, ranking=ranking)
        actual = lazyllm.select(model, ids, stages, ranking=ranking)
        assert torch.equal(actual.positions, stats.positions[0][4])
        assert torch.equal(actual.ids, ids[0, actual.positions])


def test_a_fraction_is_ranked_half_way(model, ids):
    actual, expected = lazyllm.select(model, ids, 0.3), lazyllm.select(model, ids, "50%:0.3")
    assert torch.equal(actual.positions, expected.positions)
    assert len(actual.ids) == 12
    assert torch.equal(lazyllm.select(model, ids, keep=1).ids, ids[0])


def test_no_layer_after_the_last_stage_runs_and_the_model_is_as_before(model, ids):
    ran, before = [], model(ids).logits
    hooks = [
        layer.register_forward_hook(lambda *_, index=index: ran.append(index))
        for index, layer in enumerate(model.model.layers)
    ]
    for schedule in ("", "2:1", [(1, 1.0), (2, 1.0)]):  # nothing is pruned
        assert torch.equal(lazyllm.select(model, ids, schedule).ids, ids[0])
    assert ran == []
    lazyllm.select(model, ids, "1:0.5,2:0.5,3:1")
    assert ran == [0, 1, 2]
    for hook in hooks:
        hook.remove()
    assert torch.equal(model(ids).logits, before)


# What both take, and refuse.


def scored(model, ids):
    return lazyllm.log_likelihoods(model, ids, [[5, 6]])[0].total


def selected(model, ids):
    return lazyllm.select(model, ids, "1:0.5").positions.tolist()


@pytest.mark.parametrize("call", [scored, selected])
def test_ids_come_in_several_forms_and_others_are_refused(model, ids, call):
    expected = call(model, ids)
    for form in (ids[0], ids.tolist(), ids[0].tolist(), tuple(ids[0].tolist())):
        assert call(model, form) == expected
    for wrong in (ids.expand(2, -1), []):
        assert_refused("ids must be token ids of one text", lambda wrong=wrong: call(model, wrong))


def test_what_they_cannot_do_is_refused(model, ids):
    for wrong in ([5, -1], [97], [0.5]):  # PyTorch's own errors
        with pytest.raises((RuntimeError, IndexError)):
            lazyllm.log_likelihoods(model, ids, [wrong])
    training = families.build("llama").train()
    for call in (scored, selected):
        assert_refused("model.eval", lambda call=call: call(training, ids))
