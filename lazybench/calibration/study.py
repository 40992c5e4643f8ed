"""One calibration under way: its records and model, the searches, and what is measured of what they find."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import product
from statistics import fmean

import pandas as pd
from tqdm import tqdm
from transformers import PreTrainedModel

from lazybench.calibration import answers, method_file, times
from lazybench.calibration.budgets import Budget, choose
from lazybench.calibration.folder import Folder
from lazybench.calibration.frontier import CALIBRATED, DEPTH, KEEPS, STATIC
from lazybench.calibration.harm import Candidate, Harm, Static
from lazybench.calibration.search import OutOfReach, Search, Trial
from lazybench.calibration.setup import Setup
from lazybench.calibration.space import Space
from lazybench.calibration.times import Times
from lazybench.data import Record, data_label
from lazybench.errors import LazyBenchError
from lazybench.methods.checks import naming
from lazybench.methods.static_pruning import StaticPruning
from lazybench.model.decoding import Decoder, decoder_for
from lazybench.model.prompts import Prompt
from lazyllm import Importance, LazyLLMError, PruningSchedule, plus

# Where searches start besides the reference: early and even stages did well wherever they were tried.
_STARTS = ("7%:0.65,27%:0.6,50%:0.6", "13%:0.6,27%:0.6,50%:0.6", "23%:0.6,50%:0.6", "20%:0.3,50%:0.55")
_BAR = "{desc} {percentage:3.0f}%|{bar}| {elapsed}<{remaining}{postfix}"


class Study:
    """Measures candidates on a model, and finds the best of them.

    Args:
        setup: the settings and all that follows from them.
        model: the model.
        folder: where everything measured is kept.

    Raises:
        LazyBenchError: a speedup that no schedule reaches, or a reference that does not fit the model.
    """

    def __init__(self, setup: Setup, model: PreTrainedModel, folder: Folder) -> None:
        self._setup = setup
        self._model = model
        self._folder = folder
        self._prompts = {record.key: setup.prompt(record) for record in setup.records}
        self._harm = Harm(self._ask, setup.config.answer_tokens)
        self._layers = int(model.config.get_text_config().num_hidden_layers)
        reference = _reference(setup.config.reference, self._layers)
        prompts = [prompt.ids for prompt in self._prompts.values()]
        self._lengths = [ids.shape[1] for ids in prompts]
        measured = folder.times(lambda: times.measure(model, max(prompts, key=lambda ids: ids.shape[1])))
        self._times = Times.fit(measured, self._layers)
        self._searches: dict[tuple[str, float], Search] = {}
        self._scaled: dict[float, dict[str, PruningSchedule]] = {}
        self._instead: dict[float, dict[str, Candidate | Static]] = {}
        for speedup in setup.speedups:
            answer_tokens = setup.config.answer_tokens
            space = Space(self._times, self._lengths, answer_tokens, speedup, setup.importance, setup.searched)
            if space.deepest is None:
                raise LazyBenchError(
                    f"speedup {speedup:g} is out of reach of every schedule on these prompts: ask for less"
                )
            scaled = {KEEPS: space.scaled_keeps(reference), DEPTH: space.scaled_depth(reference)}
            self._scaled[speedup] = {kind: schedule for kind, schedule in scaled.items() if schedule is not None}
            self._instead[speedup] = {kind: Candidate(of, Importance()) for kind, of in self._scaled[speedup].items()}
            # Its own layer, or one as early in a shallow model.
            one_stage = PruningSchedule([(min(StaticPruning.layer, self._layers // 6), StaticPruning.keep)])
            if (found := space.scaled_keeps(one_stage)) is not None:
                self._instead[speedup][STATIC] = Static(found)
            for half in setup.halves:
                journal = folder.search(half, setup.slug)
                self._searches[half, speedup] = Search(journal, f"{speedup:g}", space, setup.of_half(half))

    @property
    def prompt_tokens(self) -> list[int]:
        """The length of each record's prompt."""
        return self._lengths

    @property
    def compared(self) -> int:
        """How many schedules are measured on a record of the other half: what is found, and what stands beside it."""
        return sum(1 + len(beside) for beside in self._instead.values())

    def seconds(self, record: Record, answer_tokens: int) -> float:
        """Time that the unmodified model takes for an answer of so many tokens."""
        return self._times.whole(self._prompts[record.key].ids.shape[1], answer_tokens)

    def _ask(self, record: Record) -> tuple[Prompt, Decoder]:
        prompt = self._prompts[record.key]
        return prompt, decoder_for(self._model, prompt)

    def search(self, half: str) -> None:
        """Search on one half of the records for its share of the time, earlier starts included.

        Raises:
            OutOfReach: at none of the speedups a candidate is fast enough; if it is one of several, a warning says so.
        """
        setup = self._setup
        seconds = 60 * setup.config.minutes / len(setup.halves) / len(setup.speedups)
        searches = {speedup: self._searches[half, speedup] for speedup in setup.speedups}
        left = sum(max(0.0, seconds - search.spent) for search in searches.values())
        if left:
            # Before the clock starts: all searches need it.
            for record in tqdm(setup.of_half(half), unit="record", desc=f"the unmodified model on the {half} half"):
                self._harm.learn(record)
        missed: OutOfReach | None = None
        with tqdm(total=round(left), bar_format=_BAR, disable=not left) as bar:
            for speedup, search in searches.items():
                bar.set_description(f"{half} half, {speedup:g}x")
                search.start_from(self._starts(half, speedup))
                try:
                    search.run(seconds, self._harm.of, _ticks(bar, search))
                except OutOfReach as error:
                    missed = error
                    print(f"warning: {half} half: {error}", file=sys.stderr)
        if missed is not None and not self._winners(half):
            raise missed

    def _starts(self, half: str, speedup: float) -> list[Candidate]:
        """What to try first: what was found for less speedup, the scaled reference, and what does well elsewhere."""
        slower = [trial.candidate for other, trial in self._winners(half).items() if other < speedup]
        schedules = [*_known_starts(self._layers), *self._scaled[speedup].values()]
        searched = self._setup.searched
        importances = [
            replace(self._setup.importance, **{part: parts.get(part, values[0]) for part, values in searched.items()})
            for parts in (({"pooling": 31}, plus().changed) if searched else ({},))
        ]
        return slower[::-1] + [Candidate(schedule, ranking) for ranking, schedule in product(importances, schedules)]

    def _winners(self, half: str) -> dict[float, Trial]:
        """By speedup, the best that a search on one half has found so far."""
        found = {speedup: self._searches[half, speedup].best for speedup in self._setup.speedups}
        return {speedup: trial for speedup, trial in found.items() if trial is not None}

    def tried(self) -> pd.DataFrame:
        """Every candidate that a search has measured."""
        return pd.DataFrame(
            {
                "half": half,
                "speedup": speedup,
                **trial.candidate.columns,
                "kl": trial.kl,
                "speedup_with_revivals": trial.speedup,
                "records": trial.records,
                "complete": trial.complete,
            }
            for half, speedup in product(self._setup.halves, self._setup.speedups)
            for trial in self._searches[half, speedup].trials
        )

    def held_out(self) -> pd.DataFrame:
        """What was found on each half, the scaled reference and static pruning, on the records of the other half.

        Returns:
            one row a schedule and record: `half`, the one the schedule was found on or for; `speedup`, the ideal one it
            was made for; `kind`, `schedule` and `importance`; `found_kl`, the mean KL on the half it was found on, in
            nats, None for the reference; `dataset` and `_id` of the record, its `kl` in nats, and the ideal seconds of
            its whole generation, `unmodified_s` and, with what is revived, `pruned_s`. The reference and static pruning
            have the speedup without revivals, of which static pruning has none.
        """
        rows = []
        for half in self._setup.halves:
            asked: list[tuple[float, str, Candidate | Static, float | None]] = []
            for speedup, trial in self._winners(half).items():
                asked.append((speedup, CALIBRATED, trial.candidate, trial.kl))
                for kind, other in self._instead[speedup].items():
                    asked.append((speedup, kind, other, None))
            bar = tqdm([*product(asked, self._setup.other(half))], unit="record", desc=f"{half} half's schedules")
            for (speedup, kind, candidate, found_kl), record in bar:
                about = {"half": half, "speedup": speedup, "kind": kind, **candidate.columns, "found_kl": found_kl}
                rows.append({**about, "dataset": record.dataset, "_id": record.id, **self._measured(candidate, record)})
        return pd.DataFrame(rows)

    def write_method(self, budget: Budget, found: Mapping[str, Trial], command: str) -> str:
        """Write the YAML of a budget's method, of the schedule that each half found; returns its config name."""
        config, trials = self._setup.config, list(found.values())
        about = {
            "model": config.model.name,
            "layers": self._layers,
            "weights": self._setup.weights,
            "data": data_label(config.data),
            "task": config.task,
            "limit": config.model.limit,
            "half": config.half,
            "answer_tokens": config.answer_tokens,
            "ideal_speedup": [round(trial.speedup, 3) for trial in trials],
            "kl": [round(trial.kl, 4) for trial in trials],
            "kl_on_the_other_half": round(self.kl_elsewhere(found), 4),
        }
        folds = [(trial.candidate, self._setup.of_half(half)) for half, trial in found.items()]
        name = f"{method_file.name_of(trial.candidate for trial in trials)}_{budget.slug}"
        self._folder.write_method(name, method_file.text(budget, folds, about, command))
        return name

    def kl_elsewhere(self, found: Mapping[str, Trial]) -> float:
        """Mean KL, in nats, of what was found by half, each on the records of the other half."""
        return fmean(
            self._measured(trial.candidate, record)["kl"]
            for half, trial in found.items()
            for record in self._setup.other(half)
        )

    def _measured(self, candidate: Candidate | Static, record: Record) -> dict[str, float]:
        return self._folder.measured("kl", candidate, record, self._measure)

    def _measure(self, candidate: Candidate | Static, record: Record) -> dict[str, float]:
        harmed, answer_tokens = self._harm.of(candidate, record), self._setup.config.answer_tokens
        tokens = self._prompts[record.key].ids.shape[1]
        step_s = self._times.step_of(harmed.rows) or self._times.step[1]  # of an answer of one token nothing is known
        pruned_s = self._times.pruned(candidate.schedule, tokens, answer_tokens, step_s)
        return {"kl": harmed.kl, "unmodified_s": self.seconds(record, answer_tokens), "pruned_s": pruned_s}

    def answers(self, candidate: Candidate, records: Sequence[Record]) -> pd.DataFrame:
        """LongBench's scores of whole answers, 0 to 1: `task`, `dataset`, `_id`, `unmodified` and `calibrated`."""
        return pd.DataFrame(
            {
                "task": self._setup.facts[record.dataset].task or record.dataset,
                "dataset": record.dataset,
                "_id": record.id,
                "unmodified": self._folder.measured("score", None, record, self._score)["score"],
                "calibrated": self._folder.measured("score", candidate, record, self._score)["score"],
            }
            for record in tqdm(records, unit="record", desc=f"scores of {candidate.name}")
        )

    def _score(self, candidate: Candidate | None, record: Record) -> dict[str, float]:
        return {"score": answers.score(*self._ask(record), candidate)}

    def choose(self, budget: Budget, half: str) -> Trial | None:
        """What was found on one half that answers a budget best; None where nothing keeps to it."""
        records = self._setup.of_half(half)
        return choose(budget, self._winners(half), lambda trial: answers.loss(self.answers(trial.candidate, records)))


