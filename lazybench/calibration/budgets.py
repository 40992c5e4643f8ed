"""What is asked of a schedule."""

from __future__ import annotations

import re
from dataclasses import dataclass

from lazybench.errors import LazyBenchError

SPEEDUP, KL, SCORE_LOSS = "speedup", "kl", "score loss"
_NUMBER = r"\s*(\d*\.?\d+)\s*"
_FORMS = {
    SPEEDUP: (rf"speedup\s*>={_NUMBER}x?", "speedup >= {:g}"),
    KL: (rf"kl\s*<={_NUMBER}(?:nats?)?", "KL <= {:g}"),
    SCORE_LOSS: (rf"score[ _]loss\s*<={_NUMBER}%", "score loss <= {:g}%"),
}


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
        return _FORMS[self.what][1].format(self.limit)

    @property
    def slug(self) -> str:
        """The budget in a file's name."""
        return f"{self.what.replace(' ', '_')}_{self.limit:g}"


def parse(text: str) -> list[Budget]:
    """Budgets with commas between; `LazyBenchError` where one is of another form."""
    found = []
    for part in map(str.strip, text.split(",")):
        read = {what: re.fullmatch(form, part, re.IGNORECASE) for what, (form, _) in _FORMS.items()}
        budget = next((Budget(what, float(of[1])) for what, of in read.items() if of), None)
        if budget is None or (budget.what == SPEEDUP and budget.limit <= 1):
            raise LazyBenchError(
                f"budget={part!r} is no budget, or bounds nothing: give 'speedup >= 2' (above 1), 'KL <= 0.1' or "
                "'score loss <= 1%'"
            )
        found.append(budget)
    return list(dict.fromkeys(found))
