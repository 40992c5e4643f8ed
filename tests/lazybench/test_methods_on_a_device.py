"""Every method on a device that is not the CPU: its answers are the CPU's, its clock starts on an idle device."""

from dataclasses import replace

import pytest
import torch
from marks import slow, slow_but
from support import METHOD_NAMES, method_settings, rows
from transformers import LlamaForCausalLM

from lazybench.config import DataConfig, ModelConfig
from lazybench.data import load_dataset_configs, load_records
from lazybench.methods import build_method
from lazybench.model.decoding import question_of
from lazybench.model.loading import load_model
from lazybench.model.prompts import PromptBuilder
from lazybench.run.timing import trial
from lazybench.store.journal import TIMES, read_rows

SCHEDULE = "1:0.6,2:0.5"  # for the tiny model's four layers
QUICK = [("lazyllm", "float32")]
CASES = [(name, dtype) for name in METHOD_NAMES for dtype in ("float32", "bfloat16")]


@pytest.fixture
def answered(ran):
    """Run a method on two records in a batch, one of which is timed; returns their rows, but for their source."""

    def call(name, device, dtype="float32"):
        words = [f"method={name}", f"model.device={device}", f"model.dtype={dtype}", "model.limit=300"]
        if name in ("lazyllm", "lazyllm+"):
            words.append(f"method.schedule=[{SCHEDULE}]")
        elif name == "random_drop":
            words.append("method.repeats=2")
        folder = ran(*words, "timing.warmup=0", "timing.per_dataset=1", output=device)
        written, (timed,) = rows(folder), read_rows(folder, TIMES).values()
        assert len(written) == 2
        assert len(timed["trials"]) == (1 if name == "baseline" else 2)
        trials = [trial for each in timed["trials"].values() for trial in each]
        assert all(trial["generation_s"] > trial["ttft_s"] > 0 for trial in trials)
        return [{key: row[key] for key in row.keys() - {"device", "commit", "date"}} for row in written]

    return call


@pytest.mark.parametrize(("name", "dtype"), [case if case in QUICK else slow(*case) for case in CASES])
def test_answers_are_the_cpus(answered, device, name, dtype):
    for row, expected in zip(answered(name, device.name, dtype), answered(name, "cpu", dtype), strict=True):
        assert "error" not in row
        if dtype == "bfloat16":  # in which rounding may rank tokens otherwise
            assert row.pop("prompt_computed") == pytest.approx(expected.pop("prompt_computed"), abs=0.05)
            same = {key for key in row if key.startswith("unmodified_") or name == "baseline"}
            same |= {"new_tokens", "prompt_tokens"}
            row, expected = ({key: each[key] for key in same} for each in (row, expected))
        assert row == expected


def test_times_begin_on_an_idle_device_after_an_untimed_pass_of_the_same_shape(ran, device, monkeypatch):
    events, generate = [], LlamaForCausalLM.generate
    monkeypatch.setattr(torch.pretend, "synchronize", lambda device: events.append(str(device)))

    def noted(self, ids, **settings):
        events.append(settings["max_new_tokens"])
        return generate(self, ids, **settings)

    monkeypatch.setattr(LlamaForCausalLM, "generate", noted)
    ran(f"model.device={device.name}", "timing.warmup=0", "data.limit=1")
    # Both answers. Then the unmodified model and the method, two tokens each, and their trials, the former's twice.
    assert events == [device.name, 6] * 2 + [device.name, 2] * 2 + [device.name, 6] * 3


@pytest.mark.parametrize("name", slow_but(("lazyllm", "fastkv"), ("lazyllm", "lazyllm+", "static_pruning", "fastkv")))
def test_a_method_waits_no_more_than_it_must(tiny_model, tokenizer, device, name):
    config = ModelConfig("tiny", str(tiny_model), limit=300, device=device.name, dtype="float32")
    (record,) = load_records("2wikimqa", DataConfig("sample", "sample", limit=1, tokens=512), tokenizer)
    prompt = PromptBuilder(tokenizer, config, load_dataset_configs()["2wikimqa"]).build(record)
    model = load_model(config)

    def reads(name):
        schedule = {"schedule": SCHEDULE} if name.startswith("lazyllm") else {}
        method, question = build_method(method_settings(name, **schedule)), question_of(model, prompt)
        question = question._replace(stops=replace(question.stops, max_new_tokens=8))
        method.prepare(model)
        device.reads.clear()
        trial(method, model, question)
        return device.reads.copy()

    unmodified, pruned = reads("baseline"), reads(name)
    # The mask in eight passes, and two stages in seven steps. The counts of computed tokens are read afterwards.
    allowed = 8 + (2 * 7 if name.startswith("lazyllm") else 0)
    afterwards = sum(count for line, count in pruned.items() if line.startswith("lazyllm/core/sequence.py"))
    more = pruned - unmodified
    assert pruned.total() - afterwards <= unmodified.total() + allowed, f"{more.total()} reads more: {more}"
