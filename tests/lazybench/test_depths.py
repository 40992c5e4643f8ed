"""Methods at their defaults on models of any depth, with windows, and with tokens that are never pruned."""

from dataclasses import replace

import pytest
import torch
import transformers
from marks import slow_but
from peers import VOCABULARY, ask, build, prompt_of, random_ids
from support import METHOD_NAMES, byte_tokenizer, method_settings

import lazyllm
from lazybench.config import ModelConfig
from lazybench.data.dataset_configs import DatasetConfig
from lazybench.data.record import Record
from lazybench.methods import OnEngine, build_method, describe_stages
from lazybench.methods.base import answer
from lazybench.model.prompts import PromptBuilder, template_tokens
from lazyllm import LazyLLMError

METHODS = {name: build_method(method_settings(name)) for name in METHOD_NAMES}
ENGINE = sorted(name for name, method in METHODS.items() if isinstance(method, OnEngine))
SHAPE = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "initializer_range": 0.3,
    "eos_token_id": None,
    "sliding_window": 16,
}
MODELS = {
    "gemma3": lambda: transformers.Gemma3TextConfig(**SHAPE, num_hidden_layers=12, query_pre_attn_scalar=8),
    # Every fourth layer attends to everything, and the others carry a state from token to token.
    "hybrid": lambda: transformers.Qwen3NextConfig(
        **SHAPE,
        num_hidden_layers=12,
        num_experts=4,
        num_experts_per_tok=2,
        moe_intermediate_size=16,
        shared_expert_intermediate_size=16,
        linear_num_value_heads=2,
        linear_num_key_heads=2,
        linear_key_head_dim=8,
        linear_value_head_dim=8,
    ),
}


def build_kind(kind):
    torch.manual_seed(0)
    return transformers.AutoModelForCausalLM.from_config(MODELS[kind]()).eval()


def made(name, keep=None):
    """A method at its defaults, or with this keep at each of its stages."""
    settings = method_settings(name)
    if keep is not None and "schedule" in settings:
        settings["schedule"] = ",".join(f"{part.partition(':')[0]}:{keep}" for part in settings["schedule"].split(","))
    elif keep is not None:
        settings["keep"] = keep
    return build_method(settings)


def answered(method, model, length=70):
    method.prepare(model)
    (output,) = answer(method, ask(model, prompt_of(random_ids(1, length)), 4, tracing=True))
    return output


@pytest.mark.parametrize(("layers", "static", "half"), [(12, 1, 5), (30, 4, 14), (32, 4, 15), (62, 9, 30)])
def test_layers_of_papers_are_parts_of_the_depth(layers, static, half):
    with torch.device("meta"):
        model = build(0, num_hidden_layers=layers)
    for name in ENGINE:
        METHODS[name].check(model)
    layers_of = {name: METHODS[name].resolve_schedule(model).stages[-1].layer for name in ENGINE}
    assert layers_of["static_pruning"] == static
    assert layers_of["fastkv"] == layers_of["lazyllm"] == half
    assert describe_stages(METHODS["fastkv"], model) == f"schedule: 50%:0.2 -> {half}:0.2"
    assert describe_stages(build_method(method_settings("fastkv", layer=3)), model) is None


@pytest.mark.parametrize(
    ("name", "keep"), [*((name, {}) for name in [*ENGINE, "gemfilter"]), ("gemfilter", {"keep": 1.0})]
)
def test_a_method_computes_its_layer_tokens(name, keep):
    model, tokens = build(0, num_hidden_layers=12), 70
    method = build_method(method_settings(name, **keep))
    method.prepare(model)
    (output,) = answer(method, ask(model, prompt_of(random_ids(1, tokens)), 1))
    assert sum(method.layer_tokens(model, tokens)) / (12 * tokens) == pytest.approx(output.prompt_computed, abs=1e-6)


def test_stages_go_to_layers_that_see_everything_and_say_so():
    model = build_kind("gemma3")  # layers 5 and 11 see everything, and 11 is the last
    assert describe_stages(METHODS["static_pruning"], model) == "schedule: 16%:0.5 -> 5:0.5"
    assert describe_stages(METHODS["lazyllm"], model) == "schedule: 23%:0.6,50%:0.6 -> 5:0.36"
    assert METHODS["lazyllm"].resolve_schedule(model).stages == ((5, pytest.approx(0.36)),)


