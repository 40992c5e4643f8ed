"""Runs one method on one model over the records of a task."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from hydra.utils import instantiate
from tqdm import tqdm
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from lazybench import environment, scoring
from lazybench.config import RunConfig
from lazybench.console import scores_table
from lazybench.data import load_records, sample
from lazybench.data.record import Record, fingerprint
from lazybench.decoding import Decoder, decoder_for, read
from lazybench.errors import LazyBenchError
from lazybench.facts import DatasetFacts, datasets_of, load_facts
from lazybench.language_model import load_model, load_tokenizer, locate
from lazybench.methods.base import Method, Output
from lazybench.methods.baseline import Baseline
from lazybench.prompts import Prompt, PromptBuilder
from lazybench.results import summarise
from lazybench.store import RunFolder, digest

_UNMODIFIED = Baseline("baseline")


@dataclass(frozen=True)
class Pass:
    """One timed answer: the method's output, and seconds to its first and to its last token."""

    output: Output
    ttft_s: float
    generation_s: float


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
    where = environment.describe(config.model)
    folder = RunFolder(
        Path(config.output) / config.model.name / config.data.name / method.name / digest(_decisive(settings, where))
    )
    _announce(config, method)
    scores = folder.finished()
    if scores is None:
        model = load_model(config.model)
        _check_context(config, model, [facts[name] for name in datasets])
        method.prepare(model)
        bench = _Bench(config, method, model, tokenizer, facts)
        with folder.opened(settings, where):
            scores = _complete(folder, bench, records)
    else:
        print("finished earlier: nothing to do")
    _report(config, scores, folder.path)
    return folder.path


def _complete(folder: RunFolder, bench: _Bench, records: list[Record]) -> dict[str, Any]:
    """Run the records that the folder lacks, then sum up all of them."""
    missing = [record for record in records if (record.dataset, record.id) not in folder.rows]
    if folder.rows:
        print(f"going on in {folder.path}: {len(records) - len(missing)} of {len(records)} records are done")
    for row in bench.rows(missing):
        folder.add(row)
    scores = summarise((folder.rows[record.dataset, record.id] for record in records), bench.facts)
    folder.finish(scores)
    return scores


@dataclass(frozen=True)
class _Bench:
    """The model on the bench: times the method and the unmodified model on the same records."""

    config: RunConfig
    method: Method
    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    facts: dict[str, DatasetFacts]

    def rows(self, records: list[Record]) -> Iterator[dict[str, Any]]:
        """One finished row a record, in order."""
        for _ in range(self.config.timing.warmup if records else 0):
            self._both(self._prompt(records[0]), new_tokens=2)
        for record in tqdm(records, unit="record", desc=self.method.name):
            yield self._row(record)

    @property
    def _paired(self) -> bool:
        return self.config.timing.paired and not isinstance(self.method, Baseline)

    def _row(self, record: Record) -> dict[str, Any]:
        facts, prompt = self.facts[record.dataset], self._prompt(record)
        if self.model.device.type == "cuda":
            # Kernels are chosen and memory is laid out per shape: one untimed pass of this very shape.
            self._both(prompt, new_tokens=2)
        unmodified, passes = self._both(prompt)
        predictions = [read(done.output.tokens, prompt, self.config.model) for done in passes]
        scores = [scoring.score(facts, text, record.answers, record.all_classes) for text in predictions]
        row = {
            "_id": record.id,
            "dataset": record.dataset,
            "prediction": predictions[0],
            "answers": list(record.answers),
            "all_classes": None if record.all_classes is None else list(record.all_classes),
            "length": record.length,
            "score": fmean(scores),
            "prompt_tokens": prompt.ids.shape[1],
            "new_tokens": len(passes[0].output.tokens),
            "ttft_s": fmean(done.ttft_s for done in passes),
            "generation_s": fmean(done.generation_s for done in passes),
            "baseline_ttft_s": None if unmodified is None else unmodified.ttft_s,
            "baseline_generation_s": None if unmodified is None else unmodified.generation_s,
            "prompt_computed": fmean(done.output.prompt_computed for done in passes),
        }
        if unmodified is not None:
            row["baseline_prediction"] = read(unmodified.output.tokens, prompt, self.config.model)
            row["baseline_new_tokens"] = len(unmodified.output.tokens)
        if len(passes) > 1:
            row["repeats"] = [
                {"prediction": text, "score": score, "ttft_s": done.ttft_s, "generation_s": done.generation_s}
                for text, score, done in zip(predictions, scores, passes, strict=True)
            ]
        return row

    def _prompt(self, record: Record) -> Prompt:
        return PromptBuilder(self.tokenizer, self.config.model, self.facts[record.dataset]).build(record)

    def _both(self, prompt: Prompt, new_tokens: int | None = None) -> tuple[Pass | None, list[Pass]]:
        """The unmodified model's pass, and right after it the method's, one a seed."""
        decode = decoder_for(self.model, self.facts[prompt.record.dataset], prompt)
        if new_tokens is not None:
            decode.max_new_tokens = new_tokens
        unmodified = _timed(_UNMODIFIED, prompt, decode, 0) if self._paired else None
        passes = [_timed(self.method, prompt, decode, seed) for seed in range(self.method.repeats)]
        if isinstance(self.method, Baseline):
            unmodified = passes[0]
        return unmodified, passes


def _timed(method: Method, prompt: Prompt, decode: Decoder, seed: int) -> Pass:
    decode.clock.start()
    output = method.generate(prompt, decode, seed)
    times = decode.clock.times
    return Pass(output, times[0], times[-1])


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
    return method


def _settings(config: RunConfig, method: Method, records: list[Record]) -> dict[str, Any]:
    """What `config.yaml` says: everything set, and the hashes of the weights and records it met."""
    settings = asdict(config)
    del settings["output"]
    settings["method"] = {"_target_": config.method["_target_"], **asdict(method)}
    return {**settings, "weights": locate(config.model).identity(), "records": fingerprint(records)}


def _decisive(settings: dict[str, Any], where: dict[str, Any]) -> dict[str, Any]:
    """What decides a run's results, times included; where files lie and who committed what does not."""
    model = {key: value for key, value in settings["model"].items() if key not in ("name", "path", "device")}
    data = {key: value for key, value in settings["data"].items() if key not in ("name", "root")}
    return {**settings, "model": model, "data": data, "where": {k: v for k, v in where.items() if k != "commit"}}


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
    if config.data.source == "sample":
        print(f"records: {sample.LABEL}")


def _report(config: RunConfig, scores: dict[str, Any], folder: Path) -> None:
    print(f"\n{scores_table(scores)}\n\nsaved in {folder}")
    if config.data.source == "sample":
        print("next, on LongBench itself: add data=longbench, and data.root=FOLDER if it is on this machine")
    else:
        print("next, tables and figures of all runs: python -m lazybench report")
