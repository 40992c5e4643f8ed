"""A model before, during and after a `with`: given back as it was, refused in one line, and no needless work."""

import copy
import gc
import os
import subprocess
import sys
import warnings
import weakref
from pathlib import Path
from types import SimpleNamespace

import families
import pytest
import split
import torch
import transformers
from checks import STAGES, Watch, assert_refused
from marks import slow

import lazyllm


def snapshot(model):
    hooks = [
        (len(m._forward_hooks), len(m._forward_pre_hooks), len(m._forward_hooks_always_called)) for m in model.modules()
    ]
    weights = {name: tensor.tolist() for name, tensor in model.state_dict().items()}
    return copy.deepcopy(vars(model.config)), hooks, [sorted(vars(m)) for m in model.modules()], weights


@pytest.mark.parametrize(("version", "number"), [("5.22.0", 0), ("5.99.0.dev0", 1), ("6.0.0", 1)])
def test_a_transformers_newer_than_the_tested_ones_is_warned_of_once(model, monkeypatch, version, number):
    monkeypatch.setattr("lazyllm.hf.enable.transformers", SimpleNamespace(__version__=version))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            lazyllm.enable(model, STAGES)
    assert [version in str(warning.message) for warning in caught] == [True] * number


@pytest.mark.parametrize("error", [None, KeyboardInterrupt, RuntimeError])
def test_the_model_is_given_back_as_it_was(model, ids, error):
    """Also after an error, within a layer."""

    def broken(*_):
        raise error

    before, output = snapshot(model), families.generate(model, ids, 6)
    hook = model.model.layers[2].mlp.register_forward_hook(broken) if error else None
    lazy = lazyllm.enable(model, STAGES)
    try:
        with lazy:
            families.generate(model, ids, 6)
    except (KeyboardInterrupt, RuntimeError):
        hook.remove()
        assert lazy.stats.num_computed.shape == (0, 5)
        assert repr(lazy.stats) == "Stats(no step finished)"
    assert snapshot(model) == before
    after = families.generate(model, ids, 6)
    assert torch.equal(output.sequences, after.sequences)
    assert all(map(torch.equal, output.logits, after.logits))


def test_generations_follow_each_other_in_one_session(model, ids):
    with lazyllm.enable(model, STAGES) as lazy:
        first = families.generate(model, ids, 6)
        rows = lazy.stats.num_computed
        gc.collect()
        gc.disable()  # caches go at once, not when Python next looks for circles
        try:
            output = families.generate(model, ids[:, :20], 4)
            copied = copy.deepcopy(output.past_key_values)
            cached = [weakref.ref(cache.engine) for cache in (output.past_key_values, copied)]
            del output, copied
            assert [generation() for generation in cached] == [None, None], "stats or circles keep the cache alive"
        finally:
            gc.enable()
        stats = lazy.stats
        again = families.generate(model, ids, 6)
        assert torch.equal(rows, lazy.stats.num_computed)
    assert torch.equal(first.sequences, again.sequences)
    assert stats.num_computed.shape == (4, 5)
    assert 0 < stats.prompt_computed <= 1


def test_a_session_starts_once_and_may_be_stopped_twice(model, ids):
    session = lazyllm.enable(model, STAGES)
    families.generate(model, ids, 2)  # by the unmodified model
    assert_refused("0 sequences were generated", lambda: session.stats)
    session.start()
    assert_refused("already enabled", session.start)
    assert_refused("0 sequences were generated", lambda: session.stats)
    session.stop()
    with lazyllm.enable(model, STAGES):
        session.stop()  # once more, which leaves the other one alone
        assert model.config._attn_implementation == "lazyllm"
        assert_refused("already enabled", lambda: lazyllm.enable(model, STAGES))
    assert model.config._attn_implementation == "sdpa"


def test_what_changed_between_enable_and_with_is_seen(ids):
    model = families.build("llama")
    session = lazyllm.enable(model, STAGES)
    model.set_attn_implementation("flex_attention")
    assert_refused("flex_attention", session.__enter__)
    model.set_attn_implementation("sdpa")
    model.model = families.build("llama", seed=1).model
    with session:
        assert_refused("did not run the decoder", lambda: families.generate(model, ids, 2))


# What is refused of models.


def tiny(name, **kwargs):
    config = getattr(transformers, name)(**{**families.SHAPE, **kwargs})
    return transformers.AutoModelForCausalLM.from_config(config).eval()


def altered(change, family="llama", **changes):
    model = families.build(family, **changes)
    change(model)
    return model


def split_experts(model):
    model._tp_size, model._device_mesh = 2, SimpleNamespace(ndim=1, get_group=lambda: None)
    lazyllm.enable(model, STAGES)
    model.config.distributed_config = SimpleNamespace(tp_size=2, ep_size=2)


