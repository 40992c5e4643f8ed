"""Schedules: their forms, what each keeps, and where a part of the depth falls."""

import families
import pytest
import torch
from checks import assert_refused
from hypothesis import given
from hypothesis import strategies as st

import lazyllm
from lazyllm import PruningSchedule, Stage, most_important


@pytest.mark.parametrize(
    ("stages", "spec"),
    [
        (PruningSchedule([(1, 0.7)]), "1:0.7"),
        (" 1:0.7, 3:0.5 ", "1:0.7,3:0.5"),
        ("40%:0.7,80%:0.5", "1:0.7,3:0.5"),  # of five layers
        ([(1, 0.7), (3, 0.5)], "1:0.7,3:0.5"),
        (((layer, 0.5) for layer in (0, 2)), "0:0.5,2:0.5"),
        ("", ""),
        ([], ""),
    ],
)
def test_enable_takes_a_schedule_in_any_form(model, stages, spec):
    assert lazyllm.enable(model, stages).schedule.spec == spec


@given(st.lists(st.tuples(st.integers(0, 99), st.floats(0.001, 1)), max_size=4, unique_by=lambda pair: pair[0]))
def test_spec_is_read_back_exactly(pairs):
    schedule = PruningSchedule(sorted(pairs))
    assert PruningSchedule.parse(schedule.spec) == schedule


def test_float_noise_does_not_keep_one_more():
    assert Stage(0, 0.07).kept(100) == 7  # 0.07 * 100 is 7.000000000000001


@pytest.mark.parametrize(
    "wrong",
    [
        *([(1, keep)] for keep in (0.0, 1.5, float("nan"), "half", True)),
        *([(layer, 0.5)] for layer in (-1, 1.5, "x", True)),
        [(3, 0.5), (3, 0.4)],
        [(3, 0.5), (2, 0.4)],
        [1, 0.5],
        {1: 0.5},
        *("10", "a:0.5", "1:0.5:3", "1;0.5", "nan%:0.7", "100%:0.7", "0%:0.7", "half"),
        "4:0.5",  # the last of five layers, after which nothing can be pruned
    ],
    ids=str,
)
def test_what_is_no_schedule_is_refused(model, wrong):
    assert_refused("stage|schedule|layer", lambda: lazyllm.enable(model, wrong))


@pytest.mark.parametrize("schedule", ["50%:0.5", "1%:0.5", "99%:0.5", [(0, 0.5)]], ids=str)
def test_a_stage_needs_a_layer_after_it(schedule):
    one, two = (families.build("llama", num_hidden_layers=count) for count in (1, 2))
    assert_refused("the model has 1 layers", lambda: lazyllm.enable(one, schedule))
    assert lazyllm.enable(two, schedule).schedule.spec == "0:0.5"


@given(st.lists(st.sampled_from([0.0, 0.1, 0.2, 0.3, 0.5]), min_size=1, max_size=30), st.data())
def test_the_most_important_are_kept_and_of_equal_ones_the_first(values, data):
    count, newest = data.draw(st.integers(1, len(values))), len(values) - 1
    chosen = most_important(torch.tensor(values, dtype=torch.float64), count).tolist()
    ranked = sorted(range(newest), key=lambda position: -values[position])  # a stable sort
    assert chosen == sorted([*ranked[: count - 1], newest])


def test_a_percentage_without_a_number_of_layers_is_refused():
    assert_refused("needs the number of layers", lambda: PruningSchedule.parse("33%:0.7"))


@given(st.integers(2, 200), st.integers(1, 99))
def test_a_percentage_is_at_most_half_a_layer_off(num_layers, percent):
    layer = PruningSchedule.parse(f"{percent}%:0.5", num_layers).stages[0].layer
    off = abs(100 * (layer + 1) - percent * num_layers)
    assert off <= 50 or layer == 0 or layer == num_layers - 2


def test_percentages_are_layers_that_see_everything_and_those_of_one_layer_one_stage():
    kinds = ["sliding_attention"] * 3 + ["full_attention", "sliding_attention", "full_attention"]
    model = families.build("gemma3", sliding_window=16, num_hidden_layers=6, layer_types=kinds)
    assert lazyllm.enable(model, "20%:0.8,50%:0.5").schedule == PruningSchedule([(3, 0.4)])
    with lazyllm.enable(model, "20%:0.5") as lazy:
        families.generate(model, families.prompt(40), 2)
    assert lazy.stats.num_computed[0].tolist() == [40] * 4 + [20] * 2


@pytest.mark.parametrize(
    ("text", "num_layers", "layers", "spec"),
    [
        *(("33%:0.7,67%:0.5", n, None, f"{round(n / 3) - 1}:0.7,{round(2 * n / 3) - 1}:0.5") for n in (28, 30, 32, 48)),
        ("25%:0.7,75%:0.5", 30, None, "7:0.7,22:0.5"),  # 7.5 and 22.5 layers are rounded up
        ("0.1%:0.7", 30, None, "0:0.7"),
        ("23%:0.6,50%:0.6", 26, [5, 11, 17, 23], "5:0.6,11:0.6"),  # Gemma 3 1B
        ("50%:0.5", 10, [2, 6], "2:0.5"),  # of two equally near the earlier
        ("10%:0.5,20%:0.5,90%:0.5", 10, [4, 8], "4:0.25,8:0.5"),  # on one layer, with the product of their keeps
        ("99%:0.5", 30, None, "28:0.5"),  # no stage follows the last
        ("3:0.5", 10, [4, 8], "3:0.5"),  # a number is taken as it is
    ],
)
def test_percentages_are_the_nearest_layers_that_may_rank(text, num_layers, layers, spec):
    assert PruningSchedule.parse(text, num_layers, layers).spec == spec
