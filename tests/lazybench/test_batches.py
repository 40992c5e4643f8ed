"""Answers in batches: those of batches of one and of `generate`; stops, kills, memory, and what jobs share."""

import json
import subprocess
import sys
from dataclasses import replace

import peers
import pytest
import torch
from marks import slow_but
from support import METHOD_NAMES, folders, method_settings, rows

import lazyllm
from lazybench.config import DataConfig, ModelConfig
from lazybench.data import load_dataset_configs, load_records
from lazybench.errors import RecordFailure
from lazybench.methods import build_method
from lazybench.methods.base import answer
from lazybench.methods.baseline import Baseline
from lazybench.model.decoding import Decoder, Question, Stops
from lazybench.model.loading import load_model
from lazybench.model.prompts import PromptBuilder
from lazybench.run.batches import Batches
from lazybench.store.journal import Journal, read_rows
from lazyllm import LazyLLMError

UNTIMED = ("task=fewshot", "data.limit=2", "timing.per_dataset=0")
NOTED = ("device", "commit", "date")
PAPERS = ("static_pruning", "baseline", "random_drop", "prompt_compression", "lazyllm")


def answers(folder):
    """Return the rows of a run without where and when they were made, by key; each record is there once."""
    written = rows(folder)
    by_key = {(row["dataset"], row["_id"]): {key: row[key] for key in row if key not in NOTED} for row in written}
    assert len(by_key) == len(written)
    return by_key


@pytest.mark.parametrize("method", slow_but(("static_pruning",), (*PAPERS, "gemfilter")))
def test_answers_and_divergences_are_those_of_batches_of_one(ran, method):
    results, divergences = [], []
    for size in (1, 15):
        words = (f"method={method}", "trace=true", "trace_tokens=8", f"batch={size}", *UNTIMED)
        results.append(answers(folder := ran(*words, output=f"{size}")))
        traces = read_rows(folder, "traces.jsonl")
        divergences.append([traces[key]["kl"] for key in sorted(traces)])
    assert results[0] == results[1]
    assert len(results[0]) == len(divergences[0]) == 6
    assert divergences[0] == pytest.approx(divergences[1], abs=1e-4)
    assert (max(divergences[0]) > 0.01) == (method != "baseline")


@pytest.mark.parametrize("penalty", [None, 1.3])
def test_a_batch_of_one_is_what_generate_gives(penalty):
    model = peers.build(0)
    model.generation_config.repetition_penalty = penalty
    for seed in range(4):
        ids = peers.random_ids(seed, 5 + 7 * seed)
        free = model.generate(ids, max_new_tokens=12, do_sample=False, pad_token_id=0)[0, ids.shape[1] :].tolist()
        stop, eos = free[5], {"eos_token_id": free[5], "pad_token_id": 0}
        for least in (0, 8):
            more = {"max_new_tokens": 12, "min_new_tokens": least or None, "do_sample": False}
            expected = model.generate(ids, attention_mask=torch.ones_like(ids), **eos, **more)[0, ids.shape[1] :]
            assert peers.generate(model, ids, 12, [stop], least) == expected.tolist()


@pytest.mark.parametrize("name", slow_but(("lazyllm", "gemfilter"), METHOD_NAMES))
def test_other_tokens_are_forced_without_a_second_prefill(tiny_model, tokenizer, name):
    settings = method_settings(name)
    settings |= {"schedule": "1:0.6,2:0.5"} if "schedule" in settings else {}
    settings |= {"protect": "template"} if name == "lazyllm+" else {}
    config = ModelConfig("tiny", str(tiny_model), limit=300, dtype="float32")
    model, method, dataset_config = load_model(config), build_method(settings), load_dataset_configs()["2wikimqa"]
    method.prepare(model)
    records = load_records("2wikimqa", DataConfig("sample", "sample", limit=3, tokens=512), tokenizer)
    builders = [PromptBuilder(tokenizer, replace(config, limit=limit), dataset_config) for limit in (300, 291, 282)]
    prompts = [builder.build(record) for builder, record in zip(builders, records, strict=True)]
    questions = [
        Question(prompt, Stops(count), seed)
        for seed, (prompt, count) in enumerate(zip(prompts, (8, 5, 7), strict=True))
    ]
    prefills = []
    model.get_input_embeddings().register_forward_hook(lambda _, args, output: prefills.append(args[0].numel() > 3))

    def answered(references=(None,) * 3, is_forced=False):
        prefills.clear()
        asked = [
            question._replace(reference=reference, is_forced=is_forced)
            for question, reference in zip(questions, references, strict=True)
        ]
        outputs = answer(method, decode := Decoder(model, asked, num_logits=6))
        return [(output.tokens, output.prompt_computed) for output in outputs], decode.logits, sum(prefills)

    own, own_logits, own_prefills = answered()
    # As the answer is itself, so nothing is forced; otherwise from the first, third and fourth token on.
    for changed in ((), (0, 2, 3)):
        references = [tokens[:5] for tokens, _ in own]
        for reference, index in zip(references, changed, strict=False):
            reference[index] = (reference[index] + 1) % len(tokenizer)
        expected = answered(references, is_forced=True)[1] if changed else [logits[:5] for logits in own_logits]
        tokens, logits, forked_prefills = answered(references)
        assert (tokens, forked_prefills) == (own, own_prefills)
        for one, other in zip(logits, expected, strict=True):
            assert torch.equal(one, other)


