"""Writes run folders as `lazybench run` does, from made-up numbers."""

import json
from collections import Counter
from itertools import product

import numpy as np
import yaml

from lazybench.data.facts import datasets_of, load_facts

SETTINGS = {
    "baseline": {},
    "random_drop": {"keep": 0.5, "repeats": 5},
    "static_pruning": {"layer": 4, "keep": 0.5},
    "prompt_compression": {"unit": "sentence", "ratio": 0.5, "scorer": None, "windows": "sentence"},
    "lazyllm": {"schedule": "10:0.7,20:0.5"},
}
SETTINGS["prompt_compression"] |= {"window_tokens": None, "faithful_whitespace": False}


def row(dataset, number, **values):
    """One line of predictions: 100 prompt tokens, 4 new ones, TTFT twice as fast as the baseline's.

    Decode steps follow from the other times, unless they are given.
    """
    numbers = {
        "_id": f"{dataset}-{number}",
        "dataset": dataset,
        "prediction": f"answer {number}",
        "answers": ["answer"],
        "all_classes": None,
        "length": 80,
        "score": 0.5,
        "prompt_tokens": 100,
        "new_tokens": 4,
        "ttft_s": 1.0,
        "generation_s": 2.0,
        "baseline_ttft_s": 2.0,
        "baseline_generation_s": 3.0,
        "keep_1_ttft_s": 1.5,
        "keep_1_generation_s": 2.5,
        "prompt_computed": 0.75,
        "baseline_prediction": f"answer {number}",
        "baseline_score": 0.75,
        "baseline_new_tokens": 4,
        "identical_tokens": 1.0,
        "retaken": 0,
        "disturbed": False,
    }
    numbers |= values
    for engine, tokens in (("", "new_tokens"), ("baseline_", "baseline_new_tokens"), ("keep_1_", "new_tokens")):
        ttft, generation, count = (numbers[key] for key in (f"{engine}ttft_s", f"{engine}generation_s", tokens))
        step = None if None in (ttft, generation, count) or count < 2 else (generation - ttft) / (count - 1)
        numbers.setdefault(f"{engine}decode_step_s", step)
    return numbers


def failed(dataset, number, error="oom"):
    """One line of a record that the method could not run."""
    given = row(dataset, number)
    kept = ("_id", "dataset", "answers", "all_classes", "length", "prompt_tokens")
    return dict.fromkeys(given) | {key: given[key] for key in kept} | {"error": error}


def rows_of(datasets, records=4, speedup=1.0, score=0.5, seed=0):
    """Lines for some datasets, with scores and times that differ between records."""
    generator = np.random.default_rng(seed)
    rows = []
    for dataset, number in product(datasets, range(records)):
        slow = float(generator.uniform(1, 3))
        tokens = int(generator.integers(2, 30))
        values = {
            "score": float(np.clip(generator.normal(score, 0.2), 0, 1)),
            "new_tokens": tokens,
            "ttft_s": slow / speedup,
            "generation_s": slow / speedup + 0.05 * tokens,
            "baseline_ttft_s": slow,
            "baseline_generation_s": slow + 0.05 * tokens,
            "baseline_new_tokens": tokens,
            "prompt_computed": float(generator.uniform(0.5, 1)),
            "identical_tokens": float(generator.uniform(0.5, 1)),
        }
        rows.append(row(dataset, number, **values))
    return rows


