"""What `lazybench calibrate` is made of: times, schedules of a speedup, budgets, the frontier."""

import math
from itertools import pairwise
from types import SimpleNamespace

import optuna
import pandas as pd
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf
from transformers import AutoModelForCausalLM

from lazybench.calibration import frontier
from lazybench.calibration.search import MOST_STAGES, Candidate, Space, searchable
from lazybench.calibration.setup import Setup, parse_budgets
from lazybench.calibration.times import Times, measure
from lazybench.config import HALVES, DataConfig
from lazybench.data import half_of, load_records
from lazybench.errors import LazyBenchError
from lazybench.methods.calibrated import config_of
from lazybench.methods.lazyllm import LazyLLM
from lazyllm import Importance, PruningSchedule

STEP = {1: 0.01, 11: 0.02}
TIMES = Times(fixed=0.01, linear=1e-4, quadratic=1e-8, layers=16, step=STEP, unmodified_step=0.02)
LENGTHS = (900, 2000, 3500)
EQ1 = Importance()
speedups = st.floats(1.05, 2.5)


def _space(speedup, times=TIMES, lengths=LENGTHS, searched=False, answer_tokens=1):
    return Space(times, lengths, answer_tokens, speedup, EQ1, searchable(EQ1, answer_tokens > 1) if searched else {})


def _near(schedule, speedup, times=TIMES):
    return times.speedup(schedule, LENGTHS) == pytest.approx(speedup, rel=0.01)


@pytest.mark.parametrize("parts", [(0.02, 1e-4, 1e-8), (0.5, 0.0, 2e-9)])
def test_times_on_a_curve_give_back_the_curve(parts):
    curve, tokens = Times(*parts, layers=4, step=STEP, unmodified_step=0.02), [16, 200, 700, 1500, 4000]
    prompt = {count: curve.seconds(count) for count in tokens}
    found = Times.fit({"prompt": prompt, "step": STEP, "unmodified step": {1: 0.02}}, 4)
    assert (found.fixed, found.linear, found.quadratic) == pytest.approx(parts, rel=1e-4, abs=1e-10)


def test_a_speedup_by_hand():
    times = Times(fixed=0.0, linear=1.0, quadratic=0.0, layers=4, step=STEP, unmodified_step=0.02)
    schedule = PruningSchedule([(0, 0.5), (2, 0.5)])
    # Layer 0 sees 100 tokens, layers 1 and 2 see 50, layer 3 sees 25.
    assert times.speedup(schedule, [100]) == pytest.approx(400 / 225)
    squared = Times(fixed=1.0, linear=0.0, quadratic=1.0, layers=4, step=STEP, unmodified_step=0.02)
    of_100, of_10 = (4 * 10001, 10001 + 2 * 2501 + 626), (4 * 101, 101 + 2 * 26 + 10)
    assert squared.speedup(schedule, [100, 10]) == pytest.approx((of_100[0] + of_10[0]) / (of_100[1] + of_10[1]))
    # With five decode steps, first of one row and then of more.
    assert times.speedup(schedule, [100], 6) == pytest.approx((400 / 4 + 5 * 0.02) / (225 / 4 + 5 * 0.01))
    assert times.speedup(schedule, [100], 6, 0.03) == pytest.approx((400 / 4 + 5 * 0.02) / (225 / 4 + 5 * 0.03))


def test_a_decode_step_by_hand():
    times = Times(fixed=0.0, linear=1.0, quadratic=0.0, layers=2, step={1: 1.0, 3: 2.0, 5: 5.0}, unmodified_step=1.0)
    assert times.step_of(torch.tensor([[1, 2], [3, 4]])) == pytest.approx((1 + 1.5 + 2 + 3.5) / 4)
    assert times.step_of(torch.tensor([[9, 9]])) == pytest.approx(5 + 4 * (5 - 1) / 4)
    assert times.step_of(torch.ones(0, 2)) == 1


