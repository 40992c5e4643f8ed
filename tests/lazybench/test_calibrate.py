"""What `lazybench calibrate` is made of, and the command on a tiny model."""

from __future__ import annotations

import json
import math
import sys
from itertools import pairwise
from statistics import fmean
from types import SimpleNamespace

import optuna
import pandas as pd
import pytest
import torch
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf
from support import folders, one_line, rows, save_tiny_model
from transformers import AutoModelForCausalLM

import lazyllm
from lazybench.calibration import budgets, found, method_file, records, scores
from lazybench.calibration.harm import Candidate, CandidateFailure, Harm
from lazybench.calibration.scaling import scaled_depth, scaled_keeps, with_speedup
from lazybench.calibration.search import Search, Trial
from lazybench.calibration.space import MOST_STAGES, Space
from lazybench.calibration.times import Times, measure
from lazybench.config import HALVES, DataConfig
from lazybench.data import half_of, load_records
from lazybench.errors import LazyBenchError
from lazybench.model.decoding import Decoder
from lazybench.store.locks import Lock
from lazyllm import Importance, LazyLLMError, PruningSchedule

TIMES = Times(fixed=0.01, linear=1e-4, quadratic=1e-8, layers=16)
LENGTHS = (900, 2000, 3500)
REFERENCE = PruningSchedule([(5, 0.7), (10, 0.5)])
EQ1 = Importance()

few = settings(max_examples=15, deadline=None)
speedups = st.floats(1.05, 2.5)


def _near(schedule, speedup, times=TIMES):
    return times.speedup(schedule, LENGTHS) == pytest.approx(speedup, rel=0.01)


@pytest.mark.parametrize("parts", [(0.02, 1e-4, 1e-8), (0.0, 3e-4, 0.0), (0.5, 0.0, 2e-9)])
def test_times_on_a_curve_give_back_the_curve(parts):
    curve, tokens = Times(*parts, layers=4), [16, 200, 700, 1500, 4000]
    found = Times.fit(tokens, [curve.seconds(count) for count in tokens], 4)
    assert found.layers == 4
    for count in (16, 1000, 4000):
        assert found.seconds(count) == pytest.approx(curve.seconds(count), rel=1e-6)
    assert (found.fixed, found.linear, found.quadratic) == pytest.approx(parts, rel=1e-4, abs=1e-10)


def test_times_have_no_negative_parts():
    found = Times.fit([100, 200, 400], [1.0, 0.9, 1.1], 4)
    assert min(found.fixed, found.linear, found.quadratic) >= 0


def test_a_speedup_by_hand():
    times = Times(fixed=0.0, linear=1.0, quadratic=0.0, layers=4)
    schedule = PruningSchedule([(0, 0.5), (2, 0.5)])
    # Layer 0 sees 100 tokens, layers 1 and 2 see 50, layer 3 sees 25.
    assert times.speedup(schedule, [100]) == pytest.approx(400 / 225)
    squared = Times(fixed=1.0, linear=0.0, quadratic=1.0, layers=4)
    of_100, of_10 = (4 * 10001, 10001 + 2 * 2501 + 626), (4 * 101, 101 + 2 * 26 + 10)
    assert squared.speedup(schedule, [100, 10]) == pytest.approx((of_100[0] + of_10[0]) / (of_100[1] + of_10[1]))
    assert times.speedup(PruningSchedule(), [100, 10]) == 1


def test_measured_times_are_of_parts_of_the_prompt(tiny_model):
    model = AutoModelForCausalLM.from_pretrained(tiny_model)
    found = measure(model, torch.full((1, 80), 5))
    assert sorted(found) == [16, 20, 30, 40, 60, 80]
    assert min(found.values()) > 0


@few
@given(speedup=speedups, layers=st.sets(st.integers(0, 6), min_size=1, max_size=3), data=st.data())
def test_a_schedule_has_the_speedup_asked_for(speedup, layers, data):
    strengths = data.draw(st.lists(st.floats(0.1, 1), min_size=len(layers), max_size=len(layers)))
    schedule = with_speedup(TIMES, LENGTHS, sorted(layers), strengths, speedup)
    assert schedule is None or _near(schedule, speedup)
    if schedule is None:  # not even the strongest pruning there does it
        strongest = PruningSchedule((layer, 0.01) for layer in sorted(layers))
        assert TIMES.speedup(strongest, LENGTHS) < speedup * 1.01