def write_run(root, name, rows, *, task="multidoc_qa", digest="000000000001", finished=True, traces=(), **changes):
    """Write one run folder of the method `name` in `root`, from lines of predictions and traces.

    `changes` are settings (`model`, `data`, `method`: dicts, `records`) and `environment` that are not the usual ones.
    """
    model = {"name": "llama2_7b", "path": "meta-llama/Llama-2-7b-chat-hf", "dtype": "bfloat16", "limit": 3500}
    model |= {"chat": "[INST]{prompt}[/INST]"} | changes.get("model", {})
    data = {"name": "longbench", "source": "longbench", "root": "/data/somewhere/LB", "limit": None, "seed": 0}
    data |= {"tokens": 2048, "datasets": {}} | changes.get("data", {})
    method = {"_target_": f"lazybench.methods.{name}.Method", "name": name, "repeats": 1} | SETTINGS.get(name, {})
    counts = Counter(dataset for dataset, _ in {(line["dataset"], line["_id"]) for line in rows})
    settings = {
        "model": model,
        "method": method | changes.get("method", {}),
        "data": data,
        "task": task,
        "timing": {"warmup": 5, "paired": True},
        "weights": "llama:1",
        "records": changes.get("records", "f" * 64),
        "records_of": changes.get("records_of", dict(counts)),
    }
    environment = {"versions": {"torch": "2.13.0"}, "commit": "abc", "device": "NVIDIA A100", "dtype": "bfloat16"}
    environment |= {"threads": 1} | changes.get("environment", {})
    folder = root / model["name"] / data["name"] / name / digest
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(yaml.safe_dump(settings, sort_keys=False), "utf-8")
    (folder / "environment.json").write_text(json.dumps(environment), "utf-8")
    for file, lines in {"predictions": rows, "traces": traces}.items():
        (folder / f"{file}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), "utf-8")
    if finished:
        (folder / "scores.json").write_text("{}", "utf-8")
    return folder


def stage_traces(rows, layers=(10, 20), floors=(0.7, 0.35)):
    """Traces of a method with stages: the tokens used grow with each step of a generation."""
    generator = np.random.default_rng(1)
    traces = []
    for line in rows:
        growth = np.cumsum(generator.uniform(0, 0.01, line["new_tokens"]))
        computed = [[min(1.0, floor + grown) for floor in floors] for grown in growth]
        trace = {"first_token_kl": float(generator.exponential(0.1)), "stages": list(layers), "computed": computed}
        traces.append({"_id": line["_id"], "dataset": line["dataset"]} | trace)
    return traces


def attention_traces(rows, layers=32, bins=200):
    """Traces of the baseline: attention on the ends of the prompt, and on few tokens."""
    generator = np.random.default_rng(2)
    traces = []
    for line in rows:
        weights = generator.exponential(1, (layers, bins)) ** 3
        weights[:, 0] += 40
        weights[:, -5:] += 20
        weights /= weights.sum(axis=1, keepdims=True)
        mass = np.linspace(0, 1, 101) ** generator.uniform(0.1, 0.25)
        attention = {"map": weights.tolist(), "sorted_mass": mass.tolist()}
        traces.append({"_id": line["_id"], "dataset": line["dataset"], "first_token_kl": 0.0, "attention": attention})
    return traces


def write_everything(root, records=4):
    """Write all that the tables and figures of one model show: every method, two sweeps, and traces."""
    names = datasets_of("all", load_facts())
    rows = rows_of(names, records)
    write_run(root, "baseline", rows, task="all", traces=attention_traces(rows[::8]))
    speedups = {"10:0.8,20:0.7": 1.4, "10:0.7,20:0.5": 2.0, "5:0.5,10:0.3": 3.0}
    for number, (schedule, speedup) in enumerate(speedups.items()):
        rows = rows_of(names, records, speedup, 0.5 - 0.04 * number, seed=number + 1)
        traces = stage_traces(rows, [10, 20] if number < 2 else [5, 10]) if number else ()
        settings = {"schedule": schedule}
        write_run(root, "lazyllm", rows, task="all", digest=f"a{number}", method=settings, traces=traces)
    for layer in (5, 15):
        for keep in (0.7, 0.3):
            rows = rows_of(names, records, 1.5, 0.5 - (1 - keep) / layer, seed=layer)
            schedule = f"{layer}:{keep}"
            write_run(root, "lazyllm", rows, task="all", digest=schedule, method={"schedule": schedule})
    for method, key in (("random_drop", "keep"), ("static_pruning", "keep"), ("prompt_compression", "ratio")):
        for number, value in enumerate((0.8, 0.5)):
            rows = rows_of(names, records, 1 + 0.4 * number, 0.4 - 0.1 * number, seed=40 + number)
            write_run(root, method, rows, task="all", digest=f"c{number}", method={key: value})
