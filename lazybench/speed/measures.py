"""Times every prompt length: ratios of passes that ran side by side, each with its spread over the repeats."""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from timeit import repeat

import pandas as pd
import torch
from tqdm import tqdm
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from lazybench.analysis.labels import setting_of
from lazybench.config import SpeedConfig
from lazybench.data import load_facts, sample
from lazybench.errors import LazyBenchError, RecordFailure
from lazybench.methods import Method
from lazybench.model import environment
from lazybench.model.decoding import Decoder, positions_of, synchronize
from lazybench.model.device import ran_out
from lazybench.model.loading import load_model, load_tokenizer
from lazybench.model.prompts import Prompt, PromptBuilder
from lazybench.model.work import operations, unpruned_operations
from lazybench.run.job import method_for
from lazybench.run.sources import Sources
from lazybench.run.timing import UNMODIFIED, Pass, undisturbed
from lazybench.speed.memory import Memory
from lazybench.speed.memory import measure as measure_memory

Times = Mapping[str | int, Pass]

# Decode steps get cheaper as fewer tokens are revived: from which step to which they are shown.
STEPS = ((1, 8), (9, 32), (33, None))
# Rows of the matrices whose product shows a device's rate.
_SIZE, _SIZE_ON_A_GPU = 1024, 8192
# Memory peaks in prefilling; these show what decoding holds on top, before the caches grow.
MEMORY_TOKENS = 16
_DATASET = "gov_report"
_SPARE = 32  # tokens: truncation decodes, joins and tokenises anew, which may change the count a little
# Names of passes; those of the unmodified model on part of the prompt are token counts.
WHOLE, METHOD, KEEP_1 = "unmodified", "method", "keep_1"


@dataclass(frozen=True)
class Subjects:
    """A method, the unmodified model, and the unmodified model at each token count that the method's layers see."""

    method: Method  # the method under test, prepared
    decode: Decoder  # greedy generation of as many tokens as are measured
    prompt: Prompt
    cpu_share: float  # a pass on a CPU that got less of wall time times threads is taken again

    def untimed(self, new_tokens: int) -> "Subjects":
        """The same with so many new tokens, or as many as it has, each pass taken as it is."""
        few = min(new_tokens, self.decode.max_new_tokens)
        return replace(self, decode=Decoder(self.decode.model, few), cpu_share=0)

    @cached_property
    def counts(self) -> list[int] | None:
        """Tokens in each layer while the prompt is prefilled; None for a method that does not say."""
        try:
            return self.method.layer_tokens(self.decode.model, self.prompt.ids.shape[1])
        except LazyBenchError:
            return None

    def runs(self) -> dict[str | int, Callable[[int], Pass]]:
        """The passes to time, by name; each takes the number of the repeat, by which the method's seeds take turns."""
        runs = {WHOLE: lambda repeat: self._pass(UNMODIFIED), METHOD: partial(self._pass, self.method)}
        if (keep_1 := self.method.keep_1) is not None:
            runs[KEEP_1] = lambda repeat: self._pass(keep_1)
        for count in sorted(set(self.counts or ()) - {self.prompt.ids.shape[1]}):
            runs[count] = partial(self._part, count)
        return runs

    def memory(self, name: str) -> Memory:
        """The memory that one of the `runs` takes; keys and values also where LazyLLM's engine holds them."""
        passes: list[Pass] = []
        run = self.runs()[name]
        found, output = measure_memory(self.decode.model, lambda: passes.append(run(0))), passes[0].output
        if output.stats is not None:
            return replace(found, kv=output.stats.kv_bytes.sum(1).tolist())
        return replace(found, kv=found.kv[-len(output.tokens) :])  # a method may prefill twice

    def _pass(self, method: Method, seed: int = 0) -> Pass:
        return undisturbed(method, self.prompt, self.decode, seed % method.repeats, self.cpu_share)

    def _part(self, count: int, _: int) -> Pass:
        first, prompt = Decoder(self.decode.model, 1), replace(self.prompt, ids=self.prompt.ids[:, :count])
        return undisturbed(UNMODIFIED, prompt, first, 0, self.cpu_share)


def check(config: SpeedConfig, sources: Sources) -> Method:
    """Return the method to time; `LazyBenchError` for a method or length that the model's config rules out."""
    method = method_for(config.method, config.model, sources)
    holds, needed = positions_of(sources.skeleton(config.model)), max(config.lengths) + config.new_tokens
    if holds is not None and needed > holds:
        raise LazyBenchError(
            f"lengths={config.lengths} and new_tokens={config.new_tokens} need {needed} positions, and "
            f"{config.model.name} has {holds}: set shorter lengths"
        )
    return method


