"""RULER-6: the original's wording, what is hidden and counted, its length, and its score."""

import re
from collections import Counter
from itertools import islice, pairwise

import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st
from ruler_texts import DATASETS, KINDS, NEEDLE, NEW_TOKENS, NOISE, full_prompt, parts, tokens

from lazybench import metrics
from lazybench.config import CONF, DataConfig, ModelConfig
from lazybench.data import fingerprint, load_facts, load_records, ruler
from lazybench.data.ruler import depth_of
from lazybench.errors import LazyBenchError
from lazybench.model.prompts import PromptBuilder

SETTINGS = yaml.safe_load((CONF / "data/ruler.yaml").read_text("utf-8"))
FACTS = load_facts(SETTINGS["datasets"])
HIDING = (*KINDS, "vt")
DIGEST = "e536efd136ebbb359bb90ae083fdd048ceaad4e1c78c52fc7ac339181cebeb55"
every_dataset = pytest.mark.parametrize("dataset", DATASETS)


def load(dataset, count=tokens, **changes):
    """Records of a dataset, counted by `count`."""
    config = DataConfig(**SETTINGS | {"limit": 8, "tokens": 1500} | changes)
    return load_records(dataset, config, None, lambda context, query: count(full_prompt(dataset, context, query)))


def text_of(record):
    """The record's own text: in vt and cwe it comes after a solved example and the instruction once more."""
    return record.context.rsplit(parts(record.dataset, "")[0], 1)[-1]


def answers(record):
    (reference,) = record.answers
    return reference.split("\n")


def listed(text):
    """The words of a numbered list, whose numbers count up."""
    pairs = re.findall(r"(\d+)\. (.+?)(?= \d+\. |$)", text)
    assert [int(number) for number, _ in pairs] == list(range(1, len(pairs) + 1))
    return [word for _, word in pairs]


@every_dataset
def test_the_prompt_is_the_originals_to_the_letter(dataset, tokenizer):
    assert FACTS[dataset].max_new_tokens == NEW_TOKENS[dataset]
    (record,) = load(dataset, limit=1)
    for chat in (None, "[INST] {prompt} [/INST]"):
        model = ModelConfig("tiny", "nowhere", limit=300, chat=chat)
        builder = PromptBuilder(tokenizer, model, FACTS[dataset])
        before, after, prefix = parts(dataset, record.input)
        text = before + record.context + after
        prompt = builder.build(record)
        # Nothing is cut out of it, and the answer prefix follows the wrapper.
        assert tokenizer.decode(prompt.ids[0][1:]) == (chat or "{prompt}").replace("{prompt}", text) + prefix
        assert prompt.text == text
        assert builder.tokens(record.context, record.input) == prompt.ids.shape[1]
        shorter = tokenizer.decode(prompt.with_text("Short.").ids[0][1:])
        assert shorter == (chat or "{prompt}").replace("{prompt}", "Short.") + prefix


@pytest.mark.parametrize("dataset", KINDS)
def test_one_needle_answers(dataset):
    kind = KINDS[dataset]
    forms = {
        "numbers": (r"[\w'. -]+-[\w'. -]+", r"[1-9]\d{6}"),
        "uuids": (r"[0-9a-f]{8}(-[0-9a-f]{4}){3}[0-9a-f-]{13}",) * 2,
    }
    key_form, value_form = forms[kind]
    for record in load(dataset):
        (answer,) = answers(record)
        assert re.fullmatch(key_form, record.input)
        assert re.fullmatch(value_form, answer)
        needle = NEEDLE.format(kind=kind, key=record.input, value=answer)
        lines = record.context.split("\n")
        assert lines.count(needle) == record.context.count(answer) == 1
        assert record.context.count(f"for {record.input} is") == 1
        lines.remove(needle)
        if dataset == "niah_single_1":
            assert set(lines) == {NOISE}
        else:
            form = re.escape(NEEDLE.format(kind=kind, key="KEY", value="VALUE"))
            form = form.replace("KEY", key_form).replace("VALUE", value_form)
            assert all(re.fullmatch(form, line) for line in lines)


def test_a_chain_of_five_variables_comes_after_a_solved_one():
    before, _, _ = parts("vt", "")
    for record in load("vt"):
        solved, text = record.context.split(before)
        shown, question, solution = re.fullmatch(r"(.+)(\nQuestion: .+they are: ) (.+)\n\n", solved, re.DOTALL).groups()
        value = re.search(r"= (\d+)", shown)[1]
        assert question == "".join(parts("vt", value)[1:])
        assert tokens(before + shown + question) <= 500
        assert value != record.input
        for names, length, where, number in (
            (solution.split(" "), 3, shown, value),
            (answers(record), 5, text, record.input),
        ):
            assert all(re.fullmatch(f"[A-Z]{{{length}}}", name) for name in names)
            chain = [f"VAR {names[0]} = {number}"]
            chain += [f"VAR {name} = VAR {last} " for last, name in pairwise(names)]
            lines = where.split("\n")
            assert [line for line in lines if line != NOISE] == chain
            assert len(set(names)) == 5
            assert not any(one in chain and other in chain for one, other in pairwise(lines))


