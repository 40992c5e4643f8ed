"""What `lazybench speed` does: measure every prompt length, then show a table, a CSV and a plot."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pandas as pd
from tqdm import tqdm
from transformers import PreTrainedModel

from lazybench.config import SpeedConfig
from lazybench.errors import LazyBenchError, RecordFailure
from lazybench.methods import build_method
from lazybench.model import environment
from lazybench.model.decoding import Decoder
from lazybench.model.loading import load_model, load_skeleton, load_tokenizer
from lazybench.model.out_of_memory import ran_out
from lazybench.report.console import table
from lazybench.speed import plot
from lazybench.speed.measures import SHOWN, summary
from lazybench.speed.profiling import write_profile
from lazybench.speed.prompts import prompt_of
from lazybench.speed.rate import matrix_rate, prefill_operations
from lazybench.speed.subjects import METHOD, WHOLE, Subjects
from lazyllm.anatomy import dissect
from lazyllm.errors import LazyLLMError

# Memory peaks in prefilling; these show what decoding holds on top, before the caches grow.
_MEMORY_TOKENS = 16
_WHERE = ("device", "dtype", "attention", "threads", "commit")


def main(config: SpeedConfig) -> int:
    """Measure, print the table, and write CSV, plot and profile where asked to.

    Raises:
        LazyBenchError: a model, method or length that cannot work, or a file that cannot be written.
    """
    _check_files(config)
    output, profile = _writable("output", config.output), _writable("profile", config.profile)
    subjects = list(subjects_of(config))
    measured = measure(config, subjects)
    titles = [title for title, _ in SHOWN]
    print(table(titles, [[cell(row) for _, cell in SHOWN] for _, row in measured.iterrows()]))
    if retaken := measured["retaken"].sum():
        left = measured["disturbed"].sum()
        print(f"other work on this machine: {retaken} passes were taken again, {left} repeats left out")
    if output is not None:
        measured.to_csv(output, index=False, float_format="%.5g")
        print(f"saved in {', '.join(map(str, [output, *plot.save(measured, output)]))}")
    if profile is not None:
        _profile(subjects[len(measured) - 1], profile)
        print(f"saved in {profile}")
    return 0


def _check_files(config: SpeedConfig) -> None:
    """Raise `LazyBenchError` where two settings name one file, which the later would overwrite, or `text` none."""
    named: dict[Path, str] = {}
    for key, name in (("text", config.text), ("output", config.output), ("profile", config.profile)):
        if name is not None and (other := named.setdefault(Path(name).resolve(), key)) != key:
            raise LazyBenchError(f"{key}={name} is the file of {other}=, too: give each its own")
    if config.text is not None and not os.access(config.text, os.R_OK):
        raise LazyBenchError(f"text={config.text} cannot be read: give a text file")


def _writable(key: str, name: str | None) -> Path | None:
    """The file that a setting names, once it is sure that it can be written: measuring takes long."""
    if name is None:
        return None
    path = Path(name)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise LazyBenchError(f"{key}={name}: {error.filename}: {error.strerror}") from None
    if path.is_dir() or not os.access(path if path.exists() else path.parent, os.W_OK):
        raise LazyBenchError(f"{key}={name} cannot be written: give a file in a folder that can")
    return path


def subjects_of(config: SpeedConfig) -> Iterator[Subjects]:
    """What is timed at each prompt length.

    Raises:
        LazyBenchError: a model, method or length that cannot work.
    """
    method = build_method(config.method)
    skeleton = load_skeleton(config.model)
    holds, needed = getattr(skeleton.config, "max_position_embeddings", None), max(config.lengths) + config.new_tokens
    if holds is not None and needed > holds:
        raise LazyBenchError(
            f"lengths={config.lengths} and new_tokens={config.new_tokens} need {needed} positions, and "
            f"{config.model.name} has {holds}: set shorter lengths"
        )
    method.check(skeleton)
    tokenizer = load_tokenizer(config.model)
    prompts = [prompt_of(length, tokenizer, config) for length in sorted(config.lengths)]
    model = load_model(config.model)
    method.prepare(model)
    for prompt in prompts:
        yield Subjects(method, Decoder(model, config.new_tokens), prompt, config.eager, config.cpu_share)


def measure(config: SpeedConfig, subjects: list[Subjects]) -> pd.DataFrame:
    """Time a method at every prompt length in this process, interleaved with the unmodified model.

    Returns:
        one row a length, with the columns of `measures.summary`; `retaken` and `disturbed`, how many passes were taken
        again and how many repeats left out since other work on the machine disturbed them; `memory_mb` and
        `method_memory_mb`, the most that a pass allocates in prefilling and its first steps; `matrix_rate`, operations
        a second of a large matrix product, and the share of it that prefilling reaches, `unmodified_matrix_share` and
        `method_matrix_share`; and what they were measured on. Where memory runs out, the shorter lengths alone.

    Raises:
        LazyBenchError: the method cannot run on a prompt, or memory is too small for the shortest.
    """
    where = environment.describe(config.model)
    about = {"model": config.model.name, "method": subjects[0].method.name}
    settings = {"new_tokens": config.new_tokens, "repeats": config.repeats}
    settings |= {key: where[key] for key in _WHERE}
    rate, rows = matrix_rate(subjects[0].decode.model), []
    for subject in subjects:
        tokens = subject.prompt.ids.shape[1]
        try:
            row = _row(subject, config)
        except RecordFailure as failure:
            raise LazyBenchError(f"method={about['method']} at {tokens} tokens: {failure}") from None
        except Exception as error:
            if not ran_out(error):
                raise
            message = f"out of memory at {tokens} tokens: set shorter lengths"
            if not rows:
                raise LazyBenchError(message) from None
            print(f"lazybench: {message}; the shorter ones are kept", file=sys.stderr)
            break
        rows.append({**about, "tokens": tokens, **row, "matrix_rate": rate, **_shares(subject, row, rate), **settings})
    return pd.DataFrame(rows)


def _row(subjects: Subjects, config: SpeedConfig) -> dict[str, float]:
    rounds = _interleaved(subjects, config.repeats)
    times = [passes for passes in rounds if not any(done.disturbed for done in passes.values())]
    if not times:
        raise LazyBenchError(
            f"other work on this machine disturbed each of the {len(rounds)} repeats: end it and measure again, or set "
            "cpu_share=0 to take the times as they are"
        )
    few = replace(subjects, decode=Decoder(subjects.decode.model, min(config.new_tokens, _MEMORY_TOKENS)), cpu_share=0)
    memory = {name: few.peak_bytes(name) / 1e6 for name in (WHOLE, METHOD)}
    return {
        **summary(times, subjects.counts),
        "retaken": sum(done.retaken for passes in rounds for done in passes.values()),
        "disturbed": len(rounds) - len(times),
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


def _shares(subjects: Subjects, row: dict[str, float], rate: float) -> dict[str, float]:
    """The share of the matrix rate that prefilling reaches, where its work is known."""
    model: PreTrainedModel = subjects.decode.model
    try:
        layers = dissect(model).layers
    except LazyLLMError:  # a model that other methods run on all the same
        return {}
    work = {"unmodified": ([subjects.prompt.ids.shape[1]] * len(layers), row["ttft_s"])}
    if subjects.counts is not None:
        work["method"] = (subjects.counts, row["method_ttft_s"])
    done = {name: (prefill_operations(model, layers, counts), seconds) for name, (counts, seconds) in work.items()}
    return {
        f"{name}_matrix_share": operations / seconds / rate
        for name, (operations, seconds) in done.items()
        if operations is not None
    }


def _profile(subjects: Subjects, path: Path) -> None:
    passes = {}
    for tokens in (1, _MEMORY_TOKENS):
        runs = replace(subjects, decode=Decoder(subjects.decode.model, tokens), cpu_share=0).runs()
        for name in (WHOLE, METHOD):
            passes[f"{name}, {tokens} new tokens"] = partial(runs[name], 0)
    write_profile(subjects.decode.model.device, passes, path)
