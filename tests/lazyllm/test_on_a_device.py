"""The engine on a device that is not the CPU: the same tokens and rows, and no more waits than one a stage a step."""

from __future__ import annotations

import threading
from collections import Counter
from contextlib import nullcontext
from copy import deepcopy

import families
import naive_importance
import pytest
import torch

import lazyllm
from lazyllm.core import attention

STAGES = [(1, 0.6), (3, 0.5)]
# So small a bonus that tokens come back in GPT-2, too, whose attention is even here.
PARTS = {**naive_importance.ALONE, "all": naive_importance.ALL, "bonus": {"bonus": 1.02}}
# What ranks the tokens, by name: the stages, and what `lazyllm.enable` is given.
WAYS = {
    "dynamic": (STAGES, {}),
    "static": ([(1, 0.6)], {"selection": lazyllm.StaticSelection()}),
    **{name: (STAGES, {"selection": lazyllm.Importance(**parts)}) for name, parts in PARTS.items()},
}
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
# Layers that see a window; each stage is after one that sees everything.
WINDOWED = {
    "layer_types": ["sliding_attention", "full_attention"] * 2 + ["full_attention"],
    "sliding_window": 16,
}
NEW_TOKENS = 6


@pytest.fixture
def small_blocks(monkeypatch):
    """Attention takes a few rows at a time."""
    monkeypatch.setattr(attention, "_BLOCK_ELEMENTS", 512)


def pruned(model, ids, stages, how, new_tokens=NEW_TOKENS, **kwargs):
    with lazyllm.enable(model, lazyllm.PruningSchedule(stages), **how) as lazy:
        output = families.generate(model, ids, new_tokens, **kwargs)
    return output, lazy.stats


def waiting(device, work):
    """What `work` returns, and how often each of its lines waits for the device, reading and writing."""
    device.reads.clear()
    device.writes.clear()
    done = work()
    return done, Counter(device.reads), Counter(device.writes)


def check_answer(found, expected, exact):
    """Each step's rows and token are the same: if not `exact`, up to where rounding may decide on either."""
    (output, stats), (wanted, wanted_stats) = found, expected
    assert stats.active.tolist() == wanted_stats.active.tolist()
    assert stats.rows[0].tolist() == wanted_stats.rows[0].tolist()
    new = output.sequences[0, -NEW_TOKENS:].tolist()
    for step, (token, logits) in enumerate(zip(new, wanted.logits, strict=True)):
        best, second = logits[0].float().topk(2).values
        close = best - second < 0.1 * logits.float().std()
        if not exact and (close or not torch.equal(stats.rows[step], wanted_stats.rows[step])):
            return
        assert stats.rows[step].tolist() == wanted_stats.rows[step].tolist()
        assert token == logits.argmax()


def check(device, model, ids, way):
    """The device gives what the CPU gives, and the host waits no more than it must."""
    stages, how = WAYS[way]
    expected = pruned(model, ids, stages, how)
    exact, revives = model.dtype != torch.bfloat16, way != "static"
    model, ids = deepcopy(model).to(device.name), ids.to(device.name)
    for new_tokens in (NEW_TOKENS, 1):
        # A stage asks how many tokens are revived, which in prefilling and for good selections is known, and under a
        # cap also how many computed ones take the places of others.
        capped = getattr(how.get("selection"), "cap", None) is not None
        asked = len(stages) * (new_tokens - 1) * (revives + capped)
        # Of a mask that transformers passes on, an eager model makes a matrix without looking at it.
        asked += model.config._attn_implementation == "eager"
        _, reads, writes = waiting(device, lambda n=new_tokens: families.generate(model, ids, n))
        found, lazy_reads, lazy_writes = waiting(device, lambda n=new_tokens: pruned(model, ids, stages, how, n))
        if new_tokens == NEW_TOKENS:
            check_answer(found, expected, exact)
            stats = found[1]
            assert (stats.rows[1:].max() > 1) == revives
        more = lazy_reads - reads
        assert lazy_reads.total() <= reads.total() + asked, f"{more.total()} reads more, and not {asked}: {more}"
        assert not lazy_writes - writes, "copies to the device that the unmodified model does without"
    return stats


def matrix():
    """Family, way and dtype: every one of each by default, and every two of them together where there is time."""
    for family in families.FAMILIES:
        for way in WAYS:
            for dtype in DTYPES:
                quick = {"way": way == "dynamic", "family": family == "llama", "dtype": dtype == "float32"}
                marks = [] if sum(quick.values()) >= 2 else [pytest.mark.slow]
                if any(quick.values()):
                    yield pytest.param(family, way, dtype, marks=marks, id=f"{family}-{way}-{dtype}")


@pytest.mark.parametrize(("family", "way", "dtype"), list(matrix()))
def test_every_family_by_every_ranking(device, family, way, dtype):
    check(device, families.build(family, dtype=DTYPES[dtype]), families.prompt(40), way)