@pytest.mark.parametrize("engine", [True, False], ids=["engine", "padded"])
def test_each_prompt_has_its_own_settings(engine):
    model = peers.build(0)
    model.generation_config.repetition_penalty = 1.3  # it must not meet the padding
    prompts = [peers.random_ids(seed, 5 + 7 * seed) for seed in range(4)]
    likely = peers.generate(model, prompts[1], 8)
    settings = [(3,), (12, [likely[0]], 1), (12, [likely[0]]), (9, [9999])]
    expected = [peers.generate(model, ids, *each) for each, ids in zip(settings, prompts, strict=True)]
    questions = [Question(peers.prompt_of(ids), Stops(*each)) for each, ids in zip(settings, prompts, strict=True)]
    with lazyllm.enable(model, ()) if engine else torch.no_grad():
        assert Decoder(model, questions)(prompts) == expected


def questions_of(*prompts):
    return [Question(peers.prompt_of(torch.tensor([ids])), Stops(4)) for ids in prompts]


def test_logits_that_are_not_finite_fail_only_their_record():
    model = peers.build(0)
    with torch.no_grad():
        model.get_input_embeddings().weight[7] = torch.nan
    broken, good = Batches(model, 2).answer(Baseline("baseline"), questions_of([5, 7, 6], [5, 6]))
    assert isinstance(broken, RecordFailure)
    assert "new token 1 are not finite" in str(broken)
    assert len(good.tokens) == 4


def test_prompts_that_fail_in_a_batch_are_answered_one_by_one():
    class Refusing(Baseline):
        def shorten(self, prompt, decode, seed):
            if prompt.ids[0, 0] == 9 or len(decode.questions) > 2:
                raise LazyLLMError("not this one")
            return prompt.ids, 1.0

    model, questions = peers.build(0), questions_of([5, 6], [9, 5], [5], [6, 7])
    expected = Batches(model, 1).answer(Baseline("baseline"), questions)
    for size in (2, 4):
        found = Batches(model, size).answer(Refusing("refusing"), questions)
        assert str(found[1]) == "not this one"
        assert [found[index] for index in (0, 2, 3)] == [expected[index] for index in (0, 2, 3)]


def test_a_batch_that_fits_no_memory_is_halved(monkeypatch):
    model, questions = peers.build(0), questions_of([5, 6], [9, 5, 4], [5], [6, 7], [8])
    expected = Batches(model, 1).answer(Baseline("baseline"), questions)
    generate, sizes = Decoder.__call__, []

    def limited(self, prompts, **settings):
        sizes.append(len(prompts))
        if len(prompts) > 1 and max(ids.shape[1] for ids in prompts) * len(prompts) > 4:
            raise torch.OutOfMemoryError("CUDA out of memory")
        if prompts[0][0, 0] == 8:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return generate(self, prompts, **settings)

    monkeypatch.setattr(Decoder, "__call__", limited)
    batches = Batches(model, 4)
    found = batches.answer(Baseline("baseline"), questions)
    assert found[:4] == expected[:4]
    assert str(found[4]) == "oom: 1 tokens of prompt"
    assert (sizes.count(4), batches.size) == (1, 1)  # the size that fits is kept


def test_unmodified_answers_are_generated_once(ran, monkeypatch):
    baseline = answers(ran("method=baseline", *UNTIMED))
    monkeypatch.setattr(Baseline, "shorten", lambda *_: pytest.fail("generated again"))
    pruned = answers(ran("method=static_pruning", *UNTIMED))
    for key, row in pruned.items():
        assert row["unmodified_prediction"] == baseline[key]["unmodified_prediction"] == baseline[key]["prediction"]
        assert row["unmodified_score"] == baseline[key]["score"]


def test_a_journal_reads_rows_that_others_appended(tmp_path):
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
    assert {key: row["unmodified_prediction"] for key, row in first.items()} == {
        key: row["unmodified_prediction"] for key, row in second.items()
    }
