"""Records answered in batches: equal answers, stops, kills, memory, and what jobs share."""

import json
import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace

import peers
import pytest
import torch
from lazybench.model.batch import BatchDecoder, unpruned
from marks import slow_but
from omegaconf import OmegaConf
from support import folders, rows

from lazybench.config import CONF, DataConfig, ModelConfig, TimingConfig
from lazybench.data import load_facts, load_records
from lazybench.errors import LazyBenchError, RecordFailure
from lazybench.methods import OnEngine, Output, build_method
from lazybench.methods.baseline import Baseline
from lazybench.model.decoding import Decoder
from lazybench.model.loading import load_model
from lazybench.model.prompts import PromptBuilder
from lazybench.run.batches import Batches, Question
from lazybench.run.prepare import Job
from lazybench.store.journal import Journal, read_rows
from lazyllm import LazyLLMError

UNTIMED = ("task=fewshot", "data.limit=3", "timing.per_dataset=1", "timing.warmup=0", "timing.keep_1=false")
COMPARED = ("baseline_prediction", "baseline_score", "identical_tokens")
ANSWER = ("prediction", "score", "new_tokens", "prompt_computed", *COMPARED, "repeats")
METHODS = ("static_pruning", "baseline", "random_drop", "prompt_compression", "lazyllm", "gemfilter")
CONFIGS = sorted(path.stem for path in (CONF / "method").glob("*.yaml"))


def answers(folder):
    """Return the answer columns of the untimed records, by key; each record is there once."""
    untimed = [row for row in rows(folder) if row["ttft_s"] is None]
    by_key = {(row["dataset"], row["_id"]): {name: row.get(name) for name in ANSWER} for row in untimed}
    assert len(by_key) == len(untimed)
    return by_key


@pytest.mark.parametrize("method", slow_but(("static_pruning",), METHODS))
def test_answers_and_divergences_are_those_of_one_by_one(run, tmp_path, method, monkeypatch):
    results, divergences = [], []
    for size in (1, 15):
        monkeypatch.setattr("lazybench.run.batches.can_batch", lambda model, size=size: size > 1)
        code, _, err = run(
            f"method={method}", "trace=true", "trace_tokens=8", f"batch={size}", *UNTIMED, output=f"{size}"
        )
        assert code == 0, err
        (folder,) = folders(tmp_path / f"{size}")
        assert json.loads((folder / "environment.json").read_text())["batch"] == size
        results.append(answers(folder))
        traces = read_rows(folder, "traces.jsonl")
        divergences.append([traces[key]["kl"] for key in sorted(traces)])
    assert results[0] == results[1]
    assert len(results[0]) == 6  # two of three records a dataset are not timed
    assert divergences[0] == pytest.approx(divergences[1], abs=1e-4)
    assert len(divergences[0]) == 9
    assert (max(divergences[0]) > 0.01) == (method != "baseline")


@pytest.mark.parametrize("name", slow_but(("lazyllm", "gemfilter"), CONFIGS))
def test_other_tokens_are_forced_without_a_second_prefill(tiny_model, tokenizer, name):
    settings = OmegaConf.to_container(OmegaConf.load(CONF / "method" / f"{name}.yaml"))
    settings |= {"schedule": "1:0.6,2:0.5"} if "schedule" in settings else {}
    settings |= {"protect": "template"} if name == "lazyllm+" else {}
    config = ModelConfig("tiny", str(tiny_model), limit=300, dtype="float32")
    model, method, facts = load_model(config), build_method(settings), load_facts()["2wikimqa"]
    method.prepare(model)
    records = load_records("2wikimqa", DataConfig("sample", "sample", limit=3, tokens=512), tokenizer)
    builders = [PromptBuilder(tokenizer, replace(config, limit=limit), facts) for limit in (300, 291, 282)]
    prompts = [builder.build(record) for builder, record in zip(builders, records, strict=True)]
    prefills = []
    model.get_input_embeddings().register_forward_hook(lambda _, args, output: prefills.append(args[0].numel() > 3))

    def answers(decoders, references=None):
        prefills.clear()
        outputs = {}
        decode = BatchDecoder(decoders, outputs.__setitem__, 6, references)
        method.generate_batch(prompts, decode, [0, 1, 2])
        tokens = [list(outputs[number].tokens) for number in range(3)]
        return tokens, [outputs[number].prompt_computed for number in range(3)], decode.logits, sum(prefills)

    decoders = [Decoder(model, count, tracing=True) for count in (8, 5, 7)]
    own, computed, own_logits, own_prefills = answers(decoders)
    # As the answer is itself, so nothing is forced; otherwise from the first, third and fourth token on.
    for changed in ((), (0, 2, 3)):
        references = [tokens[:5] for tokens in own]
        for reference, index in zip(references, changed, strict=False):
            reference[index] = (reference[index] + 1) % len(tokenizer)
        forced = [replace(decode, forced=reference) for decode, reference in zip(decoders, references, strict=True)]
        expected = answers(forced)[2] if changed else {number: own_logits[number][:5] for number in range(3)}
        tokens, forked_computed, logits, forked_prefills = answers(decoders, references)
        assert (tokens, forked_computed, forked_prefills) == (own, computed, own_prefills)
        for number in range(3):
            assert torch.equal(logits[number], expected[number])


