"""Runs one method on one model over the records of a task."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from hydra.utils import instantiate
from tqdm import tqdm
from transformers import PreTrainedModel

from lazybench import environment
from lazybench.bench import Bench
from lazybench.config import RunConfig, check_name
from lazybench.console import scores_table
from lazybench.data import data_label, load_records
from lazybench.data.record import Record, fingerprint
from lazybench.errors import LazyBenchError
from lazybench.facts import DatasetFacts, datasets_of, load_facts
from lazybench.language_model import load_model, load_tokenizer, locate
from lazybench.methods.base import Method
from lazybench.results import summarise
from lazybench.store import RunFolder, digest
from lazybench.tracing import trace

# Raised when a change of code changes what runs give: a score, a time, a column. Older runs then run again.
RESULTS_VERSION = 2


def run(config: RunConfig) -> Path:
    """Run what `config` says, or go on where an earlier start of the same run stopped.

    Returns:
        the run's folder.

    Raises:
        LazyBenchError: anything about the settings, the data, the model or the folder that cannot work.
    """
    facts = load_facts(config.data.datasets)
    datasets = datasets_of(config.task, facts)
    method = build_method(config.method)
    tokenizer = load_tokenizer(config.model)
    records = [record for name in datasets for record in load_records(name, config.data, tokenizer)]
    settings = _settings(config, method, records)
    used = {name: asdict(facts[name]) for name in datasets}
    where = environment.describe(config.model)
    folder = RunFolder(
        Path(config.output)
        / config.model.name
        / config.data.name
        / method.name
        / digest(_decisive(settings, where, used))
    )
    _announce(config, method)
    scores = folder.finished({(record.dataset, record.id) for record in records}, config.trace)
    if scores is None:
        model = load_model(config.model)
        _check_context(config, model, [facts[name] for name in datasets])
        method.prepare(model)
        bench = Bench(config, method, model, tokenizer, facts)
        with folder.opened(settings, where):
            scores = _complete(folder, bench, records)
    else:
        print("finished earlier: nothing to do")
    _report(config, scores, folder.path)
    return folder.path


def _complete(folder: RunFolder, bench: Bench, records: list[Record]) -> dict[str, Any]:
    """Run the records that the folder lacks, then sum up all of them."""
    done = folder.predictions.rows
    missing = [record for record in records if (record.dataset, record.id) not in done]
    if done:
        print(f"going on in {folder.path}: {len(records) - len(missing)} of {len(records)} records are done")
    if missing:
        bench.warm_up(missing[0])
    for record in tqdm(missing, unit="record", desc=bench.method.name, disable=not missing):
        folder.predictions.add(bench.row(record))
    if bench.config.trace:
        untraced = [record for record in records if (record.dataset, record.id) not in folder.traces.rows]
        for record in tqdm(untraced, unit="record", desc="tracing", disable=not untraced):
            folder.traces.add(trace(bench, record))
    scores = {"data": data_label(bench.config.data)} | summarise(
        (done[record.dataset, record.id] for record in records), bench.facts
    )
    folder.finish(scores)
    return scores


def build_method(settings: dict[str, Any]) -> Method:
    """The method that a config's `method` describes.

    Raises:
        LazyBenchError: `_target_` does not name a `Method`.
    """
    target = settings.get("_target_")
    if not target:
        raise LazyBenchError("method has no _target_: name a class such as lazybench.methods.lazyllm.LazyLLM")
    method = instantiate(settings, _convert_="all")
    if not isinstance(method, Method):
        raise LazyBenchError(f"method._target_={target} is not a lazybench.methods.Method")
    check_name("method.name", method.name)
    if not isinstance(method.repeats, int) or method.repeats < 1:
        raise LazyBenchError(f"method.repeats={method.repeats} is out of range: at least 1")
    return method


def _settings(config: RunConfig, method: Method, records: list[Record]) -> dict[str, Any]:
    """What `config.yaml` says: everything set, and the hashes of the weights and records it met."""
    settings = asdict(config)
    del settings["output"], settings["trace"]
    settings["method"] = {"_target_": config.method["_target_"], **asdict(method)}
    return {**settings, "weights": locate(config.model).identity(config.model), "records": fingerprint(records)}


def _decisive(settings: dict[str, Any], where: dict[str, Any], facts: dict[str, Any]) -> dict[str, Any]:
    """What decides a run's results, times included; where files lie and who committed what does not."""
    model = {key: value for key, value in settings["model"].items() if key not in ("name", "path", "device")}
    # The records' own hash says which they are, however they were come by.
    rest = {key: value for key, value in settings.items() if key != "data"}
    where = {key: value for key, value in where.items() if key != "commit"}
    return {**rest, "model": model, "where": where, "facts": facts, "results_version": RESULTS_VERSION}


def _check_context(config: RunConfig, model: PreTrainedModel, facts: list[DatasetFacts]) -> None:
    holds = getattr(model.config, "max_position_embeddings", None)
    longest = config.model.limit + max(fact.max_new_tokens for fact in facts)
    if holds is not None and longest > holds:
        raise LazyBenchError(
            f"model.limit={config.model.limit} and {longest - config.model.limit} new tokens are more than the "
            f"{holds} positions of {config.model.name}: set model.limit={holds - longest + config.model.limit} or less"
        )


def _announce(config: RunConfig, method: Method) -> None:
    print(f"model {config.model.name}, data {config.data.name}, method {method.name}, task {config.task}")
    print(f"records: {data_label(config.data)}")


def _report(config: RunConfig, scores: dict[str, Any], folder: Path) -> None:
    print(f"\n{scores_table(scores)}\n\nsaved in {folder}")
    if config.data.source == "sample":
        print("next, on LongBench itself: add data=longbench, and data.root=FOLDER if it is on this machine")
    else:
        print("next, tables and figures of all runs: python -m lazybench report")