def prompt_with_context(chat, context="Some facts about cats. " * 12):
    record = Record("1", "one", "What do cats eat?", context, ("a",), None, 0)
    dataset_config = DatasetConfig("one", "Read:\n{context}\n\nAnswer: {input}", 6, "qa_f1", chat=True, truncate=True)
    config = ModelConfig(name="tiny", path="tiny", limit=200, chat=chat)
    return PromptBuilder(byte_tokenizer(), config, dataset_config).build(record)


@pytest.mark.parametrize("name", slow_but(("lazyllm",), ("lazyllm", "lazyllm+", "lazyllm+_no_revival")))
@pytest.mark.parametrize("chat", [None, "[INST] {prompt} [/INST]"])
def test_all_but_the_context_is_never_pruned(name, chat):
    prompt = prompt_with_context(chat)
    protected, tokenizer = template_tokens(prompt), prompt.builder.tokenizer
    around = tokenizer.decode(prompt.ids[0][protected])
    wrapped = (chat or "{prompt}").replace("{prompt}", "Read:\n\n\nAnswer: What do cats eat?")
    assert around == f"<s>{wrapped}"
    assert prompt.cut is not None
    assert set(tokenizer.decode(prompt.ids[0][~protected])) <= set("Some facts about cats. ")
    cut = replace(prompt, ids=prompt.ids[:, :150])  # as `speed` cuts it to a length
    assert torch.equal(template_tokens(cut), protected[:150])
    model = build(0, vocab_size=300)
    always = set(protected.nonzero()[:, 0].tolist())
    for protect, keeps_all in (("template", True), ("none", False)):
        method = build_method(method_settings(name, schedule="0:0.4,2:0.4", protect=protect))
        method.prepare(model)
        (output,) = answer(method, ask(model, prompt, 4, tracing=True))
        active = [set(layer.tolist()) for layer in output.stats.positions[0]]
        assert all(always <= layer for layer in active) == keeps_all
        assert len(active[-1]) < prompt.ids.shape[1]


CASES = [("gemma3", name) for name in [*ENGINE, "gemfilter"]]
CASES += [("hybrid", name) for name in ("lazyllm+_no_revival", "static_pruning", "fastkv")]


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "name"), CASES)
def test_models_with_windows_shorter_than_the_prompt_and_with_states(kind, name):
    model, method = build_kind(kind), made(name)
    unmodified, pruned = answered(METHODS["baseline"], model), answered(method, model)
    all_kept = answered(made(name, keep=1.0), model)
    assert all_kept.prompt_computed == 1
    assert pruned.prompt_computed < 1 or name == "gemfilter"  # which counts two passes
    assert all_kept.tokens == unmodified.tokens
    if kind == "hybrid":
        assert answered(method.nothing_pruned, model).tokens == unmodified.tokens
        assert {stage.layer for stage in method.resolve_schedule(model).stages} <= {3, 7}
        with pytest.raises(LazyLLMError, match="revive=False"):
            made("lazyllm").check(model)


@pytest.mark.parametrize(
    ("ranking", "name"),
    [
        ("eq1", "lazyllm"),
        ({"queries": 1}, "lazyllm"),
        ({"queries": 8}, "lazyllm+"),
        ("plus", "lazyllm+"),
        ({"revive": False}, "lazyllm_no_revival"),
        ({"queries": 8, "revive": False}, "lazyllm+_no_revival"),
    ],
)
def test_another_ranking_than_the_papers_has_another_name(ranking, name):
    assert build_method(method_settings("lazyllm", ranking=ranking)).name == name


def test_rankings_are_the_librarys():
    for name, ranking in (("lazyllm", lazyllm.AttentionRanking), ("lazyllm+", lazyllm.plus)):
        assert METHODS[name].build_ranking() == ranking()
        assert METHODS[f"{name}_no_revival"].build_ranking() == ranking(revive=False)
