"""What `lazybench calibrate` is made of: times, schedules of a speedup, budgets, tables."""

from __future__ import annotations

import math
from itertools import pairwise
from types import SimpleNamespace

import pandas as pd
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf
from transformers import AutoModelForCausalLM

from lazybench.calibration import answers, budgets, frontier, method_file
from lazybench.calibration.harm import Candidate
from lazybench.calibration.search import Trial
from lazybench.calibration.space import MOST_STAGES, Space, searchable
from lazybench.calibration.times import Times, measure
from lazybench.config import HALVES, DataConfig
from lazybench.data import half_of, load_records
from lazybench.errors import LazyBenchError
from lazyllm import Importance, PruningSchedule

STEP = {1: 0.01, 11: 0.02}
TIMES = Times(fixed=0.01, linear=1e-4, quadratic=1e-8, layers=16, step=STEP, unmodified_step=0.02)
LENGTHS = (900, 2000, 3500)
REFERENCE = PruningSchedule([(5, 0.7), (10, 0.5)])
EQ1 = Importance()

few = settings(max_examples=15, deadline=None)
speedups = st.floats(1.05, 2.5)


def _space(speedup, times=TIMES, lengths=LENGTHS, searched=False, answer_tokens=1):
    return Space(times, lengths, answer_tokens, speedup, EQ1, searchable(EQ1, answer_tokens > 1) if searched else {})


def _fit(prompt):
    return Times.fit({"prompt": prompt, "step": STEP, "unmodified step": {1: 0.02}}, 4)


def _near(schedule, speedup, times=TIMES):
    return times.speedup(schedule, LENGTHS) == pytest.approx(speedup, rel=0.01)


@pytest.mark.parametrize("parts", [(0.02, 1e-4, 1e-8), (0.0, 3e-4, 0.0), (0.5, 0.0, 2e-9)])
def test_times_on_a_curve_give_back_the_curve(parts):
    curve, tokens = Times(*parts, layers=4, step=STEP, unmodified_step=0.02), [16, 200, 700, 1500, 4000]
    found = _fit({count: curve.seconds(count) for count in tokens})
    assert found.layers == 4
    for count in (16, 1000, 4000):
        assert found.seconds(count) == pytest.approx(curve.seconds(count), rel=1e-6)
    assert (found.fixed, found.linear, found.quadratic) == pytest.approx(parts, rel=1e-4, abs=1e-10)


def test_times_have_no_negative_parts():
    found = _fit({100: 1.0, 200: 0.9, 400: 1.1})
    assert min(found.fixed, found.linear, found.quadratic) >= 0


def test_a_speedup_by_hand():
    times = Times(fixed=0.0, linear=1.0, quadratic=0.0, layers=4, step=STEP, unmodified_step=0.02)
    schedule = PruningSchedule([(0, 0.5), (2, 0.5)])
    # Layer 0 sees 100 tokens, layers 1 and 2 see 50, layer 3 sees 25.
    assert times.speedup(schedule, [100]) == pytest.approx(400 / 225)
    squared = Times(fixed=1.0, linear=0.0, quadratic=1.0, layers=4, step=STEP, unmodified_step=0.02)
    of_100, of_10 = (4 * 10001, 10001 + 2 * 2501 + 626), (4 * 101, 101 + 2 * 26 + 10)
    assert squared.speedup(schedule, [100, 10]) == pytest.approx((of_100[0] + of_10[0]) / (of_100[1] + of_10[1]))
    assert times.speedup(PruningSchedule(), [100, 10]) == 1
    # With five decode steps, first of one row and then of more.
    assert times.speedup(schedule, [100], 6) == pytest.approx((400 / 4 + 5 * 0.02) / (225 / 4 + 5 * 0.01))
    assert times.speedup(schedule, [100], 6, 0.03) == pytest.approx((400 / 4 + 5 * 0.02) / (225 / 4 + 5 * 0.03))


def test_a_decode_step_by_hand():
    times = Times(fixed=0.0, linear=1.0, quadratic=0.0, layers=2, step={1: 1.0, 3: 2.0, 5: 5.0}, unmodified_step=1.0)
    assert times.step_of(torch.tensor([[1, 1]])) == 1
    assert times.step_of(torch.tensor([[1, 2], [3, 4]])) == pytest.approx((1 + 1.5 + 2 + 3.5) / 4)
    assert times.step_of(torch.tensor([[9, 9]])) == pytest.approx(5 + 4 * (5 - 1) / 4)
    assert times.step_of(torch.ones(0, 2)) is None


