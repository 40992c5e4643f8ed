"""`lazybench match`: how strongly a method must prune for a measured TTFT speedup, as methods that `run` takes."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

import pandas as pd
import yaml
from hydra.core.hydra_config import HydraConfig
from tqdm import tqdm
from transformers import PreTrainedModel

from lazybench.calibration.setup import in_turns
from lazybench.calibration.study import csv
from lazybench.config import MatchConfig
from lazybench.data import choose, data_label, fingerprint, load_facts
from lazybench.errors import LazyBenchError
from lazybench.methods import Method, build_method
from lazybench.methods.static_pruning import StaticPruning
from lazybench.model import environment
from lazybench.model.decoding import Decoder, check_limit, decoder_for
from lazybench.model.loading import load_model, load_skeleton
from lazybench.model.prompts import Prompt, PromptBuilder
from lazybench.run.divergence import divergence, expected
from lazybench.run.job import PLACES
from lazybench.run.origin import chosen, config_dirs, typed
from lazybench.run.sources import Sources
from lazybench.run.timing import UNMODIFIED, Pass, timed, undisturbed
from lazybench.store.run_folder import digest
from lazybench.store.writing import replace, writing

_MOST = 0.98  # of the prompt's tokens; what prunes more leaves nothing
_MOST_TRIALS = 12
_DIGITS = 4


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

        def speedups(of: Method, name: str) -> Speedups:
            kept = folder / "measured" / f"{name}_{digest(decides | {'kind': str(type(of)), 'method': asdict(of)})}.csv"
            return Speedups(of, prompts, model, config.cpu_share, kept, tick)

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
        settings = {"_target_": f"{type(method).__module__}.{type(method).__qualname__}", **asdict(strong)}
        text = yaml.safe_dump(settings, sort_keys=False, allow_unicode=True, width=120)
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


def _found(speedups: Speedups, wanted: list[float], tolerance: float) -> tuple[dict[float, Trial], OutOfReach | None]:
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


class Trial(NamedTuple):
    """A method that prunes such a share of the prompt's tokens in the end, timed.

    The speedup is the mean TTFT of the unmodified model over the method's, on so many prompts, each pair side by side;
    pairs that other work disturbed are left out.
    """

    share: float
    speedup: float
    prompts: int


class OutOfReach(LazyBenchError):
    """A method is never so fast."""


@dataclass
class Speedups:
    """Measures a method at any strength; each strength once, kept in a CSV, a row a strength.

    `tick` is called with what was timed and the speedup.
    """

    method: Method
    prompts: Sequence[Prompt]
    model: PreTrainedModel
    cpu_share: float
    kept: Path
    tick: Callable[[Method, float], None]

    def __post_init__(self) -> None:
        self._decode = Decoder(self.model, max_new_tokens=1)
        rows = pd.read_csv(self.kept).itertuples(index=False) if self.kept.exists() else ()
        self.trials = {row.share: Trial(*row) for row in rows}

    def at(self, share: float) -> Trial:
        """The method where it prunes such a share of the prompt, timed."""
        share = round(share, _DIGITS)
        if share not in self.trials:
            method = self.method.pruning(share)
            method.prepare(self.model)
            self._pair(method, self.prompts[0], least=0)  # untimed
            pairs = [self._pair(method, prompt, self.cpu_share, turn % 2) for turn, prompt in enumerate(self.prompts)]
            pairs = [pair for pair in pairs if not any(done.disturbed for done in pair)]
            if not pairs:
                raise LazyBenchError("other work on this machine disturbed every pass: stop it, or set cpu_share=0")
            before, after = (fmean(done.ttft_s for done in of) for of in zip(*pairs, strict=True))
            self.trials[share] = Trial(share, before / after, len(pairs))
            self.tick(method, before / after)
            replace(self.kept, csv(pd.DataFrame(sorted(self.trials.values())), digits=17))
        return self.trials[share]

    def _pair(self, method: Method, prompt: Prompt, least: float, backwards: int = 0) -> list[Pass]:
        """A pass of the unmodified model and one of the method on a prompt; `backwards` takes the method's first."""
        order, device = (-1 if backwards else 1), self.model.device
        passes = [
            undisturbed(partial(timed, of, prompt, self._decode, 0), device, least)
            for of in (UNMODIFIED, method)[::order]
        ]
        return passes[::order]


def match(speedups: Speedups, wanted: float, tolerance: float) -> Trial:
    """The trial whose speedup, above 1, is as wanted within a fraction of it, or the nearest after a number of them.

    Raises:
        OutOfReach: the method is slower than that however much it prunes.
    """
    trials = speedups.trials  # to which `at` adds

    def nearest() -> Trial:
        return min(trials.values(), key=lambda trial: abs(trial.speedup / wanted - 1))

    for turn in range(_MOST_TRIALS):
        share = _next(sorted(trials.values()), wanted, halving=turn % 3 == 2)
        if (trials and abs(nearest().speedup / wanted - 1) <= tolerance) or round(share, _DIGITS) in trials:
            break
        speedups.at(share)
    strongest = max(trials.values())
    if strongest.share == _MOST and max(of.speedup for of in trials.values()) < (1 - tolerance) * wanted:
        raise OutOfReach(
            f"method {speedups.method.name}: with {_MOST:.0%} of the prompt pruned its TTFT speedup is "
            f"{strongest.speedup:.2f}, so {wanted:g} is out of reach: prune at an earlier layer, or ask for less"
        )
    return nearest()


def _next(known: Sequence[Trial], wanted: float, halving: bool) -> float:
    """The share to try next: between the nearest two around what is wanted, in the reciprocal of the speedup."""
    below = max((trial.share for trial in known if trial.speedup < wanted), default=0.0)
    above = min((trial for trial in known if trial.share > below), key=lambda trial: trial.share, default=None)
    if above is None:
        return min(_MOST, 1 - 1 / wanted if not known else (1 + below) / 2)
    slow = next((1 / trial.speedup for trial in known if trial.share == below), 1.0)
    if halving or above.speedup <= 1 / slow:
        return (below + above.share) / 2
    return below + (above.share - below) * (slow - 1 / wanted) / (slow - 1 / above.speedup)
