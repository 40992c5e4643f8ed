"""The search: an optimiser proposes schedules of one ideal speedup and importances, records are measured one by one.

Harm is the divergence of next tokens from the unmodified model's, along that model's own answer.
"""

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import optuna
import torch
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import FrozenTrial, TrialState

from lazybench.calibration.times import Times
from lazybench.data import Record
from lazybench.errors import LazyBenchError, RecordFailure
from lazybench.methods import Method, Output
from lazybench.methods.lazyllm import EQ1, PAPER, LazyLLM
from lazybench.methods.static_pruning import StaticPruning
from lazybench.model.decoding import Decoder
from lazybench.model.prompts import Prompt
from lazybench.run.divergence import Expected, divergence, expected
from lazyllm import Importance, LazyLLMError, PruningSchedule

MOST_STAGES = 4
_LEAST_KEEP = 0.01  # a stage that keeps less keeps nothing
_WEAKEST, _STRONGEST = 0.1, 1.0
_SLOWEST = 4.0  # a decode step's time, with what it revives, over that of one that revives nothing
_HALVINGS = 40
_DIGITS = 4
_SIGNIFICANCE = 0.1  # at which a candidate is given up that is worse than the best so far, record by record
_LEAST_RECORDS = 8
_RANDOM_TRIALS = 8
# So many are measured beyond the time where none has been fast enough with what it revived, and so many proposals in a
# row may bring nothing new: the search has then seen all there is.
_MOST_LATE, _MOST_MISSES = 24, 200
# Schedules are fitted to the speedup, and revivals to the schedule: nobody sees a difference as small as the first.
# What falls as short of the speedup as the second is not measured to the end.
_ENOUGH, _HOPELESS = 0.995, 0.1
_SLACK = 1.02  # what was too slow is tried again with its decode steps thought to be so much slower than they were
_SLOWNESS = "decode step over one without revivals"
_TOO_SLOW = 100.0  # nats, for not being fast enough; as much again for falling short of the speedup as a whole

warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)


@dataclass(frozen=True)
class Candidate:
    """A schedule, and the importance that ranks tokens at its stages; None is static pruning, of one stage."""

    schedule: PruningSchedule
    importance: Importance | None

    @cached_property
    def method(self) -> Method:
        if self.importance is None:
            return StaticPruning("static_pruning", 1, *self.schedule.stages[0])
        return LazyLLM(PAPER, schedule=self.schedule.spec, importance=self.importance.changed or EQ1)

    @property
    def name(self) -> str:
        return f"{self.schedule.spec or 'no pruning'} {self.columns['importance']}"

    @property
    def columns(self) -> dict[str, str]:
        ranking = "static_pruning" if self.importance is None else str(self.importance)
        return {"schedule": self.schedule.spec, "importance": ranking}


class Harm:
    """Measures candidates on records; the unmodified model answers each record once.

    `ask` gives a record's prompt and decoder; of its answer so many `tokens` are compared at most.
    """

    def __init__(self, ask: Callable[[Record], tuple[Prompt, Decoder]], tokens: int) -> None:
        self._ask = ask
        self._tokens = tokens
        self._expected: dict[tuple[str, str], Expected] = {}

    def of(self, candidate: Candidate, record: Record) -> tuple[float, torch.Tensor]:
        """KL(unmodified || pruned) of the next token, mean over the answer's tokens, in nats, and what was computed.

        That is the tokens by decode step and layer, int64 (steps, layers).
        `LazyBenchError` where a model cannot run on the record, `LazyLLMError` where it cannot be pruned like this.
        """
        kl, output = self.by(candidate.method, record, candidate.name)
        return kl, output.stats.rows[1:]

    def by(self, method: Method, record: Record, name: str) -> tuple[float, Output]:
        """The same mean KL of any method, called `name` where it fails, and what it made of the prompt."""
        self.learn(record)
        try:
            kls, output = divergence(method, *self._ask(record), self._expected[record.key])
            if not (kl := float(kls.mean())) < math.inf:
                raise RecordFailure("the divergence is not finite")
        except RecordFailure as failure:
            raise LazyBenchError(f"{name} on {record.dataset} {record.id}: {failure}") from failure
        return kl, output

    def learn(self, record: Record) -> None:
        """Have the unmodified model answer a record, once; `LazyBenchError` where it cannot."""
        if record.key not in self._expected:
            try:
                self._expected[record.key] = expected(*self._ask(record), self._tokens)
            except RecordFailure as error:
                raise LazyBenchError(f"{record.dataset} {record.id} cannot be calibrated on: {error}") from error


