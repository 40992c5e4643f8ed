"""Writes run folders and timing runs as `lazybench run` and `time` do, from made-up numbers."""

import json
from collections import Counter
from itertools import product

import numpy as np
import yaml

from lazybench.data.dataset_configs import datasets_of, load_dataset_configs

SETTINGS = {
    "baseline": {},
    "random_drop": {"keep": 0.5, "repeats": 5},
    "static_pruning": {"layer": 4, "keep": 0.5},
    "prompt_compression": {"unit": "sentence", "ratio": 0.5, "scorer": None, "windows": "sentence"},
    "lazyllm": {"schedule": "10:0.7,20:0.5"},
}
SETTINGS["prompt_compression"] |= {"window_tokens": None, "faithful_whitespace": False}
WHERE = {"device": "NVIDIA A100", "commit": "abc", "date": "2026-11-29"}


def row(dataset, number, **values):
    """One line of predictions: 100 prompt tokens, 4 new ones."""
    numbers = {"_id": f"{dataset}-{number}", "dataset": dataset, "data": "LongBench"}
    numbers |= {"answers": ["answer"], "all_classes": None, "length": 80, "groups": "", "prompt_tokens": 100}
    numbers |= {"prediction": f"answer {number}", "score": 0.5, "new_tokens": 4, "prompt_computed": 0.75}
    numbers |= {"reached_limit": 0.0, "identical_tokens": 1.0, "unmodified_prediction": f"answer {number}"}
    return numbers | {"unmodified_score": 0.75, "unmodified_new_tokens": 4} | WHERE | values


def failed(dataset, number, error="oom"):
    """One line of a record that the method could not run."""
    kept = ("_id", "dataset", "data", "answers", "all_classes", "length", "groups", "prompt_tokens", *WHERE)
    given = row(dataset, number)
    return dict.fromkeys(given) | {key: given[key] for key in kept} | {"error": error}


def trial(ttft=1.0, generation=2.0, new_tokens=4):
    step = (generation - ttft) / (new_tokens - 1) if new_tokens > 1 else None
    return {"ttft_s": ttft, "generation_s": generation, "decode_step_s": step, "new_tokens": new_tokens}


def timed(dataset, number, subjects, unmodified=None, **values):
    """One line of times: of the unmodified model twice, and of `subjects`, each with its trial."""
    trials = {"unmodified": [unmodified or trial(2.0, 3.0)] * 2} | {name: [one] for name, one in subjects.items()}
    line = {"dataset": dataset, "_id": f"{dataset}-{number}", "prompt_tokens": 100, "seed": 0, "trials": trials}
    return line | {"retries": 0, "noisy": False, "threads": 1} | WHERE | values


def rows_of(datasets, records=4, score=0.5, seed=0):
    """Lines for some datasets, with scores that differ between records."""
    generator = np.random.default_rng(seed)
    rows = []
    for dataset, number in product(datasets, range(records)):
        own, unmodified = np.clip(generator.normal([score, 0.5], 0.2), 0, 1).tolist()
        values = {"score": own, "unmodified_score": unmodified, "new_tokens": 20, "prediction": f"{seed} {number}"}
        shares = {"prompt_computed": generator.uniform(0.5, 1), "identical_tokens": generator.uniform(0.5, 1)}
        rows.append(row(dataset, number, prompt_tokens=500 + 97 * number, **values, **shares))
    return rows


def times_of(rows, speedups, seed=0, **values):
    """Lines of times of the records of `rows`: by subject its speedup, with noise."""
    generator = np.random.default_rng(seed)
    lines = []
    for line in rows:
        tokens, slow, number = line["prompt_tokens"], generator.normal(1, 0.03), line["_id"].rpartition("-")[2]
        ttft = slow * (tokens / 1000 + (tokens / 2000) ** 2)
        subjects = {}
        for name, speedup in speedups.items():
            own = ttft / speedup * generator.normal(1, 0.05)
            subjects[name] = trial(own, own + 0.05 * 19, 20)
        unmodified = trial(ttft, ttft + 0.05 * 24, 25)
        lines.append(timed(line["dataset"], number, subjects, unmodified, prompt_tokens=tokens, **values))
    return lines


