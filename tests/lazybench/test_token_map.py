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
from peers import build, random_ids
from tokenizers import Tokenizer, decoders
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerFast

import lazyllm
from lazybench.token_map.page import page
from lazybench.token_map.palette import palette
from lazybench.token_map.reach import Reach
from lazybench.token_map.texts import texts

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
    """What a page's script reads, with positions as they were."""
    data = json.loads(Elements(text).scripts[0])
    for of in data["maps"]:
        of["revived"] = [[list(accumulate(gaps)) for gaps in stages] for stages in of["revived"]]
    return data


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


def test_the_legend_counts_tokens(generation, tokenizer):
    stats, ids = generation
    text = stats.html(tokenizer, ids)
    (of,) = data_of(text)["maps"]
    rows = [re.sub(r"<[^>]*>", " ", row).split() for row in re.findall(r"<tr>(<th scope=row>.*)", text)]
    assert [row[0] for row in rows] == ["0", "1", "2&ndash;3", "4"]
    assert [int(row[1]) for row in rows] == [of["depths"].count(depth) for depth in range(4)]
    in_all = [sum(len(stages[stage]) for stages in of["revived"]) for stage in range(3)]
    assert [row[2:] for row in rows] == [[], *(["0", str(count)] for count in in_all)]


def test_the_page_says_what_it_shows(generation, tokenizer):
    stats, ids = generation
    text = stats.html(tokenizer, ids, "Tiny <Llama>, LazyLLM")
    assert Elements(text).heading == "Tiny <Llama>, LazyLLM"
    assert "after layer 1 keep 0.5 (35% of the prompt)" in text
    assert "40 tokens" in text
    assert "Tiny" not in stats.html(tokenizer, ids)


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


def test_each_sequence_of_a_batch_has_its_page(model, tokenizer):
    prompts = [random_ids(length, length) + 1 for length in (20, 33)]
    batch = torch.cat([torch.nn.functional.pad(prompt, (33 - prompt.shape[1], 0)) for prompt in prompts])
    with lazyllm.enable(model, SCHEDULE, record_positions=True) as lazy:
        output = generate(model, batch, 4)
    refuse("37 ids do not fit .* 23 tokens: .* without padding", lambda: lazy.sequences[0].html(tokenizer, output[0]))
    rows = output[0, 13:], output[1]
    of = [data_of(stats.html(tokenizer, row)) for stats, row in zip(lazy.sequences, rows, strict=True)]
    assert [len(data["prompt"]) for data in of] == [20, 33]


@pytest.mark.parametrize(
    "form", [lambda ids: ids, lambda ids: ids[None], lambda ids: ids.tolist(), lambda ids: ids[:-1]]
)
def test_ids_come_as_they_are_at_hand(generation, tokenizer, form):
    stats, ids = generation
    given = form(ids)
    expected = 24 - (len(given) == 63)  # the last token is known to the one who has it
    assert len(data_of(stats.html(tokenizer, given))["maps"][0]["answer"]) == expected


def test_what_cannot_be_shown_is_refused(model, ids, generation, tokenizer):
    stats, tokens = generation
    for wrong in (tokens[:-2], tokens[:0], torch.cat([tokens, tokens])):
        refuse("ids do not fit the generation, which computed 63 tokens", lambda of=wrong: stats.html(tokenizer, of))
    for wrong in (tokens.repeat(2, 1), tokens.float(), torch.tensor(3), [0.5]):
        refuse("ids must be token ids of one sequence", lambda of=wrong: stats.html(tokenizer, of))
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
    plain = lazy.stats.html(tokenizer, output[0])
    assert Elements(text).tags == Elements(plain).tags
    assert Elements(text).tags["script"] == 2
    assert Elements(text).heading == NASTY
    assert "".join(data_of(text)["prompt"]) == NASTY


def test_the_page_loads_nothing(generation, tokenizer):
    stats, ids = generation
    text = stats.html(tokenizer, ids)
    assert "default-src 'none'" in text
    assert not re.search(r"https?:|url\(|@import|\bfetch\(|XMLHttp|<link|<img", text)


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


def test_bytes_that_are_no_text_do_not_take_others_with_them(tokenizer):
    ids = tokenizer("ab", add_special_tokens=False).input_ids
    broken = tokenizer("😀", add_special_tokens=False).input_ids[:2]
    found = "".join(texts(tokenizer, [*ids, *broken, *ids, *broken]))
    assert found == tokenizer.decode([*ids, *broken, *ids, *broken])
    assert found.replace("�", "") == "abab"


def test_spaces_that_only_a_text_shows_are_kept():
    tokenizer = by_words(["▁to", "▁be", "or", "▁", "\n"])
    smile = [5 + byte for byte in "é😀".encode()]
    ids = [0, 1, 3, 2, *smile, 1, 4, 0, *smile[:1], 1]
    found = list(texts(tokenizer, ids))
    assert found[:4] == ["to", " be", " ", "or"]
    assert found[4:10] == ["", "é", "", "", "", "😀"]
    assert "".join(found) == tokenizer.decode(ids) == "to be oré😀 be\n to� be"


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("levels", range(2, 12))
def test_colours_are_readable_and_go_one_way(levels, dark):
    def luminance(text):
        parts = [
            int(part * (2 if len(text) == 4 else 1), 16) / 255 for part in re.findall("." * (len(text) // 3), text[1:])
        ]
        return sum(w * ((p + 0.055) / 1.055) ** 2.4 for w, p in zip((0.2126, 0.7152, 0.0722), parts, strict=True))

    papers = [luminance(paper) for paper, _ in palette(levels, dark)]
    assert papers == sorted(papers, reverse=not dark)
    for paper, ink in zip(papers, (luminance(ink) for _, ink in palette(levels, dark)), strict=True):
        lighter, darker = max(paper, ink), min(paper, ink)
        assert (lighter + 0.05) / (darker + 0.05) > 4.4
