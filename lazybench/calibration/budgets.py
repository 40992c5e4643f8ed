"""What is asked of a schedule, and which of those that were found answers it best."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from lazybench.calibration.search import Trial
from lazybench.errors import LazyBenchError

SPEEDUP, KL, SCORE_LOSS = "speedup", "kl", "score loss"
_NUMBER = r"\s*(\d*\.?\d+)\s*"
_FORMS = {
    SPEEDUP: rf"speedup\s*>={_NUMBER}x?",
    KL: rf"kl\s*<={_NUMBER}(?:nats?)?",
    SCORE_LOSS: rf"score[ _]loss\s*<={_NUMBER}%",
}
_SHOWN = {SPEEDUP: "speedup >= {:g}", KL: "KL <= {:g}", SCORE_LOSS: "score loss <= {:g}%"}


@dataclass(frozen=True)
class Budget:
    """A bound: the fastest schedule within a harm, or the least harmful of a speedup.

    Attributes:
        what: `speedup` (the ideal one of whole generations), `kl` (nats) or `score loss` (percent of the unmodified
            model's score).
        limit: at least so much speedup, at most so much of the others.
    """

    what: str
    limit: float

    def __str__(self) -> str:
        return _SHOWN[self.what].format(self.limit)

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
    for part in map(str.strip, text.split(",")):
        read = {what: re.fullmatch(form, part, re.IGNORECASE) for what, form in _FORMS.items()}
        budget = next((Budget(what, float(of[1])) for what, of in read.items() if of), None)
        if budget is None:
            raise LazyBenchError(
                f"budget={part!r} is no budget, or bounds nothing: give 'speedup >= 2', 'KL <= 0.1' or "
                "'score loss <= 1%'"
            )
        if budget.what == SPEEDUP and budget.limit <= 1:
            raise LazyBenchError(f"budget={part!r}: a speedup is above 1")
        found.append(budget)
    return list(dict.fromkeys(found))


def choose(budget: Budget, winners: Mapping[float, Trial], loss: Callable[[Trial], float]) -> Trial | None:
    """The fastest schedule that keeps to a budget, or the least harmful of a speedup; None where none does.

    Args:
        budget: what is asked.
        winners: the best schedule of each speedup.
        loss: a schedule's score loss in percent, on the records that it was found on; slow to measure.
    """
    if budget.what == SPEEDUP:
        return winners.get(budget.limit)
    fastest_first = (winners[speedup] for speedup in sorted(winners, reverse=True))
    harm = loss if budget.what == SCORE_LOSS else lambda trial: trial.kl
    return next((trial for trial in fastest_first if harm(trial) <= budget.limit), None)
