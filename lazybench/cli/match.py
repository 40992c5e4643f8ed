"""`lazybench match`: how strongly a method must prune for a measured TTFT speedup, as methods that `run` takes."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterable
from dataclasses import asdict, fields
from pathlib import Path

import pandas as pd
import yaml
from tqdm import tqdm

from lazybench.calibration.folder import csv
from lazybench.calibration.matching import OutOfReach, Speedups, Trial, match
from lazybench.calibration.setup import in_turns
from lazybench.config import MatchConfig
from lazybench.data import choose, data_label, load_facts
from lazybench.methods import Method, build_method
from lazybench.model import environment
from lazybench.model.decoding import Decoder, check_limit
from lazybench.model.loading import load_model, load_skeleton
from lazybench.model.prompts import Prompt, PromptBuilder
from lazybench.run.origin import chosen, typed
from lazybench.run.sources import Sources
from lazybench.store.writing import replace, writing

_METHODS = "method"


def main(config: MatchConfig) -> Path:
    """Find a strength for each speedup, and write a method for each.

    Returns:
        the folder of what was found, for `--config-dir`.

    Raises:
        OutOfReach: the method reaches none of the speedups; if it is one of several, a warning says so.
        LazyBenchError: anything about the settings, the data, the model or the folder that cannot work.
    """
    method, sources = build_method(config.method), Sources()
    method.pruning(0.5)  # refuses a method whose strength nobody can set
    prompts = _prompts(config, sources)
    skeleton = load_skeleton(config.model)
    check_limit(config.model, 1, skeleton)
    method.check(skeleton)
    folder = Path(config.output)
    with writing(folder):
        (folder / _METHODS).mkdir(parents=True, exist_ok=True)
    where = environment.describe(config.model)
    tokens = sorted(prompt.ids.shape[1] for prompt in prompts)
    print(f"weights: {where['weights_format']}")
    print(f"records: {data_label(config.data)}; {len(prompts)} prompts of {tokens[0]} to {tokens[-1]} tokens")
    model = load_model(config.model)
    with tqdm(desc="strengths", unit="strength") as bar:

        def tick(trial: Trial) -> None:
            bar.update()
            bar.set_postfix_str(f"{trial.share:.1%} pruned: {trial.speedup:.2f}x")

        speedups = Speedups(method, prompts, Decoder(model, 1), config.cpu_share, tick)
        found, missed = {}, None
        for wanted in sorted(set(config.speedups)):
            try:
                found[wanted] = match(speedups, wanted, config.tolerance)
            except OutOfReach as error:
                missed = error
                break  # what is faster still is out of reach, too
    if missed is not None:
        if not found:
            raise missed
        print(f"warning: {missed}", file=sys.stderr)
    # Methods of one name differ in their configs' names: those that `calibrate` found, and others of the user's.
    called = chosen("method") or method.name
    for wanted, trial in found.items():
        name = f"{called}_{wanted:g}x"
        about = f"{trial.prompts} prompts of {tokens[0]} to {tokens[-1]} tokens, {config.model.name}"
        replace(folder / _METHODS / f"{name}.yaml", _text(trial, f"{about}, {where['dtype']}, {where['device']}"))
        print(f"{wanted:g}x: {trial.speedup:.2f}x with {_settings(trial.method, method)}")
        if abs(trial.speedup / wanted - 1) > config.tolerance:
            print("  no strength was nearer to what is wanted: times vary, or it goes in steps")
        print(f"  python -m lazybench run --config-dir {shlex.quote(str(folder))} method={name} task={config.task}")
    replace(folder / f"{called}.csv", csv(_table(speedups.trials.values(), method)))
    return folder


def _prompts(config: MatchConfig, sources: Sources) -> list[Prompt]:
    """Prompts to time, spread evenly over the datasets."""
    facts = load_facts(config.data.datasets)
    choice = choose(config.task, config.data, facts)
    records = in_turns([sources.records(name, config.data, config.model) for name in choice.datasets])
    count, tokenizer = min(config.records, len(records)), sources.tokenizer(config.model)
    picked = [records[place * len(records) // count] for place in range(count)]
    return [PromptBuilder(tokenizer, config.model, facts[record.dataset]).build(record) for record in picked]


def _settings(method: Method, given: Method) -> str:
    """What differs from the method that was given, of what its repr shows."""
    shown = [of.name for of in fields(method) if of.repr]
    differs = [f"{key}={getattr(method, key)}" for key in shown if getattr(method, key) != getattr(given, key)]
    return ", ".join(differs) or "the settings as they were given"


def _table(trials: Iterable[Trial], given: Method) -> pd.DataFrame:
    rows = sorted(trials, key=lambda trial: trial.share)
    return pd.DataFrame(
        {
            "pruned": trial.share,
            "settings": _settings(trial.method, given),
            "ttft_speedup": trial.speedup,
            "prompts": trial.prompts,
        }
        for trial in rows
    )


def _text(trial: Trial, about: str) -> str:
    """The YAML of a method that was matched."""
    kind = type(trial.method)
    settings = {"_target_": f"{kind.__module__}.{kind.__qualname__}", **asdict(trial.method)}
    head = f"# TTFT speedup {trial.speedup:.3f}: {about}\n# {typed('match')}\n"
    return head + yaml.safe_dump(settings, sort_keys=False, allow_unicode=True, width=120)
