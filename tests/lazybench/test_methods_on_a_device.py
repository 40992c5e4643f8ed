"""Every method on a device that is not the CPU: its answers are the CPU's, its clock starts on an idle device."""

from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch
from omegaconf import OmegaConf

from lazybench.config import DataConfig, ModelConfig, RunConfig, TimingConfig
from lazybench.data import load_records
from lazybench.data.facts import load_facts
from lazybench.methods import build_method
from lazybench.model.decoding import decoder_for
from lazybench.model.loading import load_model
from lazybench.run.prepare import Job
from lazybench.run.record_runner import RecordRunner
from lazybench.run.timing import timed

FILES = Path(__file__).parents[2] / "conf" / "method"
# Settings for the tiny model's four layers, by method; its file has the rest.
SETTINGS = {path.stem: {} for path in FILES.glob("*.yaml")}
SETTINGS |= {name: {"schedule": "1:0.6,2:0.5"} for name in ("lazyllm", "lazyllm+")}
SETTINGS |= {"random_drop": {"repeats": 2}}
DATASET = "2wikimqa"
DATA = DataConfig(name="sample", source="sample", limit=2, tokens=512)
FACTS = {DATASET: replace(load_facts({})[DATASET], max_new_tokens=8)}
DTYPES = ["float32", pytest.param("bfloat16", marks=pytest.mark.slow)]


@pytest.fixture
def bench(tiny_model, tokenizer):
    """Makes the bench of a method on a device, and gives two records with it."""

    def make(name, device="cpu", dtype="float32"):
        model = ModelConfig(name="tiny", path=str(tiny_model), limit=300, device=device, dtype=dtype)
        settings = {**OmegaConf.to_container(OmegaConf.load(FILES / f"{name}.yaml")), **SETTINGS[name]}
        config = RunConfig(model=model, method=settings, data=DATA, task=DATASET, timing=TimingConfig(cpu_share=0))
        method, loaded = build_method(settings), load_model(model)
        method.prepare(loaded)
        records = load_records(DATASET, DATA, tokenizer)
        met = {"model": asdict(model), "weights": "tiny"}
        return RecordRunner(Job(config, FACTS, [DATASET], method, tokenizer, records, met), loaded), records

    return make


def without_times(row):
    if isinstance(row, list):
        return [without_times(part) for part in row]
    if isinstance(row, dict):
        return {key: without_times(value) for key, value in row.items() if not key.endswith("_s")}
    return row


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", SETTINGS)
def test_answers_are_the_cpus(bench, device, name, dtype):
    expected, records = bench(name, dtype=dtype)
    on_device, _ = bench(name, device.name, dtype)
    assert on_device.model.device == torch.device(device.name)
    for record in records:
        row, expected_row = on_device.row(record), expected.row(record)
        assert "error" not in row
        assert row["generation_s"] > row["ttft_s"] > 0
        row, expected_row = without_times(row), without_times(expected_row)
        if dtype == "bfloat16":  # in which rounding may rank tokens otherwise
            assert row.pop("prompt_computed") == pytest.approx(expected_row.pop("prompt_computed"), abs=0.05)
            same = {key for key in row if key.startswith("baseline_") or name == "baseline"}
            same |= {"new_tokens", "prompt_tokens"}
            row, expected_row = ({key: each[key] for key in same} for each in (row, expected_row))
        assert row == expected_row


def test_times_begin_on_an_idle_device_after_an_untimed_pass_of_the_same_shape(bench, device, monkeypatch):
    events = []
    subject, records = bench("lazyllm", device.name)
    monkeypatch.setattr(torch.pretend, "synchronize", lambda device: events.append(str(device)))
    generate = subject.model.generate
    monkeypatch.setattr(
        subject.model, "generate", lambda ids, **kw: events.append(kw["max_new_tokens"]) or generate(ids, **kw)
    )
    subject.row(records[0])
    # The unmodified model, the engine with nothing pruned and the method, two tokens each, then all of them in full.
    assert events == [device.name, 2] * 3 + [device.name, 8] * 3


@pytest.mark.parametrize("name", ["lazyllm", "lazyllm+", "static_pruning", "fastkv"])
def test_a_method_waits_no_more_than_it_must(bench, device, name):
    def reads(name):
        subject, records = bench(name, device.name)
        prompt = subject.job.prompt(records[0])
        decode = decoder_for(subject.model, prompt)
        device.reads.clear()
        timed(subject.job.method, prompt, decode, 0)
        return device.reads.copy()

    unmodified, pruned = reads("baseline"), reads(name)
    # Two stages in seven steps. The counts of computed tokens are read afterwards.
    revivals = 2 * 7 if name in ("lazyllm", "lazyllm+") else 0
    afterwards = sum(count for line, count in pruned.items() if line.startswith("lazyllm/") and "/stats.py" in line)
    more = pruned - unmodified
    assert pruned.total() - afterwards <= unmodified.total() + revivals, f"{more.total()} reads more: {more}"