def subjects_of(config: SpeedConfig) -> list[Subjects]:
    """What is timed at each prompt length; `LazyBenchError` for a model, method or length that cannot work."""
    method = check(config, Sources())
    tokenizer = load_tokenizer(config.model)
    prompts = [prompt_of(length, tokenizer, config) for length in sorted(config.lengths)]
    model = load_model(config.model)
    method.prepare(model)
    decode = Decoder(model, config.new_tokens)
    return [Subjects(method, decode, prompt, config.cpu_share) for prompt in prompts]


def prompt_of(length: int, tokenizer: PreTrainedTokenizerBase, config: SpeedConfig) -> Prompt:
    """A summarization prompt of exactly `length` tokens, about `config.text` or, without one, a generated report.

    What LazyLLM revives depends on real attention, so its ids are not random ones.

    Raises:
        LazyBenchError: the text is not there, or too short.
    """
    record = sample.load(_DATASET, 1, 0, min(sample.MAX_TOKENS, max(2 * length, sample.MIN_TOKENS)))[0]
    if config.text is not None:
        try:
            record = replace(record, context=Path(config.text).read_text("utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            raise LazyBenchError(f"text={config.text} cannot be read: {error}") from None
    # No more context than the prompt can hold: methods that work on the context are timed on the same text.
    ids = tokenizer(record.context, add_special_tokens=False, verbose=False).input_ids[: length + _SPARE]
    record = replace(record, context=tokenizer.decode(ids))
    model = replace(config.model, limit=length + _SPARE, chat=None)
    prompt = PromptBuilder(tokenizer, model, load_facts({})[_DATASET]).build(record)
    if prompt.ids.shape[1] < length:
        source = "a sample text can have" if config.text is None else f"text={config.text} has"
        raise LazyBenchError(f"lengths: {length} tokens are more than {source}, {prompt.ids.shape[1]}")
    return replace(prompt, ids=prompt.ids[:, :length])


def measure(config: SpeedConfig, subjects: Sequence[Subjects]) -> pd.DataFrame:
    """Time a method at every prompt length in this process, interleaved with the unmodified model.

    Returns:
        one row a length: `setting`, how strongly the method prunes; the columns of `_summary` and `matrix_shares`, and
        `matrix_rate`; `retaken` and `disturbed`, how many passes were taken again and how many repeats left out since
        other work on the machine disturbed them; `memory_mb` and `method_memory_mb`, the most that a pass allocates in
        prefilling and its first steps; `prompt_kv_mb` and `method_prompt_kv_mb`, what keys and values take after
        prefilling, where that is known; and what they were measured on. Where memory runs out, the shorter lengths.

    Raises:
        LazyBenchError: the method cannot run on a prompt, or memory is too small for the shortest.
    """
    where, rows = environment.describe(config.model), []
    settings = {"new_tokens": config.new_tokens, "repeats": config.repeats, "weights": where["weights_format"]}
    settings |= {key: where[key] for key in ("device", "dtype", "attention", "threads", "commit")}
    method, rate = subjects[0].method.name, matrix_rate(subjects[0].decode.model)
    about = {"model": config.model.name, "method": method, "setting": setting_of(method, asdict(subjects[0].method))}
    for subject in subjects:
        tokens = subject.prompt.ids.shape[1]
        try:
            row = _row(subject, config.repeats)
        except RecordFailure as failure:
            raise LazyBenchError(f"method={method} at {tokens} tokens: {failure}") from None
        except Exception as error:
            if not ran_out(error):
                raise
            message = f"out of memory at {tokens} tokens: set shorter lengths"
            if not rows:
                raise LazyBenchError(message) from None
            print(f"lazybench: {message}; the shorter ones are kept", file=sys.stderr)
            break
        shares = matrix_shares(subject, row, rate)
        rows.append({**about, "tokens": tokens, **row, "matrix_rate": rate, **shares, **settings})
    return pd.DataFrame(rows)


def _row(subjects: Subjects, repeats: int) -> dict[str, float]:
    runs, rounds = subjects.runs(), []
    for number in tqdm(range(repeats + 1), unit="round", desc=f"{subjects.prompt.ids.shape[1]} tokens"):
        # Forth and back, so that nothing always comes first.
        rounds.append({name: runs[name](number) for name in (runs if number % 2 else reversed(runs))})
    del rounds[0]  # it warms up
    times = [passes for passes in rounds if not any(done.disturbed for done in passes.values())]
    if not times:
        raise LazyBenchError(
            f"other work on this machine disturbed each of the {len(rounds)} repeats: end it and measure again, or set "
            "cpu_share=0 to take the times as they are"
        )
    few = subjects.untimed(MEMORY_TOKENS)
    whole, method = few.memory(WHOLE), few.memory(METHOD)
    return {
        **_summary(times, subjects),
        "retaken": sum(done.retaken for passes in rounds for done in passes.values()),
        "disturbed": len(rounds) - len(times),
        "memory_mb": whole.peak / 1e6,
        "method_memory_mb": method.peak / 1e6,
        "prompt_kv_mb": whole.kv[0] / 1e6 if whole.kv else None,
        "method_prompt_kv_mb": method.kv[0] / 1e6 if method.kv else None,
    }


def _summary(rounds: Sequence[Times], subjects: Subjects) -> dict[str, float]:
    """Medians over the rounds, and of each measure the smallest and largest as `_low` and `_high`; above 1 is faster.

    The ideal time is the sum over layers of the unmodified model's time per layer at that layer's token count.
    `ttft_s_p50`, `_p90` and `_p99`, and those of `method_ttft_s`, are percentiles over the rounds.
    """
    found = pd.DataFrame([_of_round(times, subjects) for times in rounds])
    columns = {}
    for name, values in found.items():
        columns |= {name: values.median(), f"{name}_low": values.min(), f"{name}_high": values.max()}
    for name in ("ttft_s", "method_ttft_s"):
        columns |= {f"{name}_p{part}": found[name].quantile(part / 100) for part in (50, 90, 99)}
    return columns


def steps_column(first: int, last: int | None) -> str:
    """The column of some decode steps' speedup."""
    return f"decode_step_{first}_{'on' if last is None else last}_speedup"


def _of_round(times: Times, subjects: Subjects) -> dict[str, float]:
    whole, method, keep_1 = times[WHOLE], times[METHOD], times.get(KEEP_1)
    found: dict[str, float] = {}
    for what in ("ttft", "decode_step", "generation"):
        unmodified_s, method_s = getattr(whole, f"{what}_s"), getattr(method, f"{what}_s")
        found |= {f"{what}_s": unmodified_s, f"method_{what}_s": method_s, f"{what}_speedup": unmodified_s / method_s}
        if keep_1 is not None:
            keep_1_s = getattr(keep_1, f"{what}_s")
            found[f"{what}_speedup_over_keep_1"] = keep_1_s / method_s
            found[f"keep_1_{what}_speedup"] = unmodified_s / keep_1_s
    for first, last in STEPS:
        steps = [done.mean_step_s(first, last) for done in (whole, method)]
        if None not in steps:
            found[steps_column(first, last)] = steps[0] / steps[1]
    if subjects.counts is not None:
        # A count that is not timed by itself is the whole prompt's.
        layers = subjects.decode.model.config.get_text_config().num_hidden_layers
        ideal = sum(times.get(count, whole).ttft_s for count in subjects.counts) / layers
        found |= {"ideal_speedup": whole.ttft_s / ideal, "efficiency": ideal / method.ttft_s}
    return found


def matrix_rate(model: PreTrainedModel) -> float:
    """Operations a second of a large square matrix product in the model's dtype, on its device: the best of ten."""
    size = _SIZE_ON_A_GPU if model.device.type == "cuda" else _SIZE
    one, other = torch.randn(2, size, size, device=model.device, dtype=model.dtype)

    def product() -> None:
        torch.matmul(one, other)
        synchronize(model.device)

    product()
    return 2 * size**3 / min(repeat(product, number=1, repeat=10))


def matrix_shares(subjects: Subjects, row: Mapping[str, float], rate: float) -> dict[str, float]:
    """The share of a matrix rate that prefilling reaches, by the times `ttft_s` and `method_ttft_s` of a row.

    Returns:
        `unmodified_matrix_share` and, for a method that says what it computes, `method_matrix_share`; neither for a
        mixture of experts, of which a token meets a few.
    """
    model, tokens = subjects.decode.model, subjects.prompt.ids.shape[1]
    if any(weight.ndim > 2 and ".layers." in name for name, weight in model.named_parameters()):
        return {}
    found = {"unmodified_matrix_share": unpruned_operations(model, [tokens]) / row["ttft_s"] / rate}
    if subjects.counts is not None:
        found["method_matrix_share"] = operations(model, subjects.counts) / row["method_ttft_s"] / rate
    return found
