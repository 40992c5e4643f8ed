"""Find a method's settings for each speedup: how much it prunes by its operations, or all settings by their KL."""

import math
import re
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import pandas as pd
from omegaconf import OmegaConf
from torch import Tensor
from tqdm import tqdm
from transformers import PreTrainedModel

from lazybench.analysis.intervals import NEGLIGIBLE, geometric_mean
from lazybench.analysis.labels import setting_of
from lazybench.config import HALVES, MatchConfig
from lazybench.data import Record, data_label, half_of, in_turn
from lazybench.errors import LazyBenchError, RecordFailure, prefix_errors
from lazybench.identity import digest, method_identity
from lazybench.matching.speedups import SpeedupOutOfReach, Trial, computed_speedup, find
from lazybench.methods import Method
from lazybench.methods.matched import Matched, settings_of
from lazybench.model.decoding import Question, question_of
from lazybench.model.prompts import Prompt
from lazybench.run.batches import Batches
from lazybench.run.divergence import UNMODIFIED, kl
from lazybench.store import writing
from lazybench.store.journal import Journal, Key


@dataclass(frozen=True)
class Matcher:
    """Match a method to the speedups of `config`."""

    config: MatchConfig
    method: Method
    name: str  # of the method's config; its files begin with it
    model: PreTrainedModel
    halves: Mapping[str, Sequence[Record]]  # all records of the task, by half
    prompts: Mapping[Key, Prompt]  # of the records to measure
    cache_key: Mapping[str, Any]  # everything besides the method and the record that a measured value depends on
    _expected: dict[Key, tuple[list[int], Tensor]] = field(default_factory=dict)  # tokens and logits, unmodified

    def match(self) -> Iterator[tuple[str, str, str]]:
        """Yield for each speedup, the smallest first, the name of the method's file, its YAML, and a message.

        A method that is matched already keeps its speedup and its name.

        Raises:
            SpeedupOutOfReach: the method does not reach the smallest speedup; at a larger one it ends with a warning.
            LazyBenchError: no settings are near enough to a speedup, or a record cannot be answered.
        """
        match = self._tune if self.config.tune else self._by_operations
        words = [re.sub(r"^([\w.-]+)=/.*/", r"\1=", word) for word in sys.argv[1:]]  # without this machine's folders
        command = shlex.join(["python", "-m", "lazybench", "match", *words])
        if isinstance(self.method, Matched):
            wanted = {float(self.method.speedup.removesuffix("x")): self.name}
        else:
            wanted = {speedup: f"{self.name}_{speedup:g}x" for speedup in sorted(set(self.config.speedups))}
        for index, (speedup, name) in enumerate(wanted.items()):
            try:
                method, note, message = match(speedup)
            except SpeedupOutOfReach as error:
                if index == 0:
                    raise
                print(f"warning: method {self.name}: {error}", file=sys.stderr)
                break  # larger ones are out of reach, too
            yield name, f"{note}# {command}\n{OmegaConf.to_yaml(settings_of(method))}", message

    def describe_prompts(self) -> str:
        """Return the number of prompts and their lengths in tokens."""
        lengths = [prompt.ids.shape[1] for prompt in self.prompts.values()]
        return f"{len(lengths)} prompts of {min(lengths)} to {max(lengths)} tokens"

    def _by_operations(self, speedup: float) -> tuple[Matched, str, str]:
        """Return the method that reaches the speedup, a comment for its file, and a message."""
        reached, messages = [], []

        def matched(method: Method) -> Method:
            trial = self._find(method, speedup)
            method = method.pruning(trial.share)
            reached.append(f"{trial.speedup:.3f}")
            messages.append(f"{trial.speedup:.2f}x with {setting_of(method.name, asdict(method))}")
            if trial.error(speedup) > self.config.tolerance:
                messages.append("  no setting comes closer, as a layer's tokens are whole numbers")
            return method

        source = self._source() | {"records": len(self.prompts)}
        if isinstance(self.method, Matched):
            method = self.method.again(matched, source)
        else:  # it may run on all records: the choice depended only on their lengths
            fold = {"method": matched(self.method), "records": []}
            method = Matched(self.method.name, speedup=f"{speedup:g}x", folds=[fold], found=source)
        prompts = f"{self.describe_prompts()}, {self.config.model.name}"
        note = f"# speedup by operations {' and '.join(dict.fromkeys(reached))}: {prompts}\n"
        return method, note, "\n".join(dict.fromkeys(messages))

    def _source(self) -> dict[str, Any]:
        """Describe the model and the prompts that settings are found for."""
        config = self.config
        return {
            "model": config.model.name,
            "layers": self.model.config.get_text_config().num_hidden_layers,
            "data": data_label(config.data),
            "task": config.task,
            "limit": config.model.limit,
        }

    def _find(self, method: Method, speedup: float) -> Trial:
        """Find how much a method prunes for a speedup of prefill by operations, summed over the prompts."""
        lengths = [prompt.ids.shape[1] for prompt in self.prompts.values()]

        def measure(share: float) -> float:
            return computed_speedup(method.pruning(share), self.model, lengths)

        return find(measure, speedup, self.config.tolerance)

    def _tune(self, speedup: float) -> tuple[Matched, str, str]:
        """Return the cross-fitted method for the speedup, no comment, and a message; write a table of the trials."""
        config, trials = self.config, self._trials(speedup)
        records = {half: self.halves[half][: config.records] for half in HALVES}
        chosen, tables, log_kls = {}, [], []
        for half in HALVES:
            chosen[half], table = self._best(trials, records[half])
            table.insert(0, "half", half)
            tables.append(table)
        for half, other in zip(HALVES, HALVES[::-1], strict=True):
            log_kls += [math.log(self._kl(chosen[half], records[other]))] * len(records[other])
        held_out_kl = math.exp(fmean(log_kls))
        text = pd.concat(tables).to_csv(index=False, float_format="%.5g", lineterminator="\n")
        writing.replace(Path(config.output) / f"{self.name}_{speedup:g}x.csv", text)
        found = self._source() | {
            "answer_tokens": config.answer_tokens,
            "records": [*map(len, records.values())],
            "tried": len(trials),
            "kl_on_the_other_half": round(held_out_kl, 4),
        }
        folds = [
            {"method": method, "records": sorted(record.hash for record in self.halves[half])}
            for half, method in chosen.items()
        ]
        settings = " and ".join(setting_of(method.name, asdict(method)) for method in chosen.values())
        message = f"{settings}; geometric mean of KL on the other half's records {held_out_kl:.3f}"
        return Matched(self.method.name, speedup=f"{speedup:g}x", folds=folds, found=found), "", message

    def _trials(self, speedup: float) -> list[Method]:
        """Return the trials of the method, each pruning as much as gives the speedup by its operations."""
        trials, missed = [], None
        for method in self.method.trials():
            try:
                trial = self._find(method, speedup)
            except SpeedupOutOfReach as error:
                missed = error
                continue
            if trial.error(speedup) <= self.config.tolerance:
                trials.append(method.pruning(trial.share))
        if not trials:
            name = self.method.name
            raise missed or LazyBenchError(
                f"no trial of {name} is within tolerance={self.config.tolerance:g} of {speedup:g}x: raise it"
            )
        return trials

    def _best(self, trials: Sequence[Method], records: Sequence[Record]) -> tuple[Method, pd.DataFrame]:
        """Return the trial of least divergence by successive halving, and a table of all trials.

        All trials are measured on the first half of `records`, and the better half of them on all records. The table
        has `kl`, in nats, on how many `records`, and which is the `best`.
        """
        first = records[: math.ceil(len(records) / 2)]
        settings = [setting_of(trial.name, asdict(trial)) for trial in trials]
        kls = [self._kl(trial, first) for trial in trials]
        table = pd.DataFrame({"settings": settings, "kl": kls, "records": len(first), "best": False})
        finalists = table.nsmallest(math.ceil(len(trials) / 2), "kl").index
        for number in finalists:
            table.loc[number, ["kl", "records"]] = self._kl(trials[number], records), len(records)
        best = table.loc[finalists, "kl"].idxmin()
        table.loc[best, "best"] = True
        return trials[best], table

    def _kl(self, method: Method, records: Sequence[Record]) -> float:
        """Return the geometric mean over records of the mean KL(unmodified || method) of the next token, in nats.

        Each method and record is measured once, and kept in a file for each method; an edited record is measured again.
        """
        identity = {**self.cache_key, "method": method_identity(settings_of(method))}
        journal = Journal(Path(self.config.output) / "measured" / f"{self.name}_{digest(identity)}.jsonl")
        journal.load()
        missing = [record for record in records if journal.rows.get(record.key, {}).get("record") != record.hash]
        if missing:
            method.prepare(self.model)
        for record in tqdm(missing, unit="record", desc=method.name, disable=not missing, leave=False):
            row = {"dataset": record.dataset, "_id": record.id, "record": record.hash}
            journal.add(row | {"kl": self._prompt_kl(method, self.prompts[record.key])})
        kls = np.array([journal.rows[record.key]["kl"] for record in records])
        return max(NEGLIGIBLE, geometric_mean(kls).value)

    def _prompt_kl(self, method: Method, prompt: Prompt) -> float:
        record = prompt.record
        with prefix_errors(f"method {method.name} on {record.dataset} {record.id}", RecordFailure):
            question = question_of(self.model, prompt)
            if record.key not in self._expected:
                tokens = min(self.config.answer_tokens, question.stops.max_new_tokens)
                stops = replace(question.stops, max_new_tokens=tokens)
                self._expected[record.key] = self._answer(UNMODIFIED, question._replace(stops=stops))
            tokens, logits = self._expected[record.key]
            # Forced along the unmodified model's answer, so that decoding and revival count.
            _, own = self._answer(method, question._replace(reference=tokens, is_forced=True))
            value = float(kl(logits, own).mean())
            if not value < math.inf:
                raise RecordFailure("the divergence is not finite")
        return value

    def _answer(self, method: Method, question: Question) -> tuple[list[int], Tensor]:
        """Return an answer's tokens and their logits, (tokens, vocabulary); `RecordFailure` if there is none."""
        (answer,) = Batches(self.model, 1).answer(method, [question], self.config.answer_tokens)
        if isinstance(answer, RecordFailure):
            raise answer
        return answer.tokens, answer.logits


def split_halves(datasets: Sequence[Sequence[Record]]) -> dict[str, list[Record]]:
    """Return the records of each half, one of each dataset in turn, those of a dataset in the order of their hashes."""
    ordered = [sorted(dataset, key=lambda record: record.hash) for dataset in datasets]
    return {
        half: in_turn([record for record in dataset if half_of(record) == half] for dataset in ordered)
        for half in HALVES
    }
