"""Find a method's settings for each speedup: its strength by measured TTFT, or all settings by their divergence."""

import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import yaml
from tqdm import tqdm
from transformers import PreTrainedModel

from lazybench.analysis.labels import setting_of
from lazybench.config import HALVES, MatchConfig
from lazybench.data import Record, data_label, fingerprint
from lazybench.errors import LazyBenchError
from lazybench.identity import digest, method_identity
from lazybench.matching.speedups import ComputedSpeedups, MeasuredSpeedups, SpeedupOutOfReach
from lazybench.matching.tuning import Tuning
from lazybench.methods import Method
from lazybench.methods.calibrated import config_of, settings_of
from lazybench.model.prompts import Prompt
from lazybench.run.command_line import typed
from lazybench.store.journal import Key
from lazybench.store.writing import replace


class Matched(NamedTuple):
    """A method for a speedup: its config as YAML, and a message about it."""

    speedup: float
    config: str
    message: str


@dataclass(frozen=True)
class Matcher:
    """Match a method to the speedups of `config`.

    Attributes:
        config: the settings of `lazybench match`.
        method: the method.
        name: the name of the method's config; files of measured values begin with it.
        model: the model with its weights.
        halves: all records of the task, by half.
        prompts: of the records to measure, by record.
        machine: as `environment.describe` gives it.
        decides: everything besides the method that a measured value depends on.
    """

    config: MatchConfig
    method: Method
    name: str
    model: PreTrainedModel
    halves: Mapping[str, Sequence[Record]]
    prompts: Mapping[Key, Prompt]
    machine: Mapping[str, Any]
    decides: Mapping[str, Any]

    def match(self) -> Iterator[Matched]:
        """Yield the method for each speedup, from the smallest on.

        Raises:
            SpeedupOutOfReach: the method does not reach the smallest speedup; of a larger one a warning says so.
            LazyBenchError: no settings are near enough to a speedup, or other work disturbs every pass.
        """
        match = self._tune if self.config.tune else self._match_ttft
        for index, speedup in enumerate(sorted(set(self.config.speedups))):
            try:
                yield match(speedup)
            except SpeedupOutOfReach as error:
                if index == 0:
                    raise
                print(f"warning: {error}", file=sys.stderr)
                break  # larger ones are out of reach, too

    def describe_prompts(self) -> str:
        """Return the number of prompts and their lengths in words."""
        lengths = [prompt.ids.shape[1] for prompt in self.prompts.values()]
        return f"{len(lengths)} prompts of {min(lengths)} to {max(lengths)} tokens"

    @property
    def _measured(self) -> Path:
        return Path(self.config.output) / "measured"

    def _match_ttft(self, speedup: float) -> Matched:
        config, prompts = self.config, list(self.prompts.values())
        decides = {**self.decides, "records": fingerprint(prompt.record for prompt in prompts)}
        decides |= {"cpu": config.cpu_share, "method": method_identity(settings_of(self.method))}
        file = self._measured / f"{self.name}_{digest(decides)}.csv"
        with tqdm(desc=f"{self.name}, {speedup:g}x", unit="strength") as bar:
            speedups = MeasuredSpeedups(self.method, self.model, prompts, config.cpu_share, file, bar)
            trial = speedups.find(speedup, config.tolerance)
        method = self.method.pruning(trial.share)
        source = f"{config.model.name}, {self.machine['dtype']}, {self.machine['device']}"
        head = f"# TTFT speedup {trial.speedup:.3f}: {self.describe_prompts()}, {source}\n# {typed('match')}\n"
        message = f"{trial.speedup:.2f}x with {setting_of(method.name, asdict(method))}"
        if trial.error(speedup) > config.tolerance:
            message += "\n  no strength was nearer to what is wanted: times vary, or it goes in steps"
        text = yaml.safe_dump(settings_of(method), sort_keys=False, allow_unicode=True, width=120)
        return Matched(speedup, head + text, message)

    def _tune(self, speedup: float) -> Matched:
        config, trials = self.config, self._trials(speedup)
        data = {key: value for key, value in asdict(config.data).items() if key not in ("root", "limit", "half")}
        decides = {**self.decides, "answer_tokens": config.answer_tokens, "data": data}
        records = {half: self.halves[half][: config.records] for half in HALVES}
        chosen, rows, log_kls = {}, [], []
        with tqdm(desc=f"{self.name}, {speedup:g}x", unit="record") as bar:
            tuning = Tuning(self.model, self.prompts, config.answer_tokens, self._measured, decides, bar)
            for half in HALVES:
                chosen[half], measured = tuning.best(trials, records[half])
                for trial, row in zip(trials, measured, strict=True):
                    rows.append({"half": half, "settings": setting_of(trial.name, asdict(trial)), **row})
            for half, other in zip(HALVES, HALVES[::-1], strict=True):
                log_kls += [math.log(tuning.kl(chosen[half], records[other]))] * len(records[other])
        held_out_kl = math.exp(sum(log_kls) / len(log_kls))
        table = pd.DataFrame(rows).to_csv(index=False, float_format="%.5g", lineterminator="\n")
        replace(Path(config.output) / f"{self.name}_{speedup:g}x.csv", table)
        found = {
            "model": config.model.name,
            "layers": self.model.config.get_text_config().num_hidden_layers,
            "data": data_label(config.data),
            "task": config.task,
            "limit": config.model.limit,
            "answer_tokens": config.answer_tokens,
            "records": [*map(len, records.values())],
            "tried": len(trials),
            "kl_on_the_other_half": round(held_out_kl, 4),
        }
        folds = [(method, self.halves[half]) for half, method in chosen.items()]
        settings = " and ".join(setting_of(method.name, asdict(method)) for method in chosen.values())
        message = f"{settings}; geometric mean of KL on the other half's records {held_out_kl:.3f}"
        return Matched(speedup, config_of(typed("match"), self.method.name, f"{speedup:g}x", folds, found), message)

    def _trials(self, speedup: float) -> list[Method]:
        """Return the trials of the method that reach a speedup by their operations, each at the strength that does."""
        lengths = [prompt.ids.shape[1] for prompt in self.prompts.values()]
        trials, missed = [], None
        for trial in self.method.trials():
            try:
                found = ComputedSpeedups(trial, self.model, lengths).find(speedup, self.config.tolerance)
            except SpeedupOutOfReach as error:
                missed = error
                continue
            if found.error(speedup) <= self.config.tolerance:
                trials.append(trial.pruning(found.share))
        if not trials:
            name = self.method.name
            raise missed or LazyBenchError(f"no trial of {name} comes as near to {speedup:g}x: raise tolerance=")
        return trials
