"""Short prompts, protected tokens, and schedules that a call brings."""

import json

import families
import pytest
import torch
from checks import assert_refused
from hypothesis import given, settings
from hypothesis import strategies as st

import lazyllm

STAGES = "1:0.5,3:0.5"
LONG, SHORT = families.prompt(60, seed=1), families.prompt(24, seed=2)
BATCH = torch.cat([torch.nn.functional.pad(SHORT, (36, 0)), LONG])
MASK = (torch.arange(60) >= torch.tensor([[36], [0]])).long()


def generate(model, ids, **kwargs):
    settings = {"max_new_tokens": 5, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    return model.generate(ids, **settings | kwargs)


def spans(length, *pairs):
    """A mask of these spans, bool (1, length)."""
    mask = torch.zeros(1, length, dtype=torch.bool)
    for start, end in pairs:
        mask[:, start:end] = True
    return mask


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
    with lazyllm.enable(model, STAGES):
        for settings, stages in (({}, [1, 3]), ({"schedule": "2:0.5"}, [2])):
            # The pass within the processor is another generation.
            for way, protected in zip(ways, (10, 0), strict=True):
                generate(model, LONG, protect=spans(60, (0, 10)), **way, **settings)
                assert (caches[-1].stats.protected, caches[-1].stats.stages) == (protected, stages)


@pytest.mark.parametrize("more", [1, 5])
@pytest.mark.parametrize("parts", [{"revive": False}, {}], ids=str)
def test_what_is_protected_later_is_revived_where_it_can_be(model, parts, more):
    ranking = lazyllm.AttentionRanking(**parts)
    with lazyllm.enable(model, STAGES, ranking=ranking, record_positions=True):
        begun = generate(model, LONG, return_dict_in_generate=True)
        earlier = begun.past_key_values.stats.steps
        ids = torch.cat([begun.sequences, SHORT[:, : more - 1]], dim=1)
        generate(model, ids, past_key_values=begun.past_key_values, protect=spans(ids.shape[1], (0, 30)))
    stats = begun.past_key_values.stats
    cached = [set() for _ in stats.positions[0]]
    for step, layers in enumerate(zip(stats.positions, stats.computed, strict=True)):
        if step == earlier:
            protected = set(range(30)) if ranking.revive else set(range(30)) & cached[-1]
        for layer, (active, computed) in enumerate(zip(*layers, strict=True)):
            cached[layer] |= set(computed.tolist())
            assert set(active.tolist()) <= cached[layer]
            assert step < earlier or protected <= set(active.tolist())
    assert len(protected) >= 8
    assert stats.protected == 30


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
        generate(model, LONG, protect=spans(60, (0, 8)))
    assert all(set(range(8)) <= set(active.tolist()) for step in lazy.stats.positions for active in step)


def test_a_mask_of_a_batch_and_of_new_tokens_and_none_of_another_shape(model):
    mask = torch.cat([spans(60, (20, 40)), spans(60, (0, 8))])  # the first begins with 36 tokens of padding
    with lazyllm.enable(model, STAGES) as lazy:
        long = generate(model, LONG, protect=spans(60, (0, 8)))
        short = generate(model, SHORT, protect=spans(24, (0, 4)))
        both = generate(model, BATCH, attention_mask=MASK, protect=mask)
        assert torch.equal(both[:1, 36:], short)
        assert torch.equal(both[1:], long)
        assert [stats.protected for stats in lazy.sequences] == [4, 8]
        begun = generate(model, LONG, return_dict_in_generate=True)
        new = torch.cat([begun.sequences[:, -1:], SHORT], dim=1)
        turn = {"attention_mask": torch.ones(1, 89), "past_key_values": begun.past_key_values}
        assert_refused(r"bool \(1, 89\)", lambda: generate(model, new, protect=[True] * 25, **turn))
        generate(model, new, protect=spans(89, (0, 4)), **turn)
        assert lazy.stats.protected == 4
        for wrong in ([True] * 5, [[0, 8]], [1.0] * 60, mask):
            assert_refused(
                r"must be a mask .* bool \(1, 60\)", lambda wrong=wrong: generate(model, LONG, protect=wrong)
            )


def test_a_call_brings_its_own_schedule(model):
    plain = generate(model, LONG)
    with lazyllm.enable(model, STAGES) as lazy:
        assert torch.equal(generate(model, LONG, schedule=""), plain)
        generate(model, LONG, schedule="2:0.25")
        assert lazy.stats.active[0].tolist() == [60, 60, 60, 15, 15]
        generate(model, LONG)
        assert lazy.stats.stages == [1, 3]
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