def _reference(text: str, layers: int) -> PruningSchedule:
    """The schedule to compare with, without stages that keep everything."""
    with naming("reference"):
        given = PruningSchedule.parse(text, layers)
        given.check(layers)
    schedule = PruningSchedule(given.pruning)
    if not schedule.stages:
        raise LazyBenchError(f"reference={text} prunes nothing: give layer:keep pairs such as 36%:0.7,70%:0.5")
    return schedule


def _known_starts(layers: int) -> list[PruningSchedule]:
    """The starts that a model of so many layers has room for."""
    found = []
    for text in _STARTS:
        with suppress(LazyLLMError):  # in a shallow model two stages fall on one layer
            schedule = PruningSchedule.parse(text, layers)
            schedule.check(layers)
            found.append(schedule)
    return found


def _ticks(bar: tqdm, search: Search) -> Callable[[Trial | None], None]:
    """Shows on a bar of seconds how far a search is, and the best it has found."""
    began = time.monotonic() - bar.n

    def tick(trial: Trial | None) -> None:
        bar.update(min(bar.total, time.monotonic() - began) - bar.n)
        if trial is not None and (best := search.best) is not None:
            bar.set_postfix_str(f" {len(search.trials)} tried, best KL {best.kl:.3f}: {best.candidate.name}")

    return tick
