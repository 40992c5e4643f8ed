"""One record that cannot be run: its row says why, and the run goes on."""

from __future__ import annotations

import json
import shutil
import weakref

import pytest
import torch
from support import LAZY, folders, rows
from transformers.models.llama.modeling_llama import LlamaMLP

from lazybench.model.decoding import GreatestLogits
from lazybench.model.device import ran_out
from lazybench.run import bench
from lazybench.run.runner import load_model

METHODS = {
    "baseline": ("method=baseline",),
    "static_pruning": ("method=static_pruning", "method.layer=1"),
    "lazyllm": LAZY,
    "gemfilter": ("method=gemfilter", "method.layer=1"),
}
CPU = (
    "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to allocate "
    "99 bytes. Error code 12 (Cannot allocate memory)"
)


# A dataset of short answers, whose prompts are the context's bytes and a BOS.
FACTS = "{qa: {prompt: '{context}', max_new_tokens: 5, metric: qa_f1, chat: true}}"
CONTEXTS = ["It was Ada. " * 9 + "x" * number for number in (1, 2, 3)]
SECOND = len(CONTEXTS[1]) + 1  # tokens of the second record's prompt, which tell its passes from the others'


def write(root, *contexts):
    root.mkdir(exist_ok=True)
    with open(root / "qa.jsonl", "w") as file:
        for number, context in enumerate(contexts):
            record = {
                "input": "Who?", "context": context, "answers": ["Ada"], "length": 9, "dataset": "qa",
                "language": "en", "all_classes": None, "_id": f"r{number}",
            }  # fmt: skip
            file.write(json.dumps(record) + "\n")


@pytest.fixture
def run_records(run, tmp_path):
    """Run on three records of different lengths; returns their rows and the run's folder."""
    write(tmp_path / "records", *CONTEXTS)

    def call(*words):
        settings = ("task=qa", "data=longbench", f"data.root={tmp_path / 'records'}", f"+data.datasets={FACTS}")
        code, out, err = run(*settings, "data.limit=null", "timing.warmup=0", *words)
        assert code == 0, err
        (folder,) = folders(tmp_path / "runs")
        return rows(folder), folder, out

    return call


@pytest.fixture
def failing(monkeypatch):
    """Let the last layer that sees the whole prompt fail on the second record.

    Returns:
        a function that sets the fault, and a list that gets whether the failed pass was gone once memory was released.
    """
    forward, release, gone = LlamaMLP.forward, bench.release, []
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
        monkeypatch.setattr(bench, "release", released)

    return set_fault, gone


def raises(kind, *words):
    def fault():
        raise kind(*words)  # a new one each time: an exception that is kept keeps the pass

    return fault


def exhausted():
    torch.empty(1 << 60, dtype=torch.uint8)


@pytest.mark.parametrize(
    "fault",
    [raises(torch.OutOfMemoryError, "CUDA out of memory. Tried to allocate 2 GiB"), exhausted, raises(MemoryError)],
    ids=["device", "host", "python"],
)
def test_out_of_memory_marks_the_row_and_frees_the_pass(run_records, failing, fault):
    set_fault, gone = failing
    set_fault(fault)
    found, folder, out = run_records(*LAZY, "trace=true")
    assert [row.get("error") for row in found] == [None, f"oom: {SECOND} tokens of prompt", None]
    assert found[1]["prompt_tokens"] == SECOND
    assert found[1]["prediction"] is found[1]["score"] is found[1]["ttft_s"] is None
    assert found[2]["score"] is not None
    traces = [json.loads(line) for line in (folder / "traces.jsonl").read_text().splitlines()]
    assert [trace.get("error") for trace in traces] == [row.get("error") for row in found]
    assert gone == [True, True]  # the record's and the trace's
    scores = json.loads((folder / "scores.json").read_text())["datasets"]["qa"]
    assert (scores["records"], scores["failed"]) == (2, 1)
    first, _, last = out.partition("score")
    assert f"failed: qa {found[1]['_id']}: oom: {SECOND} tokens of prompt\n" in first
    assert f"failed: 1 of 3 records: oom: {SECOND} tokens of prompt\n" in last


@pytest.mark.parametrize("method", ["baseline", "static_pruning", "gemfilter", "lazyllm"])
def test_every_method_goes_on_after_running_out_of_memory(run_records, failing, method):
    set_fault, gone = failing
    set_fault(raises(torch.OutOfMemoryError, "CUDA out of memory"))
    found, _, _ = run_records(*METHODS[method], "timing.paired=false")
    assert [bool(row.get("error")) for row in found] == [False, True, False]
    assert gone == [True]


