"""`lazybench match`: how strongly a method must prune to be so much faster, as methods that `run` takes.

By the measured TTFT, its settings as they are; or, with `tune=true`, by operations, its settings those of least harm.
"""

import math
import re
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import yaml
from hydra.core.hydra_config import HydraConfig
from tqdm import tqdm
from transformers import PreTrainedModel

from lazybench.analysis.labels import setting_of
from lazybench.calibration.setup import in_turns
from lazybench.calibration.strength import Operations, OutOfReach, Timed, Trial, match
from lazybench.calibration.study import csv
from lazybench.calibration.tuning import Tuning
from lazybench.config import HALVES, MatchConfig
from lazybench.data import Record, choose, data_label, fingerprint, half_of, load_facts
from lazybench.errors import LazyBenchError
from lazybench.methods import Method, build_method
from lazybench.methods.calibrated import config_of, settings_of
from lazybench.methods.shared import second_models
from lazybench.model import environment
from lazybench.model.decoding import check_limit
from lazybench.model.loading import load_model
from lazybench.model.prompts import Prompt, build_all
from lazybench.run import own_code
from lazybench.run.job import PLACES, method_for
from lazybench.run.origin import own_folders, typed
from lazybench.run.sources import Sources
from lazybench.store.journal import Key
from lazybench.store.run_folder import digest
from lazybench.store.writing import replace, writing


@dataclass(frozen=True)
class _Given:
    """What a command works on: `called` is the method's config, `on` what the prompts are in words.

    `halves` are all records of the task, by half; `decides` is what a measurement depends on besides the method.
    """

    config: MatchConfig
    method: Method
    called: str
    model: PreTrainedModel
    halves: Mapping[str, Sequence[Record]]
    prompts: Mapping[Key, Prompt]
    on: str
    decides: dict[str, Any]

    @property
    def speedups(self) -> list[float]:
        return sorted(set(self.config.speedups))

    @property
    def measured(self) -> Path:
        return Path(self.config.output) / "measured"


