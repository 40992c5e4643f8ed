"""Times: what a trial covers, the order of trials, records that are timed again, and timing runs of several methods."""

import json
from collections import Counter
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace

import peers
import pytest
from support import LAZY, folders, one_line, rows

from lazybench.config import TimingConfig
from lazybench.methods import OnEngine
from lazybench.methods.baseline import Baseline
from lazybench.model.decoding import Question, Stops
from lazybench.run import timing
from lazybench.run.prepare import Job
from lazybench.run.timing import Timing, trial
from lazybench.store.journal import read_rows

QUICK = ("data.limit=3", "timing.warmup=0")


def question(seed=0, tokens=2):
    return Question(peers.prompt_of(peers.random_ids(seed, 9), record_id=str(seed)), Stops(tokens))


@pytest.fixture
def clock(monkeypatch):
    """A clock that stands still but for what is added to its only number (s)."""
    seconds = [0.0]
    monkeypatch.setattr("lazybench.model.decoding.time", SimpleNamespace(perf_counter=lambda: seconds[0]))
    return seconds


def test_what_a_session_takes_is_in_no_time(clock):
    class Slow(Baseline):
        @contextmanager
        def session(self, prompts, decode):
            clock[0] += 1
            yield
            clock[0] += 1

    assert trial(Slow("slow"), peers.build(0), question())["generation_s"] == 0


def test_work_on_the_prompt_is_in_the_time_of_the_first_token(clock):
    class Protecting(OnEngine):
        def protected(self, prompts):
            clock[0] += 1

    assert trial(Protecting("protecting"), peers.build(0), question())["ttft_s"] == 1


def test_a_decode_step_leaves_prefill_out():
    model = peers.build(0)
    several, single = (trial(Baseline("baseline"), model, question(tokens=count)) for count in (5, 1))
    assert several["decode_step_s"] == pytest.approx((several["generation_s"] - several["ttft_s"]) / 4)
    assert (several["new_tokens"], single["new_tokens"], single["decode_step_s"]) == (5, 1, None)
    assert single["ttft_s"] == single["generation_s"] > 0


@pytest.fixture
def drifting(monkeypatch):
    """Make up times: each of these factors slows the unmodified model's last trial of a record; the rest are 1."""

    def call(factors):
        taken, left = [], list(factors)

        def made_up(method, model, question):
            taken.append((method.name, question.prompt.record.id, question.seed))
            is_last = Counter(taken)[taken[-1]] % 2 == 0 and method.name == "baseline"
            factor = left.pop(0) if is_last else 1.0
            seconds = {"ttft_s": factor, "generation_s": 2 * factor, "decode_step_s": 0.5 * factor}
            return seconds | {"new_tokens": 3}

        monkeypatch.setattr(timing, "trial", made_up)
        return taken

    return call


@pytest.mark.parametrize(
    ("factors", "retries", "noisy"),
    [
        ([1.0] * 8, [0] * 8, []),
        ([1.09, 0.92, 1.1, *[1.0] * 5], [0] * 8, []),
        ([1.2, 1.0, 0.8, 1.0, *[1.0] * 6], [1, 1, *[0] * 6], []),
        # Two of eight may be timed again; after that times stay, marked.
        ([1.2, 1.2, 1.2, 1.0, 1.2, *[1.0] * 4, 1.2], [1, 1, *[0] * 6], [0, 2, 7]),
    ],
)
def test_records_whose_times_disagree_are_timed_again_within_limits(drifting, factors, retries, noisy):
    taken, written = drifting(factors), []
    methods = {"one/1": Baseline("one"), "two/2": Baseline("two", repeats=3)}
    questions = [question(seed) for seed in range(8)]
    Timing(peers.build(0), methods, {"device": "here"}, warmup=0).time(questions, {}, written.append)
    assert [row["retries"] for row in written] == retries
    assert [number for number, row in enumerate(written) if row["noisy"]] == noisy
    assert len(taken) == 4 * (8 + sum(retries))
    for number, row in enumerate(written):
        assert row["device"] == "here"
        assert {name: len(own) for name, own in row["trials"].items()} == {"unmodified": 2, "one/1": 1, "two/2": 1}
        own = [name for name, record, _ in taken if record == str(number)]
        assert (own[0], own[-1]) == ("baseline", "baseline")
    assert [seed for name, _, seed in taken if name == "two"][-1] == 7 % 3  # the seeds take turns
    first = [name for name, *_ in taken[1::4]]
    assert {"one", "two"} == {*first}  # the order is shuffled


