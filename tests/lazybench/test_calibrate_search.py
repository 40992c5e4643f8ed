"""The search of `lazybench calibrate`, and the harm that it measures."""

import math
import re
from statistics import fmean
from types import SimpleNamespace

import pytest
import torch
from transformers import AutoModelForCausalLM

import lazyllm
from lazybench.calibration.search import Candidate, Harm, Search, Space
from lazybench.calibration.times import Times
from lazybench.errors import LazyBenchError
from lazybench.model.decoding import Decoder
from lazyllm import Importance, LazyLLMError, PruningSchedule

TIMES = Times(fixed=0.01, linear=1e-4, quadratic=1e-8, layers=16, step={1: 0.001, 11: 0.002}, unmodified_step=0.001)
LENGTHS = (900, 2000, 3500)
EQ1 = Importance()


def _made_up_harm(candidate, record):
    """Grows the earlier the first stage is, and with the record; nothing is revived."""
    return record * 2.0 ** -candidate.schedule.stages[0].layer, torch.ones(3, 16, dtype=torch.int64)


def _search(path, records=range(1, 21), answer_tokens=1):
    return Search(path, "2", Space(TIMES, LENGTHS, answer_tokens, 2.0, EQ1, {}), records)


class Enough(Exception):
    """Ends a search."""


def _run(search, kl, trials):
    """Search until so many more trials have ended; returns these."""

    def tick(trial):
        if trial is not None:
            ended.append(trial)
            if len(ended) == trials:
                raise Enough

    ended = []
    with pytest.raises(Enough):
        search.run(math.inf, kl, tick)
    return ended


@pytest.mark.slow
def test_a_search_betters_what_it_starts_from(tmp_path):
    start = Candidate(PruningSchedule([(0, 0.5)]), EQ1)
    search = _search(tmp_path / "log")
    search.start_from([start])
    ended = _run(search, _made_up_harm, 15)
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


def test_a_search_counts_what_is_revived(tmp_path):
    def reviving(candidate, record):
        # Three rows behind the first stage, five where it keeps least.
        rows = torch.ones(7, 16, dtype=torch.int64)
        rows[:, candidate.schedule.stages[0].layer + 1 :] = 3 if candidate.schedule.stages[0].keep > 0.2 else 5
        return _made_up_harm(candidate, record)[0], rows

    search = _search(tmp_path / "log", answer_tokens=40)
    search.start_from([Candidate(PruningSchedule([(2, 0.5)]), EQ1)])
    ended = _run(search, reviving, 6)
    slow, again = ended[:2]
    # As fast as asked only without what it revives; then tried again, stronger.
    assert [trial.candidate.schedule.stages[0].layer for trial in (slow, again)] == [2, 2]
    assert again.candidate.schedule.stages[0].keep < slow.candidate.schedule.stages[0].keep
    assert slow.speedup_with_revivals < 1.99 <= again.speedup_with_revivals
    assert TIMES.speedup(slow.candidate.schedule, LENGTHS, 40) == pytest.approx(2, rel=1e-3)
    step = TIMES.step_of(reviving(slow.candidate, 1)[1])
    assert step == pytest.approx((3 * 0.001 + 13 * 0.0012) / 16)
    assert slow.speedup_with_revivals == pytest.approx(TIMES.speedup(slow.candidate.schedule, LENGTHS, 40, step))
    fast = [trial for trial in ended if trial.complete and trial.speedup_with_revivals >= 1.99]
    assert search.best == min(fast, key=lambda trial: trial.kl)
    assert _search(tmp_path / "log", answer_tokens=40).trials == ended


