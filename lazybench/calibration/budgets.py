"""What is asked of a schedule, and which of those that were found answers it best."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from lazybench.calibration.search import Trial
from lazybench.errors import LazyBenchError

SPEEDUP, KL, SCORE_LOSS = "speedup", "kl", "score loss"
_FORM = re.compile(
    r"(?P<what>speedup|kl|score[ _]loss)\s*(?P<sign>>=|<=)\s*(?P<limit>\d*\.?\d+)\s*(?P<unit>%|x|nats?)?", re.IGNORECASE
)
_SIGNS = {SPEEDUP: ">=", KL: "<=", SCORE_LOSS: "<="}
_UNITS = {SPEEDUP: (None, "x"), KL: (None, "nat", "nats"), SCORE_LOSS: ("%",)}
_EXAMPLES = "'speedup >= 2', 'KL <= 0.1' or 'score loss <= 1%'"


@dataclass(frozen=True)
class Budget:
    """A bound: the fastest schedule within a harm, or the least harmful of a speedup.

    Attributes:
        what: `speedup` (ideal TTFT speedup), `kl` (nats) or `score loss` (percent of the unmodified model's score).
        limit: at least so much speedup, at most so much of the others.
    """

    what: str
    limit: float

    def __str__(self) -> str:
        shown = {SPEEDUP: "speedup", KL: "KL", SCORE_LOSS: "score loss"}[self.what]
        return f"{shown} {_SIGNS[self.what]} {self.limit:g}{'%' if self.what == SCORE_LOSS else ''}"

    @property
    def slug(self) -> str:
        """The budget in a file's name."""
        return f"{self.what.replace(' ', '_')}_{self.limit:g}"


def parse(text: str) -> list[Budget]:
    """Budgets with commas between.

    Raises:
        LazyBenchError: a budget is of another form.
    """
    found = []
    for part in text.split(","):
        read = _FORM.fullmatch(part.strip())
        if read is None:
            raise LazyBenchError(f"budget={part.strip()!r} is no budget: give {_EXAMPLES}")
        what = read["what"].lower().replace("_", " ")
        unit = read["unit"].lower() if read["unit"] else None
        if read["sign"] != _SIGNS[what] or unit not in _UNITS[what]:
            raise LazyBenchError(f"budget={part.strip()!r} bounds nothing: give {_EXAMPLES}")
        limit = float(read["limit"])
        if what == SPEEDUP and limit <= 1:
            raise LazyBenchError(f"budget={part.strip()!r}: a speedup is above 1")
        budget = Budget(what, limit)
        if budget not in found:
            found.append(budget)
    return found


def choose(budget: Budget, winners: Mapping[float, Trial], loss: Callable[[Trial], float]) -> Trial | None:
    """The fastest schedule that keeps to a budget, or the least harmful of a speedup; None where none does.

    Args:
        budget: what is asked.
        winners: the best schedule of each speedup.
        loss: a schedule's score loss in percent, on the records that it was found on; slow to measure.
    """
    if budget.what == SPEEDUP:
        return winners.get(budget.limit)
    for speedup in sorted(winners, reverse=True):
        trial = winners[speedup]
        if (trial.kl if budget.what == KL else loss(trial)) <= budget.limit:
            return trial
    return None
