"""`lazybench match`: how strongly a method must prune for a measured TTFT speedup, as methods that `run` takes."""

from __future__ import annotations

import re
import shlex
import sys
from dataclasses import asdict, fields
from pathlib import Path
from statistics import fmean

import yaml
from hydra.core.hydra_config import HydraConfig
from tqdm import tqdm
from transformers import PreTrainedModel

from lazybench.calibration.setup import in_turns
from lazybench.calibration.strength import OutOfReach, Timed, Trial, match
from lazybench.config import MatchConfig
from lazybench.data import choose, data_label, fingerprint, load_facts
from lazybench.methods import Method, build_method
from lazybench.methods.calibrated import settings_of
from lazybench.methods.static_pruning import StaticPruning
from lazybench.model import environment
from lazybench.model.decoding import check_limit, decoder_for
from lazybench.model.loading import load_model, load_skeleton
from lazybench.model.prompts import Prompt, PromptBuilder
from lazybench.run.divergence import divergence, expected
from lazybench.run.job import PLACES
from lazybench.run.origin import chosen, config_dirs, typed
from lazybench.run.sources import Sources
from lazybench.store.run_folder import digest
from lazybench.store.writing import replace, writing


def main(config: MatchConfig) -> Path:
    """Find a strength for each speedup, or go on where an earlier start stopped; returns the folder for `--config-dir`.

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
        for inner in ("method", "measured"):
            (folder / inner).mkdir(parents=True, exist_ok=True)
    where = environment.describe(config.model)
    tokens = sorted(prompt.ids.shape[1] for prompt in prompts)
    on = f"{len(prompts)} prompts of {tokens[0]} to {tokens[-1]} tokens"
    print(f"weights: {where['weights_format']}\nrecords: {data_label(config.data)}; {on}")
    # Methods of one name differ in their configs' names: those that `calibrate` found, and others of the user's.
    called = chosen("method") or method.name
    model, static = load_model(config.model), StaticPruning("static_pruning")
    decides = {key: value for key, value in asdict(config.model).items() if key not in PLACES}
    decides |= {"weights": sources.weights(config.model), "records": fingerprint(of.record for of in prompts)}
    decides |= {"where": {key: value for key, value in where.items() if key != "commit"}, "cpu": config.cpu_share}
    with tqdm(desc="strengths", unit="strength") as bar:

        def tick(of: Method, speedup: float) -> None:
            bar.update()
            bar.set_postfix_str(f"{of.name}: {speedup:.2f}x")

        def speedups(of: Method, name: str) -> Timed:
            kept = folder / "measured" / f"{name}_{digest(decides | {'kind': str(type(of)), 'method': asdict(of)})}.csv"
            return Timed(of, prompts, model, config.cpu_share, kept, tick)

        found, missed = _found(speedups(method, called), sorted(set(config.speedups)), config.tolerance)
        as_fast = [of.speedup for of in found.values() if of.speedup > 1 and not isinstance(method, StaticPruning)]
        beside, _ = _found(speedups(static, static.name), as_fast, config.tolerance)
    if missed is not None:
        if not found:
            raise missed
        print(f"warning: {missed}", file=sys.stderr)
    for wanted, trial in found.items():
        name, strong = f"{called}_{wanted:g}x", method.pruning(trial.share)
        about = f"# TTFT speedup {trial.speedup:.3f}: {on}, {config.model.name}, {where['dtype']}, {where['device']}"
        text = yaml.safe_dump(settings_of(strong), sort_keys=False, allow_unicode=True, width=120)
        replace(folder / "method" / f"{name}.yaml", f"{about}\n# {typed('match')}\n{text}")
        print(f"{wanted:g}x: {trial.speedup:.2f}x with {_differing(strong, method)}")
        if abs(trial.speedup / wanted - 1) > config.tolerance:
            print("  no strength was nearer to what is wanted: times vary, or it goes in steps")
        if (other := beside.get(trial.speedup)) is not None:
            pruning = static.pruning(other.share)
            kl, others_kl = (_kl(model, prompts, of) for of in (strong, pruning))
            print(
                f"  {'loses to' if others_kl < kl else 'beats'} static pruning at {other.speedup:.2f}x "
                f"({_differing(pruning, static)}): KL {kl:.3f} against {others_kl:.3f} on these prompts"
            )
        print(f"  {run_command(folder, name, config.task)}")
    return folder


def _found(speedups: Timed, wanted: list[float], tolerance: float) -> tuple[dict[float, Trial], OutOfReach | None]:
    """The trial for each speedup within reach, and why the next one is not."""
    found = {}
    for speedup in wanted:
        try:
            found[speedup] = match(speedups, speedup, tolerance)
        except OutOfReach as error:
            return found, error  # what is faster still is out of reach, too
    return found, None


def _kl(model: PreTrainedModel, prompts: list[Prompt], method: Method) -> float:
    """What a method does to the next tokens: its mean KL over the prompts, in nats."""
    method.prepare(model)
    asked = ((prompt, decoder_for(model, prompt)) for prompt in prompts)
    return fmean(float(divergence(method, *of, expected(*of))[0].mean()) for of in asked)


def _differing(method: Method, given: Method) -> str:
    """What differs from the method that was given, of what its repr shows."""
    shown = [of.name for of in fields(method) if of.repr and getattr(method, of.name) != getattr(given, of.name)]
    return ", ".join(f"{key}={getattr(method, key)}" for key in shown) or "the settings as they were given"


def _prompts(config: MatchConfig, sources: Sources) -> list[Prompt]:
    """Prompts to time, spread evenly over the datasets."""
    facts = load_facts(config.data.datasets)
    choice = choose(config.task, config.data, facts)
    records = in_turns([sources.records(name, config.data, config.model) for name in choice.datasets])
    count, tokenizer = min(config.records, len(records)), sources.tokenizer(config.model)
    picked = [records[place * len(records) // count] for place in range(count)]
    return [PromptBuilder(tokenizer, config.model, facts[record.dataset]).build(record) for record in picked]


def run_command(folder: Path, name: str, task: str, *more: str) -> str:
    """What runs a method that was found in `folder` on the model and data of this command, in the words given."""
    given = HydraConfig.get().overrides.task if HydraConfig.initialized() else []
    words = [f"method={name}", f"task={task}", *(word for word in given if re.match(r"\+*(model|data)[.=]", word))]
    if places := config_dirs():  # `--config-dir` is for the method that was found
        more += ("hydra.searchpath=[" + ",".join(f'"file://{place}"' for place in places) + "]",)
    return f"python -m lazybench run --config-dir {shlex.join([str(folder), *words, *more])}"
