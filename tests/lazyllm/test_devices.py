"""On other devices than the CPU, one or several: the same tokens and counts, with at most one wait per stage and step.

Where a generation waits for the device, and how much it launches there, is counted; see `pretend_device`.
"""

import sys
from collections import Counter
from contextlib import nullcontext
from copy import deepcopy

import families
import naive_importance
import pytest
import torch
import transformers
from accelerate import cpu_offload, dispatch_model
from checks import STAGES, assert_close, assert_same_stats, generate_recorded
from marks import slow, slow_but

import lazyllm

# So small a bonus that tokens are revived in GPT-2, too, whose attention is even here.
PARTS = {**naive_importance.ALONE, "all": naive_importance.ALL, "bonus": {"bonus": 1.02}}
# What ranks the tokens, by name: the stages, and the ranking.
WAYS = {
    "dynamic": (STAGES, lazyllm.AttentionRanking()),
    "static": ([(1, 0.6)], lazyllm.StaticRanking()),
    **{name: (STAGES, lazyllm.AttentionRanking(**parts)) for name, parts in PARTS.items()},
}
QUICK = ("static", "all")
WINDOWED = {"layer_types": ["sliding_attention", "full_attention"] * 2 + ["full_attention"], "sliding_window": 16}
NEW_TOKENS = 6


def count_reads(device, work):
    """Return what `work` returns, and how often each line waits for the device."""
    device.reads.clear()
    return work(), Counter(device.reads)