def test_retries_of_earlier_starts_count(drifting):
    drifting([1.2] * 8)
    written = []
    questions = [question(seed) for seed in range(8)]
    timed = {question.prompt.record.key: {"retries": number % 4 // 3} for number, question in enumerate(questions[:4])}
    Timing(peers.build(0), {}, {}, warmup=0).time(questions, timed, written.append)
    assert [row["_id"] for row in written] == ["4", "5", "6", "7"]
    assert [row["retries"] for row in written] == [1, 0, 0, 0]
    assert all(row["noisy"] for row in written)


def test_answers_come_first_and_times_do_not_answer_again(ran, run, monkeypatch):
    folder = ran(*LAZY, *QUICK, "timing.per_dataset=0")
    before = (folder / "predictions.jsonl").read_bytes()
    assert read_rows(folder, "times.jsonl") == {}
    monkeypatch.setattr("lazybench.run.batches.Batches.answer", lambda *_: pytest.fail("answered again"))
    assert ran(*LAZY, *QUICK, "timing.per_dataset=2") == folder
    assert (folder / "predictions.jsonl").read_bytes() == before
    times = read_rows(folder, "times.jsonl")
    assert len(times) == 2
    assert times.keys() < {(row["dataset"], row["_id"]) for row in rows(folder)}
    for row in times.values():
        assert {name: len(own) for name, own in row["trials"].items()} == {"unmodified": 2, f"lazyllm/{folder.name}": 1}
        assert row["device"] == rows(folder)[0]["device"]
        assert row["threads"] >= 1
    assert "nothing to do" in run(*LAZY, *QUICK, "timing.per_dataset=2")[1]


@pytest.fixture
def interrupted(monkeypatch):
    """Interrupt the n-th trial of a block, as Ctrl-C does."""

    @contextmanager
    def call(number):
        left = [number]

        def counted(*words):
            left[0] -= 1
            if left[0] == 0:
                raise KeyboardInterrupt
            return trial(*words)

        monkeypatch.setattr(timing, "trial", counted)
        with pytest.raises(KeyboardInterrupt):
            yield
        monkeypatch.setattr(timing, "trial", trial)

    return call


def test_a_run_stopped_while_it_times_has_its_answers_and_continues(run, lazybench, tmp_path, interrupted):
    with interrupted(4):  # a record has three trials
        run(*LAZY, *QUICK)
    (folder,) = folders(tmp_path / "runs")
    assert len(rows(folder)) == 3
    assert json.loads((folder / "scores.json").read_text())["datasets"]["2wikimqa"]["records"] == 3
    assert len(read_rows(folder, "times.jsonl")) == 1
    assert "1 of 3 records timed" in lazybench("status", f"runs={tmp_path / 'runs'}")[1]
    assert run(*LAZY, *QUICK)[0] == 0
    assert len((folder / "times.jsonl").read_text().splitlines()) == 3


@pytest.fixture
def timed(lazybench, run, finished, tmp_path):
    """Finish runs of four methods, and time them; returns a function of words for `time`, and the runs' names."""
    for words in (("method=baseline",), ("method=random_drop", "method.repeats=2"), ("method=static_pruning",)):
        assert run(*words, "task=multidoc_qa", "timing.per_dataset=0")[0] == 0
    names = {f"{folder.parent.name}/{folder.name}" for folder in folders(tmp_path / "runs")}

    def call(*words):
        return lazybench("time", f"runs={tmp_path / 'runs'}", "warmup=0", *words)

    return call, names


def test_all_runs_of_a_model_are_timed_side_by_side(timed, tmp_path, monkeypatch, interrupted):
    call, names = timed
    monkeypatch.setattr(timing, "NOISE", float("inf"))  # no record is timed again
    with interrupted(9):
        call("records=4")
    (folder,) = (tmp_path / "runs" / "tiny" / "sample" / "times").glob("*")
    first = (folder / "times.jsonl").read_text()
    assert first.count("\n") == 1
    code, out, err = call("records=4")  # it continues
    assert code == 0, err
    assert (folder / "times.jsonl").read_text().startswith(first)
    assert {*json.loads((folder / "timing.json").read_text())["runs"]} == names
    written = [json.loads(line) for line in (folder / "times.jsonl").read_text().splitlines()]
    assert [row["dataset"] for row in written] == ["hotpotqa", "2wikimqa", "musique", "hotpotqa"]
    subjects = {"unmodified", "nothing_pruned"} | {name for name in names if not name.startswith("baseline/")}
    for row in written:
        assert row["trials"].keys() == subjects
        assert [len(own) for own in row["trials"].values()].count(2) == 1
    for title in ("LazyLLM", "static pruning", "random drop"):
        assert title in out
    monkeypatch.setattr(timing, "trial", lambda *_: pytest.fail("timed again"))
    assert call("records=4")[0] == 0  # nothing is left to do
    monkeypatch.setattr(timing, "trial", trial)
    assert call("records=1")[0] == 0  # another timing run
    assert len([*folder.parent.iterdir()]) == 2


def test_runs_that_cannot_be_timed_are_named(lazybench, run, finished, tmp_path, tiny_model):
    def refused(*words):
        code, _, err = lazybench("time", f"runs={tmp_path / 'runs'}", *words)
        return one_line(code, err)

    assert "records=0 must be at least 1" in refused("records=0")
    weights = tiny_model / "generation_config.json"
    content = weights.read_text()
    weights.write_text(content.replace("{", '{"repetition_penalty": 1.1,', 1))
    try:
        assert f"{finished}: its code, weights, records or dtype have changed since" in refused()
    finally:
        weights.write_text(content)
    (finished / "predictions.jsonl").write_text("")
    assert "no finished run there" in refused()


@pytest.mark.parametrize(("count", "timed"), [(3, [0, 2, 4]), (7, [*range(7)]), (12, [*range(7)]), (1, [0]), (0, [])])
def test_timed_records_are_spread_evenly(count, timed):
    records = [replace(peers.prompt_of(peers.random_ids(0, 1)).record, id=str(number)) for number in range(7)]
    other = replace(records[0], dataset="other")
    config = SimpleNamespace(timing=TimingConfig(per_dataset=count), shard=None)
    job = Job(config, {"one": None, "other": None}, Baseline("baseline"), None, [*records, other], {})
    chosen = [*(records[number] for number in timed), *([other] if count else [])]
    assert job.timed_records == chosen
