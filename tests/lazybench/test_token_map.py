"""The page that shows how deep each token got, and for which generated token it came back."""

from __future__ import annotations

import json
import re
from collections import Counter
from html import unescape
from html.parser import HTMLParser
from itertools import accumulate

import pytest
import torch
from matplotlib.colors import to_rgb
from peers import build, random_ids
from tokenizers import Tokenizer, decoders
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerFast

import lazyllm
from lazybench.token_map.page import page, palette
from lazybench.token_map.reach import Reach, texts

SCHEDULE = "0:0.7,1:0.5,3:0.6"
NASTY = "</script><script>alert(1)</script><!-- \u2028 naïve & 日本 😀"


@pytest.fixture(scope="module")
def model(tokenizer):
    return build(0, num_hidden_layers=5, vocab_size=len(tokenizer))


@pytest.fixture(scope="module")
def ids():
    return random_ids(0, 40) + 1


def generate(model, ids, new_tokens, **settings):
    """The ids of prompts, padded by 0, and answers, int64 (sequences, tokens)."""
    given = {"attention_mask": (ids > 0).long(), "pad_token_id": 0, "do_sample": False, **settings}
    return model.generate(ids, max_new_tokens=new_tokens, **given)


def by_words(words):
    """A tokenizer as Llama 2's: a space is part of the word behind it, and what is no word is its bytes."""
    pieces = [*words, *(f"<0x{byte:02X}>" for byte in range(256))]
    core = Tokenizer(WordLevel({piece: index for index, piece in enumerate(pieces)}))
    strip = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    core.decoder = decoders.Sequence(strip)
    return PreTrainedTokenizerFast(tokenizer_object=core)


def refuse(says, call):
    with pytest.raises(lazyllm.LazyLLMError, match=says) as error:
        call()
    assert "\n" not in str(error.value)


@pytest.fixture(scope="module")
def generation(model, ids):
    """The stats and ids of a generation in which tokens come back at every stage."""
    with lazyllm.enable(model, SCHEDULE, record_positions=True) as lazy:
        output = generate(model, ids, 24)
    return lazy.stats, output[0]


class Elements(HTMLParser):
    """The elements of a page, and the text in each script."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.scripts, self.heading, self.last = Counter(), [], "", ""
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags[tag] += 1
        self.last = tag
        if tag == "script":
            self.scripts.append("")
        assert not {"src", "href"} & {name for name, value in attributes if not str(value).startswith("#m")}

    def handle_data(self, text):
        if self.last == "script":
            self.scripts[-1] += text
        if self.last == "h2":
            self.heading += text


def data_of(text):
    """What a page's script reads."""
    return json.loads(Elements(text).scripts[0])


def came_back(stats, step, layer):
    """Tokens of earlier steps that take part in a layer for the first time, by the active sets alone."""
    earlier = {position for other in stats.positions[:step] for position in other[layer].tolist()}
    known = len(stats.positions[step - 1][0]) if step else 0
    return sorted(position for position in {*stats.positions[step][layer].tolist()} - earlier if position < known)


def test_the_page_holds_what_was_recorded(generation, tokenizer):
    stats, ids = generation
    (of,) = data_of(stats.html(tokenizer, ids))["maps"]
    behind = [layer + 1 for layer in stats.stages]
    for position, depth in enumerate(of["depths"]):
        assert depth == sum(position in stats.positions[0][layer] for layer in behind)
    assert len(of["depths"]) == stats.prompt_length == 40
    assert of["totals"] == [40 + step for step in range(24)]
    assert of["revived"] == [[came_back(stats, step, layer) for layer in behind] for step in range(24)]
    assert all(any(stages[stage] for stages in of["revived"]) for stage in range(3))


def test_the_page_counts_tokens_names_the_stages_and_opens_where_most_is_revived(generation, tokenizer):
    stats, ids = generation
    text = stats.html(tokenizer, ids, "Tiny <Llama>, LazyLLM")
    (of,) = data_of(text)["maps"]
    rows = [re.sub(r"<[^>]*>", " ", row).split() for row in re.findall(r"<tr>(<th scope=row>.*)", text)]
    in_all = [sum(len(stages[stage]) for stages in of["revived"]) for stage in range(3)]
    assert [row[0] for row in rows] == ["0", "1", "2&#8211;3", "4"]
    assert [int(row[1]) for row in rows] == [of["depths"].count(depth) for depth in range(4)]
    assert [row[2:] for row in rows] == [[], *(["0", str(count)] for count in in_all)]
    came = [sum(map(len, stages)) for stages in of["revived"]]
    assert came[int(re.search(r"id=step min=0 max=23 value=(\d+)", text)[1])] == max(came) > 0
    assert Elements(text).heading == "Tiny <Llama>, LazyLLM"
    assert "after layer 1 keep 0.5 (35% of the prompt)" in text
    assert "40 tokens" in text


def test_chunks_are_one_prompt(model, ids, tokenizer):
    with lazyllm.enable(model, SCHEDULE, record_positions=True) as lazy:
        output = generate(model, ids, 5, prefill_chunk_size=16)
    stats = lazy.stats
    data = data_of(stats.html(tokenizer, output[0]))
    (of,) = data["maps"]
    assert (len(data["prompt"]), len(of["answer"])) == (40, 5)
    assert of["totals"] == [16, 32, 40, 41, 42, 43, 44]
    for step, (start, end) in enumerate([(0, 16), (16, 32), (32, 40)]):
        for position in range(start, end):
            passed = sum(position in stats.positions[step][layer + 1] for layer in stats.stages)
            assert of["depths"][position] == passed
    behind = [layer + 1 for layer in stats.stages]
    assert of["revived"] == [[came_back(stats, step, layer) for layer in behind] for step in range(7)]