def test_measured_times_are_of_parts_of_the_prompt(tiny_model):
    model = AutoModelForCausalLM.from_pretrained(tiny_model)
    found = measure(model, torch.full((1, 80), 5))
    assert sorted(found["prompt"]) == [16, 20, 30, 40, 60, 80]
    assert sorted(found["step"]) == [1, 2, 3, 4, 6, 8, 12]
    assert sorted(found["unmodified step"]) == [1]
    assert min(seconds for by in found.values() for seconds in by.values()) > 0
    assert sorted(measure(model, torch.full((1, 2), 5))["step"]) == [1]


@few
@given(speedup=speedups, layers=st.sets(st.integers(0, 6), min_size=1, max_size=3), data=st.data())
def test_a_schedule_has_the_speedup_asked_for(speedup, layers, data):
    strengths = data.draw(st.lists(st.floats(0.1, 1), min_size=len(layers), max_size=len(layers)))
    schedule = _space(speedup).schedule(sorted(layers), strengths)
    assert schedule is None or _near(schedule, speedup)
    if schedule is None:  # not even the strongest pruning there does it
        strongest = PruningSchedule((layer, 0.01) for layer in sorted(layers))
        assert TIMES.speedup(strongest, LENGTHS) < speedup * 1.01


@few
@given(speedup=speedups)
def test_a_scaled_reference_has_the_speedup_asked_for(speedup):
    keeps, depth = _space(speedup).scaled_keeps(REFERENCE), _space(speedup).scaled_depth(REFERENCE)
    if keeps is not None:
        assert _near(keeps, speedup)
        assert [stage.layer for stage in keeps.stages] == [5, 10]
        ratio = math.log(keeps.stages[0].keep) / math.log(keeps.stages[1].keep)
        assert keeps.stages[1].keep <= 0.011 or ratio == pytest.approx(math.log(0.7) / math.log(0.5), rel=0.02)
    assert depth is not None
    assert _near(depth, speedup)
    assert len(depth.stages) == 2


def test_speedups_out_of_reach():
    assert _space(1.3).schedule([8], [1.0]) is not None
    assert _space(2).schedule([8], [1.0]) is None
    assert _space(3).scaled_keeps(REFERENCE) is None
    assert _space(17).scaled_depth(REFERENCE) is None


@pytest.mark.parametrize(
    ("text", "what", "limit", "shown"),
    [
        ("speedup >= 2", "speedup", 2, "speedup >= 2"),
        ("Speedup>=1.5x", "speedup", 1.5, "speedup >= 1.5"),
        ("KL <= 0.1", "kl", 0.1, "KL <= 0.1"),
        ("kl<=.25 nats", "kl", 0.25, "KL <= 0.25"),
        ("score loss <= 1%", "score loss", 1, "score loss <= 1%"),
        ("score_loss<=2.5 %", "score loss", 2.5, "score loss <= 2.5%"),
    ],
)
def test_budgets(text, what, limit, shown):
    (budget,) = budgets.parse(text)
    assert (budget.what, budget.limit, str(budget)) == (what, limit, shown)
    assert budgets.parse(str(budget)) == [budget]
    assert " " not in budget.slug


def test_several_budgets_each_once():
    found = budgets.parse("speedup >= 2, KL <= 0.1,speedup>=2x , score loss <= 1%")
    assert [str(budget) for budget in found] == ["speedup >= 2", "KL <= 0.1", "score loss <= 1%"]


@pytest.mark.parametrize(
    "text",
    [
        *("", ",", "fast", "speedup", "speedup >= two", "speedup <= 2", "speedup >= 1", "speedup >= 2%"),
        *("speedup >= 2,", "speedup >= 2 3", "score loss <= 1", "KL >= 1", "KL <= 1%", "KL <= -1", "KL <= 1e3"),
        *("KL = 1", "KL <= nan"),
    ],
)
def test_bad_budgets(text):
    with pytest.raises(LazyBenchError, match="budget") as raised:
        budgets.parse(text)
    assert len(str(raised.value).splitlines()) == 1


def _trial(kl):
    return Trial(Candidate(PruningSchedule([(1, 0.5)]), EQ1), kl, 2.0, 4, True)


def test_the_choice_for_a_budget():
    winners = {1.5: _trial(0.02), 2.0: _trial(0.08), 3.0: _trial(0.5)}
    losses, asked = {0.02: 0.5, 0.08: 0.9, 0.5: 7.0}, []

    def loss(trial):
        asked.append(trial.kl)
        return losses[trial.kl]

    def chosen(text):
        found = budgets.choose(*budgets.parse(text), winners, loss)
        return found and found.kl

    assert chosen("speedup >= 2") == 0.08
    assert chosen("speedup >= 2.5") is None
    assert (chosen("KL <= 0.1"), chosen("KL <= 0.5"), chosen("KL <= 0.01")) == (0.08, 0.5, None)
    assert asked == []  # scores are slow
    assert (chosen("score loss <= 1%"), chosen("score loss <= 0.1%")) == (0.08, None)