@pytest.mark.parametrize("engine", [True, False], ids=["engine", "padded"])
def test_each_prompt_has_its_own_settings(engine):
    model = peers.build(0)
    model.generation_config.repetition_penalty = 1.3  # it must not meet the padding
    prompts = [peers.random_ids(seed, 5 + 7 * seed) for seed in range(4)]
    likely = Decoder(model, 8)(prompts[1])
    settings = [(3,), (12, [likely[0]], 1), (12, [likely[0]]), (9, [9999])]
    expected = [Decoder(model, *each)(ids) for each, ids in zip(settings, prompts, strict=True)]
    decoders = [Decoder(model, *each) for each in settings]
    results, order = {}, []

    def finish(number, tokens):
        results[number] = list(tokens)
        order.append(number)

    decode = BatchDecoder(decoders, finish)
    with unpruned(model) if engine else torch.no_grad():
        decode(dict(enumerate(prompts)), lambda place, tokens: tokens)
    assert [results[number] for number in range(4)] == expected
    assert order == sorted(order, key=lambda number: len(expected[number]))  # each as soon as it has ended


def test_logits_that_are_not_finite_fail_one_record_alone(monkeypatch):
    model = peers.build(0)
    with torch.no_grad():
        model.get_input_embeddings().weight[7] = torch.nan
    results = {}
    decode = BatchDecoder([Decoder(model, 4), Decoder(model, 4)], results.__setitem__)
    with unpruned(model):
        decode({0: torch.tensor([[5, 7, 6]]), 1: torch.tensor([[5, 6]])}, lambda place, tokens: list(tokens))
    assert isinstance(results[0], RecordFailure)
    assert "new token 1 are not finite" in str(results[0])
    assert len(results[1]) == 4


