"""Short prompts, protected tokens, and schedules that a call brings."""

import json

import families
import pytest
import torch
from checks import assert_refused
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import GenerationConfig

import lazyllm

STAGES = "1:0.5,3:0.5"
LONG, SHORT = families.prompt(60, seed=1), families.prompt(24, seed=2)
BATCH = torch.cat([torch.nn.functional.pad(SHORT, (36, 0)), LONG])
MASK = (torch.arange(60) >= torch.tensor([[36], [0]])).long()


def generate(model, ids, **kwargs):
    settings = {"max_new_tokens": 5, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    return model.generate(ids, **settings | kwargs)


def test_short_prompts_are_the_unmodified_models(model):
    plain = generate(model, SHORT)
    with lazyllm.enable(model, STAGES) as lazy:
        long = generate(model, LONG)
        assert not torch.equal(generate(model, SHORT), plain)
    with lazyllm.enable(model, STAGES, min_tokens=24):  # its own length: only shorter ones are not pruned
        assert not torch.equal(generate(model, SHORT), plain)
    with lazyllm.enable(model, STAGES, min_tokens=25) as lazy:
        assert torch.equal(generate(model, SHORT), plain)
        assert lazy.stats.stages == []
        assert torch.equal(generate(model, SHORT, prefill_chunk_size=7), plain)
        assert torch.equal(generate(model, LONG), long)
        assert lazy.stats.stages == [1, 3]
        # Each sequence of a batch is as alone.
        both = generate(model, BATCH, attention_mask=MASK)
        assert torch.equal(both[:1, 36:], plain)
        assert torch.equal(both[1:], long)
        generate(model, LONG, prefill_chunk_size=20)  # its chunks are short, and it is not
        assert lazy.stats.stages == [1, 3]


def test_custom_passes_go_by_the_call(model):
    """A custom loop that takes the prompt in two, and a pass within a logits processor."""
    caches = []

    def loop(model, input_ids, **_):
        begun = model(input_ids[:, :20], logits_to_keep=1)
        model(input_ids[:, 20:], past_key_values=begun.past_key_values, logits_to_keep=1)
        caches.append(begun.past_key_values)

    def process(ids, scores):
        caches.append(model(ids, logits_to_keep=1).past_key_values)
        return scores

    ways = {"custom_generate": loop}, {"logits_processor": [process], "max_new_tokens": 1}
    with lazyllm.enable(model, STAGES, protect=lambda ids: [(0, 10)]):
        for settings, protected, stages in (
            ({}, 10, [1, 3]),
            ({"protect": lambda ids: [(5, 9)], "schedule": "2:0.5"}, 4, [2]),
            ({"protect": None}, 0, [1, 3]),
        ):
            for way in ways:
                generate(model, LONG, **way, **settings)
                assert (caches[-1].stats.protected, caches[-1].stats.stages) == (protected, stages)
        for way in ways:  # spans are of the prompt alone
            assert_refused("a function of the ids", lambda way=way: generate(model, LONG, protect=[(5, 9)], **way))


@pytest.mark.parametrize("more", [1, 5])
@pytest.mark.parametrize("parts", [{"revive": False}, {}], ids=str)
def test_what_is_protected_later_is_revived_where_it_can_be(model, parts, more):
    ranking = lazyllm.AttentionRanking(**parts)
    with lazyllm.enable(model, STAGES, ranking=ranking, record_positions=True):
        begun = generate(model, LONG, return_dict_in_generate=True)
        earlier = begun.past_key_values.stats.steps
        ids = torch.cat([begun.sequences, SHORT[:, : more - 1]], dim=1)
        generate(model, ids, past_key_values=begun.past_key_values, protect=[(0, 30)])
    stats = begun.past_key_values.stats
    cached = [set() for _ in stats.positions[0]]
    for step, layers in enumerate(zip(stats.positions, stats.computed, strict=True)):
        if step == earlier:
            protected = set(range(30)) if ranking.revive else set(range(30)) & cached[-1]
        for layer, (active, computed) in enumerate(zip(*layers, strict=True)):
            cached[layer] |= set(computed.tolist())
            assert set(active.tolist()) <= cached[layer]
            assert step < earlier or protected <= set(active.tolist())
    assert stats.protected == len(protected) >= 8


def test_protection_needs_the_ids_of_all_tokens_so_far(model):
    with lazyllm.enable(model, STAGES):
        begun = generate(model, LONG, return_dict_in_generate=True)
        mask = torch.ones(1, begun.sequences.shape[1] + SHORT.shape[1], dtype=torch.int64)
        turn = {"attention_mask": mask, "past_key_values": begun.past_key_values}
        assert_refused("the ids of all tokens so far", lambda: generate(model, SHORT, protect=[(0, 4)], **turn))


@settings(max_examples=15, deadline=None)
@given(
    st.sets(st.integers(0, 59), max_size=59), st.sampled_from(["eq1", "plus", "static"]), st.sampled_from([None, 17])
)
def test_protected_tokens_are_kept_everywhere(model, positions, ranking, chunk):
    schedule = STAGES if ranking != "static" else "1:0.5"
    ranking = {"eq1": lazyllm.AttentionRanking(), "plus": lazyllm.plus(), "static": lazyllm.StaticRanking()}[ranking]
    mask = torch.zeros(60, dtype=torch.bool)
    mask[list(positions)] = True
    with lazyllm.enable(model, schedule, ranking=ranking, record_positions=True) as lazy:
        generate(model, LONG, protect=mask, prefill_chunk_size=chunk)
    stats = lazy.stats
    assert stats.protected == len(positions)
    must = len(positions | {59})
    for active in stats.positions[-1]:
        assert positions <= set(active.tolist())
    if chunk is None:
        entered = 60
        for stage in stats.schedule.stages:
            left = len(stats.positions[0][stage.layer + 1])
            assert left == max(stage.kept(entered), must)  # they count toward what the stage keeps
            assert (stage.layer in stats.exceeded) == (must > stage.kept(entered))
            entered = left


def test_a_custom_ranking_cannot_lose_what_is_protected(model):
    class Forgetful(lazyllm.AttentionRanking, checked=True):
        def survivors(self, layer, count):
            return super().survivors(layer, count)[4 if layer == 3 else 0 :]

    with lazyllm.enable(model, STAGES, ranking=Forgetful(), record_positions=True) as lazy:
        generate(model, LONG, protect=[(0, 8)])
    assert all(set(range(8)) <= set(active.tolist()) for step in lazy.stats.positions for active in step)


def test_protection_comes_in_several_forms(model):
    with lazyllm.enable(model, STAGES, protect=lambda ids: [(0, 8)]) as lazy:
        always = generate(model, LONG)
        assert lazy.stats.protected == 8
        model(LONG, logits_to_keep=1)
        assert lazy.stats.protected == 8
    mask = torch.zeros(2, 60, dtype=torch.bool)
    mask[0, 36:40] = mask[1, :8] = True
    with lazyllm.enable(model, STAGES) as lazy:
        assert torch.equal(generate(model, LONG, protect=[(0, 3), (3, 8)]), always)
        generate(model, LONG, protect=lambda ids: None)
        assert lazy.stats.protected == 0
        short = generate(model, SHORT, protect=[(0, 4)])
        both = generate(model, BATCH, attention_mask=MASK, protect=mask)
        assert torch.equal(both[:1, 36:], short)
        assert torch.equal(both[1:], always)
        assert [stats.protected for stats in lazy.sequences] == [4, 8]
        with pytest.raises(lazyllm.LazyLLMError, match=r"protect must be a mask .* bool \(1, 60\)"):
            generate(model, LONG, protect=torch.ones(5, dtype=torch.bool))
        for spans in ([True] * 60, [(0,)], [(0.0, 5.0)], False):
            with pytest.raises(lazyllm.LazyLLMError, match=r"or spans of one prompt, such as"):
                generate(model, LONG, protect=spans)


@pytest.mark.parametrize("span", [(-6, 0), (15, 3), (30, 40)], ids=str)
def test_a_span_without_a_token_of_the_prompt_is_refused(model, span):
    ids, config = LONG[:, :20], GenerationConfig(max_new_tokens=1, pad_token_id=0)
    config.protect = [span]
    with lazyllm.enable(model, STAGES):
        for how in ({"protect": [(0, 4), span]}, {"protect": lambda ids: [span], "prefill_chunk_size": 7}):
            assert_refused("none of the prompt's tokens, 0 to 19", lambda how=how: generate(model, ids, **how))
        assert_refused("none of the prompt's tokens", lambda: model.generate(ids, generation_config=config))
    with lazyllm.enable(model, STAGES, protect=lambda ids: [span]):
        assert_refused("none of the prompt's tokens", lambda: model(ids, logits_to_keep=1))


def test_spans_count_padding_and_may_end_after_the_prompt(model):
    with lazyllm.enable(model, STAGES) as lazy:
        padding = {"attention_mask": MASK, "protect": lambda ids: [(0, 8)]}
        assert_refused("none of the prompt's tokens, 36 to 59", lambda: generate(model, BATCH, **padding))
        alone = {"attention_mask": MASK[:1], "protect": [(0, 8)]}
        assert_refused("none of the prompt's tokens, 36 to 59", lambda: generate(model, BATCH[:1], **alone))
        generate(model, BATCH, attention_mask=MASK, protect=lambda ids: [(0, 40)])
        assert [stats.protected for stats in lazy.sequences] == [4, 40]
        generate(model, SHORT, protect=[(20, 40)], prefill_chunk_size=7)
        assert lazy.stats.protected == 4
        begun = generate(model, SHORT, return_dict_in_generate=True)
        ids = torch.cat([begun.sequences, SHORT[:, :5]], dim=1)
        generate(model, ids, past_key_values=begun.past_key_values, protect=[(26, 32)])
        assert lazy.stats.protected == 6


def test_enable_refuses_wrong_min_tokens_and_protect(model):
    for wrong in (None, "500", float("nan"), -1, 1.5):
        assert_refused("min_tokens must be", lambda wrong=wrong: lazyllm.enable(model, STAGES, min_tokens=wrong))
    for wrong in ([(0, 8)], torch.ones(1, 60, dtype=torch.bool), "template", False):
        assert_refused("must be a function", lambda wrong=wrong: lazyllm.enable(model, STAGES, protect=wrong))


def test_a_call_brings_its_own_schedule(model, monkeypatch):
    plain = generate(model, LONG)
    config = GenerationConfig(max_new_tokens=5, do_sample=False, pad_token_id=0)
    config.schedule = "2:0.25"
    with lazyllm.enable(model, STAGES) as lazy:
        assert torch.equal(generate(model, LONG, schedule=""), plain)
        model.generate(LONG, generation_config=config)
        assert lazy.stats.active[0].tolist() == [60, 60, 60, 15, 15]
        generate(model, LONG)
        assert lazy.stats.stages == [1, 3]
        monkeypatch.setattr(model.generation_config, "schedule", "2:0.25", raising=False)
        generate(model, LONG)
        assert lazy.stats.stages == [2]
        monkeypatch.undo()
        with pytest.raises(lazyllm.LazyLLMError, match="after layer 9, but the model has 5"):
            generate(model, LONG, schedule="9:0.5")
        begun = generate(model, LONG, return_dict_in_generate=True)
        with pytest.raises(lazyllm.LazyLLMError, match="leave out any other"):
            generate(model, begun.sequences, past_key_values=begun.past_key_values, schedule="2:0.5")


TEMPLATE = """\
{% if tools %}<s>{{ tools | tojson }}</s>{% endif %}\
{% for m in messages %}<{{ m.role }}>\
{% for part in ([{"text": m.content}] if m.content is string else m.content) %}\
{{ part.text | trim | tojson if m.role == "tool" else part.text | trim }}/{% endfor %}</>\
{% endfor %}<assistant>"""


# As Llama 3.1 leaves out what is said beside a call, and Qwen 3 the reasoning before an answer.
CHANGING = """\
{% for m in messages %}<{{ m.role }}>\
{% if m.tool_calls %}{{ m.tool_calls | tojson }}\
{% else %}{{ m.reasoning_content }}|{{ m.content.split("</think>")[-1] | trim }}{% endif %}</>\
{% endfor %}<assistant>"""


class Letters:
    """A tokenizer of letters, with a chat template."""

    def __init__(self, template=TEMPLATE):
        self.template = template

    def apply_chat_template(self, messages, tokenize, add_generation_prompt, tools=None):
        from jinja2 import Environment

        environment = Environment()
        environment.filters["tojson"] = as_json  # as transformers has it
        return environment.from_string(self.template).render(messages=messages, tools=tools)

    def __call__(self, text, **kwargs):
        return {"offset_mapping": [(start, start + 1) for start in range(len(text))]}


def as_json(value):
    return json.dumps(value, ensure_ascii=False)


said_texts = st.text('ab <>/user"\n', max_size=12)


@settings(max_examples=50, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from(["user", "assistant", "tool"]), said_texts | st.lists(said_texts, max_size=3)),
        max_size=5,
    ),
    st.text("ab <user>", max_size=20),
)
def test_template_tokens_are_all_but_the_messages_texts(turns, system):
    messages, expected = [{"role": "system", "content": system}], ""
    for role, content in turns:
        parts = [{"type": "text", "text": text} for text in content]
        messages.append({"role": role, "content": content if isinstance(content, str) else parts})
        for text in [content] if isinstance(content, str) else content:
            expected += as_json(text.strip())[1:-1] if role == "tool" else text.strip()
    tools = [{"name": "ab", "user": system}]
    text = Letters().apply_chat_template(messages, False, True, tools)
    own = lazyllm.template_tokens(Letters(), messages, tools=tools)
    assert "".join(letter for letter, mine in zip(text, own.tolist(), strict=True) if not mine) == expected


def test_what_a_template_changes_is_protected():
    call = {"role": "assistant", "content": "I call it", "tool_calls": ["maps"]}
    turns = [{"role": "user", "content": "near"}, call, {"role": "tool", "content": "a long result"}] * 2
    turns += [{"role": "assistant", "content": "<think>it is far</think>It is near"}, turns[0]]
    turns += [{"role": "assistant", "content": "here", "reasoning_content": "so far"}]
    own = lazyllm.template_tokens(Letters(CHANGING), turns)
    text = Letters(CHANGING).apply_chat_template(turns, False, True)
    kept = "".join(letter if mine else "_" for letter, mine in zip(text, own.tolist(), strict=True))
    user, tool = "<user>|____</>", "<tool>|_____________</>"
    once = user + '<assistant>["maps"]</>' + tool
    assert kept == f"{once}{once}<assistant>|It is near</>{user}<assistant>______|____</><assistant>"
