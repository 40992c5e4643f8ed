"""Log-likelihoods of given texts, and the copies of a cache that let several of them follow on one prompt."""

from __future__ import annotations

import copy

import families
import pytest
import torch
from batching import PAD, padded, same
from refusals import refuse
from transformers import DynamicCache, MambaConfig, MambaForCausalLM

import lazyllm
from lazyllm import reference

STAGES = [(1, 0.6), (3, 0.5)]
ANSWERS = [[5], [7, 80, 3, 44, 9], [7, 81], [20, 20, 20, 20]]


def text(length, seed):
    return families.prompt(length, seed=seed)[0].tolist()


def close(found, expected, tolerance=1e-6):
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)


def of_whole_text(model, prompt, answer):
    """Log-probabilities by one pass of the unmodified model."""
    with torch.no_grad():
        logits = model(torch.tensor([prompt + answer])).logits[0, len(prompt) - 1 : -1]
    return logits.log_softmax(-1).gather(1, torch.tensor(answer)[:, None])[:, 0]


@pytest.mark.parametrize("length", [1, 2, 33])
@pytest.mark.parametrize("family", ["llama", "mistral", "qwen2", "qwen3"])
def test_it_is_the_references(family, length):
    model, prompt = families.build(family, dtype=torch.float64), text(length, 1)
    chosen = reference.run(model, prompt, STAGES, 5).tokens
    answers = [*ANSWERS, chosen, [*chosen[:-1], 3 if chosen[-1] != 3 else 4]]
    with lazyllm.enable(model, STAGES):
        found = lazyllm.log_likelihoods(model, prompt, answers)
        assert torch.equal(lazyllm.log_likelihood(model, prompt, answers[1]).tokens, found[1].tokens)
    for likelihood, answer in zip(found, answers, strict=True):
        logits = torch.stack(reference.run(model, prompt, STAGES, len(answer), answer=answer).logits)
        expected = logits.log_softmax(-1).gather(1, torch.tensor(answer)[:, None])[:, 0]
        close(likelihood.tokens, expected)
        assert likelihood.total == pytest.approx(float(expected.sum()), abs=1e-4)
        assert likelihood.greedy == (logits.argmax(-1).tolist() == answer)
    assert [likelihood.greedy for likelihood in found[-2:]] == [True, False]


@pytest.mark.parametrize("family", families.FAMILIES)
def test_it_is_the_unmodified_models_where_nothing_is_pruned(family):
    model, prompt = families.build(family, dtype=torch.float64), text(20, 1)
    plain = lazyllm.log_likelihoods(model, prompt, ANSWERS)
    with lazyllm.enable(model, [(1, 1.0)]):
        kept = lazyllm.log_likelihoods(model, prompt, ANSWERS)
    for one, other, answer in zip(plain, kept, ANSWERS, strict=True):
        close(one.tokens, of_whole_text(model, prompt, answer), 1e-5)
        close(other.tokens, one.tokens, 1e-5)
        assert other.greedy == one.greedy


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("pruned", [False, True])
def test_it_is_what_generate_says_of_its_own_answer(dtype, pruned):
    model, ids = families.build("llama", dtype=dtype), families.prompt(40)

    def both():
        output = families.generate(model, ids, 6)
        answer = output.sequences[0, 40:]
        rows = torch.cat(output.logits).float().log_softmax(-1)
        found = lazyllm.log_likelihood(model, ids, answer)
        assert found.tokens.dtype == torch.float32
        close(found.tokens, rows.gather(1, answer[:, None])[:, 0], 1e-5)
        return found

    if pruned:
        with lazyllm.enable(model, STAGES) as lazy:
            found = both()
        assert lazy.stats.rows.shape == (6, 5)
    else:
        found = both()
    assert found.greedy


def test_one_prompt_serves_several_continuations(model, ids):
    with lazyllm.enable(model, STAGES, record_positions=True) as lazy:
        lazyllm.log_likelihood(model, ids, ANSWERS[-1])
        expected = lazy.stats
        calls = []
        hook = model.model.layers[0].register_forward_hook(lambda *_: calls.append(1))
        lazyllm.log_likelihoods(model, ids, ANSWERS)
        hook.remove()
        same(lazy.stats, expected)
    assert len(calls) == 1 + sum(len(answer) - 1 for answer in ANSWERS)