@few
@given(speedup=speedups)
def test_a_scaled_reference_has_the_speedup_asked_for(speedup):
    keeps, depth = (scale(REFERENCE, TIMES, LENGTHS, speedup) for scale in (scaled_keeps, scaled_depth))
    if keeps is not None:
        assert _near(keeps, speedup)
        assert [stage.layer for stage in keeps.stages] == [5, 10]
        ratio = math.log(keeps.stages[0].keep) / math.log(keeps.stages[1].keep)
        assert keeps.stages[1].keep <= 0.011 or ratio == pytest.approx(math.log(0.7) / math.log(0.5), rel=0.02)
    assert depth is not None
    assert _near(depth, speedup)
    assert len(depth.stages) == 2


def test_speedups_out_of_reach():
    assert with_speedup(TIMES, LENGTHS, [8], [1.0], 1.3) is not None
    assert with_speedup(TIMES, LENGTHS, [8], [1.0], 2) is None
    assert scaled_keeps(REFERENCE, TIMES, LENGTHS, 3) is None
    assert scaled_depth(REFERENCE, TIMES, LENGTHS, 17) is None


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
    return Trial(Candidate(PruningSchedule([(1, 0.5)]), EQ1), kl, 4, True)


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


@few
@given(speedup=speedups, searched=st.booleans(), seed=st.integers(0, 1000))
def test_candidates_of_a_space(speedup, searched, seed):
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    space = Space(TIMES, LENGTHS, speedup, None if searched else EQ1)
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed))
    found = 0
    for _ in range(5):
        trial = study.ask()
        candidate = space.suggest(trial)
        if candidate is None:
            continue
        found += 1
        stages = candidate.schedule.stages
        assert _near(candidate.schedule, speedup)
        assert 1 <= len(stages) <= MOST_STAGES
        assert all(after.layer > before.layer for before, after in pairwise(stages))
        candidate.schedule.check(TIMES.layers)
        assert searched or candidate.importance == EQ1
        assert space.replay(trial.params) == candidate
        if all(stage.keep < 1 for stage in stages):
            parameters = space.parameters(candidate)
            again = space.replay(parameters)
            assert [stage.layer for stage in again.schedule.stages] == [stage.layer for stage in stages]
            assert _near(again.schedule, speedup)
            assert again.importance == candidate.importance
    assert found


def test_what_is_not_in_a_space():
    space = Space(TIMES, LENGTHS, 1.5, EQ1)
    assert space.parameters(Candidate(PruningSchedule(), EQ1)) is None
    assert space.parameters(Candidate(PruningSchedule([(1, 1.0)]), EQ1)) is None
    assert space.parameters(Candidate(PruningSchedule([(space.deepest, 0.5)]), EQ1)) is not None
    assert space.parameters(Candidate(PruningSchedule([(space.deepest + 1, 0.5)]), EQ1)) is None
    assert Space(TIMES, LENGTHS, 40, EQ1).deepest is None
    searched = Space(TIMES, LENGTHS, 1.5, None)
    assert searched.parameters(Candidate(PruningSchedule([(1, 0.5)]), Importance(pooling=5))) is None


def test_the_first_layer_alone_is_in_a_space():
    times = Times(fixed=0.0, linear=1.0, quadratic=0.0, layers=4)
    space = Space(times, [100], 3.5, EQ1)
    assert space.deepest == 0
    assert space.parameters(Candidate(PruningSchedule([(0, 0.05)]), EQ1)) is not None


def _made_up_harm(candidate, record):
    """Grows the earlier the first stage is, and with the record."""
    return record * 2.0 ** -candidate.schedule.stages[0].layer


def _search(path, records=range(1, 21)):
    return Search(path, "2", Space(TIMES, LENGTHS, 2.0, EQ1), records)


@pytest.mark.slow
def test_a_search_betters_what_it_starts_from(tmp_path):
    start = Candidate(PruningSchedule([(0, 0.5)]), EQ1)
    search, ended = _search(tmp_path / "log"), []
    search.start_from([start])
    search.run(2, _made_up_harm, lambda trial: trial and ended.append(trial))
    first, best = search.trials[0], search.best
    assert [stage.layer for stage in first.candidate.schedule.stages] == [0]
    assert first.complete
    assert best.kl < first.kl
    assert best.kl == min(trial.kl for trial in ended if trial.complete)
    assert ended == search.trials
    stopped = [trial for trial in ended if not trial.complete]
    assert stopped
    for trial in stopped:  # on few records, and it was worse than the best by then on these
        assert trial.records < 20
        assert trial.kl > best.kl * fmean(range(1, trial.records + 1)) / fmean(range(1, 21))


