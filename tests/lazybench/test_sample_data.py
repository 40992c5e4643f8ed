"""The generated records: format, length, determinism, and that the answers follow from the text."""

import ast
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lazybench.data import sample
from lazybench.data.dataset_configs import load_dataset_configs
from lazybench.data.record import fingerprint

CONFIGS = load_dataset_configs()
DIGEST = "acf551172de5ca90cb4322774c54319e255786b43b29742cff65cdd0cb22c822"


@pytest.mark.parametrize("dataset", sample.DATASETS)
def test_records_have_longbench_fields_and_their_answer_in_the_text(dataset):
    records = sample.load(dataset, 10, 5, 2048)
    assert records[:3] == sample.load(dataset, 3, 5, 2048)
    assert len({record.id for record in records}) == len({record.context for record in records}) == 10
    for record in records:
        assert (record.dataset, record.language, record.length) == (dataset, "en", len(record.context.split()))
        prompt = CONFIGS[dataset].prompt.format(context=record.context, input=record.input)
        assert "{" not in prompt, "a slot was left open"
        assert bool(record.input) == ("{input}" in CONFIGS[dataset].prompt and dataset != "repobench-p")
        (answer,) = record.answers
        if dataset == "passage_count":
            shown = [re.sub(r"^Paragraph \d+: ", "", part) for part in record.context.split("\n\n")]
            assert answer == str(len(set(shown)))
            assert len(set(shown)) < len(shown) - 1
        elif dataset == "passage_retrieval_en":
            (paragraph,) = (part for part in record.context.split("\n\n") if record.input.split(",")[0][12:] in part)
            assert paragraph.startswith(f"{answer}: ")
        elif dataset == "trec":
            assert answer in record.all_classes
            assert f"Type: {answer}\n" in record.context + "\n"
        elif dataset in ("gov_report", "multi_news"):
            assert all(record.context.count(sentence) == 1 for sentence in re.split(r"(?<=\.) ", answer))
        elif dataset == "samsum":
            assert all(name in record.input for name in re.findall(r"[A-Z][a-z]+", answer) if name != "They")
        elif CONFIGS[dataset].metric != "code_sim":
            assert answer in record.context + record.input
        assert (record.all_classes is not None) == (dataset == "trec")


@pytest.mark.parametrize("dataset", ["lcc", "repobench-p"])
def test_the_line_of_code_completes_the_last_function(dataset):
    for record in sample.load(dataset, 10, 5, 2048):
        *files, last = re.split(r"^shapes/\w+\.py\n", record.context, flags=re.MULTILINE)
        (answer,) = record.answers
        ast.parse(last + answer)
        assert answer not in record.context
        name = re.search(r"def (?:check_|twice_)?(\w+?)(?:_row)?\(.*\n$", last)[1]
        part = re.search(r"from shapes\.part_(\d+) import", last)
        assert re.search(rf"^(def )?{name}\b", files[int(part[1])] if part else last, re.MULTILINE)


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(sample.DATASETS), st.integers(512, 5000), st.integers(0, 10**9), st.sampled_from([3.1, 4, 6]))
def test_length_is_near_the_target_and_never_above(dataset, tokens, seed, characters):
    def count(text):
        return int(len(text) / characters) + 1

    (record,) = sample.load(dataset, 1, seed, tokens, count)
    assert 0 <= tokens - count(record.context) <= max(70, tokens // 20)


def test_records_are_the_same_anywhere():
    # From an earlier process, on another machine.
    assert fingerprint(record for name in sample.DATASETS for record in sample.load(name, 2, 3, 700)) == DIGEST
    places = {
        int(10 * r.context.index(f"by {r.answers[0]} ") / len(r.context)) for r in sample.load("qasper", 10, 5, 8192)
    }
    assert len(places) >= 8, "the evidence visits each tenth of the text"