def test_ids_come_in_several_forms_and_others_are_refused(model, ids):
    expected = lazyllm.log_likelihood(model, ids, [5, 6]).total
    for prompt in (ids[0], ids.tolist(), ids[0].tolist(), tuple(ids[0].tolist())):
        for answer in (torch.tensor([5, 6]), torch.tensor([[5, 6]]), [[5, 6]], (5, 6)):
            assert lazyllm.log_likelihood(model, prompt, answer).total == expected
    for wrong in (
        ids.expand(2, -1),
        ids.int(),
        ids > 5,
        ids.float(),
        "a b",
        ["a"],
        [1.0],
        5,
        None,
        [[1], [1, 2]],
        ids[None],
    ):
        refuse("ids must be token ids of one text", lambda wrong=wrong: lazyllm.log_likelihood(model, wrong, [5]))
        refuse("a continuation must be", lambda wrong=wrong: lazyllm.log_likelihood(model, ids, wrong))
    for empty in ([], [[]], ids[:, :0]):
        refuse("begins with BOS", lambda empty=empty: lazyllm.log_likelihood(model, empty, [5]))
        refuse("must hold a token", lambda empty=empty: lazyllm.log_likelihood(model, ids, empty))
    for outside in ([5, -1], [families.VOCABULARY, 5]):
        refuse("vocabulary, 0 to 96", lambda outside=outside: lazyllm.log_likelihood(model, ids, outside))
        refuse("vocabulary, 0 to 96", lambda outside=outside: lazyllm.log_likelihood(model, outside, [5]))
    refuse("a list of texts", lambda: lazyllm.log_likelihoods(model, ids, None))
    refuse("a list such as", lambda: lazyllm.log_likelihoods(model, ids, [5, 6]))


def test_models_that_cannot_are_refused(ids):
    model = families.build("llama")
    model.train()
    refuse("model.eval", lambda: lazyllm.log_likelihood(model, ids, [5]))
    mamba = MambaForCausalLM(MambaConfig(vocab_size=97, hidden_size=16, num_hidden_layers=1, state_size=4)).eval()
    refuse("no cache", lambda: lazyllm.log_likelihood(mamba, ids, [5, 6]))


def test_it_takes_no_gradients_and_gives_ordinary_tensors(model, ids):
    with lazyllm.enable(model, STAGES):
        expected = lazyllm.log_likelihoods(model, ids, ANSWERS)
        with torch.inference_mode():
            found = lazyllm.log_likelihoods(model, ids, ANSWERS)
    for one, other in zip(found, expected, strict=True):
        assert not other.tokens.requires_grad
        assert not other.tokens.is_inference()
        assert torch.equal(one.tokens, other.tokens)


def test_on_a_device(device):
    model, ids = families.build("llama"), families.prompt(40)
    schedule = lazyllm.PruningSchedule(STAGES)

    def found():
        with lazyllm.enable(model, schedule):
            return lazyllm.log_likelihoods(model, ids, ANSWERS)

    expected = found()
    model.to(device.name)
    for one, other in zip(found(), expected, strict=True):
        close(one.tokens, other.tokens, 1e-5)
        assert one.greedy == other.greedy


# Copies of a cache.


def continued(model, cache, token=5):
    with torch.no_grad():
        return model(torch.tensor([[token]]), past_key_values=cache, logits_to_keep=1).logits