def test_a_search_that_was_killed_goes_on_with_the_candidate_under_way(tmp_path):
    def killed(candidate, record):
        seen.append(candidate)
        if len(seen) > 25:
            raise KeyboardInterrupt
        return _made_up_harm(candidate, record)

    def noted(candidate, record):
        again.append(candidate)
        return _made_up_harm(candidate, record)

    seen, again = [], []
    starts = [Candidate(PruningSchedule([(layer, 0.5)]), EQ1) for layer in (2, 1)]
    search = _search(tmp_path / "log")
    search.start_from(starts)
    with pytest.raises(KeyboardInterrupt):
        search.run(60, killed, lambda _: None)
    kept = search.trials
    reopened = _search(tmp_path / "log")
    reopened.start_from(starts)
    assert reopened.trials == kept
    assert len(kept) == 1
    reopened.run(reopened.spent + 0.2, noted, lambda _: None)
    assert again[0] == seen[-1] != kept[0].candidate
    assert reopened.trials[: len(kept)] == kept
    assert [stage.layer for trial in reopened.trials[:2] for stage in trial.candidate.schedule.stages] == [2, 1]


@pytest.mark.slow
def test_a_search_passes_over_candidates_that_do_not_work(tmp_path):
    def sometimes(candidate, record):
        if candidate.schedule.stages[0].layer < 3:
            raise CandidateFailure("no good")
        return _made_up_harm(candidate, record)

    def never(candidate, record):
        raise LazyLLMError("a window")

    search = _search(tmp_path / "log")
    search.start_from([Candidate(PruningSchedule([(layer, 0.5)]), EQ1) for layer in (1, 3)])
    search.run(0.2, sometimes, lambda _: None)
    assert search.trials
    assert all(trial.candidate.schedule.stages[0].layer >= 3 for trial in search.trials)
    with pytest.raises(LazyBenchError, match="none works: a window"):
        _search(tmp_path / "other").run(0.2, never, lambda _: None)


def test_a_search_measures_no_candidate_twice(tmp_path):
    search = _search(tmp_path / "log")
    search.start_from([Candidate(PruningSchedule([(2, keep)]), EQ1) for keep in (0.5, 0.3)])  # one at that speedup
    while len(search.trials) <= 2:
        search.run(search.spent + 0.5, _made_up_harm, lambda _: None)
    candidates = [trial.candidate for trial in search.trials]
    assert all(candidate not in candidates[:place] for place, candidate in enumerate(candidates))


@pytest.fixture(scope="module")
def model(tiny_model):
    return AutoModelForCausalLM.from_pretrained(tiny_model)


@pytest.fixture(scope="module")
def asked(model):
    """A record, and the harm on it."""
    ids = torch.randint(5, 200, (1, 60), generator=torch.Generator().manual_seed(1))
    record = SimpleNamespace(key=("made-up", "1"))
    harm = Harm(model, lambda _: (SimpleNamespace(ids=ids), Decoder(model, 32)), tokens=6)
    return SimpleNamespace(ids=ids, record=record, harm=harm)


@pytest.mark.parametrize("schedule", ["", "1:1", "0:1,2:1"])
def test_no_pruning_does_no_harm(asked, schedule):
    assert asked.harm.of(Candidate(PruningSchedule.parse(schedule), EQ1), asked.record) == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize("importance", [EQ1, Importance(queries=8, pooling=7)])
def test_harm_is_the_divergence_along_the_unmodified_answer(model, asked, importance):
    schedule = PruningSchedule([(0, 0.3), (2, 0.2)])
    found = asked.harm.of(Candidate(schedule, importance), asked.record)
    with torch.no_grad():
        answer = model.generate(asked.ids, max_new_tokens=6, do_sample=False)[0, 60:]
        whole = model(torch.cat([asked.ids, answer[None]], dim=1)).logits[0, 59:-1].double().log_softmax(-1)
        expected = []
        with lazyllm.enable(model, schedule, importance=importance):
            step = model(asked.ids, use_cache=True, logits_to_keep=1)
            for place, token in enumerate(answer):
                pruned = step.logits[0, -1].double().log_softmax(-1)
                expected.append(float((whole[place].exp() * (whole[place] - pruned)).sum()))
                step = model(token.view(1, 1), past_key_values=step.past_key_values, use_cache=True)
    assert found > 0.001
    assert found == pytest.approx(sum(expected) / len(expected), rel=1e-3)


def test_logits_that_are_not_finite_are_no_harm_of_zero(tiny_model):
    model = AutoModelForCausalLM.from_pretrained(tiny_model)
    record = SimpleNamespace(key=("made-up", "1"), dataset="made-up", id="1")
    harm = Harm(model, lambda _: (SimpleNamespace(ids=torch.full((1, 40), 7)), Decoder(model, 32)), tokens=2)
    candidate = Candidate(PruningSchedule([(1, 0.5)]), EQ1)
    assert harm.of(candidate, record) >= 0
    with torch.no_grad():
        model.model.norm.weight.fill_(float("nan"))
    with pytest.raises(CandidateFailure, match="not finite on made-up 1"):
        harm.of(candidate, record)


