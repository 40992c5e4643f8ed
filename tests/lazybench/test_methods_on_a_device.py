"""Every method, its clock, traces, calibration and speed on a device that is not the CPU: the answers are the CPU's."""

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch
from omegaconf import OmegaConf
from support import folders, rows

from lazybench.calibration.search import Candidate, Harm
from lazybench.config import DataConfig, ModelConfig, RunConfig, TimingConfig
from lazybench.data import load_records
from lazybench.data.facts import load_facts
from lazybench.methods import build_method
from lazybench.model.decoding import decoder_for
from lazybench.model.loading import load_model
from lazybench.run.bench import Bench
from lazybench.run.job import Job
from lazybench.run.timing import timed
from lazyllm import Importance, PruningSchedule

FILES = Path(__file__).parents[2] / "conf" / "method"
# What the tiny model's four layers ask for, by method; its file says the rest.
SETTINGS = {path.stem: {} for path in FILES.glob("*.yaml")}
SETTINGS |= {name: {"schedule": "1:0.6,2:0.5"} for name in ("lazyllm", "lazyllm+", "sliminfer_like")}
SETTINGS |= {"random_drop": {"repeats": 2}, "claa": {"layers": 2}}
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
        return Bench(Job(config, FACTS, [DATASET], method, tokenizer, records, met), loaded), records

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
    found, _ = bench(name, device.name, dtype)
    assert found.model.device == torch.device(device.name)
    for record in records:
        row, wanted = found.row(record), expected.row(record)
        assert "error" not in row
        assert row["generation_s"] > row["ttft_s"] > 0
        row, wanted = without_times(row), without_times(wanted)
        if dtype == "bfloat16":  # in which rounding may rank tokens otherwise
            assert row.pop("prompt_computed") == pytest.approx(wanted.pop("prompt_computed"), abs=0.05)
            same = {key for key in row if key.startswith("baseline_") or name == "baseline"}
            row, wanted = ({key: of[key] for key in same | {"new_tokens", "prompt_tokens"}} for of in (row, wanted))
        assert row == wanted


def test_times_begin_on_an_idle_device_after_an_untimed_pass_of_the_same_shape(bench, device, monkeypatch):
    events = []
    found, records = bench("lazyllm", device.name)
    monkeypatch.setattr(torch.pretend, "synchronize", lambda device: events.append(str(device)))
    generate = found.model.generate
    monkeypatch.setattr(
        found.model, "generate", lambda ids, **kw: events.append(kw["max_new_tokens"]) or generate(ids, **kw)
    )
    found.row(records[0])
    # The unmodified model, the engine with nothing pruned and the method, two tokens each, then all of them in full.
    assert events == [device.name, 2] * 3 + [device.name, 8] * 3


@pytest.mark.parametrize("name", ["lazyllm", "lazyllm+", "static_pruning", "fastkv", "claa"])
def test_a_method_waits_no_more_than_it_must(bench, device, name):
    def reads(name):
        found, records = bench(name, device.name)
        prompt = found.job.prompt(records[0])
        decode = decoder_for(found.model, prompt)
        device.reads.clear()
        timed(found.job.method, prompt, decode, 0)
        return device.reads.copy()

    unmodified, pruned = reads("baseline"), reads(name)
    # Two stages in seven steps, where tokens are revived. What has been computed is asked for afterwards.
    asked = 2 * 7 if name in ("lazyllm", "lazyllm+") else 0
    afterwards = sum(count for line, count in pruned.items() if line.startswith("lazyllm/") and "/stats.py" in line)
    more = pruned - unmodified
    assert pruned.total() - afterwards <= unmodified.total() + asked, f"{more.total()} reads more: {more}"


@pytest.mark.parametrize("importance", [Importance(), Importance(queries=4, pooling=3, layers=2, first=2)], ids=str)
def test_harm_is_the_cpus(bench, device, importance):
    def harm(place):
        found, records = bench("baseline", place)
        measured = Harm(lambda record: ((prompt := found.job.prompt(record)), decoder_for(found.model, prompt)), 5)
        return [
            measured.of(Candidate(schedule, importance), record)[0]
            for schedule in (PruningSchedule(), PruningSchedule([(0, 0.7), (2, 0.3)]))
            for record in records
        ]

    assert harm(device.name) == pytest.approx(harm("cpu"), rel=1e-3, abs=1e-5)


@pytest.mark.slow
def test_the_command_line(run, device, tmp_path):
    settings = ("data.limit=1", "data.tokens=512", "model.limit=300", "trace=true")
    found = {}
    for place in ("cpu", device.name):
        output = place.partition(":")[0]
        code, _, err = run(f"model.device={place}", "model.dtype=float32", *settings, output=output)
        assert code == 0, err
        (folder,) = folders(tmp_path / output)
        traces = [json.loads(line) for line in (folder / "traces.jsonl").read_text().splitlines()]
        found[output] = [without_times(row) for row in rows(folder)], [one["computed"] for one in traces]
    assert found["pretend"] == found["cpu"]
    assert "pretend" in (folder / "environment.json").read_text()