def test_a_copy_goes_on_by_itself(model, ids):
    """Transformers' own way to use a prefix again: the cache of the prefix is copied for each text that begins so."""
    questions = [torch.cat([ids, families.prompt(length, seed=length)], dim=1) for length in (7, 1, 12)]

    def prefix():
        cache = DynamicCache()
        with torch.no_grad():
            model(ids, past_key_values=cache, logits_to_keep=1)
        return cache

    def answer(question, cache):
        output = families.generate(model, question, 6, past_key_values=cache)
        return output.sequences.tolist(), torch.cat(output.logits), output.past_key_values.stats

    with lazyllm.enable(model, STAGES, record_positions=True) as lazy:
        expected = [answer(question, prefix()) for question in questions]
        begun = prefix()
        for _ in range(2):
            for question, (tokens, logits, stats) in zip(questions, expected, strict=True):
                found = answer(question, copy.deepcopy(begun))
                assert found[0] == tokens
                assert torch.equal(found[1], logits)
                same(found[2], stats)
        assert begun.stats.steps == lazy.stats.steps == 1
        twice = copy.deepcopy([begun, begun])
        assert twice[0] is twice[1]


@pytest.mark.parametrize(
    "selection",
    [lazyllm.Importance(queries=4, pooling=3, heads="max", layers=2, first=2, last=2), lazyllm.StaticSelection()],
    ids=["all", "static"],
)
def test_a_copy_ranks_by_itself(model, ids, selection):
    stages = [(2, 0.5)] if isinstance(selection, lazyllm.StaticSelection) else STAGES
    with lazyllm.enable(model, stages, selection=selection), torch.no_grad():
        caches = [model(ids, logits_to_keep=1).past_key_values for _ in range(2)]
        for cache in caches:
            continued(model, cache, 9)
        caches.append(copy.deepcopy(caches[0]))
        found = [[] for _ in caches]
        for token in (5, 6, 7):
            for which, cache in enumerate(caches):
                found[which].append(continued(model, cache, token + which // 2))
        again = copy.deepcopy(caches[0])
        assert torch.equal(continued(model, again), continued(model, caches[0]))
    assert all(map(torch.equal, found[0], found[1]))
    assert not torch.equal(found[0][0], found[2][0])


def test_a_batch_is_copied_with_its_padding(model):
    prompts = [text(9, 1), text(21, 2), text(14, 3)]
    asked = {"max_new_tokens": 4, "do_sample": False, "eos_token_id": None, "pad_token_id": PAD}
    asked["return_dict_in_generate"] = True
    ids, mask = padded(prompts)
    with lazyllm.enable(model, STAGES, record_positions=True):
        first = model.generate(ids, attention_mask=mask, **asked)
        mask = torch.cat([mask, torch.ones(3, 4, dtype=torch.int64)], dim=1)
        caches = [first.past_key_values, copy.deepcopy(first.past_key_values)]
        caches.append(copy.deepcopy(caches[1]))
        outputs = [
            model.generate(first.sequences, attention_mask=mask, past_key_values=cache, **asked) for cache in caches
        ]
        for output in outputs[1:]:
            assert torch.equal(output.sequences, outputs[0].sequences)
            for one, other in zip(output.past_key_values.sequences, caches[0].sequences, strict=True):
                same(one, other)


def test_a_copy_made_in_inference_mode_goes_on_outside(model, ids):
    with lazyllm.enable(model, STAGES):
        with torch.inference_mode():
            begun = model(ids, logits_to_keep=1).past_key_values
            inside = copy.deepcopy(begun)
        expected = continued(model, copy.deepcopy(begun))
        for cache in (inside, begun):
            assert torch.equal(continued(model, cache), expected)


def test_a_copy_belongs_to_the_same_with(model, ids):
    with lazyllm.enable(model, STAGES):
        cache = families.generate(model, ids, 3).past_key_values
    refuse("belongs to a generation", lambda: continued(model, copy.deepcopy(cache)))
    with lazyllm.enable(model, STAGES):
        refuse("earlier generation", lambda: continued(model, copy.deepcopy(cache)))


def test_a_cache_is_not_copied_within_a_pass_nor_made_whole_by_it(model, ids):
    with lazyllm.enable(model, STAGES):
        cache = families.generate(model, ids, 3).past_key_values

        def within(*_):
            refuse("under way", lambda: copy.deepcopy(cache))
            raise ZeroDivisionError

        hook = model.model.layers[2].register_forward_pre_hook(within)
        with pytest.raises(ZeroDivisionError):
            continued(model, cache)
        hook.remove()
        refuse("broke off", lambda: continued(model, copy.deepcopy(cache)))