class Drawn:
    """An optimiser's trial whose values Hypothesis chooses."""

    def __init__(self, data):
        self.params = {}
        self._data = data

    def _suggest(self, name, strategy):
        self.params[name] = self._data.draw(strategy, label=name)
        return self.params[name]

    def suggest_int(self, name, low, high):
        return self._suggest(name, st.integers(low, high))

    def suggest_float(self, name, low, high):
        return self._suggest(name, st.floats(low, high))

    def suggest_categorical(self, name, values):
        return self._suggest(name, st.sampled_from(values))


@settings(max_examples=60, deadline=None)
@given(speedup=speedups, searched=st.booleans(), data=st.data())
def test_candidates_of_a_space(speedup, searched, data):
    space = _space(speedup, searched=searched)
    trial = Drawn(data)
    candidate = space.suggest(trial)
    assume(candidate is not None)
    stages = candidate.schedule.stages
    assert _near(candidate.schedule, speedup)
    assert 1 <= len(stages) <= MOST_STAGES
    assert all(after.layer > before.layer for before, after in pairwise(stages))
    candidate.schedule.check(TIMES.layers)
    assert searched or candidate.importance == EQ1
    assert space.replay(trial.params) == candidate
    if all(stage.keep < 1 for stage in stages):
        parameters = space.parameters(candidate, 1)
        again = space.replay(parameters)
        assert [stage.layer for stage in again.schedule.stages] == [stage.layer for stage in stages]
        assert _near(again.schedule, speedup)
        assert again.importance == candidate.importance


def test_what_is_not_in_a_space():
    space = _space(1.5)
    assert space.parameters(Candidate(PruningSchedule(), EQ1), 1) is None
    assert space.parameters(Candidate(PruningSchedule([(1, 1.0)]), EQ1), 1) is None
    assert space.parameters(Candidate(PruningSchedule([(space.deepest, 0.5)]), EQ1), 1) is not None
    assert space.parameters(Candidate(PruningSchedule([(space.deepest + 1, 0.5)]), EQ1), 1) is None
    assert _space(40).deepest is None
    searched = _space(1.5, searched=True)
    assert searched.parameters(Candidate(PruningSchedule([(1, 0.5)]), Importance(pooling=5)), 1) is None


def test_the_first_layer_alone_is_in_a_space():
    times = Times(fixed=0.0, linear=1.0, quadratic=0.0, layers=4, step=STEP, unmodified_step=0.02)
    space = _space(3.5, times, [100])
    assert space.deepest == 0
    assert space.parameters(Candidate(PruningSchedule([(0, 0.05)]), EQ1), 1) is not None


def _records(**changes):
    def count(text, **_):
        return SimpleNamespace(input_ids=text.encode())

    config = DataConfig(**({"name": "sample", "source": "sample", "limit": 12, "tokens": 512} | changes))
    return load_records("2wikimqa", config, count)


def test_halves_are_all_records_each_once():
    whole = _records()
    first, second = _records(half="first"), _records(half="second")
    assert {half_of(record) for record in whole} == {"first", "second"}
    assert first == [record for record in whole if half_of(record) == "first"]
    assert second == [record for record in whole if half_of(record) == "second"]
    assert len(first) + len(second) == len(whole) == 12


def test_the_limit_moves_no_record_to_the_other_half():
    halves = {record.id: half_of(record) for record in _records()}
    fewer = _records(limit=5)
    assert [half_of(record) for record in fewer] == [halves[record.id] for record in fewer]


def _kl(half, kind, values, schedule="1:0.5", found_kl=None):
    """Rows of `records_kl.csv`: one record a value, the same for the same half."""
    about = {"half": half, "speedup": 2.0, "kind": kind, "schedule": schedule, "importance": "eq1"}
    about |= {"found_kl": found_kl, "dataset": "made-up"}
    about |= {"unmodified_s": 3.0, "pruned_s": 2.0}
    return [about | {"_id": f"{half}-{place}", "kl": kl} for place, kl in enumerate(values)]