def test_a_search_says_why_it_found_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr("lazybench.calibration.search._MOST_MISSES", 5)

    def flooded(candidate, record):
        return 0.1, torch.full((7, 16), 10_000)

    def never(candidate, record):
        raise LazyLLMError("a window")

    said = _search(tmp_path / "log", answer_tokens=40).run(0.01, flooded, lambda _: None)
    assert re.match(r"none of \d+ candidates gains 2 with what it revives", said)
    assert _search(tmp_path / "other").run(math.inf, never, lambda _: None).endswith("none works: a window")


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
    _run(reopened, noted, 4)
    assert again[0] == seen[-1] != kept[0].candidate
    assert reopened.trials[: len(kept)] == kept
    assert [stage.layer for trial in reopened.trials[:2] for stage in trial.candidate.schedule.stages] == [2, 1]


def test_a_search_passes_over_candidates_that_do_not_work_and_measures_none_twice(tmp_path):
    def sometimes(candidate, record):
        if candidate.schedule.stages[0].layer < 3:
            raise LazyBenchError("no good")
        return _made_up_harm(candidate, record)

    search = _search(tmp_path / "log")
    search.start_from([Candidate(PruningSchedule([of]), EQ1) for of in ((1, 0.5), (3, 0.5), (3, 0.3))])
    _run(search, sometimes, 3)
    candidates = [trial.candidate for trial in search.trials]
    assert all(candidate.schedule.stages[0].layer >= 3 for candidate in candidates)
    assert all(candidate not in candidates[:place] for place, candidate in enumerate(candidates))


@pytest.fixture(scope="module")
def model(tiny_model):
    return AutoModelForCausalLM.from_pretrained(tiny_model)


@pytest.fixture(scope="module")
def asked(model):
    """A record, and the harm on it."""
    ids = torch.randint(5, 200, (1, 60), generator=torch.Generator().manual_seed(1))
    record = SimpleNamespace(key=("made-up", "1"))
    harm = Harm(lambda _: (SimpleNamespace(ids=ids), Decoder(model, 32)), tokens=6)
    return SimpleNamespace(ids=ids, record=record, harm=harm)


def test_no_pruning_does_no_harm(asked):
    assert asked.harm.of(Candidate(PruningSchedule([(0, 1)]), EQ1), asked.record)[0] == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize("importance", [EQ1, Importance(queries=8, pooling=7)])
def test_harm_is_the_divergence_along_the_unmodified_answer(model, asked, importance):
    schedule = PruningSchedule([(0, 0.3), (2, 0.2)])
    found, rows = asked.harm.of(Candidate(schedule, importance), asked.record)
    with torch.no_grad():
        answer = model.generate(asked.ids, max_new_tokens=6, do_sample=False)[0, 60:]
        whole = model(torch.cat([asked.ids, answer[None]], dim=1)).logits[0, 59:-1].double().log_softmax(-1)
        expected = []
        with lazyllm.enable(model, schedule, selection=importance):
            step = model(asked.ids, use_cache=True, logits_to_keep=1)
            for place, token in enumerate(answer):
                pruned = step.logits[0, -1].double().log_softmax(-1)
                expected.append(float((whole[place].exp() * (whole[place] - pruned)).sum()))
                step = model(token.view(1, 1), past_key_values=step.past_key_values, use_cache=True)
    assert found > 0.001
    assert found == pytest.approx(sum(expected) / len(expected), rel=1e-3)
    assert rows.shape == (len(answer) - 1, model.config.num_hidden_layers)
    assert rows.max() > 1


def test_logits_that_are_not_finite_are_no_harm_of_zero(tiny_model):
    model = AutoModelForCausalLM.from_pretrained(tiny_model)
    record = SimpleNamespace(key=("made-up", "1"), dataset="made-up", id="1")
    harm = Harm(lambda _: (SimpleNamespace(ids=torch.full((1, 40), 7)), Decoder(model, 32)), tokens=2)
    candidate = Candidate(PruningSchedule([(1, 0.5)]), EQ1)
    assert harm.of(candidate, record)[0] >= 0
    with torch.no_grad():
        model.model.norm.weight.fill_(float("nan"))
    with pytest.raises(LazyBenchError, match="on made-up 1: the logits of new token 1 are not finite"):
        harm.of(candidate, record)