def check(device, model, ids, way="dynamic"):
    """The device gives what the CPU gives, and the host waits no more than it must."""
    stages, ranking = WAYS[way]
    expected, expected_stats = generate_recorded(model, stages, ids, NEW_TOKENS, ranking=ranking)
    revives = way != "static"
    moved, moved_ids = deepcopy(model).to(device.name), ids.to(device.name)

    def pruned(new_tokens):
        with lazyllm.enable(moved, stages, ranking=ranking) as lazy:
            output = families.generate(moved, moved_ids, new_tokens)
        return output, lazy.stats

    for new_tokens in (NEW_TOKENS, 1):
        # A stage that ranks reads how many tokens are revived, which is known in prefill and without revival.
        extra_reads = len(stages) * ((new_tokens - 1) // ranking.every) * revives
        extra_reads += 2 * new_tokens - 1  # the positions of each step, and the mask of each after the first
        # Of a mask that transformers passes on, an eager model makes a matrix without looking at it.
        extra_reads += model.config._attn_implementation == "eager"
        _, reads = count_reads(device, lambda n=new_tokens: families.generate(moved, moved_ids, n))
        actual, lazy_reads = count_reads(device, lambda n=new_tokens: pruned(n))
        if new_tokens == NEW_TOKENS:
            output, stats = actual
            assert output.sequences.tolist() == expected.sequences.tolist()
            assert stats.num_computed.tolist() == expected_stats.num_computed.tolist()
            assert stats.active.tolist() == expected_stats.active.tolist()
            assert (stats.num_computed[1:].max() > 1) == revives
        assert lazy_reads.total() <= reads.total() + extra_reads, (
            f"not {extra_reads} reads more, but {lazy_reads - reads}"
        )
    return stats


@pytest.mark.parametrize("family", slow_but(("llama", "gemma3", "gpt_oss"), families.FAMILIES))
def test_every_family(device, ids, family):
    check(device, families.build(family), ids)


@pytest.mark.parametrize("way", slow_but(QUICK, [way for way in WAYS if way != "dynamic"]))
def test_every_ranking(device, ids, way):
    check(device, families.build("llama"), ids, way)


BLOCKS = [("llama", "dynamic"), slow("gemma2", "dynamic"), slow("gemma3", "queries")]


@pytest.mark.parametrize(("family", "way"), BLOCKS)
def test_attention_in_several_blocks(device, monkeypatch, family, way):
    """Over windows and with capped scores, or where many tokens are revived."""
    for name, module in sys.modules.items():
        if name.startswith("lazyllm.core.") and hasattr(module, "BLOCK_ELEMENTS"):
            monkeypatch.setattr(module, "BLOCK_ELEMENTS", 512)
    windowed = family != "llama"
    model = families.build(family, **WINDOWED if windowed else {})
    stats = check(device, model, families.prompt(50 if windowed else 120), way)
    assert windowed or (4 * stats.num_computed[1:, 4] * stats.active[1:, 4] > 512).any(), "never more than a block"


def decoding(device, model, ids, steps, schedule=None, **settings):
    """Launches and reads of the last of some decoding steps, and whether anything was revived in it."""
    cache = None
    ranking = lazyllm.AttentionRanking(**settings)
    enabled = nullcontext() if schedule is None else lazyllm.enable(model, schedule, ranking=ranking)
    with torch.no_grad(), enabled as lazy:
        for step in range(steps):
            new = ids if not step else ids[:, step : step + 1]
            device.launches = 0
            device.reads.clear()
            cache = model(input_ids=new, past_key_values=cache, logits_to_keep=1, use_cache=True).past_key_values
        revived = [int(stats.num_computed[-1].max()) > 1 for stats in lazy.sequences] if schedule else []
    return device.launches, device.reads.total(), revived


def test_a_decoding_step_launches_little_more_than_the_unmodified_models(device):
    shape = {"num_hidden_layers": 30, "max_position_embeddings": 2048}
    model, ids = families.build("llama", **shape).to(device.name), families.prompt(400).to(device.name)
    unmodified, reads, _ = decoding(device, model, ids, 4)
    unpruned = decoding(device, model, ids, 4, [])
    assert unpruned[0] <= unmodified + 5
    assert unpruned[1] <= reads
    launches, read, revived = decoding(device, model, ids, 4, "23%:0.6,50%:0.6")
    assert revived == [True]
    assert launches <= unmodified + 64
    assert read <= reads + 2
    launches, read, _ = decoding(device, model, ids, 4, "23%:0.6,50%:0.6", every=8)
    assert launches <= unmodified + 12
    assert read <= reads


def test_a_stage_asks_the_device_once_whatever_the_number_of_sequences(device):
    model = families.build("llama").to(device.name)
    ids = torch.cat([families.prompt(40, seed) for seed in range(5)]).to(device.name)
    _, reads, _ = decoding(device, model, ids, 4)
    _, read, revived = decoding(device, model, ids, 4, STAGES)
    assert all(revived)
    assert read <= reads + len(STAGES)
    for steps, revives in ((3, True), (4, False)):  # keys are moved in the second
        _, read, revived = decoding(device, model, ids, steps, STAGES, every=2)
        assert set(revived) == {revives}
        assert read <= reads + revives * len(STAGES)


# A model over several devices, or offloaded to the CPU or to disk. Where each of the five layers is, by number of the
# device or c for the CPU: the stages after layers 1 and 3 end within a device, or at its border.
PLACES = {"one": "00000", "halves": "00011", "at a stage": "00111", "in turn": "01010", "offloaded": "0c0c1"}


def spread(model, places, *devices):
    """The model with its layers at `places`, and all else on the first device."""
    decoder = next(name for name, part in model.named_children() if name != "lm_head")
    (stack,) = (name for name, part in getattr(model, decoder).named_children() if len(list(part.children())) == 5)
    names = {name: devices[0].name for name, _ in model.named_children() if name != decoder}
    names |= {f"{decoder}.{name}": devices[0].name for name, _ in getattr(model, decoder).named_children()}
    del names[f"{decoder}.{stack}"]
    for index, device in enumerate(places):
        names[f"{decoder}.{stack}.{index}"] = "cpu" if device == "c" else devices[int(device)].name
    skipped = model._skip_keys_device_placement
    return dispatch_model(model, names, main_device=devices[0].name, skip_keys=skipped)


def answer(model, ids, stages=STAGES, mask=None, **how):
    """Two turns: what is generated, and what was computed for it, by sequence."""
    mask = torch.ones_like(ids) if mask is None else mask
    with lazyllm.enable(model, stages, record_positions=True, record_importance=True, **how) as lazy:
        first = families.generate(model, ids, 5, mask)
        more = torch.cat([first.sequences, ids[:, -9:]], dim=1)
        mask = torch.nn.functional.pad(mask, (0, more.shape[1] - mask.shape[1]), value=1)
        second = families.generate(model, more, 5, mask, past_key_values=first.past_key_values)
    return second.sequences.tolist(), lazy.sequences


def check_same(actual, expected):
    assert actual[0] == expected[0]
    for stats, expected_stats in zip(actual[1], expected[1], strict=True):
        assert stats.num_computed[1:].max() > 1
        assert_same_stats(stats, expected_stats)


@pytest.mark.slow
@pytest.mark.parametrize("ranking", [lazyllm.AttentionRanking(), lazyllm.AttentionRanking(revive=False)], ids=str)
@pytest.mark.parametrize("places", PLACES)
def test_a_batch_over_devices(device, other, places, ranking):
    model, ids = families.build("gemma3"), torch.cat([families.prompt(40, seed) for seed in range(3)])
    mask = torch.ones_like(ids)
    mask[0, :3], mask[2, :30] = 0, 0
    expected = answer(model, ids, mask=mask, ranking=ranking)
    model = spread(model, PLACES[places], device, other)
    before = [module.forward for module in model.modules()]
    check_same(answer(model, ids.to(device.name), mask=mask.to(device.name), ranking=ranking), expected)
    assert [module.forward for module in model.modules()] == before
    assert (model.model.layers[1].self_attn.q_proj.weight.device.type == "meta") == (places == "offloaded")


class Recent(lazyllm.Ranking):
    """A checked ranking that keeps the newest tokens."""

    def observe(self, attention):
        self.importance = self.by_position(attention.layer, attention.key_positions.float())


@pytest.mark.parametrize("way", slow_but((*QUICK, "own"), (*PARTS, "static", "own")))
def test_every_ranking_over_two_devices(device, other, ids, way):
    model = families.build("llama")
    stages, ranking = {**WAYS, "static": ([(3, 0.6)], lazyllm.StaticRanking()), "own": (STAGES, Recent())}[way]
    output, stats = generate_recorded(model, stages, ids, NEW_TOKENS, ranking=ranking)
    model = spread(model, PLACES["in turn"], device, other)
    actual, found_stats = generate_recorded(model, stages, ids.to(device.name), NEW_TOKENS, ranking=ranking)
    assert actual.sequences.tolist() == output.sequences.tolist()
    assert_same_stats(found_stats, stats)


@pytest.mark.filterwarnings("ignore:You are calling .generate")
@pytest.mark.slow
@pytest.mark.parametrize("where", ["disk", "cpu"])
def test_offload(device, ids, where, tmp_path):
    model = families.build("llama")
    expected, score = answer(model, ids), lazyllm.log_likelihoods(model, ids, [[5, 6]])[0].tokens
    if where == "cpu":
        model, ids = cpu_offload(model, torch.device(device.name)), ids.to(device.name)
    else:
        model.save_pretrained(tmp_path / "model")
        places = dict.fromkeys(
            [f"model.{name}" for name in ("embed_tokens", "norm", "rotary_emb")] + ["lm_head"], "cpu"
        )
        places |= {f"model.layers.{index}": "disk" if index in (1, 4) else "cpu" for index in range(5)}
        options = {"device_map": places, "offload_folder": tmp_path / "offload"}
        model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "model", **options)
    assert model.model.layers[4].mlp.up_proj.weight.device.type == "meta"
    assert_close([lazyllm.log_likelihoods(model, ids, [[5, 6]])[0].tokens], [score])
    check_same(answer(model, ids), expected)