@pytest.mark.parametrize("way", ["dynamic", "queries"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("family", ["gemma2", "gemma3"])
def test_windows_and_capped_scores_in_several_blocks(device, small_blocks, family, dtype, way):
    model = families.build(family, dtype=DTYPES[dtype], **WINDOWED)
    check(device, model, families.prompt(50), way)


@pytest.mark.parametrize("dtype", DTYPES)
def test_many_revived_rows_in_several_blocks(device, small_blocks, dtype):
    stats = check(device, families.build("llama", dtype=DTYPES[dtype]), families.prompt(120), "dynamic")
    rows, keys = stats.rows[1:, 4], stats.active[1:, 4]
    assert (4 * rows * keys > attention._BLOCK_ELEMENTS).any(), "never more than a block"


def decoding(device, model, ids, steps, schedule=None):
    """Launches and reads of the last of some decoding steps, and whether anything was revived in it."""
    cache = None
    with torch.no_grad(), nullcontext() if schedule is None else lazyllm.enable(model, schedule) as lazy:
        for step in range(steps):
            new = ids if not step else ids[:, step : step + 1]
            device.launches = 0
            device.reads.clear()
            cache = model(input_ids=new, past_key_values=cache, logits_to_keep=1, use_cache=True).past_key_values
        revived = [int(stats.rows[-1].max()) > 1 for stats in lazy.sequences] if schedule else []
    return device.launches, device.reads.total(), revived


@pytest.mark.parametrize("heads", [4, 2])
def test_a_decoding_step_launches_little_more_than_the_unmodified_models(device, heads):
    model = families.build(
        "llama", num_hidden_layers=30, max_position_embeddings=2048, num_attention_heads=4, num_key_value_heads=heads
    )
    model, ids = model.to(device.name), families.prompt(1000).to(device.name)
    unmodified, reads, _ = decoding(device, model, ids, 4)
    whole = decoding(device, model, ids, 4, [])
    assert whole[0] <= unmodified + 5
    assert whole[1] <= reads
    launches, read, revived = decoding(device, model, ids, 4, "23%:0.6,50%:0.6")
    assert revived == [True]
    assert launches <= unmodified + 60
    assert read <= reads + 2


def test_a_stage_asks_the_device_once_whatever_the_number_of_sequences(device):
    model = families.build("llama").to(device.name)
    ids = torch.cat([families.prompt(40, seed) for seed in range(5)]).to(device.name)
    _, reads, _ = decoding(device, model, ids, 4)
    _, read, revived = decoding(device, model, ids, 4, STAGES)
    assert all(revived)
    assert read <= reads + len(STAGES)


def test_what_is_recorded(device):
    model, ids = families.build("llama"), families.prompt(40)
    recorded = {"record_positions": True, "record_importance": True}
    _, expected = pruned(model, ids, STAGES, recorded)
    _, stats = pruned(model.to(device.name), ids.to(device.name), STAGES, recorded)
    for found, wanted in ((stats.positions, expected.positions), (stats.computed, expected.computed)):
        assert [[layer.tolist() for layer in step] for step in found] == [
            [layer.tolist() for layer in step] for step in wanted
        ]
    for found, wanted in zip(stats.importance, expected.importance, strict=True):
        torch.testing.assert_close(found.cpu(), wanted)


def test_a_batch_of_ragged_prompts(device):
    model, ids = families.build("llama"), families.prompt(40).expand(3, -1)
    mask = torch.ones_like(ids)
    mask[0, :3], mask[2, :30] = 0, 0

    def batch(model):
        with lazyllm.enable(model, lazyllm.PruningSchedule(STAGES)) as lazy:
            place = {"inputs": ids.to(model.device), "attention_mask": mask.to(model.device)}
            found = model.generate(**place, max_new_tokens=6, do_sample=False, eos_token_id=None).tolist()
        return found, [stats.rows.tolist() for stats in lazy.sequences]

    expected = batch(model)
    assert batch(model.to(device.name)) == expected


def test_passes_of_ones_own(device):
    model, ids = families.build("llama"), families.prompt(40)

    def passes(model, ids):
        logits, cache = [], None
        with torch.no_grad(), lazyllm.enable(model, lazyllm.PruningSchedule(STAGES)) as lazy:
            for token in (ids, *(torch.tensor([[token]], device=model.device) for token in (5, 6, 7))):
                output = model(token, past_key_values=cache, use_cache=True, logits_to_keep=1)
                cache = output.past_key_values
                logits.append(output.logits.cpu())
        return torch.cat(logits), lazy.stats.rows.tolist()

    expected, rows = passes(model, ids)
    found, rows_there = passes(model.to(device.name), ids.to(device.name))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    assert rows_there == rows


def test_two_devices_in_turn_and_at_once(device, other):
    models = [families.build("llama", seed=seed) for seed in range(2)]
    prompts = [families.prompt(40, seed) for seed in range(2)]
    expected = [pruned(model, ids, STAGES, {}) for model, ids in zip(models, prompts, strict=True)]
    places = [place.name for place in (device, other)]
    models = [model.to(place) for model, place in zip(models, places, strict=True)]
    prompts = [ids.to(place) for ids, place in zip(prompts, places, strict=True)]

    def same(found):
        for one, wanted in zip(found, expected, strict=True):
            check_answer(one, wanted, exact=True)

    same([pruned(model, ids, STAGES, {}) for model, ids in zip(models, prompts, strict=True)])
    schedule = lazyllm.PruningSchedule(STAGES)
    with lazyllm.enable(models[0], schedule) as first, lazyllm.enable(models[1], schedule) as second:
        sessions = list(zip(models, prompts, (first, second), strict=True))
        for _ in range(2):
            same([(families.generate(model, ids, NEW_TOKENS), lazy.stats) for model, ids, lazy in sessions])

    found = [None, None]

    def work(index):
        found[index] = pruned(models[index], prompts[index], STAGES, {})

    threads = [threading.Thread(target=work, args=(index,)) for index in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    same(found)