def main(config: MatchConfig) -> Path:
    """Find a method for each speedup, or go on where an earlier start stopped; returns the folder for `--config-dir`.

    Raises:
        OutOfReach: the method reaches none of the speedups; if it is one of several, a warning says so.
        LazyBenchError: anything about the settings, the data, the model or the folder that cannot work.
    """
    sources, facts = Sources(), load_facts(config.data.datasets)
    method = check(config, sources)
    choice = choose(config.task, config.data, facts)
    met = sources.of_each(choice.datasets, config.data, config.model)
    halves = {half: in_turns([[of for of in each if half_of(of) == half] for each in met]) for half in HALVES}
    records = [of for half in halves.values() for of in half[: config.records]]
    if not config.tune:  # of as many datasets as can be
        there = list(filter(None, met))
        count = min(config.records, len(there))
        records = in_turns([there[place * len(there) // count] for place in range(count)])[: config.records]
    tokenizer, folder = sources.tokenizer(config.model), Path(config.output)
    prompts = build_all(tokenizer, config.model, facts, records)
    with writing(folder):
        for inner in ("method", "measured"):
            (folder / inner).mkdir(parents=True, exist_ok=True)
    where = environment.describe(config.model)
    tokens = sorted(prompt.ids.shape[1] for prompt in prompts.values())
    on = f"{len(prompts)} prompts of {tokens[0]} to {tokens[-1]} tokens"
    print(f"weights: {where['weights_format']}\nrecords: {data_label(config.data)}; {on}", flush=True)
    decides = {key: value for key, value in asdict(config.model).items() if key not in PLACES}
    decides |= {"weights": sources.weights(config.model), **second_models(method, sources.weights)}
    decides |= {"where": {key: value for key, value in where.items() if key != "commit"}}
    decides |= {"code": own_code.digests(method, {"method": config.method}, ())}
    # Methods of one name differ in their configs' names: those that `calibrate` found, and others of the user's.
    called = str(HydraConfig.get().runtime.choices["method"]).replace("/", "_")
    given = _Given(config, method, called, load_model(config.model), halves, prompts, on, decides)
    for wanted, text, said in _tuned(given) if config.tune else _timed(given, where):
        name = f"{called}_{wanted:g}x"
        replace(folder / "method" / f"{name}.yaml", text)
        print(f"{wanted:g}x: {said}\n  {run_command(folder, name, config.task)}", flush=True)
    return folder


def check(config: MatchConfig, sources: Sources) -> Method:
    """Return the method to match; `LazyBenchError` for one without a strength, or that the model's config rules out."""
    build_method(config.method).pruning(0.5)  # refuses a method whose strength nobody can set
    method, skeleton = method_for(config.method, config.model, sources), sources.skeleton(config.model)
    check_limit(config.model, config.answer_tokens if config.tune else 1, skeleton)
    for trial in method.trials() if config.tune else ():
        trial.check(skeleton)
    return method


def _timed(given: _Given, where: Mapping[str, Any]) -> Iterator[tuple[float, str, str]]:
    """By speedup, the config of the method at the strength of that TTFT, and what to say of it."""
    config, method, prompts = given.config, given.method, list(given.prompts.values())
    decides = given.decides | {"records": fingerprint(of.record for of in prompts), "cpu": config.cpu_share}
    kept = digest(decides | {"kind": str(type(method)), "method": asdict(method)})
    with tqdm(desc="strengths", unit="strength") as bar:
        path = given.measured / f"{given.called}_{kept}.csv"
        timed = Timed(method, prompts, given.model, config.cpu_share, path, bar)
        found, missed = _found(timed, given.speedups, config.tolerance)
    if missed is not None:
        if not found:
            raise missed
        print(f"warning: {missed}", file=sys.stderr)
    for wanted, trial in found.items():
        strong = method.pruning(trial.share)
        on = f"{given.on}, {config.model.name}, {where['dtype']}, {where['device']}"
        text = yaml.safe_dump(settings_of(strong), sort_keys=False, allow_unicode=True, width=120)
        said = f"{trial.speedup:.2f}x with {setting_of(strong.name, asdict(strong))}"
        if trial.off(wanted) > config.tolerance:
            said += "\n  no strength was nearer to what is wanted: times vary, or it goes in steps"
        yield wanted, f"# TTFT speedup {trial.speedup:.3f}: {on}\n# {typed('match')}\n{text}", said


def _tuned(given: _Given) -> Iterator[tuple[float, str, str]]:
    """By speedup, the config of the method as each half of the records found it for the other, and what to say."""
    config, method, trials = given.config, given.method, given.method.trials()
    data = {key: value for key, value in asdict(config.data).items() if key not in ("root", "limit", "half")}
    decides = given.decides | {"answer_tokens": config.answer_tokens, "data": data}
    halves = {half: records[: config.records] for half, records in given.halves.items()}
    if not all(halves.values()):
        raise LazyBenchError("a half of the records is empty: raise data.limit, or take a task with more of them")
    about = {"model": config.model.name, "layers": given.model.config.get_text_config().num_hidden_layers}
    about |= {"data": data_label(config.data), "task": config.task, "limit": config.model.limit}
    about |= {"answer_tokens": config.answer_tokens, "records": [*map(len, halves.values())]}
    lengths = [prompt.ids.shape[1] for prompt in given.prompts.values()]
    for wanted in given.speedups:
        matched, missed = [], None
        for trial in trials:
            found, out_of_reach = _found(Operations(trial, lengths, given.model), [wanted], config.tolerance)
            matched += [trial.pruning(of.share) for of in found.values() if of.off(wanted) <= config.tolerance]
            missed = out_of_reach or missed
        if not matched:
            raise missed or LazyBenchError(f"no trial of {method.name} comes as near to {wanted:g}x: raise tolerance=")
        with tqdm(desc=f"{given.called}, {wanted:g}x", unit="record") as bar:
            tuning = Tuning(given.model, given.prompts, config.answer_tokens, given.measured, decides, bar)
            best = {half: tuning.best(matched, records) for half, records in halves.items()}
            others = [(best[half][0], halves[other]) for half, other in zip(HALVES, HALVES[::-1], strict=True)]
            logs = sum(len(records) * math.log(tuning.harm(of, records)) for of, records in others)
            elsewhere = math.exp(logs / sum(len(records) for _, records in others))
        rows = [
            {"half": half, "settings": setting_of(of.name, asdict(of)), **row}
            for half, (_, each) in best.items()
            for of, row in zip(matched, each, strict=True)
        ]
        replace(Path(config.output) / f"{given.called}_{wanted:g}x.csv", csv(pd.DataFrame(rows)))
        folds = [(found, given.halves[half]) for half, (found, _) in best.items()]
        measured = about | {"tried": len(matched), "kl_on_the_other_half": round(elsewhere, 4)}
        settings = " and ".join(setting_of(found.name, asdict(found)) for found, _ in best.values())
        text = config_of(typed("match"), method.name, f"{wanted:g}x", folds, measured)
        yield wanted, text, f"{settings}; geometric mean of KL on the other half's records {elsewhere:.3f}"


def _found(
    speedups: Operations | Timed, wanted: list[float], tolerance: float
) -> tuple[dict[float, Trial], OutOfReach | None]:
    """The trial for each speedup within reach, and why the next one is not."""
    found = {}
    for speedup in wanted:
        try:
            found[speedup] = match(speedups, speedup, tolerance)
        except OutOfReach as error:
            return found, error  # what is faster still is out of reach, too
    return found, None


def run_command(folder: Path, name: str, task: str, *more: str) -> str:
    """What runs a method that was found in `folder` on the model and data of this command, in the words given."""
    about = HydraConfig.get()
    folders = [f"--config-dir={place}" for place in (folder, *own_folders(about))]
    given = [word for word in about.overrides.task if re.match(r"\+*(model|data)[.=]", word)]
    return f"python -m lazybench run {shlex.join([*folders, f'method={name}', f'task={task}', *given, *more])}"
