"""One record that cannot be run: its row says why, and the run goes on."""

import json
import shutil
import weakref

import pytest
import torch
from marks import slow
from support import LAZY, folders, rows
from transformers.models.llama.modeling_llama import LlamaMLP

from lazybench.model.device import ran_out
from lazybench.model.loading import load_model
from lazybench.run import batches
from lazybench.store.journal import read_rows

# A dataset of short answers, whose prompts are the context's bytes and a BOS.
DATASETS = "{qa: {prompt: '{context}', max_new_tokens: 5, metric: qa_f1, truncate: false}}"
CONTEXTS = ["It was Ada. " * 9 + "x" * number for number in (1, 2, 3)]
SECOND = len(CONTEXTS[1]) + 1  # tokens of the second record's prompt, which tell its passes from the others'


def exhausted():
    torch.empty(1 << 60, dtype=torch.uint8)


def out_of_memory():
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")  # a new one: it keeps the pass


@pytest.fixture
def run_records(ran, tmp_path):
    """Run on records of some contexts; returns their rows, their traces and the run's folder."""

    def call(*words, contexts=CONTEXTS, second=None):
        fields = {"input": "Who?", "answers": ["Ada"], "length": 9, "dataset": "qa", "language": "en"}
        records = [
            fields | {"all_classes": None, "_id": f"r{number}", "context": context}
            for number, context in enumerate(contexts)
        ]
        records[1] |= second or {}
        (tmp_path / "qa.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
        settings = ("task=qa", "data=longbench", f"data.root={tmp_path}", f"+data.datasets={DATASETS}", "trace=true")
        folder = ran(*settings, "data.limit=null", "timing.per_dataset=0", "batch=1", *words)
        answered, traces = rows(folder), read_rows(folder, "traces.jsonl")
        assert len(traces) == len(answered)
        return answered, [traces[row["dataset"], row["_id"]] for row in answered], folder

    return call


@pytest.fixture
def failing(monkeypatch):
    """Let an MLP fail on the second record; gives a list: whether the failed pass was freed at each `release()`."""
    forward, release, gone = LlamaMLP.forward, batches.release, []
    held: list[weakref.ref] = []

    def set_fault(fault):
        def fail(module, hidden):
            if hidden.shape[1] == SECOND:
                held.append(weakref.ref(hidden))
                fault()
            return forward(module, hidden)

        def released():
            release()
            gone.append(all(tensor() is None for tensor in held))

        monkeypatch.setattr(LlamaMLP, "forward", fail)
        monkeypatch.setattr(batches, "release", released)
        return gone

    return set_fault


@pytest.mark.parametrize("fault", [exhausted, slow(out_of_memory)])
def test_out_of_memory_marks_the_row_and_frees_the_pass(run_records, failing, fault):
    gone = failing(fault)
    found, traces, folder = run_records(*LAZY)
    assert [row.get("error") for row in found] == [None, f"oom: {SECOND} tokens of prompt", None]
    assert found[1]["prompt_tokens"] == SECOND
    assert found[1]["prediction"] is found[1]["score"] is None
    assert found[2]["score"] is not None
    assert [trace.get("error") for trace in traces] == [row.get("error") for row in found]
    assert gone == [True]  # of the unmodified model's pass: the method is not asked
    scores = json.loads((folder / "scores.json").read_text())["datasets"]["qa"]
    assert (scores["records"], scores["failed"]) == (2, 1)


def test_what_running_out_of_memory_looks_like():
    messages = [
        "DefaultCPUAllocator: can't allocate memory: you tried to allocate 99 bytes",
        "CUDA error: out of memory",
        "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
    ]
    assert all(map(ran_out, [torch.OutOfMemoryError("CUDA"), MemoryError(), *map(RuntimeError, messages)]))
    assert not any(map(ran_out, [RuntimeError("shapes"), ValueError("out of memory"), KeyboardInterrupt()]))


@pytest.mark.parametrize(("step", "value"), [(3, float("nan")), slow(1, float("inf"))])
def test_logits_that_are_not_finite_fail_the_record(run_records, monkeypatch, step, value):
    left = -1

    def spoil(module, args, kwargs, output):
        nonlocal left
        tokens = kwargs["input_ids"].shape[1]
        if tokens > 1:
            left = step if tokens == SECOND else -1
        if left == 0:
            output.logits[0, -1, 200] = value
        left -= 1

    def load(config):
        model = load_model(config)
        model.register_forward_hook(spoil, with_kwargs=True)
        return model

    monkeypatch.setattr("lazybench.model.loading.load_model", load)
    found, traces, _ = run_records(*LAZY)
    assert [bool(row.get("error")) for row in found] == [False, True, False]
    assert f"logits of new token {step + 1} are not finite" in found[1]["error"]
    assert found[1]["score"] is None
    assert traces[1]["error"] == found[1]["error"]


@pytest.mark.parametrize("words", [LAZY, slow(("method=baseline",))])
def test_prompts_of_no_token_one_token_and_too_many(run_records, tiny_model, tmp_path, words):
    bare = shutil.copytree(tiny_model, tmp_path / "bare")  # its tokenizer adds nothing: a prompt is its context's bytes
    plain = json.loads((bare / "tokenizer.json").read_text()) | {"post_processor": None}
    (bare / "tokenizer.json").write_text(json.dumps(plain))
    found, traces, _ = run_records(*words, f"model.path={bare}", contexts=["", "a", "long " * 900])
    assert [row["prompt_tokens"] for row in found] == [0, 1, 4500]
    assert [row.get("error") for row in found] == [
        "empty prompt: there is no token in it",
        None,
        "4500 tokens of prompt and 5 new ones are more than the model's 4096",
    ]
    assert traces[2]["error"] == found[2]["error"]


@pytest.mark.parametrize("words", [LAZY, slow(("method=prompt_compression",))])
def test_half_of_a_surrogate_pair_fails_its_record(run_records, lazybench, undrawn, tmp_path, words):
    contexts, words = ["a \ud83d b", *CONTEXTS], (*words, "timing.warmup=1", "timing.per_dataset=null")
    found, traces, _ = run_records(*words, contexts=contexts, second={"answers": ["Ada \ud83d"]})
    assert [bool(row.get("error")) for row in found] == [True, False, False, False]
    assert "prompt cannot be built: 'utf-8' codec can't encode character '\\ud83d' in position 2" in found[0]["error"]
    assert found[0]["prompt_tokens"] is found[0]["score"] is None
    assert traces[0]["error"] == found[0]["error"]
    code, _, err = lazybench("report", f"runs={tmp_path / 'runs'}", f"output={tmp_path / 'report'}")
    assert code == 0, err
    records = tmp_path / "report" / "records.csv"
    assert "surrogates not allowed" in records.read_text("utf-8")


@pytest.mark.slow
@pytest.mark.parametrize("parts", [slow(["null"]), ["1/2", "2/2"]])
def test_a_run_without_an_answer_is_failed_and_runs_again(run, lazybench, tmp_path, monkeypatch, parts):
    def status():
        return lazybench("status", f"runs={tmp_path / 'runs'}")[1].splitlines()[-1]

    words = ("method=baseline", "data.limit=4", "timing.warmup=0")
    with monkeypatch.context() as patch:
        patch.setattr(LlamaMLP, "forward", lambda *_: out_of_memory())
        for part in parts:
            code, _, err = run(*words, f"shard={part}")
            assert f"all {4 // len(parts)} records failed: oom:" in err
            assert code == 2
    assert status() == "1 failed"
    for part in parts:
        assert run(*words, f"shard={part}")[0] == 0
    assert status() == "1 done"
    (folder,) = folders(tmp_path / "runs")
    assert [row.get("error") for row in read_rows(folder, "predictions.jsonl").values()] == [None] * 4