SHARED = {"num_kv_shared_layers": 2, "layer_types": ["full_attention"] * 5, "hidden_size_per_layer_input": 0}
SPLIT = "split over several processes in a way that is not supported"
MODELS = {
    "state": ("linear_attention layers, which carry a state", lambda: tiny("MambaConfig")),
    "shared": ("share keys and values", lambda: tiny("Gemma4TextConfig", head_dim=12, **SHARED)),
    "no interface": ("attention interface", lambda: tiny("FalconConfig")),
    "not softmax": ("plain softmax", lambda: altered(lambda model: setattr(model.model, "_supports_sdpa", False))),
    "stacks": ("no stack of decoder layers", lambda: tiny("BertConfig", is_decoder=True)),
    "bidirectional": ("bidirectional", lambda: tiny("LlamaConfig", is_causal=False)),
    "flex": ("flex_attention", lambda: families.build("llama", attention="flex_attention")),
    "split": (SPLIT, lambda: altered(lambda model: setattr(model, "_tp_size", 2))),
    "split by experts": (SPLIT, lambda: altered(split_experts)),
}


@pytest.mark.parametrize("name", MODELS)
def test_unsupported_models_say_why(name):
    says, make = MODELS[name]
    model = make()
    assert_refused(says, lambda: lazyllm.enable(model, STAGES))


@pytest.mark.parametrize("changes", [{"use_bidirectional_attention": True}, {"sliding_window": 16}], ids=str)
def test_attention_that_cannot_be_pruned_under_is_refused(ids, changes):
    """Not causal, or a stage after a layer that sees a window."""
    kinds = ["full_attention", "sliding_attention"] * 2 + ["full_attention"]
    model = families.build("gemma3", layer_types=kinds, **changes)
    with lazyllm.enable(model, STAGES):
        assert_refused("not plainly causal|put the stage after", lambda: families.generate(model, ids, 2))


@pytest.mark.slow
def test_tensor_parallel_is_what_one_process_gives(tmp_path):
    folders = [tmp_path / family for family in split.CASES]
    for folder in folders:
        families.build(folder.name).save_pretrained(folder)
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    paths = [str(Path(lazyllm.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(paths)}
    options = {"capture_output": True, "text": True, "timeout": 600, "env": environment}
    done = subprocess.run([*launch, split.__file__, *folders], check=False, **options)
    assert done.returncode == 0, done.stderr
    for folder in folders:
        for way in split.CASES[folder.name]:
            assert done.stdout.count(f"same: {folder.name} {way};") == 2, way
    assert done.stdout.count("refused: the model's heads are split over processes, which Own does not support") == 2 * 3


# No work that is not needed: memory, copies, and questions to the device.


@pytest.mark.parametrize("family", ["llama", slow("gpt_oss"), slow("gemma2")])
def test_nothing_is_prompt_by_prompt_in_size(family):
    length = 3000
    changes = {"max_position_embeddings": 8192, "sliding_window": 8192, "hidden_size": 16, "head_dim": 4}
    model, rankings = families.build(family, **changes), [lazyllm.AttentionRanking()]
    rankings += [lazyllm.AttentionRanking(queries=8, pooling=7, layers=2)] if family == "llama" else []
    for ranking in rankings:
        with Watch() as watch, lazyllm.enable(model, STAGES, ranking=ranking) as lazy:
            families.generate(model, families.prompt(length), 3)
        assert lazy.stats.num_computed[1:].max() > 1, "nothing was revived"
        # Where PyTorch has no kernel, a block of queries at a time sees all keys, in each of four heads.
        assert watch.largest < (length * length if family == "llama" else 1 << 25)


@pytest.mark.parametrize(
    ("schedule", "ranking"), [("", None), ("1:0.6", lazyllm.StaticRanking())], ids=["unpruned", "static"]
)
def test_a_step_that_revives_nothing_copies_no_cache(model, schedule, ranking):
    ids = families.prompt(400)
    with lazyllm.enable(model, schedule, ranking=ranking), torch.no_grad():
        cache = model(ids, logits_to_keep=1).past_key_values
        model(ids[:, :1], past_key_values=cache)
        with Watch() as watch:
            model(ids[:, :1], past_key_values=cache)
    assert 0 < watch.largest_made < 0.3 * (402 * 2 * 12)  # keys of a layer


def test_pruned_tokens_take_no_memory_where_they_are_not_computed(exact):
    with lazyllm.enable(exact, STAGES) as lazy:
        families.generate(exact, families.prompt(400), 3)
    stats = lazy.stats
    cached = stats.kv_bytes / (2 * 2 * 12 * 8)  # key and value of two heads of 12 in float64
    for index in range(3):
        computed = stats.num_computed[: index + 1].sum(0)
        assert (cached[index] >= computed).all()
        assert (cached[index] <= computed + 128 + 512 * (index > 0)).all()  # with room for tokens to come
    assert cached[0, -1] < 0.7 * cached[0, 0]
    assert (stats.aux_bytes / (48 * 8)).tolist() == [528, 528, 528]
    with lazyllm.enable(exact, STAGES, ranking=lazyllm.AttentionRanking(revive=False)) as lazy:
        families.generate(exact, families.prompt(400), 3)
    assert lazy.stats.aux_bytes.tolist() == [0, 0, 0]  # nothing is revived
    with lazyllm.enable(exact, "0:1.0") as lazy:
        families.generate(exact, families.prompt(40), 1)
    assert lazy.stats.aux_bytes.tolist() == [0]
