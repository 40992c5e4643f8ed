"""What there is to search: schedules of one ideal speedup, and the importance that ranks tokens."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from itertools import pairwise
from typing import Any

import optuna

from lazybench.calibration.harm import Candidate
from lazybench.calibration.times import Times
from lazyllm import Importance, PruningSchedule

MOST_STAGES = 4
# A stage that keeps less keeps nothing.
_LEAST_KEEP = 0.01
_WEAKEST, _STRONGEST = 0.1, 1.0
# A decode step's time, with what it revives, over that of one that revives nothing.
_SLOWEST = 4.0
_SLOWNESS = "step"
_HALVINGS = 40
_DIGITS = 4


def searchable(importance: Importance, decoding: bool) -> dict[str, Sequence[Any]]:
    """The values to try for parts of an importance, by name: its fields say them as `search` in their metadata.

    Without `decoding`, where answers are of one token, only for those that matter in prefilling.
    """
    searched = [part for part in fields(importance) if "search" in part.metadata]
    return {part.name: part.metadata["search"] for part in searched if decoding or not part.metadata.get("revival")}


@dataclass(frozen=True)
class Space:
    """Candidates of one ideal speedup.

    The number of stages, their layers, their strengths relative to each other, and how slow a decode step is for what
    it revives are free; the speedup then decides how strongly all stages prune: the keeps are `exp(-strength * x)`, for
    one `x`. Whether decode steps are as fast as that shows when the candidate is measured.

    Attributes:
        times: the model's times.
        lengths: prompt lengths in tokens.
        answer_tokens: tokens of a whole generation.
        speedup: the ideal speedup of every candidate's whole generations.
        importance: what ranks the tokens.
        searched: the values to try for parts of the importance, by name.
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
        slowness = trial.suggest_float(_SLOWNESS, 1.0, _SLOWEST) if self.answer_tokens > 1 else 1.0
        schedule = self.schedule(layers, strengths[: len(layers)], slowness)
        parts = {part: trial.suggest_categorical(part, values) for part, values in self.searched.items()}
        return None if schedule is None else Candidate(schedule, replace(self.importance, **parts))

    def parameters(self, candidate: Candidate, slowness: float) -> dict[str, Any] | None:
        """What an optimiser must suggest for a candidate like this one; None for one that is not in the space.

        `slowness` is what its decode steps are thought to have, see `speedup_of`.
        """
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
            found[_SLOWNESS] = min(_SLOWEST, max(1.0, slowness))
        parts = {part: getattr(candidate.importance, part, None) for part in self.searched}
        fits = all(parts[part] in values for part, values in self.searched.items())
        return found | parts if fits else None

    def replay(self, parameters: Mapping[str, Any]) -> Candidate | None:
        """The candidate of parameters that were suggested earlier."""
        return self.suggest(optuna.trial.FixedTrial(dict(parameters)))

    def schedule(
        self, layers: Sequence[int], strengths: Sequence[float], slowness: float = 1.0
    ) -> PruningSchedule | None:
        """The schedule that prunes after `layers`, increasing, with these relative strengths; None if too slow.

        `slowness` is what decode steps are thought to have, see `speedup_of`.
        """

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
