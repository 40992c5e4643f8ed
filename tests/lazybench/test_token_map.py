"""The page that shows how many layers each token went through, and for which generated token it was revived."""

import re
from html import unescape
from itertools import accumulate, pairwise

import pytest
import torch
from peers import build, random_ids
from support import page_data
from tokenizers import Tokenizer, decoders
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerFast

import lazyllm
from lazybench import token_map
from lazybench.token_map.page import token_texts

SCHEDULE = "0:0.7,1:0.5,3:0.6"
NASTY = "</script><script>alert(1)</script><!-- \u2028 naïve & 日本 😀"


@pytest.fixture(scope="module")
def model(tokenizer):
    return build(0, num_hidden_layers=5, vocab_size=len(tokenizer))


def generate(model, ids, new_tokens, schedule=SCHEDULE, record_positions=True, ranking=None, **settings):
    """The stats and ids of a generation."""
    with lazyllm.enable(model, schedule, ranking=ranking, record_positions=record_positions) as lazy:
        given = {"attention_mask": torch.ones_like(ids), "pad_token_id": 0, "do_sample": False, **settings}
        output = model.generate(ids, max_new_tokens=new_tokens, **given)
    return lazy.stats, output[0]


@pytest.fixture(scope="module")
def generation(model):
    """The stats and ids of a generation in which tokens are revived at every stage."""
    return generate(model, random_ids(0, 40) + 1, 24)


def data_of(text):
    return page_data(text)[1]


def headings(text):
    return page_data(text)[0]


def revived(stats, step, layer):
    """Return the tokens of earlier steps that are active in a layer for the first time, from only the active sets."""
    earlier = {position for other in stats.positions[:step] for position in other[layer].tolist()}
    known = len(stats.positions[step - 1][0]) if step else 0
    return sorted(position for position in {*stats.positions[step][layer].tolist()} - earlier if position < known)


@pytest.mark.parametrize("chunks", [[40], [16, 32, 40]])
def test_the_page_holds_what_was_recorded_of_a_prompt_whole_or_in_chunks(chunks, model, tokenizer):
    size = {"prefill_chunk_size": 16} if len(chunks) > 1 else {}
    stats, ids = generate(model, random_ids(0, 40) + 1, 24, **size)
    data = data_of(token_map.html(stats, tokenizer, ids))
    (one,) = data["maps"]
    assert (len(data["prompt"]), len(one["answer"])) == (len(one["depths"]), 24) == (40, 24)
    assert one["num_tokens"] == chunks + [40 + step for step in range(1, 24)]
    after_stages = [layer + 1 for layer in stats.stages]
    for step, (start, end) in enumerate(pairwise([0, *chunks])):
        for position in range(start, end):
            assert one["depths"][position] == sum(position in stats.positions[step][layer] for layer in after_stages)
    assert one["revived"] == [
        [revived(stats, step, layer) for layer in after_stages] for step in range(len(one["num_tokens"]))
    ]
    assert all(any(stages[stage] for stages in one["revived"]) for stage in range(3))


def test_the_page_counts_tokens_names_the_stages_and_opens_where_most_is_revived(generation, tokenizer):
    stats, ids = generation
    text = token_map.html(stats, tokenizer, ids, "Tiny <Llama>, LazyLLM")
    (one,) = data_of(text)["maps"]
    rows = [re.sub(r"<[^>]*>", " ", row).split() for row in re.findall(r"<tr>(<th scope=row>.*)", text)]
    in_all = [sum(len(stages[stage]) for stages in one["revived"]) for stage in range(3)]
    assert [row[0] for row in rows] == ["0", "1", "2&#8211;3", "4"]
    assert [int(row[1]) for row in rows] == [one["depths"].count(depth) for depth in range(4)]
    assert [row[2:] for row in rows] == [[], *(["0", str(count)] for count in in_all)]
    by_step = [sum(map(len, stages)) for stages in one["revived"]]
    assert by_step[int(re.search(r"id=step min=0 max=23 value=(\d+)", text)[1])] == max(by_step) > 0
    assert headings(text) == ["Tiny <Llama>, LazyLLM"]
    assert "after layer 1 keep 0.5 (35% of the prompt)" in text


def test_ids_are_those_of_prompt_and_answer_in_any_form(model, generation, tokenizer):
    stats, tokens = generation
    for form in (tokens[None], tokens.tolist()):
        assert token_map.html(stats, tokenizer, form) == token_map.html(stats, tokenizer, tokens)
    assert len(data_of(token_map.html(stats, tokenizer, tokens[:-1]))["maps"][0]["answer"]) == 23
    unrecorded, not_pruned = (
        generate(model, tokens[None, :9], 2, *settings)[0] for settings in (("1:0.5", False), ("", True))
    )
    for message, recorded, ids in (
        ("ids do not fit the generation, which computed 63 tokens", stats, tokens[:-2]),
        ("ids do not fit", stats, tokens.repeat(2, 1)),
        ("record_positions=True", unrecorded, tokens),
        ("nothing was pruned", not_pruned, tokens),
    ):
        with pytest.raises(lazyllm.LazyLLMError, match=message):
            token_map.html(recorded, tokenizer, ids)


def test_no_text_can_break_out_of_the_page_which_loads_nothing_and_a_notebook_shows(model, tokenizer):
    stats, ids = generate(model, torch.tensor([tokenizer(NASTY, add_special_tokens=False).input_ids]), 4)
    text = token_map.html(stats, tokenizer, ids, NASTY)
    assert text.isascii()  # whatever a file's encoding is
    assert "default-src 'none'" in text
    assert not re.search(r"https?:|url\(|@import|\bfetch\(|XMLHttp|<link|<img", text)
    assert (text.count("<script"), text.count("</script"), text.count("<!--")) == (2, 2, 0)
    assert headings(text) == [NASTY]
    assert "".join(data_of(text)["prompt"]) == NASTY
    assert unescape(re.search('<iframe sandbox="allow-scripts" .* srcdoc="([^"]*)">', text._repr_html_())[1]) == text


@pytest.mark.parametrize("text", [NASTY, "a\nb  c", "x�y", "😀" * 5, "\u200d👩\u200d👩\u200d👧", "�" * 12, ""])
def test_a_character_of_several_tokens_is_there_once(tokenizer, text):
    ids = tokenizer(text, add_special_tokens=False).input_ids
    parts = list(token_texts(tokenizer, ids))
    assert "".join(parts) == text
    assert len(parts) == len(ids) == len(text.encode())
    if "�" not in text:
        ends = list(accumulate(len(sign.encode()) for sign in text))
        assert [index + 1 for index, part in enumerate(parts) if part] == ends


def test_spaces_that_only_a_text_shows_are_kept():
    """With a tokenizer as Llama 2's: a space is part of the word behind it, and what is no word is its bytes."""
    words = ["▁to", "▁be", "or", "▁", "\n", *(f"<0x{byte:02X}>" for byte in range(256))]
    core = Tokenizer(WordLevel({word: index for index, word in enumerate(words)}))
    strip = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    core.decoder = decoders.Sequence(strip)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core)
    smile = [5 + byte for byte in "é😀".encode()]
    ids = [0, 1, 3, 2, *smile, 1, 4, 0, *smile[:1], 1]
    parts = list(token_texts(tokenizer, ids))
    assert parts[:10] == ["to", " be", " ", "or", "", "é", "", "", "", "😀"]
    assert "".join(parts) == tokenizer.decode(ids) == "to be oré😀 be\n to� be"
