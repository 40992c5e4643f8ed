"""`lazybench map`: generate from one prompt with each method, and write one page of what became of its tokens."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from transformers import PreTrainedModel

from lazybench.analysis.labels import METHOD_DEFAULTS, model_title, setting_of, title_of
from lazybench.config import MapConfig
from lazybench.data import DatasetFacts, Record, choose, data_label, load_facts
from lazybench.errors import LazyBenchError, RecordFailure
from lazybench.methods import Method, build_method
from lazybench.methods.base import answer
from lazybench.model import environment
from lazybench.model.decoding import check_limit, decoder_for
from lazybench.model.device import ran_out
from lazybench.model.loading import load_model
from lazybench.model.prompts import Prompt, PromptBuilder
from lazybench.run.sources import Sources
from lazybench.store.writing import check_writable, replace, writing
from lazybench.token_map.page import page
from lazybench.token_map.reach import Reach

_TEXT = "text"
_NEW_TOKENS = 64


def main(jobs: Sequence[MapConfig]) -> Path:
    """Generate with each job's method, and write the page.

    Args:
        jobs: what differs among them is the method alone.

    Returns:
        the page's file.

    Raises:
        LazyBenchError: anything about the settings, the data, the model or the file that cannot work.
    """
    config, sources = _common(jobs), Sources()
    methods = [_method(job) for job in jobs]
    path = _writable(config)
    prompt = _prompt(config, sources)
    skeleton = sources.skeleton(config.model)
    check_limit(config.model, prompt.builder.facts.max_new_tokens, skeleton)
    for method in methods:
        method.check(skeleton)
    where = environment.describe(config.model)
    about = {"Model": f"{model_title(config.model.name)} ({where['weights_format']}, {where['dtype']})"}
    about |= _about(config, prompt)
    print(", ".join(f"{name.lower()} {text}" for name, text in about.items()))
    model = load_model(config.model)
    reaches = [_reach(method, prompt, model) for method in methods]
    text = page(reaches, prompt.builder.tokenizer, about)
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    replace(path, text)
    print(f"saved in {path}")
    return path


def _common(jobs: Sequence[MapConfig]) -> MapConfig:
    """The settings that all jobs have but for the method.

    Raises:
        LazyBenchError: others differ.
    """
    first, *others = (dataclasses.asdict(job) | {"method": None} for job in jobs)
    for other in others:
        for key, value in first.items():
            if other[key] != value:
                raise LazyBenchError(f"{key}= has several values: a map shows one prompt, so only methods may differ")
    return jobs[0]


def _method(job: MapConfig) -> Method:
    method = build_method(job.method)
    if method.keep_1 is None:
        raise LazyBenchError(
            f"method {method.name} does not run on LazyLLM's engine, which records where each token is computed: "
            "choose one that does, such as lazyllm, lazyllm+, static_pruning or fastkv"
        )
    return method


def _writable(config: MapConfig) -> Path:
    """The file to write, once it is sure that it can be written: generating takes long."""
    path = Path(config.output)
    if config.text is not None and path.resolve() == Path(config.text).resolve():
        raise LazyBenchError(f"output={path} is the file of text=, too: give each its own")
    if path.is_dir():
        raise LazyBenchError(f"output={path} is a folder: give a file, such as output={path / 'map.html'}")
    check_writable(path.parent)
    return path


def _prompt(config: MapConfig, sources: Sources) -> Prompt:
    tokenizer, limit = sources.tokenizer(config.model), config.model.limit
    facts, record = _own(config) if config.text is not None else _chosen(config, sources)
    if config.new_tokens is not None:
        facts = dataclasses.replace(facts, max_new_tokens=config.new_tokens)
    prompt = PromptBuilder(tokenizer, config.model, facts).build(record)
    if config.text is not None and (tokens := len(tokenizer(prompt.text, verbose=False).input_ids)) > limit:
        raise LazyBenchError(f"text={config.text} has {tokens} tokens: set model.limit, now {limit}, or shorten it")
    return prompt


def _own(config: MapConfig) -> tuple[DatasetFacts, Record]:
    """The prompt in the user's file as a record, and how to ask it: as it is, but for a chat model's wrapper."""
    try:
        text = Path(config.text).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise LazyBenchError(f"text={config.text} cannot be read: {error}") from None
    if not text.strip():
        raise LazyBenchError(f"text={config.text} is empty: write the prompt into it")
    facts = DatasetFacts(_TEXT, "{context}", _NEW_TOKENS, metric="qa_f1", truncate=False)
    return facts, Record(Path(config.text).name, _TEXT, "", text, (), None, len(text.split()))


def _chosen(config: MapConfig, sources: Sources) -> tuple[DatasetFacts, Record]:
    """The record that `record` names, by its number or its id, and its dataset's facts."""
    facts = load_facts(config.data.datasets)
    choice = choose(config.task, config.data, facts)
    records = [record for name in choice.datasets for record in sources.records(name, config.data, config.model)]
    wanted = "0" if config.record is None else config.record
    if wanted.isdecimal() and int(wanted) < len(records):
        record = records[int(wanted)]
        return facts[record.dataset], record
    named = [record for record in records if record.id == wanted]
    if len(named) == 1:
        return facts[named[0].dataset], named[0]
    if named:
        of = ", ".join(record.dataset for record in named)
        raise LazyBenchError(f"record={wanted} is in several datasets: choose one of them, task={of}")
    raise LazyBenchError(
        f"record={wanted}: task={config.task} has {len(records)} records here: give a number from 0 to "
        f"{len(records) - 1}, or the _id of one"
    )


def _about(config: MapConfig, prompt: Prompt) -> dict[str, str]:
    record = prompt.record
    if config.text is not None:
        return {"Text": record.id}
    return {"Data": data_label(config.data), "Record": f"{record.dataset} {record.id}"}


def _reach(method: Method, prompt: Prompt, model: PreTrainedModel) -> Reach:
    """What became of the prompt's tokens under a method.

    Raises:
        LazyBenchError: it cannot run on this prompt, or did not say what became of them.
    """
    tokens = prompt.ids.shape[1]
    try:
        method.prepare(model)
        output = answer(method, prompt, dataclasses.replace(decoder_for(model, prompt), tracing=True), seed=0)
    except RecordFailure as failure:
        raise LazyBenchError(f"method {method.name}: {failure}") from None
    except Exception as error:
        if not ran_out(error):
            raise
        raise LazyBenchError(f"out of memory at {tokens} tokens: choose a shorter prompt") from None
    if output.stats is None or not output.stats.positions:
        raise LazyBenchError(f"method {method.name} did not record where each token is computed")
    # All that decide how it prunes, as in reports.
    settings = METHOD_DEFAULTS | dataclasses.asdict(method)
    title = f"{method.label or title_of(method.name)} {setting_of(method.name, settings)}".strip()
    reach = Reach.of(output.stats, prompt.ids[0].tolist() + output.tokens, title)
    revived = sum(len(found) for step in reach.revived for found in step)
    print(f"{title}: {len(output.tokens)} tokens generated, {revived:,} revivals")
    return reach