@pytest.mark.parametrize(("length", "example", "own"), [(1500, (3, 1, 20), (6, 1)), (4096, (10, 3, 40), (30, 3))])
def test_ten_words_are_more_common_than_all_others(length, example, own):
    before, after, prefix = parts("cwe", "")
    for record in load("cwe", tokens=length, limit=3):
        solved, text = record.context.split(before)
        shown, solution = solved.split(after + prefix + " ")
        assert solution.endswith("\n")
        for items, common, (often, seldom) in (
            (listed(shown), listed(solution.rstrip("\n")), example[:2]),
            (listed(text), answers(record), own),
        ):
            counts = Counter(items)
            assert {word for word, count in counts.items() if count == often} == {*common}
            assert len(common) == 10
            assert set(counts.values()) == {often, seldom}
        assert len(set(listed(shown))) == example[2]


def test_coded_words_follow_a_zeta_distribution():
    for length in (700, 4096):
        for record in load("fwe", tokens=length, limit=3):
            (dots, first), *others = Counter(record.context.split(" ")).most_common()
            assert dots == "..."
            assert [word for word, _ in others[:3]] == answers(record)
            assert all(re.fullmatch("[a-z]{6}", word) for word, _ in others)
            # Of ranks 2, 3 and so on, with exponent 2.
            assert [count for _, count in others] == pytest.approx(
                [first / rank**2 for rank in range(2, len(others) + 2)], abs=1
            )
            assert others[2][1] > others[3][1]


@settings(max_examples=20, deadline=None)
@given(st.sampled_from(DATASETS), st.integers(1300, 5000), st.integers(0, 10**6), st.sampled_from([1.0, 1.6, 2.2]))
def test_prompt_and_answer_are_never_longer_than_asked_and_near_it(dataset, length, seed, finer):
    def count(text):
        return int(finer * tokens(text))

    try:
        records = load(dataset, count, tokens=length, seed=seed, limit=2)
    except LazyBenchError as error:
        needed = int(re.search(r"needs data\.tokens=(\d+) or more", str(error))[1])
        assert needed > length
        load(dataset, count, tokens=needed, seed=seed, limit=1)
        return
    for record in records:
        short = length - count(full_prompt(dataset, record.context, record.input)) - NEW_TOKENS[dataset]
        line = max(count(line) for line in text_of(record).split("\n")) if dataset in HIDING else 0
        assert 0 <= short <= max(64, length // 20, line + 2)


@every_dataset
def test_records_depend_on_the_seed_and_not_on_how_many_are_taken(dataset):
    assert load(dataset, limit=3) == load(dataset, limit=5)[:3]
    assert load(dataset, limit=2, seed=1) != load(dataset, limit=2)
    assert len({record.context for record in load(dataset)}) == 8
    # An index has the same question at another length, under the same name.
    one, other = (
        [(record.id, record.input, record.answers) for record in load(dataset, tokens=length)]
        for length in (1500, 2500)
    )
    assert one == other


@pytest.mark.parametrize("dataset", HIDING)
def test_the_name_says_how_deep_the_line_lies(dataset):
    for depths in ([], [0, 25, 62.5, 100]):
        records = load(dataset, depths=depths, limit=40, tokens=3000)
        for index, record in enumerate(records):
            lines = text_of(record).split("\n")
            key = answers(record)[0]
            index_of_line = next(index for index, line in enumerate(lines) if key in line)
            hidden = 5 if dataset == "vt" else 1
            above = depth_of(record.id) - 100 * index_of_line / (len(lines) - hidden)
            assert -0.1 <= above <= 100 * hidden / (len(lines) - hidden) + 0.1
            assert not depths or depth_of(record.id) == depths[index % 4]
    assert len({depth_of(record.id) for record in load(dataset, limit=40)}) > 30


def test_records_are_the_same_anywhere():
    # Of an earlier process: the committed results were made with these.
    settings = {"tokens": 4096, "seed": 5, "datasets": SETTINGS["datasets"], "prompt_tokens": None}
    made = (ruler.read(name, None, depths=depths, **settings) for name in DATASETS for depths in ([], [0, 50]))
    assert fingerprint(record for records in made for record in islice(records, 3)) == DIGEST
    assert len(load("niah_single_1", limit=None, tokens=400)) == 500


marks = st.text(st.characters(exclude_characters="\n"), max_size=4) | st.sampled_from(["Wren", "wren-song", "41", "İ"])
answered = st.lists(marks | st.sampled_from([" ", "\t", "\x00", "\n", ", "]), max_size=12).map("".join)


@given(answered, st.lists(marks, min_size=1, max_size=5))
@example("The answer is: WREN,\x0041.", ["wren", "41", "42"])
@example("\t a\tb ", ["a\tb", "a"])
def test_the_score_is_the_share_of_references_in_the_prediction(prediction, references):
    # scripts/eval/evaluate.py, `postprocess_pred`, and synthetic/constants.py, `string_match_all`, read anew.
    bare = "".join("\n" if ord(letter) < 32 else letter for letter in prediction.strip()).strip().lower()
    share = len([reference for reference in references if bare.find(reference.lower()) >= 0]) / len(references)
    assert metrics.get("string_match_all")(prediction, "\n".join(references), None) == share
