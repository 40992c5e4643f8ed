"""One calibration under way: its folder, the searches, and what is measured of what they find."""

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any

import pandas as pd
import yaml
from tqdm import tqdm
from transformers import PreTrainedModel

import lazyllm
from lazybench.calibration import times
from lazybench.calibration.frontier import CALIBRATED, KEEPS, STATIC, loss
from lazybench.calibration.search import Candidate, Harm, Search, Space, Trial
from lazybench.calibration.setup import SCORE_LOSS, SPEEDUP, Budget, Setup
from lazybench.data import Record, data_label
from lazybench.errors import LazyBenchError
from lazybench.methods.base import answer
from lazybench.methods.calibrated import config_of
from lazybench.methods.lazyllm import PAPER, PLUS
from lazybench.methods.static_pruning import StaticPruning
from lazybench.model.decoding import Decoder, decoder_for, read
from lazybench.model.prompts import Prompt
from lazybench.run import scoring
from lazybench.run.timing import UNMODIFIED
from lazybench.store import writing
from lazybench.store.journal import Journal
from lazybench.store.locks import Busy, Lock
from lazybench.store.run_folder import digest
from lazyllm import Importance, PruningSchedule, plus

# Where searches start besides the reference: early and even stages did well wherever they were tried.
_STARTS = ("7%:0.65,27%:0.6,50%:0.6", "13%:0.6,27%:0.6,50%:0.6", "23%:0.6,50%:0.6", "20%:0.3,50%:0.55")
_TEXTS = ("half", "kind", "schedule", "importance", "task", "dataset", "_id")  # all other columns are numbers


class Folder:
    """Shared by calibrations that differ in what they search alone: times and harm are measured once for all of them.

    In it is the folder `found`, `<importance>/<half>`, of what this calibration finds; its `method/` gets methods.
    """

    def __init__(self, path: Path, found: str) -> None:
        self.path = path
        self.found = path / found
        self._journals: dict[str, Journal] = {}

    @contextmanager
    def opened(self, settings: Mapping[str, Any], environment: Mapping[str, Any]) -> "Iterator[Folder]":
        """Make or reopen the folder for this process alone; `Busy` where another one is at work in it."""
        with writing.writing(self.path):
            for inner in (self.path / "searches", self.path / "measured", self.found / "method"):
                inner.mkdir(parents=True, exist_ok=True)
            lock = Lock(self.path / ".lock")
        try:
            if not lock.take():
                raise Busy(f"another process is at work in {self.path}")
            writing.replace(
                self.found / "config.yaml", yaml.safe_dump(dict(settings), sort_keys=False, allow_unicode=True)
            )
            writing.replace(self.found / "environment.json", json.dumps(dict(environment), indent=2) + "\n")
            yield self
        finally:
            lock.close()

    def times(self, measure: Callable[[], dict[str, dict[int, float]]]) -> dict[str, dict[int, float]]:
        """A model's seconds by what takes them and the number of tokens: measured once, then kept."""
        path = self.path / "times.json"
        if not path.exists():
            writing.replace(path, json.dumps(measure(), indent=2) + "\n")
        kept = json.loads(path.read_text("utf-8"))
        return {what: {int(tokens): seconds for tokens, seconds in by.items()} for what, by in kept.items()}

    def measured(self, what: str, candidate: Candidate | None, record: Record, measure: Callable) -> dict[str, float]:
        """What `measure(candidate, record)` gives, None being the unmodified model: measured once, then kept."""
        name = f"{what}-{'unmodified' if candidate is None else digest({'candidate': candidate.name})}"
        if name not in self._journals:
            self._journals[name] = Journal(self.path / "measured" / f"{name}.jsonl")
            self._journals[name].load()
        journal = self._journals[name]
        if record.key not in journal.rows:
            named = {} if candidate is None else {"schedule": candidate.schedule.spec}
            journal.add({"dataset": record.dataset, "_id": record.id, **named, **measure(candidate, record)})
        return journal.rows[record.key]

    def write(self, name: str, rows: pd.DataFrame, digits: int = 5) -> pd.DataFrame:
        """Write a table as CSV; returns it as the file has it, so that what is made of it can be made again."""
        path = self.found / f"{name}.csv"
        writing.replace(path, csv(rows, digits))
        return read_records(path)


def csv(rows: pd.DataFrame, digits: int = 5) -> str:
    """Rows as CSV, numbers with so many significant digits."""
    return rows.to_csv(index=False, float_format=f"%.{digits}g", lineterminator="\n")


def read_records(path: Path) -> pd.DataFrame:
    """The rows of a file that `Folder.write` wrote."""
    return pd.read_csv(path, dtype=dict.fromkeys(_TEXTS, str), keep_default_na=False, na_values="")


