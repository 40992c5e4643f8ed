"""Time a method at each prompt length, interleaved with the unmodified model."""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property, partial
from pathlib import Path

import pandas as pd
from tqdm import tqdm
from transformers import PreTrainedTokenizerBase

from lazybench.analysis.labels import setting_of
from lazybench.config import SpeedConfig
from lazybench.data import load_facts, sample
from lazybench.errors import LazyBenchError, RecordFailure
from lazybench.methods import Method
from lazybench.model import environment
from lazybench.model.cost import ideal_ttft
from lazybench.model.decoding import Decoder, max_positions
from lazybench.model.device import ran_out
from lazybench.model.loading import load_model, load_tokenizer
from lazybench.model.prompts import Prompt, PromptBuilder
from lazybench.run.prepare import method_for
from lazybench.run.resources import Resources
from lazybench.run.timing import UNMODIFIED, Pass, undisturbed
from lazybench.speed.memory import measure_memory

# Names of passes; those of the unmodified model on the beginning of the prompt are token counts.
_UNMODIFIED, _METHOD, _KEEP_1 = "unmodified", "method", "keep_1"
# Ranges of decode steps with a column of their own: the longer the answer, the fewer tokens are revived.
DECODE_STEPS = ((1, 8), (9, 32), (33, None))
_MEMORY_TOKENS = 16  # memory peaks in prefill; these show what decoding adds before the caches grow
_DATASET = "gov_report"
_SPARE = 32  # tokens: truncation joins and tokenises text anew, which may change the count a little


@dataclass(frozen=True)
class Passes:
    """The passes to compare on one prompt.

    Attributes:
        method: the method under test, prepared.
        decode: greedy generation of as many tokens as are measured.
        prompt: the prompt, all of it.
        cpu_share: repeat a pass on a CPU that got less than this share of wall time times threads.
    """

    method: Method
    decode: Decoder
    prompt: Prompt
    cpu_share: float

    @property
    def length(self) -> int:
        """The prompt's length in tokens."""
        return self.prompt.ids.shape[1]

    @cached_property
    def layer_tokens(self) -> list[int] | None:
        """The number of tokens that each layer computes in prefill; None for a method that does not say."""
        try:
            return self.method.layer_tokens(self.decode.model, self.length)
        except LazyBenchError:
            return None

    def by_name(self) -> dict[str | int, Callable[[int], Pass]]:
        """Return the passes; each takes the number of the repeat, through which the method's seeds rotate."""
        passes = {_UNMODIFIED: lambda repeat: self._run(UNMODIFIED), _METHOD: partial(self._run, self.method)}
        if (keep_1 := self.method.keep_1) is not None:
            passes[_KEEP_1] = lambda repeat: self._run(keep_1)
        first_token = Decoder(self.decode.model, 1)
        for count in sorted(set(self.layer_tokens or ()) - {self.length}):
            beginning = replace(self.prompt, ids=self.prompt.ids[:, :count])
            passes[count] = partial(self._run, UNMODIFIED, prompt=beginning, decode=first_token)
        return passes

    def _run(self, method: Method, repeat: int = 0, **changes: Prompt | Decoder) -> Pass:
        inputs = {"prompt": self.prompt, "decode": self.decode, **changes}
        return undisturbed(method, seed=repeat % method.repeats, least=self.cpu_share, **inputs)


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
        One row a length: `setting`, how strongly the method prunes; the columns of `_summary`; `retaken`, the number of
        passes that were repeated because other work disturbed them, and `disturbed`, the number of repeats left out;
        `memory_mb` and `method_memory_mb`, the peak allocation in prefill and the first decode steps; `prompt_kv_mb`
        and `method_prompt_kv_mb`, the size of the KV cache after prefill, where it is known; model and machine. Where
        memory runs out, the shorter lengths.

    Raises:
        LazyBenchError: the model, the method or a length cannot work, or memory is too small for the shortest.
    """
    method, tokenizer = check(config, Resources()), load_tokenizer(config.model)
    prompts = [build_prompt(length, tokenizer, config) for length in sorted(config.lengths)]
    model = load_model(config.model)
    method.prepare(model)
    machine, rows = environment.describe(config.model), []
    settings = {"new_tokens": config.new_tokens, "repeats": config.repeats, "weights": machine["weights_format"]}
    settings |= {key: machine[key] for key in ("device", "dtype", "attention", "threads", "commit")}
    labels = {"model": config.model.name, "method": method.name, "setting": setting_of(method.name, asdict(method))}
    for prompt in prompts:
        passes = Passes(method, Decoder(model, config.new_tokens), prompt, config.cpu_share)
        try:
            rows.append({**labels, "tokens": passes.length, **_row(passes, config.repeats), **settings})
        except RecordFailure as failure:
            raise LazyBenchError(f"method={method.name} at {passes.length} tokens: {failure}") from None
        except Exception as error:
            if not ran_out(error):
                raise
            message = f"out of memory at {passes.length} tokens: set shorter lengths"
            if not rows:
                raise LazyBenchError(message) from None
            print(f"lazybench: {message}; the shorter ones are kept", file=sys.stderr)
            break
    return pd.DataFrame(rows)


def build_prompt(length: int, tokenizer: PreTrainedTokenizerBase, config: SpeedConfig) -> Prompt:
    """Build a summarization prompt of exactly `length` tokens, about `config.text` or a generated report.

    Its ids are not random, as what LazyLLM revives depends on real attention.

    Raises:
        LazyBenchError: the text cannot be read, or is too short.
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


