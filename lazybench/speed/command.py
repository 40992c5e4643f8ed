"""What `lazybench speed` does: measure every prompt length, then show a table, a CSV and a plot."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pandas as pd
from tqdm import tqdm

from lazybench import environment
from lazybench.config import SpeedConfig
from lazybench.console import table
from lazybench.decoding import Decoder
from lazybench.errors import LazyBenchError, RecordFailure
from lazybench.language_model import load_model, load_tokenizer
from lazybench.runner import build_method
from lazybench.speed import plot
from lazybench.speed.measures import SHOWN, summary
from lazybench.speed.prompts import prompt_of
from lazybench.speed.subjects import METHOD, WHOLE, Subjects

_MEMORY_TOKENS = 16  # enough to see what decoding holds on top of prefilling


def main(config: SpeedConfig) -> int:
    """Measure, print the table, and write CSV and plot where asked to."""
    measured = measure(config)
    print(table([title for title, _ in SHOWN], [[cell(row) for _, cell in SHOWN] for _, row in measured.iterrows()]))
    if config.output is not None:
        path = Path(config.output)
        path.parent.mkdir(parents=True, exist_ok=True)
        measured.to_csv(path, index=False, float_format="%.5g")
        print(f"saved in {', '.join(map(str, [path, *plot.save(measured, path)]))}")
    return 0


def measure(config: SpeedConfig) -> pd.DataFrame:
    """Time a method at every prompt length in this process, interleaved with the unmodified model.

    Returns:
        one row a length, with the columns of `measures.summary` and what they were measured on.

    Raises:
        LazyBenchError: a model, method or length that cannot work.
    """
    method = build_method(config.method)
    tokenizer, model = load_tokenizer(config.model), load_model(config.model)
    holds, needed = getattr(model.config, "max_position_embeddings", None), max(config.lengths) + config.new_tokens
    if holds is not None and needed > holds:
        raise LazyBenchError(
            f"lengths={config.lengths} and new_tokens={config.new_tokens} need {needed} positions, and "
            f"{config.model.name} has {holds}: set shorter lengths"
        )
    method.prepare(model)
    where = environment.describe(config.model)
    about = {"model": config.model.name, "method": method.name}
    settings = {"new_tokens": config.new_tokens, "repeats": config.repeats}
    settings |= {key: where[key] for key in ("device", "dtype", "attention", "threads")}
    rows = []
    for length in config.lengths:
        subjects = Subjects(
            method, Decoder(model, config.new_tokens), prompt_of(length, tokenizer, config), config.eager
        )
        try:
            rows.append({**about, "tokens": length, **_row(subjects, config), **settings})
        except RecordFailure as failure:
            raise LazyBenchError(f"method={method.name} at {length} tokens: {failure}") from None
    return pd.DataFrame(rows)


def _row(subjects: Subjects, config: SpeedConfig) -> dict[str, float]:
    times = _interleaved(subjects, config.repeats)
    few = replace(subjects, decode=Decoder(subjects.decode.model, min(config.new_tokens, _MEMORY_TOKENS)))
    memory = {name: few.peak_bytes(name) / 1e6 for name in (WHOLE, METHOD)}
    return {
        **summary(times, subjects.counts, config.new_tokens),
        "memory_mb": memory[WHOLE],
        "method_memory_mb": memory[METHOD],
    }


def _interleaved(subjects: Subjects, repeats: int) -> list[dict]:
    """The passes of every subject, by name, one dictionary a repeat; a first round is not counted."""
    runs = subjects.runs()
    rounds = []
    for repeat in tqdm(range(repeats + 1), unit="round", desc=f"{subjects.prompt.ids.shape[1]} tokens"):
        # Forth and back, so that nothing always comes first.
        order = list(runs) if repeat % 2 else list(reversed(runs))
        done = {name: runs[name](repeat) for name in order}
        rounds.append({name: done[name] for name in runs})
    return rounds[1:]
