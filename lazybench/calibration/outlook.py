"""What a calibration is going to take, said before it starts."""

from __future__ import annotations

from collections.abc import Callable

from lazybench.calibration.setup import Setup
from lazybench.data import Record


def outlook(setup: Setup, compared: int, seconds: Callable[[Record, int], float]) -> str:
    """One line on how long a calibration takes if nothing of it is done yet and no answer ends early.

    Args:
        setup: what is to be calibrated, and on what.
        compared: how many schedules are measured on each record of the other half.
        seconds: what the unmodified model takes for a record's answer of so many tokens.
    """
    config, learning, measuring, scoring = setup.config, 0.0, 0.0, 0.0
    for half in setup.halves:
        learning += sum(seconds(record, config.answer_tokens) for record in setup.of_half(half))
        for record in setup.other(half):
            measuring += compared * seconds(record, config.answer_tokens)
            answers = 1 + len(setup.budgets) if config.confirm else 0
            scoring += answers * seconds(record, setup.facts[record.dataset].max_new_tokens)
    parts = {
        "of the unmodified model": learning,
        "of search": 60 * config.minutes,
        "to measure what is found": measuring,
        "to score it": scoring,
    }
    said = ", ".join(f"{seconds / 60:.0f} {what}" for what, seconds in parts.items() if seconds)
    return f"about {sum(parts.values()) / 60:.0f} minutes in all, and less if answers end early: {said}"
