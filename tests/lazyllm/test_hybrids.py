"""Pruning without revival: on models whose layers carry a state from token to token, and on plain ones.

The reference is the unmodified model itself: in prefill, hooks cut the inputs of each layer after a stage to the kept
tokens, and `generate` continues with the caches as they are.
"""

import architectures
import pytest
import torch
from checks import assert_refused
from marks import slow_but

import lazyllm

HYBRIDS = [
    *("bailing_hybrid", "bamba", "falcon_h1", "granitemoehybrid", "jamba", "kimi_linear", "lfm2", "lfm2_moe", "lfm3"),
    *("nemotron_h", "olmo_hybrid", "qwen3_5", "qwen3_5_moe", "qwen3_5_moe_text", "qwen3_5_text", "qwen3_next"),
    *("zamba", "zamba2"),
]
QUICK = ("llama", "qwen3_5_text", "granitemoehybrid", "lfm2")
SCHEDULE = "40%:0.6,80%:0.5"
NEW = 5


def cut(value, rows, count):
    """Cut an argument of a layer, which is of `count` tokens, to some of them."""
    if isinstance(value, tuple | list):
        return type(value)(cut(part, rows, count) for part in value)
    if not isinstance(value, torch.Tensor):
        return value
    if value.ndim == 4:  # a mask
        return value.index_select(-2, rows).index_select(-1, rows)
    dims = [dim for dim in (-1, 1) if value.ndim > 1 and value.shape[dim] == count]
    return value.index_select(dims[0], rows) if dims else value


def reference(model, layers, schedule, ids):
    """Return the tokens that the cut model generates, and which positions are active in each layer."""
    count, weights, handles = ids.shape[1], {}, []
    active = [torch.arange(count)] * len(layers)

    def attended(index):
        def hook(module, args, kwargs, output):
            if isinstance(output, tuple) and isinstance(output[1], torch.Tensor) and index not in weights:
                weights[index] = output[1]

        return hook

    def before(index):
        def hook(module, args, kwargs):
            if args[0].shape[1] == 1:  # it sees all that is cached
                unmasked = [None if isinstance(part, torch.Tensor) and part.ndim == 4 else part for part in args]
                return tuple(unmasked), {**kwargs, "attention_mask": None} if "attention_mask" in kwargs else kwargs
            here = active[index - 1] if index else active[0]
            if (stage := dict(schedule).get(index - 1)) is not None:
                importance = weights[index - 1][0, :, -1].mean(dim=0)
                importance[-1] = 2
                kept = importance.sort(descending=True, stable=True).indices
                chosen = kept[: lazyllm.Stage(index - 1, stage).kept(len(here))].sort().values
                args = (args[0].index_select(1, chosen), *args[1:])
                here = here[chosen]
            active[index] = here
            rest = tuple(cut(part, here, count) for part in args[1:])
            return (args[0], *rest), {name: cut(value, here, count) for name, value in kwargs.items()}

        return hook

    for index, layer in enumerate(layers):
        handles.append(layer.register_forward_pre_hook(before(index), with_kwargs=True))
        for part in layer.modules():
            if "ttention" in type(part).__name__ and hasattr(part, "o_proj" if hasattr(part, "o_proj") else "out_proj"):
                handles.append(part.register_forward_hook(attended(index), with_kwargs=True))
    own = model.config._attn_implementation
    model.set_attn_implementation("eager")
    try:
        tokens = model.generate(ids, max_new_tokens=NEW, do_sample=False, eos_token_id=None, pad_token_id=0)
    finally:
        model.set_attn_implementation(own)
        for handle in handles:
            handle.remove()
    return tokens, active


def generate(model, ids, **kwargs):
    return model.generate(ids, max_new_tokens=NEW, do_sample=False, eos_token_id=None, pad_token_id=0, **kwargs)


@pytest.mark.parametrize("kind", slow_but(QUICK, ["llama", "qwen3", *HYBRIDS]))
def test_without_revival_a_model_is_pruned_as_its_own_layers_would_be(kind):
    model, ids = architectures.build(kind), architectures.prompt()
    ranking = lazyllm.AttentionRanking(revive=False)
    with lazyllm.enable(model, SCHEDULE, ranking=ranking, record_positions=True) as lazy:
        tokens = generate(model, ids)
    assert len(lazy.schedule.pruning) >= 1
    expected, active = reference(model, lazy.layers, lazy.schedule.stages, ids)
    assert torch.equal(tokens, expected)
    assert all(map(torch.equal, lazy.stats.positions[0], active))
    # Every generated token is kept, and none is revived.
    new = torch.arange(ids.shape[1], ids.shape[1] + NEW - 1)
    for actual, kept in zip(lazy.stats.positions[-1], active, strict=True):
        assert torch.equal(actual, torch.cat([kept, new]))
    assert (lazy.stats.num_computed[1:] == 1).all()
    with lazyllm.enable(model, "80%:1", ranking=ranking):
        assert torch.equal(generate(model, ids), generate(architectures.build(kind), ids))


def test_a_hybrid_says_how_it_can_be_pruned():
    model, ids = architectures.build("qwen3_5_text"), architectures.prompt()
    assert_refused(r"ranking=lazyllm.AttentionRanking\(revive=False\)", lambda: lazyllm.enable(model, SCHEDULE))
    assert_refused("every=8 must be 1 with revive=False", lambda: lazyllm.AttentionRanking(revive=False, every=8))
    frozen = lazyllm.AttentionRanking(revive=False)
    assert_refused("put the stage after 1 or 3", lambda: lazyllm.enable(model, "2:0.5", ranking=frozen))
    with lazyllm.enable(model, SCHEDULE, ranking=frozen):
        assert_refused("one at a time", lambda: generate(model, ids.repeat(2, 1)))
    assert_refused("own", lambda: lazyllm.enable(architectures.build("minimax"), SCHEDULE, ranking=frozen))