def test_a_record_that_cannot_be_run_is_named(model):
    record = SimpleNamespace(key=("made-up", "7"), dataset="made-up", id="7")
    harm = Harm(model, lambda _: (SimpleNamespace(ids=torch.zeros(1, 0, dtype=torch.long)), Decoder(model, 32)), 2)
    with pytest.raises(LazyBenchError, match="made-up 7 cannot be calibrated on: empty prompt"):
        harm.of(Candidate(PruningSchedule([(1, 0.5)]), EQ1), record)


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


@pytest.fixture(scope="module")
def six_layers(tmp_path_factory, tokenizer):
    return save_tiny_model(tmp_path_factory.mktemp("six"), tokenizer, layers=6)


def _line(command, path, output, *words):
    """A command's words, and what the words leave open."""
    usual = {"model.path": path, "model.name": "tiny", "model.chat": "null", "model.limit": 300}
    usual |= {"data": "sample", "data.limit": 2, "data.tokens": 512, "task": "code", "output": output}
    if command == "calibrate":
        usual |= {"minutes": 0.01, "speedups": "[1.5]", "budget": "speedup >= 1.3"}
        usual |= {"reference": '"36%:0.7,70%:0.5"', "confirm": "true"}
    else:
        usual |= {"timing.warmup": 0}
    given = {word.partition("=")[0] for word in words}
    return command, *(f"{key}={value}" for key, value in usual.items() if key not in given), *words


@pytest.fixture
def steady(monkeypatch):
    """A model whose time is its tokens: what is in reach does not depend on the machine."""
    monkeypatch.setattr("lazybench.calibration.times.measure", lambda _, ids: {n: n / 1000 for n in (16, 100, 300)})


@pytest.fixture
def calibrate(lazybench, steady, six_layers, tmp_path):
    """Call `lazybench calibrate` on the model of six layers; settings given override the usual ones."""
    return lambda *words: lazybench(*_line("calibrate", six_layers, tmp_path / "calibrations", *words))


@pytest.fixture(scope="module")
def calibrations(six_layers, tmp_path_factory):
    """Finished calibrations of three budgets: on the first half, and on each half for the other."""
    from lazybench.__main__ import main

    output = tmp_path_factory.mktemp("calibrations")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("lazybench.calibration.times.measure", lambda _, ids: {n: n / 1000 for n in (16, 100, 300)})
        for half in ("first", "cross"):
            budget = "budget=speedup >= 1.3, KL <= 1000" if half == "first" else "budget=speedup >= 1.3"
            patch.setattr(sys, "argv", ["lazybench", *_line("calibrate", six_layers, output, budget, f"half={half}")])
            assert main() == 0
    (folder,) = {path.parent for path in output.glob("*/*/*/*/times.json")}
    return folder


METHOD = "lazyllm_speedup_1.3"


def _method(calibrations, half):
    return yaml.safe_load((calibrations / "eq1" / half / "method" / f"{METHOD}.yaml").read_text())


def test_a_calibration_writes_all_that_it_found(calibrations):
    assert calibrations.parts[-4:-1] == ("tiny", "sample", "code")
    assert (calibrations / "times.json").exists()
    for half, methods in (("first", {METHOD, "lazyllm_kl_1000"}), ("cross", {METHOD})):
        folder = calibrations / "eq1" / half
        names = {path.name for path in folder.iterdir()}
        assert names >= {"frontier.csv", "frontier.png", "frontier.pdf", "tried.csv", "config.yaml", "environment.json"}
        assert names >= {f"scores_{method}.csv" for method in methods}
        assert names >= {"records_kl.csv", *(f"records_scores_{method}.csv" for method in methods)}
        assert {path.stem for path in (folder / "method").iterdir()} == methods

    frontier = pd.read_csv(calibrations / "eq1" / "cross" / "frontier.csv")
    assert set(frontier["half"]) == {"first", "second", "cross"}
    assert set(frontier["speedup"]) == {1.3, 1.5}
    assert (frontier["kl"] >= 0).all()
    found = frontier[frontier["kind"] == "calibrated"]
    tried = pd.read_csv(calibrations / "eq1" / "cross" / "tried.csv")
    for _, row in found[found["half"] != "cross"].iterrows():
        same = tried[(tried["half"] == row["half"]) & (tried["speedup"] == row["speedup"]) & tried["complete"]]
        assert same["kl"].min() == pytest.approx(row["found_kl"], rel=1e-3)
    length = Times(0, 0.001, 0, 6)
    for _, row in tried.iterrows():
        assert length.speedup(PruningSchedule.parse(row["schedule"]), [300]) == pytest.approx(row["speedup"], rel=0.03)


