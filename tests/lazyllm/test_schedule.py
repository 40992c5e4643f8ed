from __future__ import annotations

import tomllib
from importlib.metadata import version
from pathlib import Path

import families
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import lazyllm
from lazyllm import LazyLLMError, PruningSchedule, Stage, most_important


def test_parse_reads_what_spec_writes():
    schedule = PruningSchedule.parse(" 10:0.7, 20:0.5 ")
    assert schedule == PruningSchedule([(10, 0.7), (20, 0.5)])
    assert schedule.spec == "10:0.7,20:0.5"
    assert PruningSchedule.parse("").stages == ()


def test_prints_each_keep_and_what_is_left_of_the_prompt():
    text = str(PruningSchedule([(10, 0.7), (20, 0.5)]))
    assert text == "after layer 10 keep 0.7 (70% of the prompt); after layer 20 keep 0.5 (35% of the prompt)"
    assert str(PruningSchedule()) == "no pruning"


@given(st.floats(0.001, 1), st.integers(1, 200_000))
def test_at_least_one_token_and_at_most_all_are_kept(keep, active):
    kept = Stage(0, keep).kept(active)
    assert 1 <= kept <= active
    assert kept - 1 <= keep * active <= kept + 1e-6


def test_float_noise_does_not_keep_one_more():
    assert Stage(0, 0.7).kept(10) == 7  # 0.7 * 10 is 7.000000000000001 for some keeps
    assert Stage(0, 0.1 + 0.2).kept(10) == 3


@pytest.mark.parametrize(
    ("stages", "says"),
    [
        ([(1, 0.0)], "0 < keep <= 1"),
        ([(1, 1.5)], "0 < keep <= 1"),
        ([(1, float("nan"))], "0 < keep <= 1"),
        ([(-1, 0.5)], "negative"),
        ([(3, 0.5), (3, 0.4)], "must increase"),
        ([(3, 0.5), (2, 0.4)], "must increase"),
        ([(1.5, 0.5)], "whole number"),
        ([(1, "half")], "whole number"),
        ([1], "whole number"),
    ],
)
def test_bad_stages_say_why(stages, says):
    with pytest.raises(LazyLLMError, match=says) as error:
        PruningSchedule(stages)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("stages", [5, None, "10:0.7", 0.5])
def test_what_is_no_list_of_stages_is_named(stages):
    with pytest.raises(LazyLLMError, match="a schedule is pairs"):
        PruningSchedule(stages)


@pytest.mark.parametrize(
    ("text", "num_layers", "says"),
    [
        (None, 30, "reads a text"),
        ([(1, 0.5)], None, "reads a text"),
        ("33%:0.7", 30.0, "num_layers=30.0"),
        ("33%:0.7", "30", "num_layers='30'"),
        ("33%:0.7", -5, "num_layers=-5"),
        ("nan%:0.7", 30, "not layer:keep"),
        ("inf%:0.7", 30, "out of range"),
    ],
)
def test_what_cannot_be_parsed_is_named(text, num_layers, says):
    with pytest.raises(LazyLLMError, match=says):
        PruningSchedule.parse(text, num_layers)


@pytest.mark.parametrize("text", ["10", "10:", "a:0.5", "10:0.5:3", "10;0.5"])
def test_bad_text_says_what_is_right(text):
    with pytest.raises(LazyLLMError, match="not layer:keep"):
        PruningSchedule.parse(text)


def test_ties_go_to_the_earliest_and_the_newest_always_stays():
    importance = torch.tensor([0.1, 0.3, 0.1, 0.3, 0.1, 0.1])
    assert most_important(importance, 4).tolist() == [0, 1, 3, 5]
    assert most_important(importance, 1).tolist() == [5]
    assert most_important(torch.full((4,), float("nan")), 2).tolist() == [0, 3]


@given(st.lists(st.floats(0, 1), min_size=1, max_size=30), st.data())
def test_the_most_important_go_on(values, data):
    count = data.draw(st.integers(1, len(values)))
    chosen = most_important(torch.tensor(values, dtype=torch.float64), count).tolist()
    assert chosen == sorted(set(chosen))
    assert len(chosen) == count
    assert chosen[-1] == len(values) - 1
    left_out = [value for index, value in enumerate(values) if index not in chosen]
    assert all(values[index] >= value for index in chosen[:-1] for value in left_out)


def test_layers_may_be_parts_of_the_depth():
    assert PruningSchedule.parse("33%:0.7,66%:0.5", num_layers=30) == PruningSchedule([(9, 0.7), (19, 0.5)])
    assert PruningSchedule.parse("1%:0.7", num_layers=30).stages[0].layer == 0
    with pytest.raises(LazyLLMError, match="of how many layers"):
        PruningSchedule.parse("33%:0.7")
    with pytest.raises(LazyLLMError, match="out of range"):
        PruningSchedule.parse("100%:0.7", num_layers=30)


@pytest.mark.parametrize(
    ("text", "num_layers", "layers"),
    [
        # A third and two thirds of the layers have run.
        *(("33%:0.7,67%:0.5", n, [round(n / 3) - 1, round(2 * n / 3) - 1]) for n in (28, 30, 32, 36, 48)),
        ("33%:0.7,67%:0.5", 32, [10, 20]),
        ("25%:0.7,75%:0.5", 30, [7, 22]),  # 7.5 and 22.5 layers: halves up
        ("35%:0.7", 30, [10]),
        ("99%:0.7", 30, [29]),
        ("0.1%:0.7", 30, [0]),
    ],
)
def test_parts_of_the_depth_are_layers_that_have_run(text, num_layers, layers):
    assert [stage.layer for stage in PruningSchedule.parse(text, num_layers).stages] == layers


@given(st.integers(2, 200), st.integers(1, 99))
def test_a_part_of_the_depth_is_at_most_half_a_layer_off(num_layers, percent):
    layer = PruningSchedule.parse(f"{percent}%:0.5", num_layers).stages[0].layer
    assert layer == 0 or abs(100 * (layer + 1) - percent * num_layers) <= 50


def test_parts_that_fall_on_one_layer_say_so():
    with pytest.raises(LazyLLMError, match=r"'50%:0.7,55%:0.5' on 6 layers: .* layer 2 follows layer 2"):
        PruningSchedule.parse("50%:0.7,55%:0.5", 6)


@given(st.lists(st.tuples(st.integers(0, 99), st.floats(0.001, 1)), max_size=4, unique_by=lambda pair: pair[0]))
def test_spec_is_read_back_exactly(pairs):
    schedule = PruningSchedule(sorted(pairs))
    assert PruningSchedule.parse(schedule.spec) == schedule


@pytest.mark.parametrize(
    ("stages", "spec"),
    [
        (lazyllm.PruningSchedule([(1, 0.7)]), "1:0.7"),
        ("1:0.7, 3:0.5", "1:0.7,3:0.5"),
        ("40%:0.7,80%:0.5", "1:0.7,3:0.5"),  # of five layers
        ([(1, 0.7), (3, 0.5)], "1:0.7,3:0.5"),
        (((layer, 0.5) for layer in (0, 2)), "0:0.5,2:0.5"),
        ("", ""),
        ([], ""),
    ],
)
def test_enable_takes_a_schedule_in_any_form(stages, spec):
    assert lazyllm.enable(families.build("llama"), stages).schedule.spec == spec


def test_the_version_is_that_of_the_distribution():
    project = tomllib.loads((Path(lazyllm.__file__).parents[1] / "pyproject.toml").read_text())["project"]
    assert lazyllm.__version__ == project["version"] == version("lazybench")
