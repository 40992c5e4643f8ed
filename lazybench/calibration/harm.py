"""What pruning does to the next tokens: its divergence from the unmodified model, along that model's own answer."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch

from lazybench.data import Record
from lazybench.errors import LazyBenchError, RecordFailure
from lazybench.methods.lazyllm import EQ1, PAPER, LazyLLM
from lazybench.methods.static_pruning import StaticPruning
from lazybench.model.decoding import Decoder
from lazybench.model.prompts import Prompt
from lazybench.run.divergence import Expected, divergence, expected
from lazyllm import Importance, PruningSchedule

_STATIC = "static_pruning"


@dataclass(frozen=True)
class Candidate:
    """A schedule, and the importance that ranks tokens at its stages."""

    schedule: PruningSchedule
    importance: Importance

    @property
    def method(self) -> LazyLLM:
        """The method that they make."""
        return LazyLLM(PAPER, 1, self.schedule.spec, self.importance.changed or EQ1)

    @property
    def name(self) -> str:
        """Both as text."""
        return f"{self.schedule.spec or 'no pruning'} {self.importance}"

    @property
    def columns(self) -> dict[str, str]:
        """Both as columns of a table."""
        return {"schedule": self.schedule.spec, "importance": str(self.importance)}


@dataclass(frozen=True)
class Static:
    """Static pruning by a schedule of one stage: what one would pick instead."""

    schedule: PruningSchedule

    @property
    def method(self) -> StaticPruning:
        """The method that it makes."""
        ((layer, keep),) = self.schedule.stages
        return StaticPruning(_STATIC, 1, layer, keep)

    @property
    def name(self) -> str:
        """It as text."""
        return f"{self.schedule.spec} {_STATIC}"

    @property
    def columns(self) -> dict[str, str]:
        """It as columns of a table."""
        return {"schedule": self.schedule.spec, "importance": _STATIC}


@dataclass(frozen=True)
class Harmed:
    """What a candidate does to one record.

    Attributes:
        kl: the divergence of its next tokens, in nats.
        rows: tokens computed in each layer at each decode step, int64 (steps, layers).
    """

    kl: float
    rows: torch.Tensor


class CandidateFailure(LazyBenchError):
    """The model does not work when it is pruned like this."""


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

    def of(self, candidate: Candidate | Static, record: Record) -> Harmed:
        """KL(unmodified || pruned) of the next token, in nats: mean over the answer's tokens; and what was computed.

        Raises:
            LazyBenchError: the unmodified model cannot run on the record.
            CandidateFailure: the pruned model's logits are not finite.
            LazyLLMError: the model cannot be pruned like this.
        """
        self.learn(record)
        prompt, decode = self._ask(record)
        try:
            kls, output = divergence(candidate.method, prompt, decode, self._expected[record.key])
        except RecordFailure as failure:
            raise CandidateFailure(f"{candidate.name} on {record.dataset} {record.id}: {failure}") from failure
        if not (kl := float(kls.mean())) < math.inf:
            raise CandidateFailure(f"{candidate.name} on {record.dataset} {record.id}: the divergence is not finite")
        return Harmed(kl, output.stats.rows[1:])

    def learn(self, record: Record) -> None:
        """Have the unmodified model answer a record, once.

        Raises:
            LazyBenchError: it cannot.
        """
        if record.key in self._expected:
            return
        prompt, decode = self._ask(record)
        try:
            self._expected[record.key] = expected(prompt, decode, self._tokens)
        except RecordFailure as error:
            raise LazyBenchError(f"{record.dataset} {record.id} cannot be calibrated on: {error}") from error