def test_other_errors_are_not_taken_for_memory(run_records, failing):
    set_fault, _ = failing
    set_fault(raises(RuntimeError, "mat1 and mat2 shapes cannot be multiplied"))
    with pytest.raises(RuntimeError, match="mat1 and mat2"):
        run_records(*LAZY)


def test_what_running_out_of_memory_looks_like():
    for error in (
        torch.OutOfMemoryError("CUDA out of memory"),
        MemoryError(),
        RuntimeError(CPU),
        RuntimeError("CUDA error: out of memory"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    ):
        assert ran_out(error)
    for error in (RuntimeError("shapes"), ValueError("out of memory"), KeyboardInterrupt()):
        assert not ran_out(error)


@pytest.fixture
def spoiled(monkeypatch):
    """Let the second record's logits of one step be spoiled."""

    def set_fault(step, value, where):
        state = {"left": -1}

        def spoil(module, args, kwargs, output):
            ids = kwargs["input_ids"]
            if ids.shape[1] > 1:
                state["left"] = step if ids.shape[1] == SECOND else -1
            if state["left"] == 0:
                output.logits[0, -1, where] = value
            state["left"] -= 1

        def load(config):
            model = load_model(config)
            model.register_forward_hook(spoil, with_kwargs=True)
            return model

        monkeypatch.setattr("lazybench.run.runner.load_model", load)

    return set_fault


@pytest.mark.parametrize(("step", "value"), [(0, float("nan")), (3, float("nan")), (1, float("inf"))])
def test_logits_that_are_not_finite_fail_the_record(run_records, spoiled, step, value):
    spoiled(step, value, 200)
    found, folder, _ = run_records(*LAZY, "timing.paired=false", "trace=true")
    assert [bool(row.get("error")) for row in found] == [False, True, False]
    assert f"logits of new token {step + 1} are not finite" in found[1]["error"]
    assert found[1]["score"] is None
    traces = [json.loads(line) for line in (folder / "traces.jsonl").read_text().splitlines()]
    assert traces[1]["error"] == found[1]["error"]
    assert "first_token_kl" not in traces[1]


def test_the_row_says_whose_logits_were_not_finite(run_records, spoiled):
    spoiled(0, float("nan"), slice(None))
    found, _, _ = run_records(*LAZY)
    # Of every other record the method's own pass comes first.
    assert found[1]["error"].startswith("the logits of new token 1")
    found, _, _ = run_records(*LAZY, "retry_failed=true")  # by itself, and so the first
    assert found[-1]["error"].startswith("the unmodified model: the logits of new token 1")


def test_watching_the_logits_waits_for_no_device():
    greatest, scores = GreatestLogits(), torch.empty(1, 99, device="meta")
    assert greatest(torch.empty(1, 4, dtype=torch.long), scores) is scores  # a tensor without data: none was asked for


@pytest.mark.parametrize("method", ["baseline", "lazyllm"])
def test_a_prompt_longer_than_the_model_fails_alone(run_records, tmp_path, method):
    write(tmp_path / "records", "short", "long " * 900, "short")
    wrapper = "model.chat='{prompt}" + "x" * 100 + "'"
    words = (*METHODS[method], "model.limit=4060", wrapper, "timing.paired=false", "trace=true")
    found, folder, _ = run_records(*words)
    assert [row.get("error") for row in found] == [
        None, f"{found[1]['prompt_tokens']} tokens of prompt and 5 new ones are more than the model's 4096", None
    ]  # fmt: skip
    traces = [json.loads(line) for line in (folder / "traces.jsonl").read_text().splitlines()]
    assert traces[1]["error"] == found[1]["error"]


@pytest.fixture
def bare_model(tiny_model, tmp_path):
    """A model whose tokenizer adds nothing: a prompt is its context's bytes."""
    folder = shutil.copytree(tiny_model, tmp_path / "bare")
    plain = json.loads((folder / "tokenizer.json").read_text()) | {"post_processor": None}
    (folder / "tokenizer.json").write_text(json.dumps(plain))
    return folder


@pytest.mark.parametrize("method", ["baseline", "lazyllm"])
def test_a_prompt_without_tokens_fails_and_one_token_is_kept(run_records, bare_model, tmp_path, method):
    write(tmp_path / "records", "", "a", "abcd")
    found, _, _ = run_records(*METHODS[method], f"model.path={bare_model}")
    assert [row["prompt_tokens"] for row in found] == [0, 1, 4]
    assert [row.get("error") for row in found] == ["empty prompt: there is no token in it", None, None]
