"""Time a method at each prompt length beside the unmodified model, as `run.timing` does on records."""

import sys
from collections.abc import Mapping
from dataclasses import asdict, replace
from statistics import fmean
from typing import Any

import pandas as pd
import torch
from transformers import PreTrainedTokenizerBase

from lazybench.analysis.labels import setting_of
from lazybench.analysis.records import NOTHING_PRUNED, UNMODIFIED
from lazybench.config import SpeedConfig
from lazybench.data import load_dataset_configs, sample
from lazybench.errors import LazyBenchError
from lazybench.methods import Method
from lazybench.model import environment
from lazybench.model.decoding import Question, Stops, max_positions
from lazybench.model.loading import load_model, load_tokenizer
from lazybench.model.prompts import Prompt, PromptBuilder
from lazybench.run.prepare import method_for
from lazybench.run.resources import Resources
from lazybench.run.timing import Timing

_METHOD = "method"
_DATASET = "gov_report"
_SPARE = 32  # tokens: truncation joins and tokenises text again, which may change the count a little


def check(config: SpeedConfig, resources: Resources) -> Method:
    """Return the method to time; `LazyBenchError` for a method or length that the model's config rules out."""
    method = method_for(config.method, config.model, resources)
    limit, needed = max_positions(resources.skeleton(config.model)), max(config.lengths) + config.new_tokens
    if limit is not None and needed > limit:
        raise LazyBenchError(
            f"lengths={config.lengths} and new_tokens={config.new_tokens} need {needed} positions, and "
            f"{config.model.name} has {limit}: set shorter lengths"
        )
    return method


def measure(config: SpeedConfig) -> pd.DataFrame:
    """Time a method at each prompt length.

    Returns:
        One row per length, without the longer ones if memory runs out: model, method and machine; times in seconds and
        speedups, each the median over the repeats, with the smallest and largest as `_low` and `_high`; and `noisy`,
        the number of repeats whose two trials of the unmodified model differ by more than 10%.

    Raises:
        LazyBenchError: the model, the method or a length cannot work.
    """
    method, tokenizer = check(config, Resources()), load_tokenizer(config.model)
    prompts = [build_prompt(length, tokenizer, config) for length in sorted(config.lengths)]
    model = load_model(config.model)
    method.prepare(model)
    described, source = environment.describe(config.model), environment.source(config.model)
    source["threads"] = torch.get_num_threads()
    labels = {"model": config.model.name, "method": method.name, "setting": setting_of(method.name, asdict(method))}
    settings = {"new_tokens": config.new_tokens, "repeats": config.repeats, "weights": described["weights_format"]}
    settings |= {key: described[key] for key in ("dtype", "attention")} | source
    methods = {_METHOD: method}
    if method.nothing_pruned is not None:
        methods[NOTHING_PRUNED] = method.nothing_pruned
    rows = []
    for prompt in prompts:
        repeats: list[dict[str, Any]] = []
        copies = [replace(prompt.record, id=f"{number}") for number in range(config.repeats)]
        questions = [Question(replace(prompt, record=record), Stops(config.new_tokens)) for record in copies]
        Timing(model, methods, source, warmup=1).time(questions, {}, repeats.append)
        tokens = prompt.ids.shape[1]
        if failed := [repeat for repeat in repeats if _METHOD not in repeat["trials"]]:
            reason = failed[0].get("error", "it cannot answer")
            error = f"method={method.name} at {tokens} tokens: {reason}: set shorter lengths"
            if not rows:
                raise LazyBenchError(error)
            print(f"lazybench: {error}", file=sys.stderr)
            break
        row = {**labels, "tokens": tokens}
        for name, values in pd.DataFrame([_ratios(repeat["trials"]) for repeat in repeats]).items():
            row |= {name: values.median(), f"{name}_low": values.min(), f"{name}_high": values.max()}
        rows.append(row | {"noisy": sum(repeat["noisy"] for repeat in repeats), **settings})
    return pd.DataFrame(rows)


def build_prompt(length: int, tokenizer: PreTrainedTokenizerBase, config: SpeedConfig) -> Prompt:
    """Build a summarization prompt of exactly `length` tokens, about a generated report.

    The ids are not random, as revival depends on real attention.

    Raises:
        LazyBenchError: `length` is more than a report can have.
    """
    record = sample.load(_DATASET, 1, 0, min(sample.MAX_TOKENS, max(2 * length, sample.MIN_TOKENS)))[0]
    # No more context than the prompt can hold: methods that work on the context are timed on the same text.
    ids = tokenizer(record.context, add_special_tokens=False, verbose=False).input_ids[: length + _SPARE]
    record = replace(record, context=tokenizer.decode(ids))
    model = replace(config.model, limit=length + _SPARE, chat=None, template={})
    prompt = PromptBuilder(tokenizer, model, load_dataset_configs({})[_DATASET]).build(record)
    if prompt.ids.shape[1] < length:
        raise LazyBenchError(f"lengths: {length} tokens are more than a report can have, {prompt.ids.shape[1]}")
    return replace(prompt, ids=prompt.ids[:, :length])


def _ratios(trials: Mapping[str, list[dict[str, Any]]]) -> dict[str, float]:
    """Return times in seconds, and speedups of the method; above 1 is faster."""
    row: dict[str, float] = {}
    for part in ("ttft", "decode_step", "generation"):
        seconds = {name: fmean(trial[f"{part}_s"] for trial in own) for name, own in trials.items()}
        unmodified_s, method_s = seconds[UNMODIFIED], seconds[_METHOD]
        row |= {f"{part}_s": unmodified_s, f"method_{part}_s": method_s, f"{part}_speedup": unmodified_s / method_s}
        if NOTHING_PRUNED in seconds:
            row[f"{part}_speedup_over_nothing_pruned"] = seconds[NOTHING_PRUNED] / method_s
    return row