@pytest.mark.parametrize("half", ["first", "cross"])
def test_the_tables_can_be_made_again_from_the_records(calibrations, half):
    folder = calibrations / "eq1" / half
    frontier = found.table(records.read(folder / "records_kl.csv"))
    assert records.text(frontier) == (folder / "frontier.csv").read_text()
    written = list(folder.glob("scores_*.csv"))
    assert written
    for path in written:
        assert records.text(scores.table(records.read(folder / f"records_{path.name}"))) == path.read_text()


def test_the_records_are_those_of_the_other_half(calibrations):
    folds = _method(calibrations, "cross")["folds"]
    sizes = {half: len(fold["records"]) for half, fold in zip(HALVES, folds, strict=True)}
    frame = records.read(calibrations / "eq1" / "cross" / "records_kl.csv")
    for (half, _, _), part in frame.groupby(["half", "speedup", "kind"]):
        other = next(name for name in HALVES if name != half)
        assert len(part) == len(part[["dataset", "_id"]].drop_duplicates()) == sizes[other]
    measured = [json.loads(line) for path in (calibrations / "measured").glob("kl-*") for line in path.open()]
    kept = {(row["schedule"], row["dataset"], row["_id"]): row["kl"] for row in measured}
    for row in frame.to_dict("records"):
        assert row["kl"] == pytest.approx(kept[row["schedule"], row["dataset"], row["_id"]], rel=1e-5)


def _kl(half, kind, values, schedule="1:0.5", found_kl=None):
    """Rows of `records_kl.csv`: one record a value, the same for the same half."""
    about = {"half": half, "speedup": 2.0, "kind": kind, "schedule": schedule, "importance": "eq1"}
    about |= {"found_kl": found_kl, "dataset": "made-up"}
    return [about | {"_id": f"{half}-{place}", "kl": kl} for place, kl in enumerate(values)]


def test_less_harm_than_the_reference_is_a_ratio_above_one():
    harm = [0.1 + 0.05 * place for place in range(50)]
    rows = []
    for half in HALVES:
        rows += _kl(half, found.CALIBRATED, harm, found_kl=0.5)
        rows += _kl(half, found.KEEPS, [3 * kl for kl in harm])
        rows += _kl(half, found.DEPTH, [kl * (1.5 if place % 2 else 2.5) for place, kl in enumerate(harm)])
    frontier = found.table(pd.DataFrame(rows)).set_index(["half", "kind"])
    assert list(frontier.index.unique("half")) == [*HALVES, "cross"]
    for half in (*HALVES, "cross"):
        row = frontier.loc[half, found.CALIBRATED]
        assert row["kl_low"] < row["kl"] < row["kl_high"]
        # Three times on each record: nothing there for an interval to be about.
        assert row["harm_reduction_to_keeps"] == pytest.approx(3)
        assert pd.isna(row["harm_reduction_to_keeps_low"])
        assert 1.5 < row["harm_reduction_to_depth_low"] < row["harm_reduction_to_depth"] < 2.5
        assert frontier.loc[half, found.KEEPS].filter(like="harm_reduction").isna().all()
    assert frontier.loc["cross", found.CALIBRATED]["records"] == 100


def test_few_records_of_a_divergence_have_no_interval():
    frontier = found.table(pd.DataFrame(_kl("first", found.CALIBRATED, [0.1, 0.3, 0.2] * 8, found_kl=0.1)))
    assert frontier["kl"].tolist() == [pytest.approx(0.2)]
    assert frontier[["kl_low", "kl_high", "harm_reduction_to_keeps"]].isna().all(axis=None)


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
    found_scores = scores.table(scored).set_index("task")
    assert list(found_scores.index) == ["code", "synthetic", "all datasets", "mean of the 2 tasks"]
    assert found_scores["records"].tolist() == [23, 9, 32, 32]
    assert found_scores["unmodified"].tolist() == pytest.approx([25, 0, 50 / 3, 12.5])
    assert found_scores["calibrated"].tolist() == pytest.approx([23, 0, 46 / 3, 11.5])
    assert found_scores["difference"].tolist() == pytest.approx([-2, 0, -4 / 3, -1])
    code, mean = found_scores.loc["code"], found_scores.loc["mean of the 2 tasks"]
    assert code["difference_low"] < -2 < code["difference_high"]
    width = code["difference_high"] - code["difference_low"]
    assert mean["difference_high"] - mean["difference_low"] == pytest.approx(width / 2)
    assert scores.loss(scored) == pytest.approx(8)


