"""The search: an optimiser proposes candidates, records are measured one by one, and bad candidates end early."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

import optuna
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import FrozenTrial, TrialState

from lazybench.calibration.harm import Candidate, Harmed
from lazybench.calibration.space import Space
from lazybench.data import Record
from lazybench.errors import LazyBenchError
from lazyllm import LazyLLMError

# A candidate is given up where it is worse than the best so far, record by record, at this level of significance.
_SIGNIFICANCE = 0.1
_LEAST_RECORDS = 8
_RANDOM_TRIALS = 8
# So many are measured beyond the time where none has been fast enough with what it revived, and so many proposals in a
# row may bring nothing new: the search has then seen all there is.
_MOST_LATE, _MOST_MISSES = 24, 200
# Schedules are fitted to the speedup, and revivals to the schedule: nobody sees a difference as small as the first.
# What falls as short of the speedup as the second is not measured to the end.
_ENOUGH, _HOPELESS = 0.995, 0.1
# A candidate that was too slow is tried again with its decode steps thought to be so much slower than they were.
_SLACK = 1.02
_SLOWNESS = "decode step over one without revivals"
# Added to the harm, in nats, for not being fast enough; as much again for falling short of the speedup as a whole.
_TOO_SLOW = 100.0

warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)


class Trial(NamedTuple):
    """A candidate that was measured.

    Attributes:
        candidate: the schedule and its importance.
        kl: mean KL over the records that it was measured on, in nats.
        speedup_with_revivals: ideal speedup of whole generations with what was revived on those records.
        records: how many those are.
        complete: whether they are all; else it was given up.
    """

    candidate: Candidate
    kl: float
    speedup_with_revivals: float
    records: int
    complete: bool


class Search:
    """The search for the least harmful candidate of one ideal speedup, kept in a file that it can go on from.

    The speedup is that of whole generations, with what they revive.

    Args:
        path: the journal that the optimiser writes.
        name: the search's name in it.
        space: what to search.
        records: what to measure on; any first part of them should be like the whole.
    """

    def __init__(self, path: Path, name: str, space: Space, records: Sequence[Record]) -> None:
        self._space = space
        self._records = records
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
            # The process ended in the middle of it: try it again.
            self._study.tell(trial.number, state=TrialState.FAIL)
            self._study.enqueue_trial(trial.params)

    @property
    def spent(self) -> float:
        """Seconds that finished trials have taken so far."""
        return sum(trial.duration.total_seconds() for trial in self._finished())

    @property
    def trials(self) -> list[Trial]:
        """What was measured so far."""
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
        fast = (
            trial
            for trial in self.trials
            if trial.complete and trial.speedup_with_revivals >= _ENOUGH * self._space.speedup
        )
        return min(fast, key=lambda trial: trial.kl, default=None)

    def start_from(self, candidates: Sequence[Candidate], slowness: float = 1.0) -> None:
        """Try these before any other, each scaled to the speedup with decode steps of this slowness."""
        for candidate in candidates:
            if (parameters := self._space.parameters(candidate, slowness)) is not None:
                self._study.enqueue_trial(parameters, skip_if_exists=True)

    def run(
        self, seconds: float, harm: Callable[[Candidate, Record], Harmed], tick: Callable[[Trial | None], None]
    ) -> str | None:
        """Try candidates for so many seconds, earlier starts included; at least one that is fast enough is completed.

        `harm` measures a candidate on a record; `tick` is called after each record, and with a trial after its last.

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
        """Measure a candidate, to the end or until it is given up."""
        values, steps = [], []
        space, may_end = self._space, self.best is not None  # else nothing to compare with is fast enough
        for place, record in enumerate(self._records):
            harmed = harm(candidate, record)
            values.append(harmed.kl)
            steps.append(space.times.step_of(harmed.rows))
            trial.report(harmed.kl, place)
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