def test_ids_come_as_they_are_at_hand_and_what_cannot_be_shown_is_refused(model, ids, generation, tokenizer):
    stats, tokens = generation
    for form in (tokens[None], tokens.tolist()):
        assert stats.html(tokenizer, form) == stats.html(tokenizer, tokens)
    assert len(data_of(stats.html(tokenizer, tokens[:-1]))["maps"][0]["answer"]) == 23
    for wrong in (tokens[:-2], tokens[:0], tokens.repeat(2, 1)):
        refuse("ids do not fit the generation, which computed 63 tokens", lambda of=wrong: stats.html(tokenizer, of))
    for settings, says in ((("1:0.5", {}), "record_positions=True"), (("", {"record_positions": True}), "nothing was")):
        with lazyllm.enable(model, settings[0], **settings[1]) as lazy:
            output = generate(model, ids, 2)[0]
        refuse(says, lambda of=lazy.stats, tokens=output: of.html(tokenizer, tokens))
    reaches = [Reach.of(stats, tokens, "one"), Reach.of(stats, tokens.flip(0), "another")]
    refuse("different prompts", lambda: page(reaches, tokenizer))


def test_generations_of_one_prompt_stand_side_by_side(model, ids, tokenizer, generation):
    with lazyllm.enable(model, [(2, 0.3)], selection=lazyllm.StaticSelection(), record_positions=True) as lazy:
        output = generate(model, ids, 3)
    reaches = [Reach.of(*generation, "first"), Reach.of(lazy.stats, output[0], "second")]
    text = page(reaches, tokenizer, {"Model": "tiny & random"})
    first, second = data_of(text)["maps"]
    assert first == data_of(generation[0].html(tokenizer, generation[1]))["maps"][0]
    assert (len(second["answer"]), set(second["depths"])) == (3, {0, 1})
    assert second["revived"] == [[[]]] * 3
    assert Elements(text).heading == "firstsecond"
    assert "tiny &amp; random" in text


def test_no_text_can_break_out_of_the_page(model, tokenizer):
    ids = torch.tensor([tokenizer(NASTY, add_special_tokens=False).input_ids])
    with lazyllm.enable(model, SCHEDULE, record_positions=True) as lazy:
        output = generate(model, ids, 4)
    text = lazy.stats.html(tokenizer, output[0], NASTY)
    assert text.isascii()  # whatever a file's encoding is
    assert "default-src 'none'" in text
    assert not re.search(r"https?:|url\(|@import|\bfetch\(|XMLHttp|<link|<img", text)
    plain = lazy.stats.html(tokenizer, output[0])
    assert Elements(text).tags == Elements(plain).tags
    assert Elements(text).tags["script"] == 2
    assert Elements(text).heading == NASTY
    assert "".join(data_of(text)["prompt"]) == NASTY


def test_a_notebook_shows_the_page_in_a_frame(generation, tokenizer):
    stats, ids = generation
    text = stats.html(tokenizer, ids)
    (inside,) = re.fullmatch(
        r'<iframe sandbox="allow-scripts" [^>]*srcdoc="([^"]*)"></iframe>', text._repr_html_()
    ).groups()
    assert unescape(inside) == text
    assert len(repr(text)) < 100


@pytest.mark.parametrize("text", [NASTY, "a\nb  c", "x�y", "😀" * 5, "\u200d👩\u200d👩\u200d👧", "�" * 12, ""])
def test_a_character_of_several_tokens_is_there_once(tokenizer, text):
    ids = tokenizer(text, add_special_tokens=False).input_ids
    found = list(texts(tokenizer, ids))
    assert "".join(found) == text
    assert len(found) == len(ids) == len(text.encode())
    if "�" not in text:
        ends = list(accumulate(len(sign.encode()) for sign in text))
        assert [index + 1 for index, part in enumerate(found) if part] == ends


def test_spaces_that_only_a_text_shows_are_kept():
    tokenizer = by_words(["▁to", "▁be", "or", "▁", "\n"])
    smile = [5 + byte for byte in "é😀".encode()]
    ids = [0, 1, 3, 2, *smile, 1, 4, 0, *smile[:1], 1]
    found = list(texts(tokenizer, ids))
    assert found[:4] == ["to", " be", " ", "or"]
    assert found[4:10] == ["", "é", "", "", "", "😀"]
    assert "".join(found) == tokenizer.decode(ids) == "to be oré😀 be\n to� be"


@pytest.mark.parametrize("levels", range(2, 8))
def test_colours_are_readable_and_go_one_way(levels):
    def luminance(text):
        return sum(
            w * ((p + 0.055) / 1.055) ** 2.4 for w, p in zip((0.2126, 0.7152, 0.0722), to_rgb(text), strict=True)
        )

    def contrast(one, other):
        darker, lighter = sorted(map(luminance, (one, other)))
        return (lighter + 0.05) / (darker + 0.05)

    papers, inks, dark_papers, dark_inks = zip(*palette(levels), strict=True)
    assert sorted(papers, key=luminance, reverse=True) == list(papers)
    assert sorted(dark_papers, key=luminance) == list(dark_papers)
    assert min(map(contrast, papers + dark_papers, inks + dark_inks)) > 4.4
    assert contrast(dark_papers[0], "#14171a") > 2  # what was dropped can be seen on a dark page
