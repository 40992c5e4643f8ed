"""`lazybench map`: show which tokens of one prompt each method prunes and revives, as a page or a picture."""

from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from textwrap import shorten

from transformers import PreTrainedModel

from lazybench.analysis.labels import setting_of, title_of
from lazybench.config import MapConfig
from lazybench.data import DatasetConfig, Record, choose, data_label, load_dataset_configs
from lazybench.errors import LazyBenchError, RecordFailure, prefix_errors
from lazybench.methods import Method
from lazybench.methods.base import Output, answer
from lazybench.methods.baseline import Baseline
from lazybench.model import environment
from lazybench.model.decoding import Decoder, question_of
from lazybench.model.loading import load_model
from lazybench.model.prompts import Prompt, build_all
from lazybench.run.prepare import method_for
from lazybench.run.resources import Resources
from lazybench.store import writing
from lazybench.token_map.page import TokenMap, render

_NEW_TOKENS = 64


def main(jobs: Sequence[MapConfig]) -> Path:
    """Generate with the method of each job, and write the page or picture; return its path.

    Raises:
        LazyBenchError: the jobs differ in more than their methods, or a setting, the data or the model cannot work.
    """
    config, resources, path = jobs[0], Resources(), Path(jobs[0].output)
    methods = _check(jobs, resources)
    if config.text is None:
        dataset, record = _choose_record(config, resources)
        source = {"Data": data_label(config.data), "Record": f"{record.dataset} {record.id}"}
    else:
        text, name = Path(config.text).read_text("utf-8"), Path(config.text).name
        # The text is the prompt inside any chat wrapper.
        dataset = DatasetConfig("text", "{context}", _NEW_TOKENS, metric="qa_f1", truncate=False)
        record = Record(name, "text", "", text, (), None, len(text.split()))
        source = {"Text": record.id}
    dataset = replace(dataset, max_new_tokens=config.new_tokens or dataset.max_new_tokens)
    tokenizer = resources.tokenizer(config.model)
    prompt = build_all(tokenizer, config.model, {record.dataset: dataset}, [record])[record.key]
    machine = environment.describe(config.model)
    model_title = title_of(config.model.name, "model")
    details = {"Model": f"{model_title} ({machine['weights_format']}, {machine['dtype']})", **source}
    print(", ".join(f"{name.lower()} {text}" for name, text in details.items()))
    model = load_model(config.model)
    unmodified = _generate(Baseline("baseline"), prompt, model).tokens
    details["Unmodified"] = shorten(tokenizer.decode(unmodified, skip_special_tokens=True), 200)
    maps = [_map_tokens(method, prompt, model) for method in methods]
    if path.suffix in (".png", ".pdf"):
        from lazybench.report.figures.token_map import picture  # matplotlib takes long to import

        content = picture(maps, tokenizer, details, path.suffix)
    else:
        content = render(maps, tokenizer, details)
    with writing.writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    writing.replace(path, content)
    print(f"saved in {path}")
    return path


def _check(jobs: Sequence[MapConfig], resources: Resources) -> list[Method]:
    """Return the methods of the jobs; raise `LazyBenchError` for settings that do not fit together."""
    config = jobs[0]
    for key, value in vars(config).items():
        if key != "method" and any(getattr(job, key) != value for job in jobs):
            raise LazyBenchError(f"{key}= has several values: a map shows one prompt, so only methods may differ")
    methods = [method_for(job.method, job.model, resources) for job in jobs]
    for method in methods:
        if method.nothing_pruned is None:
            raise LazyBenchError(
                f"method {method.name} does not run on LazyLLM's engine, which records where each token is computed: "
                "choose one that does, such as lazyllm, lazyllm+, static_pruning or fastkv"
            )
    if config.text is not None and Path(config.output).resolve() == Path(config.text).resolve():
        raise LazyBenchError(f"output={config.output} is the file of text=: give another")
    return methods


def _choose_record(config: MapConfig, resources: Resources) -> tuple[DatasetConfig, Record]:
    """Return the record whose number or id is `config.record`, and the config of its dataset."""
    configs = load_dataset_configs(config.data.datasets)
    datasets = choose(config.task, config.data, configs).datasets
    by_dataset = resources.records_by_dataset(datasets, config.data, config.model)
    records = [record for dataset in by_dataset.values() for record in dataset]
    name = config.record or "0"
    by_name = {record.id: record for record in reversed(records)}
    by_name |= {str(number): record for number, record in enumerate(records)}
    if name not in by_name:
        raise LazyBenchError(
            f"record={name}: task={config.task} has {len(records)} records here: give a number from 0 to "
            f"{len(records) - 1}, or the _id of one"
        )
    return configs[by_name[name].dataset], by_name[name]


def _map_tokens(method: Method, prompt: Prompt, model: PreTrainedModel) -> TokenMap:
    output = _generate(method, prompt, model)
    title = f"{method.label or title_of(method.name)} {setting_of(method.name, asdict(method))}".strip()
    token_map = TokenMap.from_stats(output.stats, prompt.ids[0].tolist() + output.tokens, title)
    revivals = sum(len(positions) for stages in token_map.revived for positions in stages)
    print(f"{title}: {len(output.tokens)} tokens generated, {revivals:,} revivals")
    return token_map


def _generate(method: Method, prompt: Prompt, model: PreTrainedModel) -> Output:
    with prefix_errors(f"method {method.name}", RecordFailure):
        method.prepare(model)
        (output,) = answer(method, Decoder(model, [question_of(model, prompt)], tracing=True))
        return output
