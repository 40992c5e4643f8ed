"""What pruning does to the next tokens: its divergence from the unmodified model, along that model's own answer."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch

from lazybench.data import Record
from lazybench.errors import LazyBenchError, RecordFailure
from lazybench.methods import Method
from lazybench.methods.lazyllm import EQ1, PAPER, LazyLLM
from lazybench.methods.static_pruning import StaticPruning
from lazybench.model.decoding import Decoder
from lazybench.model.prompts import Prompt
from lazybench.run.divergence import Expected, divergence, expected
from lazyllm import Importance, PruningSchedule


@dataclass(frozen=True)
class Candidate:
    """A schedule, and the importance that ranks tokens at its stages; None is static pruning, of one stage."""

    schedule: PruningSchedule
    importance: Importance | None

    @cached_property
    def method(self) -> Method:
        """The method that they make."""
        if self.importance is None:
            return StaticPruning("static_pruning", 1, *self.schedule.stages[0])
        return LazyLLM(PAPER, schedule=self.schedule.spec, importance=self.importance.changed or EQ1)

    @property
    def name(self) -> str:
        """Both as text."""
        return f"{self.schedule.spec or 'no pruning'} {self.columns['importance']}"

    @property
    def columns(self) -> dict[str, str]:
        """Both as columns of a table."""
        ranking = "static_pruning" if self.importance is None else str(self.importance)
        return {"schedule": self.schedule.spec, "importance": ranking}


class Harmed(NamedTuple):
    """What a candidate does to one record: its divergence, in nats, and what it computes.

    `rows` are the tokens computed in each layer at each decode step, int64 (steps, layers).
    """

    kl: float
    rows: torch.Tensor


class Harm:
    """Measures candidates on records; the unmodified model answers each record once.

    Args:
        ask: a record's prompt, and the decoder with its dataset's settings.
        tokens: answer tokens to compare at most.
    """

    def __init__(self, ask: Callable[[Record], tuple[Prompt, Decoder]], tokens: int) -> None:
        self._ask = ask
        self._tokens = tokens
        self._expected: dict[tuple[str, str], Expected] = {}

    def of(self, candidate: Candidate, record: Record) -> Harmed:
        """KL(unmodified || pruned) of the next token, mean over the answer's tokens, and what was computed.

        Raises:
            LazyBenchError: the unmodified model cannot run on the record, or the pruned model's logits are not finite.
            LazyLLMError: the model cannot be pruned like this.
        """
        self.learn(record)
        try:
            kls, output = divergence(candidate.method, *self._ask(record), self._expected[record.key])
            if not (kl := float(kls.mean())) < math.inf:
                raise RecordFailure("the divergence is not finite")
        except RecordFailure as failure:
            raise LazyBenchError(f"{candidate.name} on {record.dataset} {record.id}: {failure}") from failure
        return Harmed(kl, output.stats.rows[1:])

    def learn(self, record: Record) -> None:
        """Have the unmodified model answer a record, once; `LazyBenchError` where it cannot."""
        if record.key not in self._expected:
            try:
                self._expected[record.key] = expected(*self._ask(record), self._tokens)
            except RecordFailure as error:
                raise LazyBenchError(f"{record.dataset} {record.id} cannot be calibrated on: {error}") from error