def test_less_harm_than_the_reference_is_a_ratio_above_one():
    harm = [0.1 + 0.05 * place for place in range(50)]
    rows = []
    for half in HALVES:
        rows += _kl(half, frontier.CALIBRATED, harm, found_kl=0.5)
        rows += _kl(half, frontier.KEEPS, [3 * kl for kl in harm])
        rows += _kl(half, frontier.DEPTH, [kl * (1.5 if place % 2 else 2.5) for place, kl in enumerate(harm)])
    made = frontier.table(pd.DataFrame(rows)).set_index(["half", "kind"])
    assert list(made.index.unique("half")) == [*HALVES, "cross"]
    for half in (*HALVES, "cross"):
        row = made.loc[half, frontier.CALIBRATED]
        assert row["kl_low"] < row["kl"] < row["kl_high"]
        # Three times on each record: nothing there for an interval to be about.
        assert row["harm_reduction_to_keeps"] == pytest.approx(3)
        assert pd.isna(row["harm_reduction_to_keeps_low"])
        assert 1.5 < row["harm_reduction_to_depth_low"] < row["harm_reduction_to_depth"] < 2.5
        assert made.loc[half, frontier.KEEPS].filter(like="harm_reduction").isna().all()
    assert made.loc["cross", frontier.CALIBRATED]["records"] == 100


def test_few_records_of_a_divergence_have_no_interval():
    made = frontier.table(pd.DataFrame(_kl("first", frontier.CALIBRATED, [0.1, 0.3, 0.2] * 8, found_kl=0.1)))
    assert made["kl"].tolist() == [pytest.approx(0.2)]
    assert made[["kl_low", "kl_high", "harm_reduction_to_keeps"]].isna().all(axis=None)


def _scores(task, dataset, unmodified, calibrated):
    pairs = enumerate(zip(unmodified, calibrated, strict=True))
    return [
        {"task": task, "dataset": dataset, "_id": str(place), "unmodified": before, "calibrated": after}
        for place, (before, after) in pairs
    ]


@pytest.fixture
def scored():
    """Scores of two tasks: one of two datasets, one of these on the floor, and one all on the floor."""
    rows = _scores("code", "lcc", [0.2, 0.4, 0.6, 0.8] * 5, [0.1, 0.2, 0.5, 0.6, 0.9] * 4)
    rows += _scores("code", "repobench-p", [0.0] * 3, [0.0] * 3)
    rows += _scores("synthetic", "passage_count", [0.0] * 9, [0.0] * 9)
    return pd.DataFrame(rows)


def test_scores_by_task_over_datasets_and_over_tasks(scored):
    found_scores = answers.table(scored).set_index("task")
    assert list(found_scores.index) == ["code", "synthetic", "all datasets", "mean of the 2 tasks"]
    assert found_scores["records"].tolist() == [23, 9, 32, 32]
    assert found_scores["unmodified"].tolist() == pytest.approx([25, 0, 50 / 3, 12.5])
    assert found_scores["calibrated"].tolist() == pytest.approx([23, 0, 46 / 3, 11.5])
    assert found_scores["difference"].tolist() == pytest.approx([-2, 0, -4 / 3, -1])
    code, mean = found_scores.loc["code"], found_scores.loc["mean of the 2 tasks"]
    assert code["difference_low"] < -2 < code["difference_high"]
    width = code["difference_high"] - code["difference_low"]
    assert mean["difference_high"] - mean["difference_low"] == pytest.approx(width / 2)
    assert answers.loss(scored) == pytest.approx(8)


def test_a_floor_is_marked_and_has_no_interval(scored):
    table = answers.table(scored).set_index("task")
    assert table.loc["synthetic", "note"] == "floor: both score 0 on every record"
    assert table.loc["synthetic", ["difference_low", "difference_high"]].isna().all()
    assert table.loc["code", "note"].startswith("counts 1 of 2 datasets at the floor")
    for name in ("all datasets", "mean of the 2 tasks"):
        assert table.loc[name, "note"].startswith("counts 2 of 3 datasets at the floor")
        assert table.loc[name, "note"].endswith(": repobench-p, passage_count")
    assert (answers.table(scored[scored["dataset"] == "lcc"])["note"] == "").all()


def test_hashes_that_look_like_numbers_stay_text(tmp_path):
    records = ["1234567890123e45", "0123456789012345", "1e10000000000000"]
    candidate = Candidate(PruningSchedule([(1, 0.5)]), Importance())
    written = tmp_path / "method.yaml"
    folds = [(candidate, [SimpleNamespace(hash=record) for record in records])]
    written.write_text(method_file.text(budgets.Budget("speedup", 2.0), folds, {"layers": 6}, "command"))
    assert OmegaConf.load(written).folds[0].records == sorted(records)
