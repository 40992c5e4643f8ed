"""One calibration under way: its records and model, the searches, and what is measured of what they find."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cached_property

import pandas as pd
from tqdm import tqdm
from transformers import PreTrainedModel

from lazybench.calibration import times
from lazybench.calibration.folder import Folder
from lazybench.calibration.found import CALIBRATED, DEPTH, KEEPS, Result
from lazybench.calibration.harm import Candidate, Harm
from lazybench.calibration.plan import Plan
from lazybench.calibration.scaling import scaled_depth, scaled_keeps
from lazybench.calibration.scores import loss, score_of
from lazybench.calibration.scores import records as score_records
from lazybench.calibration.search import Search, Trial
from lazybench.calibration.space import Space
from lazybench.calibration.times import Times
from lazybench.data.record import Record
from lazybench.errors import LazyBenchError
from lazybench.methods.checks import naming
from lazybench.model.decoding import Decoder, decoder_for
from lazybench.model.prompts import Prompt
from lazyllm import Importance, LazyLLMError, PruningSchedule

# Where searches start besides the reference: early and even stages did well wherever they were tried.
_STARTS = ("20%:0.3,50%:0.55", "13%:0.6,27%:0.6,50%:0.6", "23%:0.5,50%:0.5")
# Importances to start from where they are searched.
_IMPORTANCES = (Importance(pooling=31), Importance(queries=8, pooling=7, layers=3, first=4))
_BAR = "{desc} {percentage:3.0f}%|{bar}| {elapsed}<{remaining}{postfix}"


class Study:
    """Measures candidates on a model, and finds the best of them.

    Args:
        plan: the settings and all that follows from them.
        model: the model.
        folder: where everything measured is kept.

    Raises:
        LazyBenchError: a speedup that no schedule reaches, or a reference that does not fit the model.
    """

    def __init__(self, plan: Plan, model: PreTrainedModel, folder: Folder) -> None:
        self._plan = plan
        self._model = model
        self._folder = folder
        self._harm = Harm(model, self._ask, plan.config.answer_tokens)
        self.layers = int(model.config.get_text_config().num_hidden_layers)
        self._reference = _reference(plan.config.reference, self.layers)
        self._searches: dict[tuple[str, float], Search] = {}
        for speedup in plan.speedups:
            if self._space(speedup).deepest is None:
                raise LazyBenchError(
                    f"speedup {speedup:g} is out of reach of every schedule on these prompts: ask for less"
                )

    @cached_property
    def _lengths(self) -> list[int]:
        return [self._ask(record)[0].ids.shape[1] for record in self._plan.records]

    @cached_property
    def _times(self) -> Times:
        longest = max(self._plan.records, key=lambda record: self._ask(record)[0].ids.shape[1])
        measured = self._folder.times(lambda: times.measure(self._model, self._ask(longest)[0].ids))
        return Times.fit(list(measured), list(measured.values()), self.layers)

    def _ask(self, record: Record) -> tuple[Prompt, Decoder]:
        prompt = self._plan.prompt(record)
        return prompt, decoder_for(self._model, self._plan.facts[record.dataset], prompt)

    def _space(self, speedup: float) -> Space:
        return Space(self._times, self._lengths, speedup, self._plan.importance)

    def speedup(self, candidate: Candidate) -> float:
        """The candidate's ideal TTFT speedup over all records' prompts."""
        return self._times.speedup(candidate.schedule, self._lengths)

    def search(self, half: str, seconds: float) -> None:
        """Search on one half of the records, at all speedups together for so long, earlier starts included."""
        each = seconds / len(self._plan.speedups)
        searches = {speedup: self._search(half, speedup) for speedup in self._plan.speedups}
        left = sum(max(0.0, each - search.spent) for search in searches.values())
        if left:
            # Before the clock starts: no search is to pay for what all of them need.
            for record in tqdm(
                self._plan.of_half(half), unit="record", desc=f"the unmodified model on the {half} half"
            ):
                self._harm.learn(record)
        bar = tqdm(total=round(left), bar_format=_BAR, desc=f"{half} half", disable=left == 0)
        with bar:
            for speedup, search in searches.items():
                search.start_from(self._starts(half, speedup))
                _run(search, each, self._harm.of, bar, f"{half} half, {speedup:g}x")

    def _search(self, half: str, speedup: float) -> Search:
        key = half, speedup
        if key not in self._searches:
            journal = self._folder.search(half, self._plan.slug)
            self._searches[key] = Search(journal, f"{speedup:g}", self._space(speedup), self._plan.of_half(half))
        return self._searches[key]

    def _starts(self, half: str, speedup: float) -> list[Candidate]:
        """What to try first: what was found for less speedup, the scaled reference, and what does well elsewhere."""
        slower = [self.winners(half)[other] for other in self._plan.speedups if other < speedup]
        schedules = _known_starts(self.layers)
        schedules += [schedule for schedule in self._scaled(speedup).values() if schedule is not None]
        importances = _IMPORTANCES if self._plan.importance is None else (self._plan.importance,)
        fresh = [Candidate(schedule, importance) for importance in importances for schedule in schedules]
        return [trial.candidate for trial in reversed(slower)] + fresh

    def _scaled(self, speedup: float) -> dict[str, PruningSchedule | None]:
        return {
            KEEPS: scaled_keeps(self._reference, self._times, self._lengths, speedup),
            DEPTH: scaled_depth(self._reference, self._times, self._lengths, speedup),
        }

    def winners(self, half: str) -> dict[float, Trial]:
        """By speedup, the best that a search on one half has found so far."""
        found = {speedup: self._search(half, speedup).best for speedup in self._plan.speedups}
        return {speedup: trial for speedup, trial in found.items() if trial is not None}

    def tried(self, half: str) -> pd.DataFrame:
        """Every candidate that a search on one half has measured."""
        return pd.DataFrame(
            {
                "half": half,
                "speedup": speedup,
                "schedule": trial.candidate.schedule.spec,
                "importance": str(trial.candidate.importance),
                "kl": trial.kl,
                "records": trial.records,
                "complete": trial.complete,
            }
            for speedup in self._plan.speedups
            for trial in self._search(half, speedup).trials
        )

    def held_out(self, half: str) -> list[Result]:
        """What was found on one half, and the scaled reference, measured on the other."""
        records = self._plan.other(half)
        asked: list[tuple[str, float, Candidate, float | None]] = []
        for speedup, trial in self.winners(half).items():
            asked.append((CALIBRATED, speedup, trial.candidate, trial.kl))
            asked += [
                (kind, speedup, Candidate(schedule, Importance()), None)
                for kind, schedule in self._scaled(speedup).items()
                if schedule is not None
            ]
        with tqdm(total=len(asked) * len(records), unit="record", desc=f"{half} half's schedules on the other") as bar:
            return [
                Result(half, kind, speedup, candidate, found, records, self._kl(candidate, records, bar))
                for kind, speedup, candidate, found in asked
            ]

    def _kl(self, candidate: Candidate, records: Sequence[Record], bar: tqdm) -> list[float]:
        return self._folder.measured(
            "kl", candidate, records, lambda record: self._harm.of(candidate, record), lambda: bar.update()
        )

    def loss(self, half: str) -> Callable[[Trial], float]:
        """Gives the score loss, in percent, of a schedule on the half that it was found on."""
        records = self._plan.of_half(half)

        def of(trial: Trial) -> float:
            scored = self.scores(None, records), self.scores(trial.candidate, records)
            return loss(score_records(records, *scored, self._plan.facts))

        return of

    def scores(self, candidate: Candidate | None, records: Sequence[Record]) -> list[float]:
        """LongBench's scores of whole answers, 0 to 1; of the unmodified model's for no candidate."""
        name = "the unmodified model" if candidate is None else candidate.name
        with tqdm(total=len(records), unit="record", desc=f"scores of {name}") as bar:
            return self._folder.measured(
                "score",
                candidate,
                records,
                lambda record: score_of(record, candidate, self._ask, self._plan.facts, self._plan.config.model),
                lambda: bar.update(),
            )


def _reference(text: str, layers: int) -> PruningSchedule:
    """The schedule to compare with, without stages that keep everything."""
    with naming("reference"):
        given = PruningSchedule.parse(text, layers)
        given.check(layers)
    schedule = PruningSchedule(stage for stage in given.stages if stage.keep < 1)
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


def _run(search: Search, seconds: float, kl: Callable[[Candidate, Record], float], bar: tqdm, name: str) -> None:
    began, shown = time.monotonic(), bar.n
    tried = len(search.trials)
    bar.set_postfix_str("")

    def tick(trial: Trial | None) -> None:
        nonlocal tried
        elapsed = min(seconds, time.monotonic() - began)
        bar.update(min(bar.total - bar.n, shown + elapsed - bar.n) if bar.total else 0)
        if trial is not None:
            tried += 1
        best = search.best if trial is not None else None
        bar.set_description(name)
        if best is not None:
            bar.set_postfix_str(f" {tried} tried, best KL {best.kl:.3f}: {best.candidate.name}")

    search.run(seconds, kl, tick)
