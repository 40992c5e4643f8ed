"""What there is to search: where and how strongly to prune, and by what importance."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import optuna

from lazybench.calibration.harm import Candidate
from lazybench.calibration.scaling import LEAST_KEEP, with_speedup
from lazybench.calibration.times import Times
from lazyllm import Importance, PruningSchedule

MOST_STAGES = 4
_WEAKEST, _STRONGEST = 0.1, 1.0
# Parts of the importance that are searched.
_PARTS: dict[str, tuple[Any, ...]] = {
    "queries": (1, 4, 8, 16, 32),
    "pooling": (1, 7, 15, 31, 63),
    "heads": ("mean", "max"),
    "layers": (1, 2, 3),
    "value_norm": (False, True),
    "first": (0, 4),
    "last": (1, 8, 32),
}


@dataclass(frozen=True)
class Space:
    """Candidates of one ideal speedup.

    The number of stages, their layers and their strengths against each other are free; how strongly all of them prune
    follows from the speedup.

    Attributes:
        times: the model's times.
        lengths: prompt lengths in tokens.
        speedup: the ideal speedup of every candidate.
        importance: by what tokens are ranked; None where that is searched, too.
    """

    times: Times
    lengths: Sequence[int]
    speedup: float
    importance: Importance | None

    @cached_property
    def deepest(self) -> int | None:
        """The last layer that a first stage can stand at; None where no schedule is fast enough."""
        layers = range(self.times.layers - 1)
        fast = [
            layer
            for layer in layers
            if self.times.speedup(PruningSchedule([(layer, LEAST_KEEP)]), self.lengths) >= self.speedup
        ]
        return max(fast, default=None)

    def suggest(self, trial: optuna.trial.BaseTrial) -> Candidate | None:
        """The candidate that an optimiser tries; None where it cannot be fast enough."""
        count = trial.suggest_int("stages", 1, MOST_STAGES)
        layers, strengths = [trial.suggest_int("layer 1", 0, self.deepest)], []
        last = self.times.layers - 2
        for place in range(2, count + 1):
            # As a part of what lies behind the stage before, so that any values make a schedule.
            part = trial.suggest_float(f"depth {place}", 0.0, 1.0)
            room = last - layers[-1]
            if room > 0:
                layers.append(layers[-1] + 1 + min(room - 1, int(part * room)))
        for place in range(1, count + 1):
            strengths.append(trial.suggest_float(f"strength {place}", _WEAKEST, _STRONGEST))
        schedule = with_speedup(self.times, self.lengths, layers, strengths[: len(layers)], self.speedup)
        importance = self.importance or Importance(
            **{part: trial.suggest_categorical(part, values) for part, values in _PARTS.items()}
        )
        return None if schedule is None else Candidate(schedule, importance)

    def parameters(self, candidate: Candidate) -> dict[str, Any] | None:
        """What an optimiser must suggest for a candidate like this one; None for one that is not in the space."""
        stages = [stage for stage in candidate.schedule.stages if stage.keep < 1]
        if not 1 <= len(stages) <= MOST_STAGES or self.deepest is None or stages[0].layer > self.deepest:
            return None
        powers = _relative_strengths(candidate.schedule)
        found: dict[str, Any] = {"stages": len(stages), "layer 1": stages[0].layer}
        last = self.times.layers - 2
        for place, (before, stage) in enumerate(pairwise(stages), start=2):
            found[f"depth {place}"] = (stage.layer - before.layer - 0.5) / (last - before.layer)
        found |= {f"strength {place}": power for place, power in enumerate(powers, start=1)}
        if self.importance is None:
            found |= {part: getattr(candidate.importance, part) for part in _PARTS}
            if any(found[part] not in values for part, values in _PARTS.items()):
                return None
        return found

    def replay(self, parameters: Mapping[str, Any]) -> Candidate | None:
        """The candidate of parameters that were suggested earlier."""
        return self.suggest(optuna.trial.FixedTrial(dict(parameters)))


def _relative_strengths(schedule: PruningSchedule) -> list[float]:
    strengths = [-math.log(max(LEAST_KEEP, stage.keep)) for stage in schedule.stages if stage.keep < 1]
    return [max(_WEAKEST, strength / max(strengths)) for strength in strengths]