def _row(passes: Passes, repeats: int) -> dict[str, float | None]:
    by_name, rounds = passes.by_name(), []
    for repeat in tqdm(range(repeats + 1), unit="round", desc=f"{passes.length} tokens"):
        # Back and forth, so that no pass always comes first.
        names = by_name if repeat % 2 else reversed(by_name)
        rounds.append({name: by_name[name](repeat) for name in names})
    del rounds[0]  # warms up
    kept = [timed for timed in rounds if not any(one.disturbed for one in timed.values())]
    if not kept:
        raise LazyBenchError(
            f"other work on this machine disturbed each of the {len(rounds)} repeats: end it and measure again, or set "
            "cpu_share=0 to take the times as they are"
        )
    row = _summary(kept, passes)
    row["retaken"] = sum(one.retaken for timed in rounds for one in timed.values())
    row["disturbed"] = len(rounds) - len(kept)
    few = Decoder(passes.decode.model, min(_MEMORY_TOKENS, passes.decode.max_new_tokens))
    untimed = replace(passes, decode=few, cpu_share=0).by_name()
    for name, prefix in ((_UNMODIFIED, ""), (_METHOD, "method_")):
        memory = measure_memory(few.model, partial(untimed[name], 0))
        row[f"{prefix}memory_mb"] = memory.peak / 1e6
        row[f"{prefix}prompt_kv_mb"] = None if memory.prompt_kv is None else memory.prompt_kv / 1e6
    return row


def _summary(rounds: Sequence[Mapping[str | int, Pass]], passes: Passes) -> dict[str, float | None]:
    """Return medians over the rounds, and the smallest and largest as `_low` and `_high`; a ratio above 1 is faster.

    `ttft_s_p50`, `_p90` and `_p99`, and those of `method_ttft_s`, are percentiles over the rounds.
    """
    frame, summary = pd.DataFrame([_ratios(timed, passes) for timed in rounds]), {}
    for name, values in frame.items():
        summary |= {name: values.median(), f"{name}_low": values.min(), f"{name}_high": values.max()}
    for name in ("ttft_s", "method_ttft_s"):
        summary |= {f"{name}_p{percent}": frame[name].quantile(percent / 100) for percent in (50, 90, 99)}
    return summary


def _ratios(timed: Mapping[str | int, Pass], passes: Passes) -> dict[str, float]:
    unmodified, method, keep_1 = timed[_UNMODIFIED], timed[_METHOD], timed.get(_KEEP_1)
    row: dict[str, float] = {}
    for part in ("ttft", "decode_step", "generation"):
        unmodified_s, method_s = getattr(unmodified, f"{part}_s"), getattr(method, f"{part}_s")
        row |= {f"{part}_s": unmodified_s, f"method_{part}_s": method_s, f"{part}_speedup": unmodified_s / method_s}
        if keep_1 is not None:
            keep_1_s = getattr(keep_1, f"{part}_s")
            row[f"{part}_speedup_over_keep_1"] = keep_1_s / method_s
            row[f"keep_1_{part}_speedup"] = unmodified_s / keep_1_s
    for first, last in DECODE_STEPS:
        steps = [one.mean_step_s(first, last) for one in (unmodified, method)]
        if None not in steps:
            row[steps_column(first, last)] = steps[0] / steps[1]
    if passes.layer_tokens is not None:
        ttft_s = {count: one.ttft_s for count, one in timed.items() if isinstance(count, int)}
        ttft_s[passes.length] = unmodified.ttft_s
        ideal = ideal_ttft(passes.decode.model, ttft_s, passes.layer_tokens)
        row |= {"ideal_speedup": unmodified.ttft_s / ideal, "efficiency": ideal / method.ttft_s}
    return row


def steps_column(first: int, last: int | None) -> str:
    """Return the column of the speedup of decode steps `first` to `last`."""
    return f"decode_step_{first}_{'on' if last is None else last}_speedup"