def test_measured_times_are_of_parts_of_the_prompt(tiny_model):
    model = AutoModelForCausalLM.from_pretrained(tiny_model)
    found = measure(model, torch.full((1, 80), 5))
    assert sorted(found["prompt"]) == [16, 20, 30, 40, 60, 80]
    assert sorted(found["step"]) == [1, 2, 3, 4, 6, 8, 12]
    assert sorted(found["unmodified step"]) == [1]
    assert min(seconds for by in found.values() for seconds in by.values()) > 0
    assert sorted(measure(model, torch.full((1, 2), 5))["step"]) == [1]


@settings(max_examples=15, deadline=None)
@given(speedup=speedups)
def test_a_scaled_reference_has_the_speedup_asked_for(speedup):
    keeps = _space(speedup).scaled(PruningSchedule([(5, 0.7), (10, 0.5)]))
    if keeps is None:  # not even the strongest pruning there does it
        assert TIMES.speedup(PruningSchedule([(5, 0.01), (10, 0.01)]), LENGTHS) < speedup * 1.01
        return
    assert _near(keeps, speedup)
    assert [stage.layer for stage in keeps.stages] == [5, 10]
    ratio = math.log(keeps.stages[0].keep) / math.log(keeps.stages[1].keep)
    assert keeps.stages[1].keep <= 0.011 or ratio == pytest.approx(math.log(0.7) / math.log(0.5), rel=0.02)


@pytest.mark.parametrize(
    ("text", "what", "limit", "shown"),
    [
        ("Speedup>=1.5x", "speedup", 1.5, "speedup >= 1.5"),
        ("kl<=.25 nats", "kl", 0.25, "KL <= 0.25"),
        ("score_loss<=2.5 %", "score loss", 2.5, "score loss <= 2.5%"),
    ],
)
def test_budgets(text, what, limit, shown):
    (budget,) = parse_budgets(f"{text}, {text}")
    assert (budget.what, budget.limit, str(budget)) == (what, limit, shown)
    assert parse_budgets(str(budget)) == [budget]
    assert " " not in budget.slug


@pytest.mark.parametrize(
    "text", ["", ",", "fast", "speedup <= 2", "speedup >= 1", "speedup >= 2 3", "score loss <= 1", "KL <= -1"]
)
def test_bad_budgets(text):
    with pytest.raises(LazyBenchError, match="budget"):
        parse_budgets(text)


@settings(max_examples=60, deadline=None)
@given(speedup=speedups, searched=st.booleans(), seed=st.integers(0, 2**31))
def test_candidates_of_a_space(speedup, searched, seed):
    space = _space(speedup, searched=searched)
    trial = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=seed)).ask()
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
        again = space.replay(space.parameters(candidate, 1))
        assert [stage.layer for stage in again.schedule.stages] == [stage.layer for stage in stages]
        assert _near(again.schedule, speedup)
        assert again.importance == candidate.importance


def test_what_is_not_in_a_space():
    space = _space(1.5)
    assert space.parameters(Candidate(PruningSchedule([(1, 1.0)]), EQ1), 1) is None
    assert space.parameters(Candidate(PruningSchedule([(space.deepest, 0.5)]), EQ1), 1) is not None
    assert space.parameters(Candidate(PruningSchedule([(space.deepest + 1, 0.5)]), EQ1), 1) is None
    assert _space(40).deepest is None
    searched = _space(1.5, searched=True)
    assert searched.parameters(Candidate(PruningSchedule([(1, 0.5)]), Importance(pooling=5)), 1) is None


def test_halves_are_all_records_each_once_whatever_the_limit():
    def records(**changes):
        def count(text, **_):
            return SimpleNamespace(input_ids=text.encode())

        config = DataConfig(**({"name": "sample", "source": "sample", "limit": 12, "tokens": 512} | changes))
        return load_records("2wikimqa", config, count)

    whole = records()
    for half in HALVES:
        assert records(half=half) == [record for record in whole if half_of(record) == half] != []
    halves = {record.id: half_of(record) for record in whole}
    fewer = records(limit=5)
    assert [half_of(record) for record in fewer] == [halves[record.id] for record in fewer]