def test_a_floor_is_marked_and_has_no_interval(scored):
    table = scores.table(scored).set_index("task")
    assert table.loc["synthetic", "note"] == "floor: both score 0 on every record"
    assert table.loc["synthetic", ["difference_low", "difference_high"]].isna().all()
    assert table.loc["code", "note"].startswith("counts 1 of 2 datasets at the floor")
    for name in ("all datasets", "mean of the 2 tasks"):
        assert table.loc[name, "note"].startswith("counts 2 of 3 datasets at the floor")
        assert table.loc[name, "note"].endswith(": repobench-p, passage_count")
    assert (scores.table(scored[scored["dataset"] == "lcc"])["note"] == "").all()


def test_a_calibrated_method_says_what_it_was_found_on(calibrations):
    one, both = (_method(calibrations, half) for half in ("first", "cross"))
    assert (one["name"], one["budget"], len(one["folds"])) == ("lazyllm", "speedup >= 1.3", 1)
    assert one["found"]["layers"] == 6
    assert "not LongBench" in one["found"]["data"]
    assert one["folds"][0]["importance"] == "eq1"
    frontier = pd.read_csv(calibrations / "eq1" / "first" / "frontier.csv")
    row = frontier[(frontier["kind"] == "calibrated") & (frontier["speedup"] == 1.3)].iloc[0]
    assert one["found"]["kl"] == [pytest.approx(row["found_kl"], abs=1e-4)]
    assert one["found"]["kl_on_the_other_half"] == pytest.approx(row["kl"], abs=1e-4)
    first, second = (set(fold["records"]) for fold in both["folds"])
    assert first == set(one["folds"][0]["records"])
    assert not first & second
    assert len(first | second) == 4


@pytest.mark.slow
def test_the_same_command_goes_on(calibrate, tmp_path):
    def kept():
        return {path: path.read_bytes() for path in files}

    code, out, err = calibrate()
    assert code == 0, err
    assert "not LongBench" in out
    (folder,) = {path.parent for path in tmp_path.glob("calibrations/*/*/*/*/times.json")}
    found = folder / "eq1" / "first"
    files = [folder / "times.json", found / "tried.csv", found / "frontier.csv", *(folder / "measured").iterdir()]
    before, tried = kept(), pd.read_csv(found / "tried.csv")
    assert calibrate()[0] == 0
    assert kept() == before
    assert {*files[3:]} == {*(folder / "measured").iterdir()}

    # With more time it goes on in the same folder from what it has.
    code, _, err = calibrate("minutes=0.03")
    assert code == 0, err
    assert {path.parent for path in tmp_path.glob("calibrations/*/*/*/*/times.json")} == {folder}
    more = pd.read_csv(found / "tried.csv")
    assert len(more) > len(tried)
    for speedup, of in tried.groupby("speedup"):
        again = more[more["speedup"] == speedup]
        assert again["schedule"].tolist()[: len(of)] == of["schedule"].tolist()
        assert again["kl"].tolist()[: len(of)] == of["kl"].tolist()
    assert (folder / "times.json").read_bytes() == before[folder / "times.json"]


@pytest.mark.slow
def test_another_importance_is_searched_and_scores_keep_to_a_budget(calibrate, lazybench, six_layers, tmp_path):
    code, _, err = calibrate("importance=search", "budget=score loss <= 100%", "minutes=0.1")
    assert code == 0, err
    (folder,) = {path.parent for path in tmp_path.glob("calibrations/*/*/*/*/times.json")}
    found = folder / "search" / "first"
    tried = pd.read_csv(found / "tried.csv")
    assert "pooling:31" in set(tried["importance"])
    assert tried["importance"].nunique() > 2
    scores = {path.name.split("-")[0] for path in (folder / "measured").iterdir()}
    assert scores == {"kl", "score"}
    (written,) = (found / "method").iterdir()
    method = yaml.safe_load(written.read_text())
    assert (written.stem, method["name"]) == ("lazyllm+_score_loss_100", "lazyllm+")
    assert method["budget"] == "score loss <= 100%"
    words = _line("run", six_layers, tmp_path / "runs", f"method={written.stem}", "data.half=second")
    code, _, err = lazybench(*words, "--config-dir", str(found))
    assert code == 0, err
    (run,) = folders(tmp_path / "runs")
    assert run.parts[-2] == "lazyllm+"


@pytest.mark.slow
def test_a_score_loss_that_nothing_keeps_to_is_said(calibrate, monkeypatch, tmp_path):
    monkeypatch.setattr("lazybench.calibration.study.loss", lambda *_: 50.0)
    code, out, err = calibrate("budget=score loss <= 10%")
    assert code == 0, err
    assert "score loss <= 10%: no schedule found on the first half keeps to it" in out
    (folder,) = {path.parent for path in tmp_path.glob("calibrations/*/*/*/*/times.json")}
    assert (folder / "eq1" / "first" / "frontier.csv").exists()
    assert not any((folder / "eq1" / "first" / "method").iterdir())


