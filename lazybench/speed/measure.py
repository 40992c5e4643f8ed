"""Measure a method's times and memory at each prompt length, interleaved with the unmodified model's."""

import gc
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from statistics import fmean
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch.profiler import ProfilerActivity, profile
from tqdm import tqdm
from transformers import DynamicCache, PreTrainedModel, PreTrainedTokenizerBase

from lazybench.analysis.labels import setting_of
from lazybench.config import SpeedConfig
from lazybench.data import load_dataset_configs, sample
from lazybench.errors import LazyBenchError, RecordFailure
from lazybench.methods import Method, Output
from lazybench.methods.base import answer
from lazybench.model import environment
from lazybench.model.decoding import CACHE, Decoder, Question, Stops, max_positions
from lazybench.model.device import ran_out
from lazybench.model.loading import load_model, load_tokenizer
from lazybench.model.prompts import Prompt, PromptBuilder
from lazybench.run.divergence import UNMODIFIED
from lazybench.run.prepare import method_for
from lazybench.run.resources import Resources
from lazybench.run.timing import Trial, is_noisy, trial

# Names of trials; that of the unmodified model on the first `n` tokens of the prompt is the number `n`.
_UNMODIFIED, _METHOD, _NOTHING_PRUNED = "unmodified", "method", "nothing_pruned"
_MEMORY_TOKENS = 16  # memory peaks in prefill; these show what decoding adds before the caches grow
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
        One row per length, without the longer ones if memory runs out: model, method and machine, and

        - times and speedups, each the median over the repeats, with the smallest and largest as `_low` and `_high`;
        - `ideal_speedup`, by the tokens that each layer computes, if the method defines `layer_tokens`;
        - `noisy`, the number of repeats whose two trials of the unmodified model differ by more than 10%;
        - `memory_mb` and `method_memory_mb`, the peak allocation in prefill and the first decode steps;
        - `prompt_kv_mb` and `method_prompt_kv_mb`, the size of the KV cache after prefill, if known.

    Raises:
        LazyBenchError: the model, the method or a length cannot work, or memory is too small for the shortest.
    """
    method, tokenizer = check(config, Resources()), load_tokenizer(config.model)
    prompts = [build_prompt(length, tokenizer, config) for length in sorted(config.lengths)]
    model = load_model(config.model)
    method.prepare(model)
    described, source, rows = environment.describe(config.model), environment.source(config.model), []
    settings = {"new_tokens": config.new_tokens, "repeats": config.repeats, "weights": described["weights_format"]}
    settings |= {key: described[key] for key in ("dtype", "attention")}
    settings |= {"threads": torch.get_num_threads(), **source}
    labels = {"model": config.model.name, "method": method.name, "setting": setting_of(method.name, asdict(method))}
    for prompt in prompts:
        tokens = prompt.ids.shape[1]
        try:
            rows.append({**labels, "tokens": tokens, **_row(method, prompt, model, config), **settings})
        except RecordFailure as failure:
            raise LazyBenchError(f"method={method.name} at {tokens} tokens: {failure}") from None
        except Exception as error:
            if not ran_out(error):
                raise
            print(f"lazybench: out of memory at {tokens} tokens: set shorter lengths", file=sys.stderr)
            break
    if not rows:
        raise LazyBenchError(f"lengths={config.lengths}: memory is too small for the shortest")
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


def _row(method: Method, prompt: Prompt, model: PreTrainedModel, config: SpeedConfig) -> dict[str, float | None]:
    """Measure a prompt: medians of `_ratios` over the repeats, their smallest and largest, and memory."""
    tokens = prompt.ids.shape[1]
    try:
        layer_tokens = method.layer_tokens(model, tokens)
    except LazyBenchError:  # the method does not define it
        layer_tokens = []
    stops = Stops(config.new_tokens)
    subjects = {_UNMODIFIED: (UNMODIFIED, Question(prompt, stops)), _METHOD: (method, Question(prompt, stops))}
    if method.nothing_pruned is not None:
        subjects[_NOTHING_PRUNED] = method.nothing_pruned, Question(prompt, stops)
    for count in sorted({*layer_tokens} - {tokens}):
        subjects[count] = UNMODIFIED, Question(replace(prompt, ids=prompt.ids[:, :count]), Stops(1))
    rounds = []
    for repeat in tqdm(range(config.repeats + 1), unit="round", desc=f"{tokens} tokens"):
        # The unmodified model is first and last, the order between alternates, and a method's seeds take turns.
        others = [name for name in subjects if name != _UNMODIFIED][:: 1 if repeat % 2 else -1]
        trials: dict[str | int, list[Trial]] = {name: [] for name in subjects}
        for name in (_UNMODIFIED, *others, _UNMODIFIED):
            subject, question = subjects[name]
            trials[name].append(trial(subject, model, question._replace(seed=repeat % subject.repeats)))
        rounds.append(trials)
    del rounds[0]  # warms up
    ratios = pd.DataFrame([_ratios(trials) for trials in rounds])
    if layer_tokens:
        # The unmodified model's time per layer at the number of tokens that each layer computes, summed over layers.
        names = [_UNMODIFIED if count == tokens else count for count in layer_tokens]
        totals = [sum(_mean(trials[name], "ttft_s") for name in names) for trials in rounds]
        ratios["ideal_speedup"] = ratios["ttft_s"] * model.config.get_text_config().num_hidden_layers / totals
    row = {}
    for name, values in ratios.items():
        row |= {name: values.median(), f"{name}_low": values.min(), f"{name}_high": values.max()}
    row["noisy"] = sum(is_noisy(*trials[_UNMODIFIED]) for trials in rounds)
    few = Question(prompt, Stops(min(_MEMORY_TOKENS, config.new_tokens)))
    for measured, prefix in ((UNMODIFIED, ""), (method, "method_")):
        peak, prompt_kv = measure_memory(model, partial(answer, measured, Decoder(model, [few])))
        row |= {f"{prefix}memory_mb": peak / 1e6, f"{prefix}prompt_kv_mb": prompt_kv and prompt_kv / 1e6}
    return row


def _ratios(trials: Mapping[str | int, Sequence[Trial]]) -> dict[str, float]:
    """Return times in seconds, and speedups of the method; above 1 is faster."""
    row: dict[str, float] = {}
    for part in ("ttft", "decode_step", "generation"):
        unmodified_s, method_s = (_mean(trials[name], f"{part}_s") for name in (_UNMODIFIED, _METHOD))
        row |= {f"{part}_s": unmodified_s, f"method_{part}_s": method_s, f"{part}_speedup": unmodified_s / method_s}
        if _NOTHING_PRUNED in trials:
            row[f"{part}_speedup_over_nothing_pruned"] = _mean(trials[_NOTHING_PRUNED], f"{part}_s") / method_s
    return row


def _mean(trials: Sequence[Trial], time: str) -> float:
    return fmean(getattr(each, time) for each in trials)


def measure_memory(model: PreTrainedModel, run: Callable[[], Sequence[Output]]) -> tuple[int, int | None]:
    """Measure the memory of an answer of `model`.

    Returns:
        The most bytes allocated at once, beyond those allocated before; and the size of the KV cache after prefill in
        bytes, None if it is not known.
    """
    gc.collect()
    kv_bytes: list[int] = []  # after each forward call
    hook = model.register_forward_hook(lambda *call: kv_bytes.extend(_kv_bytes(call[-1])))
    try:
        if model.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(model.device)
            before = torch.cuda.memory_allocated(model.device)
            (output,) = run()
            peak = torch.cuda.max_memory_allocated(model.device) - before
        else:  # a CPU's allocator keeps no statistics, but the profiler records every allocation
            with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
                (output,) = run()
            events = profiler.profiler.kineto_results.events()
            allocations = sorted((event.start_ns(), event.nbytes()) for event in events if event.name() == "[memory]")
            peak = int(np.cumsum([size for _, size in allocations]).max(initial=0))
    finally:
        hook.remove()
    if output.stats is not None:  # LazyLLM's engine keeps a cache of its own
        kv_bytes = output.stats.kv_bytes.sum(1).tolist()
    kv_bytes = kv_bytes[-len(output.tokens) :]  # a method may prefill twice
    return peak, kv_bytes[0] if kv_bytes else None


def _kv_bytes(output: Any) -> list[int]:
    """Return the size of the cache in a forward call's output; nothing for another cache than transformers' own."""
    cache = getattr(output, CACHE, None)
    if not isinstance(cache, DynamicCache):
        return []
    layers = [layer for layer in cache.layers if getattr(layer, "keys", None) is not None]
    return [sum(layer.keys.nbytes + layer.values.nbytes for layer in layers)]