def _kl(half, kind, values, found_kl=None):
    """Rows of `records_kl.csv`: one record a value, the same for the same half."""
    about = {"half": half, "speedup": 2.0, "kind": kind, "schedule": "1:0.5", "importance": "eq1"}
    about |= {"found_kl": found_kl, "dataset": "made-up", "unmodified_s": 3.0, "pruned_s": 2.0}
    return [about | {"_id": f"{half}-{place}", "kl": kl} for place, kl in enumerate(values)]


def test_less_harm_than_the_reference_is_a_ratio_above_one():
    harm = [0.1 + 0.05 * place for place in range(50)]
    rows = []
    for half in HALVES:
        rows += _kl(half, frontier.CALIBRATED, harm, found_kl=0.5)
        rows += _kl(half, frontier.KEEPS, [kl * (1.5 if place % 2 else 2.5) for place, kl in enumerate(harm)])
        rows += _kl(half, frontier.STATIC, [kl / 2 for kl in harm])
    made = frontier.table(pd.DataFrame(rows))
    (line,) = frontier.beaten(made)
    assert line.startswith("static pruning did less harm at 2x: KL ")
    assert frontier.beaten(made[made["kind"] != frontier.STATIC]) == []
    made = made.set_index(["half", "kind"])
    assert list(made.index.unique("half")) == [*HALVES, "cross"]
    for half in (*HALVES, "cross"):
        row = made.loc[half, frontier.CALIBRATED]
        assert row["kl_low"] < row["kl"] < row["kl_high"]
        assert 1.5 < row["harm_reduction_to_keeps_low"] < row["harm_reduction_to_keeps"] < 2.5
        assert made.loc[half, frontier.KEEPS].filter(like="harm_reduction").isna().all()
    assert made.loc["cross", frontier.CALIBRATED]["records"] == 100
    few = frontier.table(pd.DataFrame(_kl("first", frontier.CALIBRATED, [0.1, 0.3, 0.2] * 8, found_kl=0.1)))
    assert few["kl"].tolist() == [pytest.approx(0.2)]
    assert few[["kl_low", "kl_high"]].isna().all(axis=None)


def test_a_score_loss_is_of_the_mean_over_datasets():
    scores = {"lcc": ([0.2, 0.4], [0.1, 0.3]), "repobench-p": ([0.0] * 3, [0.0] * 3)}
    rows = [
        {"dataset": dataset, "unmodified": before, "calibrated": after}
        for dataset, pairs in scores.items()
        for before, after in zip(*pairs, strict=True)
    ]
    assert frontier.loss(pd.DataFrame(rows)) == pytest.approx(100 / 3)
    assert math.isnan(frontier.loss(pd.DataFrame(rows).assign(unmodified=0)))


def test_what_is_searched_has_a_folder_of_its_own():
    def slug(**given):
        searched = {part: of for part, of in searchable(EQ1, True).items() if part not in given}
        config = OmegaConf.create({"answer_tokens": 4})
        return Setup(config, [], [], {}, Importance(**given), searched, "", None).slug

    assert [slug(), slug(queries=1), slug(queries=8), slug(queries=8, pooling=1)] == [
        "search",
        "search_queries_1",
        "search_queries_8",
        "search_queries_8_pooling_1",
    ]


def test_hashes_that_look_like_numbers_stay_text():
    hashes = ["0123456789012345", "1234567890123e45", "1e10000000000000"]
    records = [SimpleNamespace(hash=of) for of in hashes]
    written = config_of("found", "lazyllm", "2x", [(LazyLLM("lazyllm"), records)], {})
    assert OmegaConf.create(written).folds[0].records == hashes