@pytest.mark.slow
def test_one_schedule_a_task(calibrate, tmp_path):
    code, _, err = calibrate("-m", "task=code,synthetic", "confirm=false")
    assert code == 0, err
    assert {path.parts[-3] for path in tmp_path.glob("calibrations/*/*/*/*/times.json")} == {"code", "synthetic"}
    methods = tmp_path.glob("calibrations/*/*/*/*/eq1/first/method/*.yaml")
    found = {yaml.safe_load(path.read_text())["found"]["task"] for path in methods}
    assert found == {"code", "synthetic"}


@pytest.mark.slow
def test_two_calibrations_do_not_work_in_one_folder(calibrate, tmp_path):
    assert calibrate("confirm=false")[0] == 0
    (folder,) = {path.parent for path in tmp_path.glob("calibrations/*/*/*/*/times.json")}
    written = folder / "eq1" / "first" / "config.yaml"
    before = written.stat().st_mtime_ns
    other = Lock(folder / ".lock")
    assert other.exclusive()
    code, _, err = calibrate("confirm=false")
    other.close()
    assert "another process is at work" in one_line(code, err)
    assert written.stat().st_mtime_ns == before
    assert calibrate("confirm=false")[0] == 0


@pytest.mark.slow
def test_a_model_of_few_layers(calibrate, tiny_model):
    code, _, err = calibrate(f"model.path={tiny_model}", "speedups=[]", "confirm=false")
    assert code == 0, err


@pytest.fixture
def use(lazybench, calibrations, six_layers, tmp_path):
    """Run a calibrated method; settings given override the usual ones."""

    def call(*words, half="first", methods=None):
        folder = str(methods or calibrations / "eq1" / half)
        return lazybench(*_line("run", six_layers, tmp_path / "runs", *words), "--config-dir", folder)

    return call


def test_a_calibrated_method_runs_on_the_other_half(use, calibrations, lazybench, tmp_path):
    code, shown, err = use(f"method={METHOD}", "data.half=second")
    assert code == 0, err
    (folder,) = folders(tmp_path / "runs")
    assert folder.parts[-2] == "lazyllm"
    settings = yaml.safe_load((folder / "config.yaml").read_text())
    assert "calibrated_on" not in settings
    both = _method(calibrations, "cross")
    assert len(rows(folder)) == len(both["folds"][1]["records"])
    (fold,) = _method(calibrations, "first")["folds"]
    found = f"found {fold['schedule']} (eq1) on {len(fold['records'])} records of "
    assert f"calibrated for speedup >= 1.3: {found}" in shown
    code, out, err = lazybench("report", f"runs={tmp_path / 'runs'}", f"out={tmp_path / 'report'}")
    assert code == 0, err
    assert "flatter" not in out
    for name in ("table1.md", "table1.tex", "report.html"):
        assert found in (tmp_path / "report" / name).read_text(), name


@pytest.mark.parametrize("half", ["null", "first"])
def test_records_it_was_calibrated_on_are_refused(use, tmp_path, half):
    code, _, err = use(f"method={METHOD}", f"data.half={half}")
    line = one_line(code, err)
    assert "data.half=second" in line
    assert "calibrated=mark" in line
    assert not folders(tmp_path / "runs")


def test_records_it_was_calibrated_on_are_marked(use, lazybench, tmp_path):
    code, _, err = use(f"method={METHOD}", "calibrated=mark")
    assert code == 0, err
    (folder,) = folders(tmp_path / "runs")
    seen = yaml.safe_load((folder / "config.yaml").read_text())["calibrated_on"]
    assert 0 < seen < len(rows(folder)) == 4
    words = ("report", f"runs={tmp_path / 'runs'}", f"out={tmp_path / 'report'}")
    code, _, err = lazybench(*words)
    assert "calibrated=mark" in one_line(code, err)
    assert not (tmp_path / "report").exists()
    code, out, err = lazybench(*words, "calibrated=mark")
    assert code == 0, err
    mark = f"on {seen} records it was calibrated on"
    assert mark in out
    assert "flatter" in out
    for name in ("table1.md", "table1.csv", "report.html"):
        assert mark in (tmp_path / "report" / name).read_text(), name


