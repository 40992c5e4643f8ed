"""`lazybench speed`: LazyLLM's times next to the unmodified model's and to the time of the work that is left."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import pandas as pd

from lazybench.config import SpeedConfig
from lazybench.console import table
from lazybench.data import sample
from lazybench.errors import LazyBenchError

if TYPE_CHECKING:
    import torch

    import lazyllm
    from lazybench.decoding import Decoder

_TEXT = "gov_report"


@dataclass(frozen=True)
class _Bench:
    """One prompt length: what to time on which prompt."""

    decode: Decoder
    prompt: torch.Tensor
    schedule: lazyllm.PruningSchedule
    new_tokens: int

    def counts(self) -> list[int]:
        """Tokens in each layer while the prompt is prefilled."""
        stages = {stage.layer: stage for stage in self.schedule.stages}
        left, counts = self.prompt.shape[1], []
        for layer in range(self.decode.model.config.num_hidden_layers):
            counts.append(left)
            if layer in stages:
                left = stages[layer].kept(left)
        return counts

    def subjects(self) -> Iterator[tuple[Any, Callable[[], tuple[float, float]]]]:
        """What is timed, by name; for the unmodified model at a token count, that count."""
        import lazyllm

        everything = lazyllm.PruningSchedule()
        yield "unmodified", lambda: self._time(None, self.new_tokens)
        yield "keep = 1", lambda: self._time(everything, self.new_tokens)
        yield "lazyllm", lambda: self._time(self.schedule, self.new_tokens)
        for count in sorted(set(self.counts()) - {self.prompt.shape[1]}):
            yield count, lambda count=count: self._time(None, 1, count)

    def _time(
        self, schedule: lazyllm.PruningSchedule | None, new_tokens: int, count: int | None = None
    ) -> tuple[float, float]:
        """Seconds to the first and to the last token."""
        import lazyllm

        self.decode.max_new_tokens = new_tokens
        ids = self.prompt[:, :count]
        self.decode.clock.start()
        if schedule is None:
            self.decode(ids)
        else:
            with lazyllm.enable(self.decode.model, schedule):
                self.decode(ids)
        return self.decode.clock.times[0], self.decode.clock.times[-1]


def measure(config: SpeedConfig) -> pd.DataFrame:
    """Time every prompt length in this process, the subjects interleaved.

    Returns:
        one row a length: `ttft_s` of the unmodified model, TTFT ratios to it with `keep_1_ttft` (nothing pruned,
        at most 1 is ideal), `ttft_speedup`, `ideal_speedup` and `efficiency` of the schedule, and
        `decode_step_s`, `keep_1_decode_step` and `generation_speedup`. All are medians over the repeats. The ideal
        time is the sum over layers of the unmodified model's time per layer at that layer's token count.

    Raises:
        LazyBenchError: a model or schedule that cannot work.
    """
    from lazybench.decoding import Decoder
    from lazybench.language_model import load_model, load_tokenizer
    from lazybench.runner import build_method

    method = build_method(config.method)
    schedule = getattr(method, "pruning_schedule", None)
    if schedule is None:
        raise LazyBenchError(f"method={method.name} has no schedule to measure: use method=lazyllm")
    tokenizer, model = load_tokenizer(config.model), load_model(config.model)
    method.prepare(model)
    rows = []
    for length in config.lengths:
        bench = _Bench(
            Decoder(model, config.new_tokens),
            _prompt(tokenizer, length),
            schedule(model.config.num_hidden_layers),
            config.new_tokens,
        )
        rows.append({"tokens": length, **_ratios(bench, config.repeats)})
    return pd.DataFrame(rows)


def main(config: SpeedConfig) -> int:
    """Measure, print the table, and write it as CSV where asked to."""
    measured = measure(config)
    print(table(list(measured.columns), [[f"{value:.4g}" for value in row] for row in measured.to_numpy()]))
    if config.output is not None:
        path = Path(config.output)
        path.parent.mkdir(parents=True, exist_ok=True)
        measured.to_csv(path, index=False, float_format="%.5g")
        print(f"saved in {path}")
    return 0


def _ratios(bench: _Bench, repeats: int) -> dict[str, float]:
    subjects = dict(bench.subjects())
    ttft: dict[Any, list[float]] = {name: [] for name in subjects}
    generation: dict[Any, list[float]] = {name: [] for name in subjects}
    for repeat in range(repeats + 1):
        for name, run in subjects.items():
            first, last = run()
            if repeat:
                ttft[name].append(first)
                generation[name].append(last)
    first = {name: median(times) for name, times in ttft.items()}
    whole = {name: median(times) for name, times in generation.items()}
    steps = max(1, bench.new_tokens - 1)
    step = {name: (whole[name] - first[name]) / steps for name in ("unmodified", "keep = 1", "lazyllm")}
    unmodified = {bench.prompt.shape[1]: first["unmodified"], **first}
    counts = bench.counts()
    ideal = sum(unmodified[count] for count in counts) / len(counts)
    return {
        "ttft_s": first["unmodified"],
        "keep_1_ttft": first["keep = 1"] / first["unmodified"],
        "ttft_speedup": first["unmodified"] / first["lazyllm"],
        "ideal_speedup": first["unmodified"] / ideal,
        "efficiency": ideal / first["lazyllm"],
        "decode_step_s": step["unmodified"],
        "keep_1_decode_step": step["keep = 1"] / step["unmodified"],
        "generation_speedup": whole["unmodified"] / whole["lazyllm"],
    }


def _prompt(tokenizer: Any, length: int) -> torch.Tensor:
    """Token ids of generated text, int64 (1, length): revival depends on real attention, so no random ids."""
    import torch

    record = sample.load(_TEXT, 1, 0, min(sample.MAX_TOKENS, max(2 * length, sample.MIN_TOKENS)))[0]
    ids = tokenizer(record.context, verbose=False).input_ids
    if len(ids) < length:
        raise LazyBenchError(f"lengths: {length} tokens are more than a sample text can have, {len(ids)}")
    return torch.tensor([ids[:length]])