class Study:
    """Measures candidates on a model, and finds the best of them.

    Raises:
        LazyBenchError: a speedup that no schedule reaches.
    """

    def __init__(self, setup: Setup, model: PreTrainedModel, folder: Folder) -> None:
        self._setup, self._model, self._folder = setup, model, folder
        self._answer_tokens = setup.config.answer_tokens
        self._harm = Harm(self._ask, self._answer_tokens)
        self._layers = int(model.config.get_text_config().num_hidden_layers)
        self._instead: dict[float, dict[str, Candidate]] = {}
        reference = self._placed(setup.config.reference)
        ids = sorted((prompt.ids for prompt in setup.prompts.values()), key=lambda of: of.shape[1])
        lengths, ranking = [of.shape[1] for of in ids], Importance(for_good=setup.importance.for_good)
        self._times = times.Times.fit(folder.times(lambda: times.measure(model, ids[-1])), self._layers)
        self._searches: dict[tuple[str, float], Search] = {}
        for speedup in setup.speedups:
            space = Space(self._times, lengths, self._answer_tokens, speedup, setup.importance, setup.searched)
            if space.deepest is None:
                raise LazyBenchError(
                    f"speedup {speedup:g} is out of reach of every schedule on these prompts: ask for less"
                )
            instead = {KEEPS: (reference, ranking), STATIC: (StaticPruning("static_pruning").placed(model), None)}
            scaled = {kind: (space.scaled(schedule), by) for kind, (schedule, by) in instead.items()}
            self._instead[speedup] = {kind: Candidate(*of) for kind, of in scaled.items() if of[0] is not None}
            for half in setup.halves:
                journal = folder.path / "searches" / f"{half}_{setup.slug}.log"
                self._searches[half, speedup] = Search(journal, f"{speedup:g}", space, setup.of_half(half))

    def _ask(self, record: Record) -> tuple[Prompt, Decoder]:
        prompt = self._setup.prompts[record.key]
        return prompt, decoder_for(self._model, prompt)

    def _placed(self, text: str) -> PruningSchedule:
        return lazyllm.enable(self._model, text, selection=self._setup.importance).schedule

    def search(self, half: str) -> None:
        """Search on one half of the records for its share of the time, earlier starts included.

        Where nothing is found at one of several speedups, a warning says so; `LazyBenchError` where at none.
        """
        seconds, missed = 60 * self._setup.config.minutes / len(self._searches), None
        searches = {speedup: self._searches[half, speedup] for speedup in self._setup.speedups}
        if any(search.spent < seconds for search in searches.values()):
            # Before the clock starts: all searches need it.
            for record in tqdm(self._setup.of_half(half), unit="record", desc="the unmodified model"):
                self._harm.learn(record)
        for speedup, search in searches.items():
            search.start_from(self._starts(half, speedup))
            with tqdm(unit="record", desc=f"{half} half, {speedup:g}x, {seconds / 60:.3g} minutes") as bar:
                if failure := search.run(seconds, self._harm.of, partial(_tick, bar, search)):
                    missed = f"{half} half: {failure}"
                    print(f"warning: {missed}", file=sys.stderr)
        if missed is not None and not self._winners(half):
            raise LazyBenchError(missed)

    def _starts(self, half: str, speedup: float) -> list[Candidate]:
        """What to try first: what was found for less speedup, the scaled reference, and what does well elsewhere."""
        setup, schedules = self._setup, [self._placed(text) for text in _STARTS]
        if KEEPS in self._instead[speedup]:
            schedules.append(self._instead[speedup][KEEPS].schedule)
        importances = [
            replace(setup.importance, **{part: of.get(part, values[0]) for part, values in setup.searched.items()})
            for of in (({"pooling": 31}, plus().changed) if setup.searched else ({},))
        ]
        slower = [trial.candidate for other, trial in self._winners(half).items() if other < speedup]
        return slower[::-1] + [Candidate(schedule, ranking) for ranking, schedule in product(importances, schedules)]

    def _winners(self, half: str) -> dict[float, Trial]:
        found = {speedup: self._searches[half, speedup].best for speedup in self._setup.speedups}
        return {speedup: trial for speedup, trial in found.items() if trial is not None}

    def choose(self, budget: Budget, half: str) -> Trial | None:
        """The fastest of what was found on one half that keeps to a budget, or the least harmful of a speedup."""
        winners, records = self._winners(half), self._setup.of_half(half)
        if budget.what == SPEEDUP:
            return winners.get(budget.limit)
        for _, trial in sorted(winners.items(), reverse=True):
            slow = budget.what == SCORE_LOSS  # to measure
            if (loss(self.answers(trial.candidate, records)) if slow else trial.kl) <= budget.limit:
                return trial
        return None

    def tried(self) -> pd.DataFrame:
        """Every candidate that a search has measured, a row each; see `Trial`."""
        rows = [
            {"half": half, "speedup": speedup, **trial.candidate.columns, **trial._asdict()}
            for (half, speedup), search in self._searches.items()
            for trial in search.trials
        ]
        return pd.DataFrame(rows).drop(columns="candidate")

    def held_out(self) -> pd.DataFrame:
        """What was found on each half, the scaled reference and static pruning, on the records of the other half.

        Returns:
            one row a schedule and record: `half`, the one the schedule was found on or for; `speedup`, the ideal one it
            was made for, without revivals but for what was found; `kind`, `schedule` and `importance`; `found_kl`, the
            mean KL on the half it was found on, in nats; `dataset` and `_id` of the record, its `kl` in nats, and the
            ideal seconds of its whole generation, `unmodified_s` and, with what is revived, `pruned_s`.
        """
        asked = [
            (half, speedup, kind, candidate, trial.kl if kind == CALIBRATED else None)
            for half in self._setup.halves
            for speedup, trial in self._winners(half).items()
            for kind, candidate in {CALIBRATED: trial.candidate, **self._instead[speedup]}.items()
        ]
        rows = []
        for half, speedup, kind, candidate, kl in tqdm(asked, unit="schedule", desc="on the other half"):
            about = {"half": half, "speedup": speedup, "kind": kind, **candidate.columns, "found_kl": kl}
            for record in self._setup.other(half):
                measured = self._folder.measured("kl", candidate, record, self._measure)
                rows.append({**about, "dataset": record.dataset, "_id": record.id, **measured})
        return pd.DataFrame(rows)

    def kl_elsewhere(self, found: Mapping[str, Trial]) -> float:
        """Mean KL, in nats, of what was found by half, each on the records of the other half."""
        return fmean(
            self._folder.measured("kl", trial.candidate, record, self._measure)["kl"]
            for half, trial in found.items()
            for record in self._setup.other(half)
        )

    def _measure(self, candidate: Candidate, record: Record) -> dict[str, float]:
        (kl, rows), tokens = self._harm.of(candidate, record), self._setup.prompts[record.key].ids.shape[1]
        step_s = self._times.step_of(rows)
        pruned_s = self._times.pruned(candidate.schedule, tokens, self._answer_tokens, step_s)
        return {"kl": kl, "unmodified_s": self._times.whole(tokens, self._answer_tokens), "pruned_s": pruned_s}

    def answers(self, candidate: Candidate, records: Sequence[Record]) -> pd.DataFrame:
        """LongBench's scores of whole answers, 0 to 1: `dataset`, `_id`, `unmodified` and `calibrated`."""
        rows = []
        for record in tqdm(records, unit="record", desc=f"scores of {candidate.name}"):
            before, after = (self._folder.measured("score", of, record, self._score) for of in (None, candidate))
            scores = {"unmodified": before["score"], "calibrated": after["score"]}
            rows.append({"dataset": record.dataset, "_id": record.id, **scores})
        return pd.DataFrame(rows)

    def _score(self, candidate: Candidate | None, record: Record) -> dict[str, float]:
        prompt, decode = self._ask(record)
        method = UNMODIFIED if candidate is None else candidate.method
        said = read(answer(method, prompt, decode, seed=0).tokens, prompt)
        return {"score": scoring.score(prompt.builder.facts, said, record.answers, record.all_classes)}

    def write_method(self, budget: Budget, found: Mapping[str, Trial], command: str) -> str:
        """Write the YAML of a budget's method, of the schedule that each half found; returns its config name."""
        config, trials = self._setup.config, list(found.values())
        name = PLUS if any(trial.candidate.importance.changed for trial in trials) else PAPER
        folds = [(trial.candidate.method, self._setup.of_half(half)) for half, trial in found.items()]
        about = {"model": config.model.name, "layers": self._layers, "weights": self._setup.weights}
        about |= {"data": data_label(config.data), "task": config.task, "limit": config.model.limit}
        about |= {"half": config.half, "answer_tokens": config.answer_tokens}
        about["ideal_speedup"] = [round(trial.speedup_with_revivals, 3) for trial in trials]
        about["kl"] = [round(trial.kl, 4) for trial in trials]
        about["kl_on_the_other_half"] = round(self.kl_elsewhere(found), 4)
        head = "\n# ".join([f"Found by: {command}", *(str(trial.candidate.schedule) for trial in trials)])
        text = config_of(head, name, str(budget), folds, about)
        writing.replace(self._folder.found / "method" / f"{name}_{budget.slug}.yaml", text)
        return f"{name}_{budget.slug}"


def _tick(bar: tqdm, search: Search, trial: Trial | None) -> None:
    bar.update(trial is None)
    if trial is not None and (best := search.best) is not None:
        bar.set_postfix_str(f" {len(search.trials)} tried, best KL {best.kl:.3f}: {best.candidate.name}")