def write_run(root, name, rows, *, task="multidoc_qa", digest="000000000001", times=(), traces=(), **changes):
    """Write one run folder of the method `name` in `root`, from lines of predictions, times and traces.

    `changes` are settings (`model`, `data`, `method`: dicts, `records_of`, `records`) and `environment` that are not
    the usual ones.
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
        "weights": "llama:1",
        "records": changes.get("records", "f" * 64),
        "records_of": changes.get("records_of", dict(counts)),
    }
    environment = {"results_version": 7, "versions": {"torch": "2.13.0"}, "dtype": "bfloat16", "attention": "sdpa"}
    folder = root / model["name"] / data["name"] / name / digest
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(yaml.safe_dump(settings, sort_keys=False), "utf-8")
    (folder / "environment.json").write_text(json.dumps(environment | changes.get("environment", {})), "utf-8")
    for file, lines in {"predictions": rows, "traces": traces, "times": times}.items():
        if lines or file == "predictions":
            (folder / f"{file}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), "utf-8")
    return folder


def write_times(root, lines, *, model="llama2_7b", data="longbench", digest="00000000000t"):
    """Write one timing run in `root`, from lines of times."""
    folder = root / model / data / "times" / digest
    folder.mkdir(parents=True)
    (folder / "times.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), "utf-8")
    (folder / "timing.json").write_text("{}", "utf-8")


def kl_traces(rows, mean=0.02, seed=0):
    """Traces with a KL a record."""
    kls = np.random.default_rng(seed).lognormal(np.log(mean), 1, len(rows)).round(6)
    return [
        {key: one[key] for key in ("_id", "dataset")} | {"kl": kl} for one, kl in zip(rows, kls.tolist(), strict=True)
    ]


def stage_traces(rows, layers=(10, 20), floors=(0.7, 0.35)):
    """Traces of a method with stages: the tokens used grow with each step of a generation."""
    generator = np.random.default_rng(1)
    traces = []
    for line in rows:
        growth = np.cumsum(generator.uniform(0, 0.01, line["new_tokens"]))
        computed = [[min(1.0, floor + grown) for floor in floors] for grown in growth]
        kls = {"kl": float(generator.exponential(0.1)), "first_token_kl": float(generator.exponential(0.1))}
        trace = kls | {"stages": list(layers), "computed": computed}
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


def write_everything(root, records=4, model="llama2_7b"):
    """Write all that the tables and figures of one model show: every method, two sweeps, traces, and a timing run."""
    names, speedups = datasets_of("all", load_dataset_configs()), {}

    def add(method, digest, settings, speedup, score, seed, traces):
        rows = rows_of(names, records, score, seed)
        made = traces(rows)
        write_run(root, method, rows, task="all", digest=digest, method=settings, traces=made, model={"name": model})
        speedups[f"{method}/{digest}"] = speedup

    add("baseline", "b", {}, 1.0, 0.5, 0, lambda rows: attention_traces(rows[::8]))
    schedules = {"10:0.8,20:0.7": 1.4, "10:0.7,20:0.5": 2.0, "5:0.5,10:0.3": 3.0}
    for number, (schedule, speedup) in enumerate(schedules.items()):
        layers = [10, 20] if number < 2 else [5, 10]
        traces = lambda rows, layers=layers: stage_traces(rows, layers)  # noqa: E731
        add("lazyllm", f"a{number}", {"schedule": schedule}, speedup, 0.5 - 0.04 * number, number + 1, traces)
    for layer, keep in product((5, 15), (0.7, 0.3)):
        traces = lambda rows, mean=(1 - keep) / layer: kl_traces(rows, mean)  # noqa: E731
        score = 0.5 - (1 - keep) / layer
        add("lazyllm", f"{layer}-{keep}", {"schedule": f"{layer}:{keep}"}, 1.5, score, 10 + layer, traces)
    for method, key in (("random_drop", "keep"), ("static_pruning", "keep"), ("prompt_compression", "ratio")):
        for number, value in enumerate((0.8, 0.5)):
            traces = lambda rows, mean=0.1 * (number + 1): kl_traces(rows, mean)  # noqa: E731
            add(method, f"c{number}", {key: value}, 1 + 0.4 * number, 0.4 - 0.1 * number, 40 + number, traces)
    add("lazyllm+", "p", {"schedule": "8:0.4"}, 2.2, 0.49, 60, lambda rows: kl_traces(rows, 0.01))
    add("gemfilter", "g", {"layer": 5}, 2.1, 0.48, 61, lambda rows: kl_traces(rows, 0.02))
    every = {name: speedup for name, speedup in speedups.items() if not name.startswith("baseline")}
    rows = rows_of(names, records)[:: max(1, records // 2)]
    write_times(root, times_of(rows, every | {"nothing_pruned": 0.95}), model=model)
