"""`lazybench tune`: a method's settings of least harm at a speed, cross-fitted, as a method that `run` takes."""

from __future__ import annotations

import math
from dataclasses import asdict
from pathlib import Path
from statistics import fmean
from typing import Any

import pandas as pd
from tqdm import tqdm

from lazybench.analysis.labels import setting_of
from lazybench.calibration.setup import in_turns
from lazybench.calibration.strength import Operations, OutOfReach, match
from lazybench.calibration.study import csv
from lazybench.calibration.tuning import Tuning
from lazybench.cli.match import run_command
from lazybench.config import HALVES, TuneConfig
from lazybench.data import choose, data_label, half_of, load_facts
from lazybench.methods import Method, build_method
from lazybench.methods.calibrated import config_of
from lazybench.model import environment
from lazybench.model.decoding import check_limit
from lazybench.model.loading import load_model, load_skeleton
from lazybench.model.prompts import PromptBuilder
from lazybench.run.job import PLACES
from lazybench.run.origin import chosen, typed
from lazybench.run.sources import Sources
from lazybench.store.writing import replace, writing

_TOLERANCE = 0.005  # of a speedup by operations, which can be as near as a keep's digits allow


def main(config: TuneConfig) -> Path:
    """Tune a method for each speedup, or go on where an earlier start stopped; returns the folder for `--config-dir`.

    Raises:
        OutOfReach: no trial reaches one of the speedups.
        LazyBenchError: anything about the settings, the data, the model or the folder that cannot work.
    """
    method, sources, facts = build_method(config.method), Sources(), load_facts(config.data.datasets)
    trials, skeleton = method.trials(), load_skeleton(config.model)
    check_limit(config.model, config.answer_tokens, skeleton)
    for trial in trials:
        trial.check(skeleton)
    choice = choose(config.task, config.data, facts)
    met = [sources.records(name, config.data, config.model) for name in choice.datasets]
    whole = {half: in_turns([[of for of in each if half_of(of) == half] for each in met]) for half in HALVES}
    halves = {half: records[: config.records] for half, records in whole.items()}
    tokenizer, records = sources.tokenizer(config.model), [of for half in halves.values() for of in half]
    prompts = {of.key: PromptBuilder(tokenizer, config.model, facts[of.dataset]).build(of) for of in records}
    folder, where = Path(config.output), environment.describe(config.model)
    with writing(folder):
        for inner in ("method", "measured"):
            (folder / inner).mkdir(parents=True, exist_ok=True)
    print(f"weights: {where['weights_format']}\nrecords: {data_label(config.data)}; {len(records)} of them", flush=True)
    model, called = load_model(config.model), chosen("method") or method.name
    decides: dict[str, Any] = {key: value for key, value in asdict(config.model).items() if key not in PLACES}
    decides |= {"weights": sources.weights(config.model), "answer_tokens": config.answer_tokens}
    about = {"model": config.model.name, "layers": model.config.get_text_config().num_hidden_layers}
    about |= {"data": data_label(config.data), "task": config.task, "limit": config.model.limit}
    about |= {"answer_tokens": config.answer_tokens, "trials": len(trials), "records": config.records}
    lengths = [prompt.ids.shape[1] for prompt in prompts.values()]
    for wanted in sorted(set(config.speedups)):
        strong = [of for trial in trials for of in _as_fast(Operations(trial, lengths, model), wanted)]
        if not strong:
            raise OutOfReach(f"method {method.name}: none of its {len(trials)} trials computes {wanted:g} times less")
        with tqdm(desc=f"{called}, {wanted:g}x", unit="record") as bar:
            tuning = Tuning(model, prompts, config.answer_tokens, folder / "measured", decides, bar)
            found = {half: tuning.best(strong, halves[half]) for half in HALVES}
            apart = [tuning.harm(best, halves[HALVES[half == HALVES[0]]]) for half, (best, _) in found.items()]
        rows = [
            {"speedup": wanted, "half": half, "settings": setting_of(of.name, asdict(of)), **row}
            for half, (_, each) in found.items()
            for of, row in zip(strong, each, strict=True)
        ]
        name, elsewhere = f"{called}_{wanted:g}x", math.exp(fmean(map(math.log, apart)))
        replace(folder / f"{name}.csv", csv(pd.DataFrame(rows)))
        folds = [(best, whole[half]) for half, (best, _) in found.items()]
        tuned = config_of(
            typed("tune"), method.name, f"{wanted:g}x", folds, {**about, "kl_on_the_other_half": round(elsewhere, 4)}
        )
        replace(folder / "method" / f"{name}.yaml", tuned)
        said = " and ".join(setting_of(best.name, asdict(best)) for best, _ in found.values())
        print(f"{wanted:g}x: {said}; geometric KL on the records of the other half {elsewhere:.3f}")
        print(f"  {run_command(folder, name, config.task)}", flush=True)
    return folder


def _as_fast(speedups: Operations, wanted: float) -> list[Method]:
    """The method at the strength for a speedup; none where it is never so fast."""
    try:
        return [speedups.method.pruning(match(speedups, wanted, _TOLERANCE).share)]
    except OutOfReach:
        return []