def searchable(importance: Importance, decoding: bool) -> dict[str, Sequence[Any]]:
    """The values to try for parts of an importance, by name: its fields say them as `search` in their metadata.

    Without `decoding`, where answers are of one token, only for those that matter in prefilling.
    """
    searched = [part for part in fields(importance) if "search" in part.metadata]
    return {part.name: part.metadata["search"] for part in searched if decoding or not part.metadata.get("revival")}


@dataclass(frozen=True)
class Space:
    """Candidates of one ideal speedup of whole generations, of `answer_tokens` on prompts of `lengths` tokens.

    The number of stages, their layers, their strengths relative to each other, how slow a decode step is for what it
    revives, and parts of the importance, with the values `searched` for each, are free; the speedup then decides how
    strongly all stages prune: the keeps are `exp(-strength * x)`, for one `x`. Whether decode steps are as fast as that
    shows when the candidate is measured.
    """

    times: Times
    lengths: Sequence[int]
    answer_tokens: int
    speedup: float
    importance: Importance
    searched: Mapping[str, Sequence[Any]]

    def speedup_of(self, schedule: PruningSchedule, slowness: float) -> float:
        """Ideal speedup of whole generations whose decode steps take `slowness` times as long as without revivals."""
        return self.times.speedup(schedule, self.lengths, self.answer_tokens, slowness * self.times.step[1])

    def _is_fast(self, schedule: PruningSchedule, slowness: float = 1.0) -> bool:
        return self.speedup_of(schedule, slowness) >= self.speedup

    @cached_property
    def deepest(self) -> int | None:
        """The last layer that a first stage can stand at; None where no schedule is fast enough."""
        layers = range(self.times.layers - 2, -1, -1)
        return next((layer for layer in layers if self._is_fast(PruningSchedule([(layer, _LEAST_KEEP)]))), None)

    def suggest(self, trial: optuna.trial.BaseTrial) -> Candidate | None:
        """The candidate that an optimiser tries; None where it cannot be fast enough."""
        count = trial.suggest_int("stages", 1, MOST_STAGES)
        layers = [trial.suggest_int("layer 1", 0, self.deepest)]
        for place in range(2, count + 1):
            # As a part of the layers behind the stage before, so that any values make a schedule.
            part = trial.suggest_float(f"depth {place}", 0.0, 1.0)
            room = self.times.layers - 2 - layers[-1]
            if room > 0:
                layers.append(layers[-1] + 1 + min(room - 1, int(part * room)))
        strengths = [trial.suggest_float(f"strength {place}", _WEAKEST, _STRONGEST) for place in range(1, count + 1)]
        slowness = trial.suggest_float("step", 1.0, _SLOWEST) if self.answer_tokens > 1 else 1.0
        schedule = self.schedule(layers, strengths[: len(layers)], slowness)
        parts = {part: trial.suggest_categorical(part, values) for part, values in self.searched.items()}
        return None if schedule is None else Candidate(schedule, replace(self.importance, **parts))

    def parameters(self, candidate: Candidate, slowness: float) -> dict[str, Any] | None:
        """What an optimiser must suggest for a candidate like this one; None for one that is not in the space."""
        stages = candidate.schedule.pruning
        if not 1 <= len(stages) <= MOST_STAGES or self.deepest is None or stages[0].layer > self.deepest:
            return None
        found: dict[str, Any] = {"stages": len(stages), "layer 1": stages[0].layer}
        for place, (before, stage) in enumerate(pairwise(stages), start=2):
            found[f"depth {place}"] = (stage.layer - before.layer - 0.5) / (self.times.layers - 2 - before.layer)
        strengths = _strengths(candidate.schedule)
        for place, strength in enumerate(strengths, start=1):
            found[f"strength {place}"] = max(_WEAKEST, strength / max(strengths))
        if self.answer_tokens > 1:
            found["step"] = min(_SLOWEST, max(1.0, slowness))
        parts = {part: getattr(candidate.importance, part, None) for part in self.searched}
        fits = all(parts[part] in values for part, values in self.searched.items())
        return found | parts if fits else None

    def replay(self, parameters: Mapping[str, Any]) -> Candidate | None:
        return self.suggest(optuna.trial.FixedTrial(dict(parameters)))

    def schedule(
        self, layers: Sequence[int], strengths: Sequence[float], slowness: float = 1.0
    ) -> PruningSchedule | None:
        """The schedule that prunes after `layers`, increasing, with these relative strengths; None if too slow."""

        def at(power: float) -> PruningSchedule:
            keeps = (max(_LEAST_KEEP, math.exp(-strength * power)) for strength in strengths)
            return PruningSchedule((layer, round(keep, _DIGITS)) for layer, keep in zip(layers, keeps, strict=True))

        low, high = 0.0, -math.log(_LEAST_KEEP) / min(strengths)
        if not self._is_fast(at(high), slowness):
            return None
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            low, high = (low, middle) if self._is_fast(at(middle), slowness) else (middle, high)
        return at(high)

    def scaled(self, schedule: PruningSchedule) -> PruningSchedule | None:
        """A schedule with each keep to the same power; None where that is not fast enough."""
        return self.schedule([stage.layer for stage in schedule.pruning], _strengths(schedule))