def test_a_run_that_ends_in_a_batch_is_resumed(run, tmp_path, monkeypatch):
    run(*UNTIMED, output="uninterrupted")
    add, left = Journal.add, [6]

    def interrupted(self, row):
        if self.path.name == "predictions.jsonl":
            left[0] -= 1
            if left[0] == 0:
                raise KeyboardInterrupt
        add(self, row)

    monkeypatch.setattr(Journal, "add", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run(*UNTIMED)
    monkeypatch.setattr(Journal, "add", add)
    (folder,) = folders(tmp_path / "runs")
    assert 0 < len(answers(folder)) < 6
    assert run(*UNTIMED)[0] == 0
    assert answers(folder) == answers(*folders(tmp_path / "uninterrupted"))


@pytest.mark.slow
def test_a_batch_that_fits_no_memory_is_halved(run, tmp_path, monkeypatch):
    run(*UNTIMED, output="enough")
    generate, sizes = BatchDecoder.__call__, []

    def limited(self, prompts, *args, **kwargs):
        sizes.append(len(prompts))
        if len(prompts) > 2:
            raise torch.OutOfMemoryError("CUDA out of memory")
        generate(self, prompts, *args, **kwargs)

    monkeypatch.setattr(BatchDecoder, "__call__", limited)
    assert run(*UNTIMED, "batch=6")[0] == 0
    assert answers(*folders(tmp_path / "runs")) == answers(*folders(tmp_path / "enough"))
    assert sizes[0] == 6
    assert sizes.count(6) == 1  # the size that fits is kept


def test_unmodified_answers_are_generated_once(run, tmp_path, monkeypatch):
    run("method=baseline", *UNTIMED)
    monkeypatch.setattr(Baseline, "generate_batch", lambda *_: pytest.fail("generated again"))
    assert run("method=static_pruning", *UNTIMED)[0] == 0
    baseline, pruned = (answers(folder) for folder in folders(tmp_path / "runs"))
    for key, row in pruned.items():
        assert row["baseline_prediction"] == baseline[key]["prediction"]
        assert row["baseline_score"] == baseline[key]["score"]


def test_a_journal_reads_what_others_have_appended(tmp_path):
    own, other = Journal(tmp_path / "rows.jsonl"), Journal(tmp_path / "rows.jsonl")
    for number in range(3):
        other.add({"dataset": "", "_id": f"{number}"})
        own.load()
        assert [name for _, name in own.rows] == [f"{each}" for each in range(number + 1)]
    with open(own.path, "a") as file:
        file.write('{"dataset": "", "_id"')
    own.load()
    own.add({"dataset": "", "_id": "3"})
    other.load()
    assert other.rows == own.rows


@pytest.mark.slow
def test_jobs_that_start_at_once_share_the_unmodified_answers(tmp_path, tiny_model):
    common = [f"model.path={tiny_model}", "model.name=tiny", "model.chat=null", "model.limit=900", "data.tokens=512"]
    words = [sys.executable, "-m", "lazybench", "run", *common, *UNTIMED, "batch=2", f"output={tmp_path / 'runs'}"]
    words.append("task=multidoc_qa")  # with shorter answers
    jobs = [subprocess.Popen([*words, f"method={name}"]) for name in ("lazyllm", "static_pruning")]
    assert [job.wait(300) for job in jobs] == [0, 0]
    (shared,) = (tmp_path / "runs" / "tiny" / "sample").glob(".unmodified-*.jsonl")
    keys = [json.loads(line)["_id"] for line in shared.read_text().splitlines()]
    assert len(keys) == len(set(keys)) == 6
    first, second = (answers(folder) for folder in folders(tmp_path / "runs"))
    assert {key: row["baseline_prediction"] for key, row in first.items()} == {
        key: row["baseline_prediction"] for key, row in second.items()
    }


def test_what_no_batch_answers_is_answered_alone():
    class Changed(OnEngine):
        def generate(self, prompt, decode, seed):
            return Output(decode(prompt.ids)[:1], 1.0)

    class Refusing(OnEngine):
        def generate_batch(self, prompts, decode, seeds):
            raise LazyLLMError("not in batches")

    model, prompts = peers.build(0), [peers.prompt_of(peers.random_ids(seed, 9)) for seed in range(3)]
    questions = [Question(prompt, Decoder(model, max_new_tokens=3)) for prompt in prompts]
    expected, _ = Batches(model, 1).answer(Baseline("baseline"), questions)
    refused, _ = Batches(model, 2).answer(Refusing("refusing"), questions)
    assert [one.tokens for one in refused] == [one.tokens for one in expected]
    with pytest.raises(LazyBenchError, match="returned other tokens than decode did"):  # so its own `generate` ran
        Batches(model, 2).answer(type("Further", (Changed,), {})("further"), questions)


@pytest.mark.parametrize(("count", "timed"), [(3, [0, 2, 4]), (7, [*range(7)]), (12, [*range(7)]), (1, [0]), (0, [])])
def test_timed_records_are_spread_evenly(count, timed):
    records = [replace(peers.prompt_of(peers.random_ids(0, 1)).record, id=str(number)) for number in range(7)]
    other = replace(records[0], dataset="other")
    config = SimpleNamespace(timing=TimingConfig(per_dataset=count))
    job = Job(config, {}, ["one", "other"], Baseline("baseline"), None, [*records, other], {})
    assert [number for number, record in enumerate(records) if job.is_timed(record)] == timed
    assert job.is_timed(other) == (count > 0)
