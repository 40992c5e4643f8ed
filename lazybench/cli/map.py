"""`lazybench map`: generate from one prompt with each method, and show what became of its tokens, page or picture."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from textwrap import shorten

from transformers import PreTrainedModel

from lazybench.analysis.labels import model_title, setting_of, title_of
from lazybench.config import MapConfig
from lazybench.data import DatasetFacts, Record, choose, data_label, load_facts
from lazybench.errors import LazyBenchError, RecordFailure
from lazybench.methods import Method
from lazybench.methods.base import Output, answer
from lazybench.methods.baseline import Baseline
from lazybench.model import environment
from lazybench.model.decoding import check_limit, decoder_for
from lazybench.model.loading import load_model
from lazybench.model.prompts import Prompt, build_all
from lazybench.run.job import method_for
from lazybench.run.sources import Sources
from lazybench.store.writing import check_writable, replace, writing
from lazybench.token_map.page import Reach, page

_NEW_TOKENS = 64
_LONGEST_DRAWN = 400  # tokens of a prompt that can still be read in a picture


def main(jobs: Sequence[MapConfig]) -> Path:
    """Generate with each job's method, in which alone they differ, and write the page or picture; returns its file."""
    config, sources, path = jobs[0], Sources(), Path(jobs[0].output)
    for key in (field.name for field in dataclasses.fields(config) if field.name != "method"):
        if any(getattr(job, key) != getattr(config, key) for job in jobs):
            raise LazyBenchError(f"{key}= has several values: a map shows one prompt, so only methods may differ")
    methods = [method_for(job.method, job.model, sources) for job in jobs]
    for method in methods:
        if method.keep_1 is None:
            raise LazyBenchError(
                f"method {method.name} does not run on LazyLLM's engine, which records where each token is computed: "
                "choose one that does, such as lazyllm, lazyllm+, static_pruning or fastkv"
            )
    if path.is_dir() or (config.text is not None and path.resolve() == Path(config.text).resolve()):
        raise LazyBenchError(f"output={path} is a folder, or the file of text=: give a file of its own")
    check_writable(path.parent)  # generating takes long
    facts, record = _own(config.text) if config.text is not None else _chosen(config, sources)
    if config.new_tokens is not None:
        facts = dataclasses.replace(facts, max_new_tokens=config.new_tokens)
    prompt = build_all(sources.tokenizer(config.model), config.model, {record.dataset: facts}, [record])[record.key]
    drawn = path.suffix in (".png", ".pdf")
    if drawn and prompt.ids.shape[1] > _LONGEST_DRAWN:
        said = f"{prompt.ids.shape[1]:,} tokens do not fit a picture, which shows {_LONGEST_DRAWN}"
        raise LazyBenchError(f"output={path}: {said}: give a file that ends with .html, for a page")
    limited = dataclasses.replace(config.model, limit=prompt.ids.shape[1])
    check_limit(limited, facts.max_new_tokens, sources.skeleton(config.model))
    where = environment.describe(config.model)
    about = {"Model": f"{model_title(config.model.name)} ({where['weights_format']}, {where['dtype']})"}
    chosen = {"Data": data_label(config.data), "Record": f"{record.dataset} {record.id}"}
    about |= chosen if config.text is None else {"Text": record.id}
    print(", ".join(f"{name.lower()} {text}" for name, text in about.items()))
    model = load_model(config.model)
    tokenizer = prompt.builder.tokenizer
    whole = _answer(Baseline("baseline"), prompt, model).tokens
    about["Unmodified"] = shorten(tokenizer.decode(whole, skip_special_tokens=True), 200)
    reaches = [_reach(method, prompt, model) for method in methods]
    if drawn:
        from lazybench.report.figures.token_map import picture  # matplotlib takes long to import

        file = picture(reaches, tokenizer, about, path.suffix)
    else:
        file = page(reaches, tokenizer, about).encode("ascii")
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    replace(path, file)
    print(f"saved in {path}")
    return path


def _own(text: str) -> tuple[DatasetFacts, Record]:
    """How to ask the prompt in the user's file, as it is but for a chat model's wrapper, and its record."""
    try:
        words = Path(text).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise LazyBenchError(f"text={text} cannot be read: {getattr(error, 'strerror', None) or error}") from None
    facts = DatasetFacts("text", "{context}", _NEW_TOKENS, metric="qa_f1", truncate=False)
    return facts, Record(Path(text).name, "text", "", words, (), None, len(words.split()))


def _chosen(config: MapConfig, sources: Sources) -> tuple[DatasetFacts, Record]:
    """The facts of the dataset of the record that `record` names, by its number or its id, and that record."""
    facts = load_facts(config.data.datasets)
    datasets = choose(config.task, config.data, facts).datasets
    records = [record for each in sources.of_each(datasets, config.data, config.model) for record in each]
    wanted = "0" if config.record is None else config.record
    found = {record.id: record for record in reversed(records)} | {str(of): one for of, one in enumerate(records)}
    if wanted not in found:
        raise LazyBenchError(
            f"record={wanted}: task={config.task} has {len(records)} records here: give a number from 0 to "
            f"{len(records) - 1}, or the _id of one"
        )
    return facts[found[wanted].dataset], found[wanted]


def _reach(method: Method, prompt: Prompt, model: PreTrainedModel) -> Reach:
    output, settings = _answer(method, prompt, model), dataclasses.asdict(method)
    title = f"{method.label or title_of(method.name, settings)} {setting_of(method.name, settings)}".strip()
    reach = Reach.of(output.stats, prompt.ids[0].tolist() + output.tokens, title)
    revived = sum(len(of) for stages in reach.revived for of in stages)
    print(f"{title}: {len(output.tokens)} tokens generated, {revived:,} revivals")
    return reach


def _answer(method: Method, prompt: Prompt, model: PreTrainedModel) -> Output:
    try:
        method.prepare(model)
        return answer(method, prompt, dataclasses.replace(decoder_for(model, prompt), tracing=True), seed=0)
    except RecordFailure as failure:
        raise LazyBenchError(f"method {method.name}: {failure}") from None