def _strengths(schedule: PruningSchedule) -> list[float]:
    return [-math.log(max(_LEAST_KEEP, stage.keep)) for stage in schedule.pruning]


class Trial(NamedTuple):
    """A candidate that was measured on so many records; unless these are all, `complete`, it was given up.

    `kl` is the mean over them, in nats, and `speedup_with_revivals` the ideal one of whole generations with what was
    revived on them.
    """

    candidate: Candidate
    kl: float
    speedup_with_revivals: float
    records: int
    complete: bool


class Search:
    """The search for the least harmful candidate of one ideal speedup, kept in a file that it can go on from.

    The speedup is that of whole generations, with what they revive. Any first part of `records` should be like the
    whole; `name` is the search's in the optimiser's journal, at `path`.
    """

    def __init__(self, path: Path, name: str, space: Space, records: Sequence[Record]) -> None:
        self._space, self._records = space, records
        self._read: dict[int, Trial] = {}
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self._study = optuna.create_study(
            study_name=name,
            storage=JournalStorage(JournalFileBackend(str(path))),
            sampler=optuna.samplers.TPESampler(n_startup_trials=_RANDOM_TRIALS, multivariate=True, group=True, seed=0),
            pruner=optuna.pruners.WilcoxonPruner(p_threshold=_SIGNIFICANCE, n_startup_steps=_LEAST_RECORDS),
            load_if_exists=True,
        )
        for trial in self._study.get_trials(states=(TrialState.RUNNING,)):
            self._study.tell(trial.number, state=TrialState.FAIL)  # the process ended in the middle of it
            self._study.enqueue_trial(trial.params)

    @property
    def spent(self) -> float:
        return sum(trial.duration.total_seconds() for trial in self._finished())

    @property
    def trials(self) -> list[Trial]:
        for trial in self._finished():
            if trial.number not in self._read:
                candidate, values = self._space.replay(trial.params), list(trial.intermediate_values.values())
                speedup = self._space.speedup_of(candidate.schedule, trial.user_attrs[_SLOWNESS])
                complete = trial.state == TrialState.COMPLETE
                self._read[trial.number] = Trial(candidate, fmean(values), speedup, len(values), complete)
        return list(self._read.values())

    @property
    def best(self) -> Trial | None:
        """The complete trial of least harm among those that are fast enough."""
        least = _ENOUGH * self._space.speedup
        fast = (trial for trial in self.trials if trial.complete and trial.speedup_with_revivals >= least)
        return min(fast, key=lambda trial: trial.kl, default=None)

    def start_from(self, candidates: Sequence[Candidate], slowness: float = 1.0) -> None:
        """Try these before any other, each scaled to the speedup with decode steps of this slowness."""
        for candidate in candidates:
            if (parameters := self._space.parameters(candidate, slowness)) is not None:
                self._study.enqueue_trial(parameters, skip_if_exists=True)

    def run(
        self,
        seconds: float,
        harm: Callable[[Candidate, Record], tuple[float, torch.Tensor]],
        tick: Callable[[Trial | None], None],
    ) -> str | None:
        """Try candidates for so many seconds, earlier starts included; at least one that is fast enough is completed.

        `harm` measures a candidate on a record, as `Harm.of` does; `tick` is called after each record, and with a trial
        after its last.

        Returns:
            why nothing was found; None where something was.
        """
        misses, late, failure = 0, 0, "none is fast enough"
        while misses < _MOST_MISSES and late < _MOST_LATE and (self.spent < seconds or self.best is None):
            trial = self._study.ask()
            candidate = self._space.suggest(trial)
            try:
                if candidate is None or any(other.candidate == candidate for other in self.trials):
                    raise LazyBenchError(failure)
                self._measure(trial, candidate, harm, tick)
            except (LazyBenchError, LazyLLMError) as error:
                self._study.tell(trial, state=TrialState.FAIL)
                misses, failure = misses + 1, str(error)
            else:
                tick(self.trials[-1])
                misses, late = 0, late + (self.spent >= seconds)
        if self.best is not None:
            return None
        if not self.trials:
            return f"of {misses} candidates none works: {failure}"
        fastest = max(trial.speedup_with_revivals for trial in self.trials)
        return (
            f"none of {len(self.trials)} candidates gains {self._space.speedup:g} with what it revives, the fastest "
            f"{fastest:.2f}: ask for less, or search longer (minutes)"
        )

    def _measure(self, trial: optuna.Trial, candidate: Candidate, harm: Callable, tick: Callable) -> None:
        values, steps = [], []
        space, may_end = self._space, self.best is not None  # else nothing to compare with is fast enough
        for place, record in enumerate(self._records):
            kl, rows = harm(candidate, record)
            values.append(kl)
            steps.append(space.times.step_of(rows))
            trial.report(kl, place)
            tick(None)
            slowness = fmean(steps) / space.times.step[1]
            short = _ENOUGH * space.speedup / space.speedup_of(candidate.schedule, slowness) - 1
            hopeless = len(values) >= _LEAST_RECORDS and short > _HOPELESS
            if len(values) < len(self._records) and (hopeless or (may_end and trial.should_prune())):
                break
        trial.set_user_attr(_SLOWNESS, slowness)
        if complete := len(values) == len(self._records):
            # Whatever is fast enough is better than anything that is not.
            self._study.tell(trial, fmean(values) + (_TOO_SLOW * (1 + short) if short > 0 else 0))
        else:
            self._study.tell(trial, state=TrialState.PRUNED)
        if short > 0 and (complete or hopeless):
            self.start_from([candidate], slowness * _SLACK)

    def _finished(self) -> list[FrozenTrial]:
        return self._study.get_trials(deepcopy=False, states=(TrialState.COMPLETE, TrialState.PRUNED))