def test_each_record_gets_the_schedule_found_without_it(use, calibrations, monkeypatch, tmp_path):
    from lazybench.methods.lazyllm import LazyLLM

    used, generate = {}, LazyLLM.generate

    def noted(self, prompt, decode, seed):
        used[prompt.record.hash] = self.schedule
        return generate(self, prompt, decode, seed)

    method = _method(calibrations, "cross")
    for fold, schedule in zip(method["folds"], ("1:0.5", "2:0.4"), strict=True):
        fold["schedule"] = schedule  # two that differ for sure
    (tmp_path / "own" / "method").mkdir(parents=True)
    (tmp_path / "own" / "method" / "crossed.yaml").write_text(yaml.safe_dump(method))
    monkeypatch.setattr(LazyLLM, "generate", noted)
    code, _, err = use("method=crossed", methods=tmp_path / "own")
    assert code == 0, err
    (folder,) = folders(tmp_path / "runs")
    assert len(rows(folder)) == 4
    first, second = (fold["records"] for fold in method["folds"])
    assert used == dict.fromkeys(first, "2:0.4") | dict.fromkeys(second, "1:0.5")


def test_a_cross_fitted_method_runs_on_all_records(use, tmp_path):
    code, _, err = use(f"method={METHOD}", half="cross")
    assert code == 0, err
    (folder,) = folders(tmp_path / "runs")
    assert len(rows(folder)) == 4
    assert "calibrated_on" not in yaml.safe_load((folder / "config.yaml").read_text())


def test_a_calibrated_method_is_for_its_own_model(run, calibrations):
    code, _, err = run(
        f"method={METHOD}", "--config-dir", str(calibrations / "eq1" / "cross")
    )  # a model of four layers
    assert "6 layers" in one_line(code, err)


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (["method=lazyllm", "method.importance={queries:8,pooling:7}"], "lazyllm+"),
        (["method=lazyllm", "method.importance=eq1"], "lazyllm"),
        (["method=lazyllm", "method.importance={queries:1}"], "lazyllm"),
        (["method=lazyllm+"], "lazyllm+"),
    ],
)
def test_another_importance_than_the_papers_has_another_name(run, tmp_path, words, name):
    code, _, err = run(*words, "method.schedule=[1:0.6]", "data.limit=1")
    assert code == 0, err
    (folder,) = folders(tmp_path / "runs")
    assert folder.parts[-2] == name


@pytest.mark.parametrize(
    ("importance", "says"),
    [
        ("{poolin:7}", "did you mean 'pooling'?"),
        ("{zzz:7}", "queries, pooling, heads, layers, value_norm, first, last"),
        ("{pooling:8}", "odd"),
        ("{queries:0}", "at least 1"),
        ("snapkv", "eq1"),
    ],
)
def test_a_bad_importance_costs_one_line(run, tmp_path, importance, says):
    code, _, err = run("method=lazyllm", "method.schedule=[1:0.6]", f"method.importance={importance}")
    assert says in one_line(code, err)
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["budget=nonsense"], "'nonsense' is no budget"),
        (["budget=speedup <= 2"], "bounds nothing"),
        (["budget=KL <= 1, speedup >= 0.5"], "a speedup is above 1"),
        (["half=third"], "half=third"),
        (["minutes=0"], "minutes=0"),
        (["minutes=nan"], "minutes=nan"),
        (["speedups=[0.5]"], "speedups=[0.5]"),
        (["budget=speedup >= 9"], "speedup 9 is out of reach"),
        (["data.half=first"], "data.half=first"),
        (["data.limit=1", "task=lcc"], "raise data.limit"),
        (["answer_tokens=0"], "answer_tokens=0"),
        (["budget=score loss <= 1%", "confirm=false"], "confirm=false"),
        (["importance=best"], "lazybench: importance=best must be eq1, search or parts"),
        (["records=0"], "records=0"),
        (["importance={poolin:7}"], "did you mean 'pooling'?"),
        (["reference=nonsense"], "reference"),
        (["reference=9:0.5"], "reference"),
        (["reference="], "reference"),
        (["reference=1:1"], "reference"),
        (["task=cod"], "did you mean 'code'?"),
        (["model.limit=4090"], "model.limit=4032"),
    ],
)
def test_bad_words_cost_one_line(calibrate, words, says):
    code, _, err = calibrate(*words)
    line = one_line(code, err)
    assert line.startswith("lazybench: ")
    assert says in line


def test_hashes_that_look_like_numbers_stay_text(tmp_path):
    records = ["1234567890123e45", "0123456789012345", "1e10000000000000"]
    candidate = Candidate(PruningSchedule([(1, 0.5)]), Importance())
    written = tmp_path / "method.yaml"
    folds = [(candidate, [SimpleNamespace(hash=record) for record in records])]
    written.write_text(method_file.text(budgets.Budget("speedup", 2.0), folds, {"layers": 6}, "command"))
    assert OmegaConf.load(written).folds[0].records == sorted(records)
